"""``pairmq plugins``: which transports, observers and commands are installed, and which are broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import typer
from rich.table import Table
from rich.text import Text

from pairmq.cli._common import Json, examples
from pairmq.cli._extensions import Extension, extensions
from pairmq.cli._output import FAIL, cells, complain, put_json, stdout_console
from pairmq.cli._values import CommandFailed
from pairmq.plugins import PluginInfo, registry
from pairmq.transport import Capabilities

EPILOG = examples("pairmq plugins", "pairmq plugins --json")


def plugins(ctx: typer.Context, json: Json = False) -> int:
    """List the installed transports, observers and commands of other distributions.

    Exit status: 0 when all are usable, 1 when one is broken or two claim the same URL scheme.
    """
    found = registry.check()
    conflicts = registry.conflicts()
    commands = [(extension, _problem(extension)) for extension in extensions(ctx).values()]
    if json:
        put_json(
            {
                "plugins": _as_json(found),
                "commands": [
                    {"name": extension.name, "distribution": extension.distribution, "error": error}
                    for extension, error in commands
                ],
                "conflicts": list(conflicts),
            },
            indent=2,
        )
    else:
        _show(found, commands)
        for conflict in conflicts:
            complain(conflict)
    broken = any(plugin.error for plugin in found) or any(error for _, error in commands)
    return 1 if conflicts or broken else 0


def can(capabilities: Capabilities) -> list[str]:
    return [name.replace("_", "-") for name, value in asdict(capabilities).items() if value is True]


def _problem(extension: Extension) -> str | None:
    try:
        extension.load()
    except CommandFailed as error:
        return str(error)
    return None


def _show(installed: Sequence[PluginInfo], commands: Sequence[tuple[Extension, str | None]]) -> None:
    console = stdout_console()
    if not installed and not commands:
        console.print("no plugins installed: e.g. pip install pairmq-redis")
        return
    blocks: list[_Block] = []
    for plugin in installed:
        origin = plugin.distribution or "registered manually"
        if plugin.error:
            blocks.append(_Block(plugin.name, f"BROKEN, of {origin}", [plugin.error], FAIL))
        for record in plugin.transports:
            schemes = " ".join(f"{scheme}://" for scheme in record.schemes)
            abilities = ", ".join(can(record.capabilities))
            blocks.append(
                _Block(record.name, f"transport of {origin}", [schemes, record.description, f"can: {abilities}"])
            )
        for observer in plugin.observers:
            kind = "observer, automatic," if observer.automatic else "observer"
            blocks.append(_Block(observer.name, f"{kind} of {origin}", [observer.description]))
    for extension, error in commands:
        kind = "BROKEN command" if error else "command"
        block = _Block(extension.name, f"{kind} of {extension.distribution}", [error or ""], FAIL if error else None)
        blocks.append(block)
    # Blocks, since six columns of this kind of text are not readable in eighty characters.
    listing = Table.grid(padding=(0, 2, 1, 0))
    listing.add_column(no_wrap=True)
    for block in blocks:
        name, *lines = cells([block.name, block.origin, *filter(None, block.lines)], block.style)
        name.stylize("bold")
        listing.add_row(name, Text("\n").join(lines))
    console.print(listing)


class _Block(NamedTuple):
    """The description of one of them: the lines beside its name."""

    name: str
    origin: str
    lines: Sequence[str]
    style: str | None = None


def _as_json(installed: Sequence[PluginInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "error": plugin.error,
            "transports": [
                {
                    "name": record.name,
                    "schemes": list(record.schemes),
                    "description": record.description,
                    "capabilities": asdict(record.capabilities),
                    "controllable": record.broker_control is not None,
                }
                for record in plugin.transports
            ],
            "observers": [
                {"name": record.name, "description": record.description, "automatic": record.automatic}
                for record in plugin.observers
            ],
        }
        for plugin in installed
    ]

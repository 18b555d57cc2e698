"""``pairmq plugins``: which transports, observers and commands are installed, and which are broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import typer

from pairmq.cli._common import Json, examples
from pairmq.cli._errors import CommandFailed
from pairmq.cli._extensions import ExtensibleGroup, Extension
from pairmq.cli._output import FAIL, cells, complain, put_json, stdout_console, table
from pairmq.plugins import Registry, registry
from pairmq.transport import Capabilities


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=examples("pairmq plugins", "pairmq plugins --json"))(plugins)


def plugins(ctx: typer.Context, json: Json = False) -> int:
    """List the installed transports, observers and commands of other distributions.

    Exit status: 0 when all are sound, 1 when one is broken or two claim the same URL scheme.
    """
    found = registry.plugins
    conflicts = registry.conflicts()
    group = ctx.find_root().command
    commands = [
        (extension, _problem(extension))
        for extension in (group.extensions if isinstance(group, ExtensibleGroup) else ())
    ]
    if json:
        put_json(
            {
                "plugins": _as_json(registry),
                "commands": [
                    {"name": extension.name, "distribution": extension.distribution, "error": error}
                    for extension, error in commands
                ],
                "conflicts": list(conflicts),
            },
            indent=2,
        )
    else:
        _show(registry, commands)
        for conflict in conflicts:
            complain(conflict)
    broken = any(plugin.error for plugin in found) or any(error for _, error in commands)
    return 1 if conflicts or broken else 0


def can(capabilities: Capabilities) -> list[str]:
    """Name what a transport can do."""
    return [name.replace("_", "-") for name, value in asdict(capabilities).items() if value is True]


def _problem(extension: Extension) -> str | None:
    try:
        extension.load()
    except CommandFailed as error:
        return str(error)
    return None


def _show(installed: Registry, commands: Sequence[tuple[Extension, str | None]]) -> None:
    console = stdout_console()
    if not installed.plugins and not commands:
        console.print("no plugins installed: e.g. pip install 'pairmq-redis[memory]'")
        return
    listing = table("name", "kind", "schemes", "distribution", "can", "about")
    for plugin in installed.plugins:
        origin = plugin.distribution or "registered by hand"
        if plugin.error:
            listing.add_row(*cells((plugin.name, "BROKEN", "", origin, "", plugin.error), FAIL))
        for record in plugin.transports:
            schemes = " ".join(f"{scheme}://" for scheme in record.schemes)
            listing.add_row(
                *cells(
                    (record.name, "transport", schemes, origin, " ".join(can(record.capabilities)), record.description)
                )
            )
        for observer in plugin.observers:
            kind = "observer, automatic" if observer.automatic else "observer"
            listing.add_row(*cells((observer.name, kind, "", origin, "", observer.description)))
    for extension, error in commands:
        row = (extension.name, "BROKEN" if error else "command", "", extension.distribution, "", error or "")
        listing.add_row(*cells(row, FAIL if error else None))
    console.print(listing)


def _as_json(installed: Registry) -> list[dict[str, Any]]:
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
        for plugin in installed.plugins
    ]

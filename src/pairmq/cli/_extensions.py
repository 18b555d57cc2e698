"""The subcommands: PairMQ's own, and those that other distributions bring by the entry points ``pairmq.commands``.

An entry point's name is the subcommand, its value a Typer application or a function. It is imported when the subcommand
is called or its help is shown, never else: ``pairmq --help`` lists it by the distribution that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as command_of
from typer.main import get_group

from pairmq._version import installed as installed_with
from pairmq.cli._values import CommandFailed

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "pairmq.commands"


@dataclass(frozen=True, slots=True)
class Extension:
    """A subcommand of another distribution."""

    entry_point: EntryPoint
    distribution: str

    @property
    def name(self) -> str:
        return self.entry_point.name

    def load(self) -> Any:
        """Import it. Raises `CommandFailed`, which names the distribution."""
        try:
            found = self.entry_point.load()
            if not isinstance(found, typer.Typer):
                if not callable(found):
                    raise TypeError(f"a {type(found).__name__} is neither a Typer application nor a function")
                function, found = found, typer.Typer(pretty_exceptions_enable=False, add_completion=False)
                found.command()(function)
            command = command_of(found)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin may fail in any way at all, SystemExit at import included
            from pairmq.plugins._manager import described  # slow to import

            raise CommandFailed(
                f"the command {self.name!r} of {self.distribution} is broken: {described(error)}"
            ) from None
        command.name = self.name
        return command


def installed(taken: Iterable[str] = ()) -> tuple[Extension, ...]:
    """Find those that are installed, by name; of two of one name the distribution first in the alphabet has it."""
    found: dict[str, Extension] = {}
    for distribution in installed_with(GROUP):
        for entry_point in distribution.entry_points:
            if entry_point.name in taken:
                continue
            extension = Extension(entry_point, distribution.name)
            other = found.setdefault(extension.name, extension)
            if extension.distribution < other.distribution:
                found[extension.name] = extension
    return tuple(found[name] for name in sorted(found))


# In the order of the help; each is in a module of its name: a function and its `EPILOG`, or a Typer `group`.
COMMANDS = (
    "demo",
    "send",
    "receive",
    "syphon",
    "status",
    "dashboard",
    "ping",
    "doctor",
    "plugins",
    "cost",
    "simulate",
    "conformance",
    "switch",
    "backlog",
    "entity",
    "journal",
    "pipeline",
)


class Commands(TyperGroup):
    """PairMQ's commands, and after them those that other distributions bring; only the called one is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *extensions(ctx)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a subcommand; one of another distribution as what lists and completes it, without an import."""
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.commands[cmd_name] = _own(cmd_name, ctx)
        extension = extensions(ctx).get(cmd_name) if cmd_name not in COMMANDS else None
        return _Listed(extension) if extension is not None else super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand that is called, and import it where need be."""
        if args[0] not in self.list_commands(ctx):
            # The parser suggests only what it has made.
            for close in get_close_matches(args[0], COMMANDS):
                self.get_command(ctx, close)
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, _Listed):
            try:
                command = command.extension.load()
                show_no_values(command, command.context_class(command, info_name=name, parent=ctx))
            except CommandFailed:
                # Not during shell completion.
                if not ctx.resilient_parsing:
                    raise
        return name, command, rest


def _own(name: str, context: Any) -> Any:
    module, application = import_module(f"pairmq.cli._{'entity' if name == 'ping' else name}"), typer.Typer()
    if hasattr(module, name):
        application.command(epilog=module.EPILOG)(getattr(module, name))
    else:
        application.add_typer(module.group, name=name)
    command: Any = get_group(application).commands[name]
    # For the names of its option --help.
    show_no_values(command, command.context_class(command, info_name=name, parent=context))
    return command


def extensions(context: Any) -> dict[str, Extension]:
    """The subcommands of other distributions by name, none of them imported; looked for once in a command line."""
    found: dict[str, Extension] | None = context.meta.get(GROUP)
    if found is None:
        found = context.meta[GROUP] = {extension.name: extension for extension in installed(COMMANDS)}
    return found


class _Listed(TyperCommand):
    """Placeholder for a subcommand that is not imported yet."""

    def __init__(self, extension: Extension) -> None:
        super().__init__(extension.name, help=f"From {extension.distribution}.")
        self.extension = extension


def show_no_values(command: Any, context: Any) -> None:
    """Omit the ``<bool>`` and ``<int>`` that Typer writes after flags, which take no value."""
    for option in (*command.params, command.get_help_option(context)):
        takes_none = getattr(option, "is_flag", False) or getattr(option, "count", False)
        if takes_none and option.metavar is None:
            option.metavar = ""
    for name, below in getattr(command, "commands", {}).items():
        show_no_values(below, below.context_class(below, info_name=name, parent=context))

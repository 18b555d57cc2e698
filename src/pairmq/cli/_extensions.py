"""Subcommands that other distributions bring: the entry points of the group ``pairmq.commands``.

An entry point's name is the subcommand, its value a Typer application or a function. It is imported when the subcommand
is called or its help is shown, never else: ``pairmq --help`` lists it by the distribution that it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as command_of

from pairmq.cli._values import CommandFailed

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
            raise CommandFailed(
                f"the command {self.name!r} of {self.distribution} is broken: {_described(error)}"
            ) from None
        command.name = self.name
        return command


def installed(taken: Iterable[str] = ()) -> tuple[Extension, ...]:
    """Find the subcommands that are installed, by name; nothing is imported.

    Names of PairMQ's own commands are ``taken``. Of two with one name the distribution that comes first in the alphabet
    has it.
    """
    found: dict[str, Extension] = {}
    for distribution in distributions():
        for entry_point in distribution.entry_points:
            if entry_point.group != GROUP or entry_point.name in taken:
                continue
            extension = Extension(entry_point, distribution.name)
            other = found.setdefault(extension.name, extension)
            if extension.distribution < other.distribution:
                found[extension.name] = extension
    return tuple(found[name] for name in sorted(found))


class Unmade(MutableMapping[str, Any]):
    """Commands by their names, each made when it is first asked for."""

    def __init__(self, names: Iterable[str], make: Callable[[str], Any]) -> None:
        self._made: dict[str, Any] = dict.fromkeys(names)
        self._make = make

    def __getitem__(self, name: str) -> Any:
        if self._made[name] is None:
            self._made[name] = self._make(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


class ExtensibleGroup(TyperGroup):
    """PairMQ's commands, and after them those that other distributions bring."""

    _extensions: dict[str, Extension] | None = None

    def make_context(self, *arguments: Any, **named: Any) -> Any:
        """Begin a command line; what was installed when the one before began counts no more."""
        self._extensions = None
        return super().make_context(*arguments, **named)

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands, *self._found()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a subcommand; one of another distribution as what lists and completes it, without an import."""
        own = super().get_command(ctx, cmd_name)
        extension = self._found().get(cmd_name) if own is None else None
        return own if extension is None else _Listed(extension)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the subcommand that is called, and import it where need be."""
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

    @property
    def extensions(self) -> tuple[Extension, ...]:
        """The subcommands of other distributions, none of them imported."""
        return tuple(self._found().values())

    def _found(self) -> dict[str, Extension]:
        if self._extensions is None:
            self._extensions = {extension.name: extension for extension in installed(self.commands)}
        return self._extensions


class _Listed(TyperCommand):
    """Placeholder for a subcommand that is not imported yet."""

    def __init__(self, extension: Extension) -> None:
        super().__init__(extension.name, help=f"From {extension.distribution}.")
        self.extension = extension


def _described(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # a plugin's exception is a plugin's code too
        return name


def show_no_values(command: Any, context: Any) -> None:
    """Omit the ``<bool>`` and ``<int>`` that Typer writes after flags, which take no value."""
    for option in (*command.params, command.get_help_option(context)):
        takes_none = getattr(option, "is_flag", False) or getattr(option, "count", False)
        if takes_none and option.metavar is None:
            option.metavar = ""
    commands = getattr(command, "commands", {})
    if isinstance(commands, Unmade):
        return  # what makes them does this
    for name, below in commands.items():
        show_no_values(below, below.context_class(below, info_name=name, parent=context))

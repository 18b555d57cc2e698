"""What the parser's help says of options that take no value."""

from __future__ import annotations

from typing import Any


def show_no_values(command: Any, context: Any) -> None:
    """Leave out the ``<bool>`` and ``<int>`` that Typer writes behind flags: nobody may give them a value.

    Args:
        command: the parser's command, with all that are below it.
        context: the parser's context for it, which knows the names of the option for help.
    """
    for option in (*command.params, command.get_help_option(context)):
        takes_none = getattr(option, "is_flag", False) or getattr(option, "count", False)
        if takes_none and option.metavar is None:
            option.metavar = ""
    for name, below in getattr(command, "commands", {}).items():
        show_no_values(below, below.context_class(below, info_name=name, parent=context))

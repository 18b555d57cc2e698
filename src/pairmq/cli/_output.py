"""Where commands write: results on stdout, everything for people's eyes on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairmq.cli._errors import OutputClosed, printable

# Nothing that is printed is ever read as markup: names, bodies and error texts come from elsewhere.
_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}

OK, WARN, FAIL = "green", "yellow", "red"


_FILE_WIDTH = 160  # columns of tables where no terminal sets a width


def stdout_console() -> Console:
    """A console on stdout."""
    return Console(width=None if sys.stdout.isatty() else _FILE_WIDTH, **_PLAIN)


def stderr_console() -> Console:
    """A console on stderr."""
    return Console(stderr=True, **_PLAIN)


def say(text: str, *, style: str | None = None) -> None:
    """Print a line on stdout."""
    stdout_console().print(Text(text, style=style or ""), soft_wrap=True)


def note(text: str, *, style: str | None = None) -> None:
    """Print a line on stderr."""
    stderr_console().print(Text(text, style=style or ""), soft_wrap=True)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    note(f"warning: {printable(text)}", style=WARN)


def complain(text: str) -> None:
    """Print what ended the command on stderr, as one line."""
    note(f"error: {printable(text.strip())}", style=FAIL)


def put_json(value: Any, *, indent: int | None = None) -> None:
    """Print one JSON document on stdout, a line unless indented."""
    try:
        sys.stdout.write(json.dumps(value, indent=indent) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def table(*columns: str | tuple[str, str]) -> Table:
    """An airy table; a column given as ``(title, "right")`` holds numbers."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        title, side = (column, "left") if isinstance(column, str) else column
        made.add_column(title, justify="right" if side == "right" else "left", no_wrap=side == "right", overflow="fold")
    return made


def cells(values: Sequence[object], style: str | None = None) -> list[Text]:
    """A row's cells, safe to print."""
    return [Text(printable(str(value)), style=style or "") for value in values]

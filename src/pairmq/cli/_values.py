"""What people write on the command line, as values; and values, as people read them."""

from __future__ import annotations

import math

import typer

from pairmq.model import ConfigurationError
from pairmq.pair import parse_duration


def duration(text: str) -> float:
    """Read ``10``, ``10s``, ``500ms``, ``5min``, ``1h`` or ``2d`` as seconds.

    Raises:
        typer.BadParameter: it is none of these.
    """
    try:
        return parse_duration(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def positive(text: str) -> float:
    """Read a number above 0.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"{shortened(text)} is no number above 0")
    return value


def shortened(text: str) -> str:
    """What somebody wrote, for an error; a URL in the wrong place may hold a password, and cut it would not look so."""
    return "a URL" if "://" in text else repr(text[:40])


def short_duration(seconds: float) -> str:
    """Write seconds for people: ``870 ms``, ``4.2 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def grouped(number: float) -> str:
    """Write a count with thin groups: ``28 800``."""
    return f"{number:,.0f}".replace(",", " ")


def plural(number: int, word: str) -> str:
    """``1 message``, ``2 messages``, ``28 800 messages``."""
    if number == 1:
        return f"1 {word}"
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}s"
    return f"{grouped(number)} {many}"


def rate(per_second: float) -> str:
    """Write messages a second."""
    return f"{per_second:.1f}/s" if per_second < 10 else f"{grouped(per_second)}/s"

"""Values, as people write them on the command line and in price lists and as they read them; a command's errors."""

from __future__ import annotations

import math
import os
import re
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import typer
from typer import Option

from pairmq.model import ConfigurationError, PairMQError, Price

# Not from "the redis:// URL", as errors begin, to the "user:password@host" of their advice.
_LOGIN = re.compile(r"://(?! URL).*@", re.DOTALL)
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


class CommandFailed(PairMQError):
    """The command could not do what it was asked; exit status 1."""


class BadUsage(PairMQError):
    """The command was asked for something that can't work; exit status 2."""


class OutputClosed(Exception):  # not an error of the command
    """stdout was closed by its reader. Not an `OSError`, which the parser would handle itself."""


def file_problem(path: str, error: OSError) -> str:
    return f"{without_secrets(printable(os.fspath(path)))}: {error.strerror or error}"


def without_secrets(text: str) -> str:
    """Leave out what may be a password: a URL or connection string in a wrong place is repeated by what refuses it."""
    return _KEY.sub(r"\1…", _LOGIN.sub("://…@", text))


def printable(text: str) -> str:
    """Escape what would steer a terminal: names, bodies and error texts come from elsewhere."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def duration(text: str) -> float:
    """Read ``10``, ``10s``, ``500ms``, ``5min``, ``1h`` or ``2d`` as seconds."""
    from pairmq.pair import parse_duration

    try:
        return parse_duration(text)
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def Duration(flag: str, help: str, **more: Any) -> Any:
    return Option(flag, parser=duration, metavar="DURATION", help=help, **more)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"{shortened(text)} is not a number above 0")
    return value


def shortened(text: str) -> str:
    """The input, for an error; a URL in the wrong place may hold a password, also when truncated."""
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
    """``1 message``, ``2 messages``, ``28 800 messages``, ``2 processes``."""
    if number == 1:
        return f"1 {word}"
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{grouped(number)} {many}"


def rate(per_second: float) -> str:
    return f"{per_second:.1f}/s" if per_second < 10 else f"{grouped(per_second)}/s"


_MOST_DIGITS = 15
"""Before and behind the point: arithmetic with 1e999999 would take forever."""


def read_prices(path: str) -> tuple[Price, Price]:
    """Read a price list: what the primary and the secondary charge."""
    import tomllib  # few command lines name a price list

    try:
        document = tomllib.loads(Path(path).read_text("utf-8"), parse_float=Decimal)
    except OSError as error:
        raise BadUsage(f"price list {file_problem(path, error)}") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and a path that can't be
        raise BadUsage(f"price list {path} is not valid TOML: {error}") from None
    unknown = sorted(set(document) - {"primary", "secondary"})
    if unknown:
        raise BadUsage(f"price list {path}: unknown {', '.join(unknown)}; known are the tables primary and secondary")
    return _price(path, document, "primary"), _price(path, document, "secondary")


def _price(path: str, document: dict[str, Any], side: str) -> Price:
    entries = document.get(side, {})
    if not isinstance(entries, dict) or set(entries) - {"per_million", "base"}:
        raise BadUsage(f"price list {path}: the table {side} has per_million and base, nothing else")
    return Price(**{name: price_number(f"price list {path}: {side}.{name}", value) for name, value in entries.items()})


def price_number(where: str, value: object) -> Decimal:
    try:
        money = Decimal(str(value))
    except (InvalidOperation, ValueError):  # the latter of a number of thousands of digits
        raise BadUsage(f"{where} must be a number of at least 0") from None
    if isinstance(value, bool) or not money.is_finite() or money < 0:
        raise BadUsage(f"{where} is {shortened(str(value))}: it must be a number of at least 0")
    if money and abs(money.adjusted()) > _MOST_DIGITS:
        raise BadUsage(
            f"{where} has more than {_MOST_DIGITS} digits before or after the decimal point: give an amount of money"
        )
    return money

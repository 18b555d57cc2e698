"""Price lists: what brokers charge, from a file or an option."""

from __future__ import annotations

import tomllib
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from pairmq.cli._errors import BadUsage, file_problem
from pairmq.cli._values import shortened
from pairmq.model import Price

_MOST_DIGITS = 15
"""Before and behind the point: arithmetic with 1e999999 would take for ever."""


def read_prices(path: str) -> tuple[Price, Price]:
    """Read a price list: what the primary and the secondary charge.

    Args:
        path: a TOML file with the tables ``primary`` and ``secondary``, each with ``per_million`` and ``base``.

    Raises:
        BadUsage: it can't be read, or is no such list.
    """
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"), parse_float=Decimal)
    except OSError as error:
        raise BadUsage(f"price list {file_problem(path, error)}") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and a path that can't be
        raise BadUsage(f"price list {path} is no TOML: {error}") from None
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
    """Take a number of money that somebody wrote.

    Args:
        where: it stands, for the error.
        value: text or a number.

    Raises:
        BadUsage: it is no number of at least 0.
    """
    try:
        money = Decimal(str(value))
    except (InvalidOperation, ValueError):  # the latter of a number of thousands of digits
        raise BadUsage(f"{where} must be a number of at least 0") from None
    if isinstance(value, bool) or not money.is_finite() or money < 0:
        raise BadUsage(f"{where} is {shortened(str(value))}: it must be a number of at least 0")
    if money and abs(money.adjusted()) > _MOST_DIGITS:
        raise BadUsage(
            f"{where} has more than {_MOST_DIGITS} digits before or behind the point: give a number of money"
        )
    return money

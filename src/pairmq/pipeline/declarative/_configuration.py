"""What a spec's ``configuration`` says to PairMQ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from pairmq.model import ConfigurationError, Price

JOURNAL = "spark.pairmq.journal"
PATIENCE = "spark.pairmq.patience"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_USUAL_PATIENCE = 300.0  # s
_FREE = Price()
_MOST_DIGITS = 15  # before and behind the point: arithmetic with 1e999999 would take for ever


def is_url(journal: str) -> bool:
    """Tell whether the place of a journal is a URL, and not a directory."""
    return _URL.match(journal) is not None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is asked of a pipeline.

    Args:
        journal: a directory, or a URL that Spark can read.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
        primary: what the primary charges.
        secondary: what the secondary charges.
    """

    journal: str
    patience: float = _USUAL_PATIENCE
    primary: Price = _FREE
    secondary: Price = _FREE

    def settings(self) -> dict[str, str]:
        """Give the same as names and values of a spec's ``configuration``."""
        return {
            JOURNAL: self.journal,
            PATIENCE: repr(self.patience),
            **{
                _price_name(side, part): f"{getattr(price, part):f}"
                for side, price in (("primary", self.primary), ("secondary", self.secondary))
                for part in ("per_million", "base")
            },
        }


def read_configuration(get: Callable[[str], str | None]) -> Configuration:
    """Read the configuration of a session.

    Args:
        get: gives the value of a name; None where it is not set.

    Raises:
        ConfigurationError: no journal is named, or a value can't be.
    """
    journal = get(JOURNAL)
    if not journal:
        raise ConfigurationError(f"no journal: set {JOURNAL} under `configuration:` in the pipeline's spec")
    patience = get(PATIENCE)
    return Configuration(
        journal=journal,
        patience=_USUAL_PATIENCE if patience is None else _seconds(patience),
        primary=_price("primary", get),
        secondary=_price("secondary", get),
    )


def _price_name(side: str, part: str) -> str:
    return f"spark.pairmq.{side}.{part}"


def _price(side: str, get: Callable[[str], str | None]) -> Price:
    names = {part: _price_name(side, part) for part in ("per_million", "base")}
    return Price(**{part: _money(name, get(name) or "0") for part, name in names.items()})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{PATIENCE} is {text[:50]!r}: it must be a number of seconds of at least 0")
    return seconds


def _money(name: str, text: str) -> Decimal:
    try:
        money = Decimal(text)
    except InvalidOperation:
        money = Decimal("nan")
    if not money.is_finite() or money < 0 or (money and abs(money.adjusted()) > _MOST_DIGITS):
        raise ConfigurationError(f"{name} is {text[:50]!r}: it must be a number of money of at least 0")
    return money

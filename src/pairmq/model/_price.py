"""What a broker charges (SPEC 7.9)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

DAYS_A_MONTH = 30
"""What the base charge of a `Price` is for."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one broker charges.

    Args:
        per_million: for a million operations.
        base: fixed charge for a month of 30 days.
    """

    per_million: Decimal = Decimal(0)
    base: Decimal = Decimal(0)

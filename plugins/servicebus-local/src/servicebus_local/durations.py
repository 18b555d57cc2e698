"""Durations as the service writes them: ISO 8601, with its largest time span for "never"."""

from __future__ import annotations

import re
from decimal import Decimal

UNLIMITED = "P10675199DT2H48M5.4775807S"
"""The largest time span of the service's own platform; it stands for no limit (Service Bus documentation: reference of
``QueueDescription``)."""

_DAY = 86_400
# Clients round its fraction, or take a little off.
_UNLIMITED_FROM = 10_675_199 * _DAY

# Years and months are no durations: how long they are depends on when they begin.
_FORM = re.compile(
    r"P(?=.)(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


def parse_duration(text: str) -> float | None:
    """Read a duration such as ``P1DT2H3M4.5S``; returns seconds, or None for one without end."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"invalid duration {text[:60]!r}; use ISO 8601, e.g. PT30S")
    weeks, days, hours, minutes = (int(found[name] or 0) for name in ("weeks", "days", "hours", "minutes"))
    whole = ((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60
    seconds = float(whole + Decimal(found["seconds"] or 0))
    return None if seconds >= _UNLIMITED_FROM else seconds


def format_duration(seconds: float | None) -> str:
    """Write seconds, to the ten-millionth that the service keeps; None is without end."""
    if seconds is None or seconds >= _UNLIMITED_FROM:
        return UNLIMITED
    ticks = round(Decimal(repr(float(seconds))) * 10_000_000)
    whole, fraction = divmod(ticks, 10_000_000)
    days, rest = divmod(whole, _DAY)
    hours, rest = divmod(rest, 3600)
    minutes, last = divmod(rest, 60)
    text = "".join(f"{number}{letter}" for number, letter in ((hours, "H"), (minutes, "M")) if number)
    if fraction:
        text += f"{last}.{fraction:07d}".rstrip("0") + "S"
    elif last:
        text += f"{last}S"
    if not text and not days:
        text = "0S"
    return "P" + (f"{days}D" if days else "") + (f"T{text}" if text else "")

"""Properties of entities under the names that the service gives them, in XML and in settings files; and durations.

The names are those of the service's data contracts (Service Bus documentation: reference of the REST API, "Create
queue", "Create topic", "Create subscription"); the fields of the descriptions are the same words in Python's spelling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any, TypeVar

from servicebus_local.broker import (
    CORRELATION_FIELDS,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)

Description = TypeVar("Description", QueueDescription, TopicDescription, SubscriptionDescription)

UNLIMITED = "P10675199DT2H48M5.4775807S"
"""The largest time span of the service's own platform; it stands for no limit (Service Bus documentation: reference of
``QueueDescription``)."""

_DAY = 86_400
# Clients round its fraction, or take a little off.
_UNLIMITED_FROM = 10_675_199 * _DAY

# Years and months are not durations: how long they are depends on when they begin.
_FORM = re.compile(
    r"P(?=.)(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


class PropertyError(ValueError):
    """A property's value can't be read; the text names the property."""


def xml_name(name: str) -> str:
    """The service's spelling of a name, such as ``ReplyTo`` for ``reply_to``."""
    return "".join(part.capitalize() for part in name.split("_"))


def read_flag(text: str) -> bool:
    """Read ``true`` or ``false`` as XML Schema allows them to be written."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text[:60]!r} is neither true nor false") from None


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


def _number(text: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise ValueError(f"{text[:60]!r} is not a number")
    return int(digits)


def _status(text: str) -> EntityStatus:
    for status in EntityStatus:
        if status.lower() == text.strip().lower():
            return status
    raise ValueError(f"invalid value {text[:60]!r}; use {', '.join(EntityStatus)}")


def _text(text: str) -> str | None:
    # An empty text takes a forwarding or the metadata away.
    return text or None


_READERS: Mapping[str, Callable[[str], object]] = {
    "bool": read_flag,
    "int": _number,
    "float": parse_duration,
    "str": _text,
    "EntityStatus": _status,
}
"""By the type of a field, whose name is the service's in another spelling; all floats are durations."""


def _properties(description: type) -> dict[str, tuple[str, str]]:
    """Of a kind of entity: the service's names of its properties, with field and type."""
    return {xml_name(field.name): (field.name, str(field.type).partition(" ")[0]) for field in fields(description)}


def read_properties(base: Description, given: Mapping[str, str]) -> Description:
    """Change a description by texts under the service's names; unknown names are skipped. Raises `PropertyError`."""
    changes: dict[str, Any] = {}
    for name, (field, kind) in _properties(type(base)).items():
        if name in given:
            try:
                changes[field] = _READERS[kind](given[name])
            except ValueError as error:
                raise PropertyError(f"{name}: {error}") from None
    return replace(base, **changes)


def write_properties(description: QueueDescription | TopicDescription | SubscriptionDescription) -> dict[str, str]:
    """The text of each property by the service's name; unset texts are left out."""
    written = {}
    for name, (field, kind) in _properties(type(description)).items():
        value = getattr(description, field)
        if kind == "float":
            written[name] = format_duration(value)
        elif value is not None:
            written[name] = str(value).lower() if kind == "bool" else str(value)
    return written


CORRELATION = {xml_name(field): field for field in CORRELATION_FIELDS}
"""The fields of a correlation filter by the service's names."""

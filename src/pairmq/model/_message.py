"""A message as PairMQ carries it, the same for every broker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

PropertyValue: TypeAlias = str | bytes | bool | int | float | datetime | UUID
"""What an application property may hold: each transport carries every one of these types there and back, unchanged."""

MAX_TIME_TO_LIVE = timedelta(days=10_675_199).total_seconds()
"""Longest time-to-live in seconds (about 29 000 years): more than any broker keeps, so it means *unlimited* to all."""

MAX_ID_LENGTH = 128
"""Longest message or session id in characters: Service Bus's limit, the tightest of the brokers that PairMQ pairs."""

_PROPERTY_TYPES = frozenset((str, bytes, bool, int, float, datetime, UUID))
_INT64 = range(-(2**63), 2**63)
_NO_PROPERTIES: Mapping[str, PropertyValue] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Message:
    """One message: a body and what travels with it.

    Args:
        body: the payload; PairMQ never looks into it.
        message_id: a name that never changes, 1 to 128 characters; given at the first send when left out (SPEC 3.3).
        session_id: messages of one session belong together; 1 to 128 characters.
        time_to_live: seconds (float or timedelta) after which a broker may drop the message; None is unlimited.
        scheduled_enqueue_at: the instant before which no consumer sees the message; must know its time zone.
        content_type: the body's media type.
        correlation_id: the id of the message that this one answers.
        subject: an application's label.
        to: an application's address; PairMQ does not route by it.
        reply_to: where an answer should go.
        reply_to_session_id: the session that an answer should join.
        partition_key: Service Bus's partition key; must equal the session id where both are set.
        application_properties: the user's own headers; string keys, values of `PropertyValue`'s types.

    Raises:
        TypeError: a field or property has a type that no broker could carry unchanged.
        ValueError: a value out of its range; the text names the field and the range.
    """

    body: bytes = b""
    message_id: str | None = None
    session_id: str | None = None
    time_to_live: float | None = None
    scheduled_enqueue_at: datetime | None = None
    content_type: str | None = None
    correlation_id: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    application_properties: Mapping[str, PropertyValue] = field(default_factory=lambda: _NO_PROPERTIES)

    def __post_init__(self) -> None:
        if type(self.body) is not bytes:
            if not isinstance(self.body, bytearray | memoryview | bytes):
                raise TypeError(f"body is a {type(self.body).__name__}: give bytes, for text use text.encode()")
            object.__setattr__(self, "body", bytes(self.body))
        for name in ("message_id", "session_id", "reply_to_session_id", "partition_key"):
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
                if not 1 <= len(value) <= MAX_ID_LENGTH:
                    raise ValueError(f"{name} has {len(value)} characters: 1 to {MAX_ID_LENGTH} are allowed")
        for name in ("content_type", "correlation_id", "subject", "to", "reply_to"):
            value = getattr(self, name)
            if value is not None:
                _check_text(name, value)
        if self.partition_key is not None and self.session_id is not None and self.partition_key != self.session_id:
            raise ValueError("partition_key differs from session_id: leave it out or make them equal")
        if self.time_to_live is not None:
            object.__setattr__(self, "time_to_live", _seconds(self.time_to_live))
        if self.scheduled_enqueue_at is not None:
            at = _instant("scheduled_enqueue_at", self.scheduled_enqueue_at)
            object.__setattr__(self, "scheduled_enqueue_at", at)
        if self.application_properties is not _NO_PROPERTIES:
            checked = _checked_properties(self.application_properties)
            object.__setattr__(self, "application_properties", checked or _NO_PROPERTIES)

    def __getstate__(self) -> tuple[Any, ...]:
        # The read-only view of "no properties" can't be pickled: it travels as a plain dict.
        values = [getattr(self, name) for name in self.__slots__]
        values[-1] = dict(self.application_properties)
        return tuple(values)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        return hash((self.message_id, self.body))

    def with_id(self, message_id: str) -> Message:
        """Return this message under another id, everything else as it is.

        Args:
            message_id: 1 to 128 characters; not checked again, as this is on the path of every send.
        """
        # dataclasses.replace would check every field again, once a send.
        copy = object.__new__(Message)
        put = object.__setattr__
        for name in _FIELDS:
            put(copy, name, getattr(self, name))
        put(copy, "message_id", message_id)
        return copy


_FIELDS = tuple(Message.__slots__)


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}: give a string")
    if not value.isascii():
        _check_encodable(name, value)


def _check_encodable(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a lone surrogate, which no broker can store: remove it") from None


def _seconds(value: object) -> float:
    """Bring a time-to-live to float seconds, exact to the microsecond."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"time_to_live is a {type(value).__name__}: give seconds or a timedelta")
    # The bound first: it refuses nan and inf, and an int that is too large to be a float.
    seconds = round(float(value), 6) if 0 < value <= MAX_TIME_TO_LIVE else 0.0
    if not seconds:
        raise ValueError(f"time_to_live is {value!r} s: above 0 (1 µs) and at most {MAX_TIME_TO_LIVE:.0f} s, or None")
    return seconds


def _instant(name: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError(f"{name} is a {type(value).__name__}: give a datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError(f"{name} {value.isoformat()} has no time zone: use datetime.now(UTC) or the like")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} {value.isoformat()} lies outside the years 1 to 9999 in UTC") from None


def _checked_properties(properties: object) -> dict[str, PropertyValue]:
    if not isinstance(properties, Mapping):
        raise TypeError(f"application_properties is a {type(properties).__name__}: give a mapping of names to values")
    return {key: _checked_property(key, value) for key, value in properties.items()}


def _checked_property(key: object, value: object) -> PropertyValue:
    if not isinstance(key, str):
        raise TypeError(f"application property name {key!r} is a {type(key).__name__}: give a string")
    if not 1 <= len(key) <= MAX_ID_LENGTH:
        raise ValueError(f"application property name of {len(key)} characters: 1 to {MAX_ID_LENGTH} are allowed")
    _check_text("application property name", key)
    if type(value) not in _PROPERTY_TYPES:
        raise TypeError(
            f"application property {key!r} is a {type(value).__name__}: "
            "give str, bytes, bool, int, float, datetime or UUID, which every broker carries unchanged"
        )
    if type(value) is str:
        _check_text(f"application property {key!r}", value)
    elif type(value) is int and value not in _INT64:
        raise ValueError(f"application property {key!r} does not fit 64 bits: give it as a string")
    elif type(value) is float and not math.isfinite(value):
        raise ValueError(f"application property {key!r} is {value}: only finite numbers are carried by every broker")
    elif type(value) is datetime:
        return _instant(f"application property {key!r}", value)
    return value  # type: ignore[return-value]  # its type is in _PROPERTY_TYPES

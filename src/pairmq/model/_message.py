"""A message as PairMQ carries it, the same for every broker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

from pairmq.model.drafts import draft_of

_Scalar: TypeAlias = str | bytes | bool | int | float | Decimal | datetime | UUID | None

PropertyValue: TypeAlias = "_Scalar | tuple[PropertyValue, ...] | Mapping[str, PropertyValue]"
"""The types of an application property: every transport carries each of them unchanged.

Sequences and mappings nest at most `MAX_NESTING` deep, and what they hold obeys the same rules. A Decimal has a whole
number of 32 bits, sign included, and 0 to 255 decimal places.
"""

PropertyInput: TypeAlias = "_Scalar | Sequence[PropertyInput] | Mapping[str, PropertyInput]"
"""What a message is made of: also lists, which are kept as tuples, and any mapping, which is kept as a dict.

Of other sequences none is accepted.
"""

MAX_TIME_TO_LIVE = timedelta(days=10_675_199).total_seconds()
"""Longest time-to-live in seconds (about 29 000 years): more than any broker keeps, so it means *unlimited* to all."""

MAX_ID_LENGTH = 128
"""Longest message or session id in characters: Service Bus's limit, the tightest of the brokers that PairMQ pairs."""

MAX_PRIORITY = 255
"""Highest priority; AMQP 0-9-1 gives it one octet."""

MAX_NESTING = 16
"""Maximum nesting of sequences and mappings in an application property, to bound recursion in readers."""

_PLAIN_TYPES = frozenset((bytes, bool, UUID, type(None)))
"""Types whose every value is carried."""

_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)
_INT32_DIGITS = 10
_MAX_SCALE = 255
_NO_PROPERTIES: Mapping[str, PropertyValue] = MappingProxyType({})
_SHOWN = 64  # bytes of a body, or characters of a text, in a repr: what is cut would fill a log
_SHOWN_CONTAINER = 1000  # characters after which no more entries of a mapping or sequence are shown


@dataclass(frozen=True, slots=True, repr=False, init=False)
class Message:
    """One message: a body and its properties.

    Args:
        body: the payload; opaque to PairMQ. What is not bytes is copied.
        message_id: a constant id, 1 to 128 characters; generated at the first send by default (SPEC 3.3).
        session_id: messages of one session belong together; 1 to 128 characters.
        time_to_live: seconds (float or timedelta) after which a broker may drop the message; None is unlimited.
        scheduled_enqueue_at: the instant before which no consumer sees the message; must be timezone-aware.
        content_type: the body's media type.
        content_encoding: the body's encoding, e.g. ``gzip``; not interpreted by PairMQ.
        correlation_id: the id of the message that this one replies to.
        subject: an application's label.
        to: an application's address; not used for routing by PairMQ.
        reply_to: the address for replies.
        reply_to_session_id: the session for replies.
        partition_key: Service Bus's partition key; must equal the session id if both are set.
        priority: 0 to 255; higher ones are delivered first if the broker supports it. None is the broker's default.
        application_properties: the user's own headers; string keys, values of `PropertyInput`'s types, kept as
            `PropertyValue`'s.

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
    content_encoding: str | None = None
    correlation_id: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    priority: int | None = None
    application_properties: Mapping[str, PropertyValue] = field(default_factory=lambda: _NO_PROPERTIES)

    def __init__(
        self,
        body: bytes | bytearray | memoryview = b"",
        message_id: str | None = None,
        session_id: str | None = None,
        time_to_live: float | timedelta | None = None,
        scheduled_enqueue_at: datetime | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        correlation_id: str | None = None,
        subject: str | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        reply_to_session_id: str | None = None,
        partition_key: str | None = None,
        priority: int | None = None,
        application_properties: Mapping[str, PropertyInput] = _NO_PROPERTIES,
    ) -> None:
        if type(body) is not bytes:
            if not isinstance(body, bytearray | memoryview | bytes):
                raise TypeError(f"body is a {type(body).__name__}: give bytes, for text use text.encode()")
            body = bytes(body)
        # One by one: a loop over names would look up each of them anew, for every message.
        if message_id is not None:
            _check_id("message_id", message_id)
        if session_id is not None:
            _check_id("session_id", session_id)
        if reply_to_session_id is not None:
            _check_id("reply_to_session_id", reply_to_session_id)
        if partition_key is not None:
            _check_id("partition_key", partition_key)
            if session_id is not None and partition_key != session_id:
                raise ValueError("partition_key differs from session_id: omit it or make them equal")
        if content_type is not None:
            _check_text("content_type", content_type)
        if content_encoding is not None:
            _check_text("content_encoding", content_encoding)
        if correlation_id is not None:
            _check_text("correlation_id", correlation_id)
        if subject is not None:
            _check_text("subject", subject)
        if to is not None:
            _check_text("to", to)
        if reply_to is not None:
            _check_text("reply_to", reply_to)
        if time_to_live is not None:
            time_to_live = _seconds(time_to_live)
        if scheduled_enqueue_at is not None:
            scheduled_enqueue_at = _instant("scheduled_enqueue_at", scheduled_enqueue_at)
        if priority is not None:
            _check_priority(priority)
        if application_properties is not _NO_PROPERTIES:
            application_properties = _checked_properties(application_properties) or _NO_PROPERTIES
        # As a draft: the constructor of a frozen class, which sets each field by a call, takes three times as long.
        draft: Any = self if type(self) is Message else Message.__new__(Message)
        object.__setattr__(draft, "__class__", _Draft)
        draft.body = body
        draft.message_id = message_id
        draft.session_id = session_id
        draft.time_to_live = time_to_live
        draft.scheduled_enqueue_at = scheduled_enqueue_at
        draft.content_type = content_type
        draft.content_encoding = content_encoding
        draft.correlation_id = correlation_id
        draft.subject = subject
        draft.to = to
        draft.reply_to = reply_to
        draft.reply_to_session_id = reply_to_session_id
        draft.partition_key = partition_key
        draft.priority = priority
        draft.application_properties = application_properties
        draft.__class__ = Message
        if draft is not self:  # a subclass may have more in it than a draft
            for name in Message.__slots__:
                object.__setattr__(self, name, getattr(draft, name))

    def __post_init__(self) -> None:
        # A subclass that is a dataclass has a constructor of its own, which sets the fields and calls this.
        Message.__init__(self, *[getattr(self, name) for name in Message.__slots__])

    def __reduce__(self) -> tuple[Any, ...]:
        # Not __getstate__, which the first releases of Python 3.11 replace in a frozen class with slots. The read-only
        # view of "no properties" can't be pickled: it travels as a plain dict.
        values = [getattr(self, name) for name in self.__slots__]
        values[-1] = dict(self.application_properties)
        return _restored, (type(self), tuple(values))

    def __repr__(self) -> str:
        return shown_record(self)

    def __hash__(self) -> int:
        return hash((self.message_id, self.body))

    def with_id(
        self, message_id: str | None, application_properties: dict[str, PropertyValue] | None = None
    ) -> Message:
        """Return this message under another id, and with other application properties where they are given.

        Args:
            message_id: 1 to 128 characters; not checked again, as this is on the path of every send.
            application_properties: as in `with_properties`; unchanged when left out.
        """
        # dataclasses.replace would check every field again, once a send.
        copy = _Draft()
        copy.body = self.body
        copy.message_id = message_id
        copy.session_id = self.session_id
        copy.time_to_live = self.time_to_live
        copy.scheduled_enqueue_at = self.scheduled_enqueue_at
        copy.content_type = self.content_type
        copy.content_encoding = self.content_encoding
        copy.correlation_id = self.correlation_id
        copy.subject = self.subject
        copy.to = self.to
        copy.reply_to = self.reply_to
        copy.reply_to_session_id = self.reply_to_session_id
        copy.partition_key = self.partition_key
        copy.priority = self.priority
        copy.application_properties = (
            self.application_properties if application_properties is None else application_properties or _NO_PROPERTIES
        )
        copy.__class__ = Message
        made: Message = copy
        return made

    def with_properties(self, application_properties: dict[str, PropertyValue]) -> Message:
        """Return this message with other application properties, otherwise unchanged.

        Args:
            application_properties: were checked as a message's before, and not checked again; now the copy's own.
        """
        return self.with_id(self.message_id, application_properties)

    @staticmethod
    def of_checked(
        body: bytes,
        message_id: str | None,
        content_type: str | None,
        content_encoding: str | None,
        correlation_id: str | None,
        subject: str | None,
        reply_to: str | None,
        priority: int | None,
        application_properties: dict[str, PropertyValue],
    ) -> Message:
        """Make a message from values that a transport has validated; otherwise as the constructor.

        Args:
            body: as for the constructor, like all others here.
            message_id: 1 to 128 characters.
            content_type: text.
            content_encoding: text.
            correlation_id: text.
            subject: text.
            reply_to: text.
            priority: 0 to 255.
            application_properties: names and values that a message can have; the message's own from now on.
        """
        new = _Draft()
        new.body = body
        new.message_id = message_id
        new.content_type = content_type
        new.content_encoding = content_encoding
        new.correlation_id = correlation_id
        new.subject = subject
        new.reply_to = reply_to
        new.priority = priority
        new.application_properties = application_properties or _NO_PROPERTIES
        new.session_id = new.time_to_live = new.scheduled_enqueue_at = None
        new.to = new.reply_to_session_id = new.partition_key = None
        new.__class__ = Message
        made: Message = new
        return made


# A frozen class sets each field by a call of a function, which is most of what making a message costs.
_Draft = draft_of(Message)


def shown_record(record: Any) -> str:
    """Return the repr of a dataclass without what is not set or has ``repr=False``, and of long texts and large
    containers their beginning and length, to keep bodies out of logs."""
    shown = {entry.name: getattr(record, entry.name) for entry in fields(record) if entry.repr}
    values = (f"{name}={_shown(value)}" for name, value in shown.items() if value is not None and value != {})
    return f"{type(record).__name__}({', '.join(values)})"


def _shown(value: object) -> str:
    if isinstance(value, str | bytes):
        if len(value) <= _SHOWN:
            return repr(value)
        return f"{value[:_SHOWN]!r}... ({len(value)} {'bytes' if isinstance(value, bytes) else 'characters'})"
    if isinstance(value, Mapping):
        return f"{{{_shown_entries((f'{_shown(key)}: {_shown(entry)}' for key, entry in value.items()), len(value))}}}"
    if type(value) is tuple:
        comma = "," if len(value) == 1 else ""
        return f"({_shown_entries(map(_shown, value), len(value))}{comma})"
    return repr(value)


def _shown_entries(entries: Iterable[str], count: int) -> str:
    found: list[str] = []
    length = 0
    for entry in entries:
        if length > _SHOWN_CONTAINER:
            found.append(f"... ({count} entries)")
            break
        found.append(entry)
        length += len(entry)
    return ", ".join(found)


def _restored(kind: type[Message], values: tuple[Any, ...]) -> Message:
    """Make a message from its pickled fields, which were validated before."""
    message = kind.__new__(kind)
    for name, value in zip(kind.__slots__, values, strict=True):
        object.__setattr__(message, name, value)
    return message


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} is a {type(value).__name__}: give a string")
    if not value.isascii():
        _check_encodable(name, value)


def _check_id(name: str, value: str) -> None:
    _check_text(name, value)
    if not 1 <= len(value) <= MAX_ID_LENGTH:
        raise ValueError(f"{name} has {len(value)} characters: 1 to {MAX_ID_LENGTH} are allowed")


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
        raise ValueError(f"{name} {value.isoformat()} has no time zone: use e.g. datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"{name} {value.isoformat()} is outside the years 1 to 9999 in UTC") from None


def _check_priority(value: object) -> None:
    if type(value) is not int:
        raise TypeError(f"priority is a {type(value).__name__}: give a whole number")
    if not 0 <= value <= MAX_PRIORITY:
        raise ValueError(f"priority is out of its range: 0 to {MAX_PRIORITY} are allowed")


def _checked_properties(properties: object) -> dict[str, PropertyValue]:
    if not isinstance(properties, Mapping):
        raise TypeError(f"application_properties is a {type(properties).__name__}: give a mapping of names to values")
    checked: dict[str, PropertyValue] = {}
    for key, value in properties.items():
        if type(key) is type(value) is str and 0 < len(key) <= MAX_ID_LENGTH and key.isascii() and value.isascii():
            checked[key] = value  # as nearly all are
            continue
        name = _checked_name("application property name", key)
        checked[name] = _checked_value(name, value, 0)
    return checked


def _checked_name(what: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} {name!r} is a {type(name).__name__}: give a string")
    if not 1 <= len(name) <= MAX_ID_LENGTH:
        raise ValueError(f"{what} of {len(name)} characters: 1 to {MAX_ID_LENGTH} are allowed")
    if not name.isascii():
        _check_encodable(what, name)
    return name


def _checked_value(key: str, value: object, depth: int) -> PropertyValue:
    """Check a property's value, or one inside of it, which so many sequences and mappings enclose."""
    if type(value) is str:
        if not value.isascii():
            _check_encodable(_label(key, depth), value)
        return value
    if type(value) is int:
        if value not in _INT64:
            raise ValueError(f"{_label(key, depth)} does not fit 64 bits: give it as a string")
        return value
    if type(value) in _PLAIN_TYPES:
        return value  # type: ignore[return-value]  # it has one of these types
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{_label(key, depth)} is {value}: only finite numbers are carried by every broker")
        return value
    if type(value) is datetime:
        return _instant(_label(key, depth), value)
    if type(value) is Decimal:
        _check_decimal(key, value, depth)
        return value
    if type(value) is list or type(value) is tuple or isinstance(value, Mapping):
        return _checked_container(key, value, depth + 1)
    raise TypeError(
        f"{_label(key, depth)} is a {type(value).__name__}: give str, bytes, bool, int, float, Decimal, datetime, "
        "UUID, None, or a list, tuple or mapping of these, which every broker carries unchanged"
    )


def _checked_container(
    key: str, value: list[object] | tuple[object, ...] | Mapping[object, object], depth: int
) -> PropertyValue:
    if depth > MAX_NESTING:
        raise ValueError(f"application property {key!r} is nested more than {MAX_NESTING} deep: put it into the body")
    if isinstance(value, Mapping):
        what = f"name in application property {key!r}"
        return {_checked_name(what, name): _checked_value(key, entry, depth) for name, entry in value.items()}
    return tuple([_checked_value(key, entry, depth) for entry in value])


def _check_decimal(key: str, value: Decimal, depth: int) -> None:
    """Refuse what a scale and a mantissa of AMQP 0-9-1 would not bring back as it was, down to the last zero."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{_label(key, depth)} is not finite: only finite numbers are carried by every broker")
    if exponent > 0:
        problem = "has an exponent above 0"
    elif exponent < -_MAX_SCALE:
        problem = f"has more than {_MAX_SCALE} decimal places"
    elif sign and not value:
        problem = "is a negative zero"
    elif len(digits) > _INT32_DIGITS or int(Decimal((sign, digits, 0))) not in _INT32:
        problem = "has digits that do not fit 32 bits"
    else:
        return
    raise ValueError(f"{_label(key, depth)} {problem}, which not every broker carries: give it as a string")


def _label(key: str, depth: int) -> str:
    return f"a value in application property {key!r}" if depth else f"application property {key!r}"

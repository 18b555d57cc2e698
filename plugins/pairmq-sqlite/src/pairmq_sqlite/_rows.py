"""What goes into the store and comes out of it, as values. Instants and durations are whole microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pairmq.model import Message
from pairmq.transport import MalformedHeader, decode_header

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """What a queue's or topic's settings mean to its messages."""

    lock_duration: int  # how long a lock lasts
    max_delivery_count: int | None  # deliveries after which a message is dead-lettered; None for no limit
    default_time_to_live: int | None  # how long a message lives at most; None forever
    dead_letter_on_expiration: bool  # whether an expired message is dead-lettered, or dropped
    single_consumer: bool  # whether no receiver gets a message while another one holds one
    as_json: str  # all settings, kept to be returned on request


@dataclass(frozen=True, slots=True)
class NewRow:
    """A message to be stored; its time-to-live is counted from when it can be received."""

    header: str
    body: bytes
    due_at: int | None = None
    time_to_live: int | None = None

    @property
    def size(self) -> int:
        """Bytes, as the message limit counts them."""
        return len(self.header) + len(self.body)


class Row(NamedTuple):
    """A stored message."""

    number: int  # its position, like no other's in the file
    enqueued_at: int  # when it was stored
    deliveries: int  # how often it was delivered, the one under way included
    reason: str | None  # why it was dead-lettered
    description: str | None  # the same in a sentence
    header: object  # as in `NewRow`, or whatever another program wrote there
    body: object  # likewise

    @property
    def size(self) -> int:
        """Bytes that it takes to hand it out."""
        return sum(len(part) for part in (self.header, self.body) if isinstance(part, str | bytes))


@dataclass(frozen=True, slots=True)
class Place:
    """What a source reads."""

    live: int  # where its messages lie
    dead: int  # where its dead letters lie
    reads_dead: bool  # whether the source is the dead letters
    settings: Settings  # its entity's

    @property
    def shelf(self) -> int:
        """The one that the source reads."""
        return self.dead if self.reads_dead else self.live

    @property
    def one_at_a_time(self) -> bool:
        """Whether one consumer reads it at a time; dead letters have any number of readers."""
        return self.settings.single_consumer and not self.reads_dead


def since_1970(instant: datetime) -> int:
    """An instant in microseconds since 1970; whole numbers all the way, so that it is exact."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(microseconds: int) -> datetime:
    """The inverse of `since_1970`; what no calendar holds is cut to the year 9999."""
    try:
        return _EPOCH + microseconds * _MICROSECOND
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def microseconds_of(seconds: float) -> int:
    """A duration in microseconds, at least one."""
    return max(round(seconds * 1_000_000), 1)


def shown(header: object, body: object) -> Message:
    """Decode a row that may be malformed, so that a person can look at it: its header becomes a property."""
    try:
        return decode_header(header, body)
    except MalformedHeader:
        text = header if isinstance(header, str) else repr(header)[:_MOST_SHOWN]
        # A lone surrogate could not go into a message.
        raw = text.encode(errors="replace").decode()
        return Message(body if isinstance(body, bytes) else b"", application_properties={"raw:header": raw})

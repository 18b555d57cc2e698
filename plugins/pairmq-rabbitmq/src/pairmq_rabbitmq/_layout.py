"""Where each part of a message is: its property or header, the names with a meaning in transit, and times."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Final

from pairmq.model import MAX_TIME_TO_LIVE
from pairmq_rabbitmq._header import UNREADABLE

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""A ``reply_to`` that RabbitMQ acts on: it closes a channel that has no consumer of this name."""

MAX_SHORT: Final = 255
"""Bytes of a property's text, and of a name in a table."""

MAX_SHORT_LETTERS: Final = MAX_SHORT // 4
"""That many characters always fit, whatever they are."""

SHELTER: Final = "application-properties"
TYPES: Final = "application-property-types"
TTL: Final = "ttl"
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
PRIORITY: Final = "x-opt-priority"
REASON: Final = "x-dead-letter-reason"
DESCRIPTION: Final = "x-dead-letter-description"

DELIVERY_COUNT: Final = "x-delivery-count"
"""Header in which a quorum queue reports how often a message was delivered before."""

# Field of Message, property of AMQP, header for what does not fit there.
TEXTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("message_id", "message_id", "message-id"),
    ("content_type", "content_type", "content-type"),
    ("content_encoding", "content_encoding", "content-encoding"),
    ("correlation_id", "correlation_id", "correlation-id"),
    ("reply_to", "reply_to", "reply-to"),
    ("subject", "message_type", "subject"),
)
# Field of Message, its header, and whether it is an id, which is never empty.
HEADERS: Final[tuple[tuple[str, str, bool], ...]] = (
    ("session_id", "group-id", True),
    ("reply_to_session_id", "reply-to-group-id", True),
    ("to", "to", False),
    ("partition_key", "x-opt-partition-key", True),
)
# Properties of AMQP that a Message has no field for.
APP_ID: Final = "amqp.app_id"
TIMESTAMP: Final = "amqp.timestamp"
USER_ID: Final = "amqp.user_id"
CLUSTER_ID: Final = "amqp.cluster_id"

# What RabbitMQ acts on, counts, and notes.
ROUTING: Final = frozenset(("CC", "BCC"))
BROKER_COUNTS: Final = frozenset((DELIVERY_COUNT, "x-acquired-count"))
# The mark is ours: an application's own header of that name must not be taken for it.
BROKER_MADE: Final = frozenset(("x-death", REASON, DESCRIPTION, UNREADABLE)) | BROKER_COUNTS
BROKER_PREFIXES: Final = ("x-first-death-", "x-last-death-")
MAPPING: Final = frozenset(
    (
        SHELTER,
        TYPES,
        TTL,
        SCHEDULED,
        PRIORITY,
        *(header for _, _, header in TEXTS),
        *(header for _, header, _ in HEADERS),
    )
)
"""Headers that mean something to PairMQ."""

PLAIN, SHELTERED, SENT_AS_PROPERTY = range(3)  # what `place` returns

_MAX_EXPIRATION_MS = 2**32 - 1  # the largest that RabbitMQ accepts

_EXPIRATION = re.compile(r"\+?[0-9]{1,20}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")


@lru_cache(maxsize=1024)
def place(name: str) -> int:
    """Where an application property of this name goes."""
    if name in MAPPING or name in BROKER_MADE or name in ROUTING or name.startswith(BROKER_PREFIXES):
        return SHELTERED
    if not fits_short(name):
        return SHELTERED
    return SENT_AS_PROPERTY if name in (APP_ID, TIMESTAMP, USER_ID) else PLAIN


def is_plain(name: str) -> bool:
    """Whether a header of this name is an application property and nothing else."""
    return place(name) == PLAIN


def fits_short(text: str) -> bool:
    return len(text) <= MAX_SHORT_LETTERS or len(text.encode()) <= MAX_SHORT


def unfit(header: str, text: str) -> bool:
    """Whether a text travels in a header because its property can't hold it."""
    return not fits_short(text) or (header == "reply-to" and text == DIRECT_REPLY_TO)


def digest(message_id: str) -> str:
    """The property sent in place of a message id which does not fit."""
    return hashlib.sha256(message_id.encode()).hexdigest()


class MalformedMessage(ValueError):
    """A message that PairMQ can't represent as it is; the text says why in a sentence."""


def lifetime(seconds: float, *, delayed: bool) -> tuple[str | None, str | None]:
    """Write a time to live: the property ``expiration``, and the header ``ttl`` where the former is not exact."""
    if delayed:
        # It is held in a delay queue, from which expiration would remove it too early.
        return None, seconds_text(seconds)
    ms = round(seconds * 1000) if seconds < _MAX_EXPIRATION_MS else 0
    exact = ms > 0 and ms / 1000 == seconds
    if not exact:
        ms = ceil(seconds * 1000)
    if ms > _MAX_EXPIRATION_MS:
        return None, seconds_text(seconds)
    return str(ms), None if exact else seconds_text(seconds)


def seconds_text(seconds: float) -> str:
    """Format seconds to the microsecond."""
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def expiration_seconds(text: str) -> float | None:
    """Read the property ``expiration``; None if it is not a number of milliseconds that a Message can hold."""
    if not _EXPIRATION.fullmatch(text) or (ms := int(text)) > MAX_TIME_TO_LIVE * 1000:
        return None
    return (ms or 1) / 1000


def header_seconds(text: object, expiration: str | None) -> float | None:
    """Read the header ``ttl`` if it is ours: then ``expiration``, if set, is the same value rounded up."""
    if not isinstance(text, str) or not _SECONDS.fullmatch(text):
        return None
    seconds = round(float(text), 6)
    if not 0 < seconds <= MAX_TIME_TO_LIVE:
        return None
    if expiration is not None:
        beside, _ = lifetime(seconds, delayed=False)
        if beside is None or expiration_seconds(beside) != expiration_seconds(expiration):
            return None
    return seconds


def instant(text: str) -> datetime | None:
    """Read an instant in ISO 8601; None if it is invalid, or has no time zone."""
    try:
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (OverflowError, ValueError):
        return None

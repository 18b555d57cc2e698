"""Where each part of a message stands: which property or header it is, and which names mean something on the way."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

from pairmq_rabbitmq._header import UNREADABLE

DIRECT_REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""A ``reply_to`` that RabbitMQ acts on: it closes a channel that has no consumer of this name."""

MAX_SHORT: Final = 255
"""Bytes of a property's text, and of a name in a table."""

MAX_SHORT_LETTERS: Final = MAX_SHORT // 4
"""That many letters fit, whatever they are."""

SHELTER: Final = "application-properties"
TYPES: Final = "application-property-types"
TTL: Final = "ttl"
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
PRIORITY: Final = "x-opt-priority"
REASON: Final = "x-dead-letter-reason"
DESCRIPTION: Final = "x-dead-letter-description"

DELIVERY_COUNT: Final = "x-delivery-count"
"""Header in which a quorum queue tells how often a message was given out before."""

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

PLAIN, SHELTERED, SENT_AS_PROPERTY = range(3)  # what `place` tells


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
    """Whether a text fits a property, or a name a table."""
    return len(text) <= MAX_SHORT_LETTERS or len(text.encode()) <= MAX_SHORT


def unfit(header: str, text: str) -> bool:
    """Whether a text travels in a header because its property can't hold it."""
    return not fits_short(text) or (header == "reply-to" and text == DIRECT_REPLY_TO)


def digest(message_id: str) -> str:
    """The property that stands for a message id which does not fit."""
    return hashlib.sha256(message_id.encode()).hexdigest()

"""A queue's settings as RabbitMQ's arguments, and back.

What RabbitMQ has no setting for: locks (the client measures their time), batched writes (it always batches), and a
bound on deliveries of a classic queue. Expired messages are dead-lettered whenever the queue has a dead-letter exchange
at all, so a queue which drops them has none; `Receiver.dead_letter` works without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pairmq.model import FailureReason
from pairmq.transport import QueueProperties
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._url import QueueType

QUEUE_TYPE: Final = "x-queue-type"
DEAD_LETTER_EXCHANGE: Final = "x-dead-letter-exchange"
DEAD_LETTER_KEY: Final = "x-dead-letter-routing-key"
DEAD_LETTER_STRATEGY: Final = "x-dead-letter-strategy"
OVERFLOW: Final = "x-overflow"
DELIVERY_LIMIT: Final = "x-delivery-limit"
MAX_BYTES: Final = "x-max-length-bytes"
MAX_LENGTH: Final = "x-max-length"
MESSAGE_TTL: Final = "x-message-ttl"
EXPIRES: Final = "x-expires"
SINGLE_CONSUMER: Final = "x-single-active-consumer"

DEAD_LETTERING: Final = (DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY, DEAD_LETTER_STRATEGY)

NUMBERS: Final = frozenset((DELIVERY_LIMIT, MAX_BYTES, MAX_LENGTH, MESSAGE_TTL, EXPIRES))
"""Arguments that set a bound; where a policy sets one, too, the smaller applies."""

_SETTINGS: Final = {
    "max_size_megabytes": MAX_BYTES,
    "max_delivery_count": DELIVERY_LIMIT,
    "default_time_to_live": MESSAGE_TTL,
    "auto_delete_after": EXPIRES,
    "dead_letter_on_expiration": DEAD_LETTER_EXCHANGE,
    "single_consumer": SINGLE_CONSUMER,
    "drops_when_full": OVERFLOW,
    "keeps_completed": QUEUE_TYPE,
}

_QUORUM_SINCE = (3, 10)
_MEGABYTE = 1024 * 1024
_NO_LIMIT = 2**31 - 1  # deliveries; RabbitMQ 4 would take no value for 20
_MAX_MS = 2**32 - 1  # the largest duration in RabbitMQ
_UNLIMITED_COUNT = 2**31  # in requested settings: no message reaches it


def arguments_of(asked: QueueProperties, queue_type: QueueType, dead_letter: str, doing: str) -> dict[str, Any]:
    """Write settings as the arguments of a queue; locks and batching are not its own, deliveries not a classic one's.

    A queue never drops what it has accepted: a full one rejects new messages. Raises `TransportError`: *malformed* for
    a number that RabbitMQ does not accept, *not-supported* for one consumer at a time with a classic queue.
    """
    arguments: dict[str, Any] = {QUEUE_TYPE: queue_type}
    rejects = False
    if asked.single_consumer:
        if queue_type != "quorum":
            # Any client may fetch messages from a classic one beside its consumer, by basic.get.
            text = "single_consumer: it needs a quorum queue, of RabbitMQ 3.10 or newer, that the URL does not forbid"
            raise _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)
        arguments[SINGLE_CONSUMER] = True
    if asked.dead_letter_on_expiration:
        arguments |= {DEAD_LETTER_EXCHANGE: "", DEAD_LETTER_KEY: dead_letter}
        if queue_type == "quorum":
            # Without it a message could be lost in transit; RabbitMQ requires reject-publish for it.
            arguments[DEAD_LETTER_STRATEGY] = "at-least-once"
            rejects = True
    if queue_type == "quorum":
        arguments[DELIVERY_LIMIT] = _delivery_limit(asked.max_delivery_count, doing)
    if asked.max_size_megabytes is not None:
        size = asked.max_size_megabytes
        if size % 1 or not 1 <= size < 2**43:
            raise _malformed(doing, "max_size_megabytes", size, "a whole number of MB from 1 on, or None")
        arguments[MAX_BYTES] = int(size) * _MEGABYTE
        rejects = True
    if rejects:
        arguments[OVERFLOW] = "reject-publish"
    for name, key in (("default_time_to_live", MESSAGE_TTL), ("auto_delete_after", EXPIRES)):
        seconds = getattr(asked, name)
        if seconds is not None:
            arguments[key] = _milliseconds(seconds, name, doing)
    return arguments


def queue_type_for(wanted: QueueType | None, server_version: tuple[int, ...], default: QueueType) -> QueueType:
    """Choose the type of a new queue: classic where quorum queues have no time to live and may lose what they
    dead-letter."""
    return (wanted or default) if not server_version or server_version >= _QUORUM_SINCE else "classic"


def dead_letter_arguments(queue_type: QueueType) -> dict[str, Any]:
    """The arguments of a dead-letter queue: without any limit, as no queue could take what it refuses."""
    arguments: dict[str, Any] = {QUEUE_TYPE: queue_type}
    if queue_type == "quorum":
        arguments[DELIVERY_LIMIT] = _NO_LIMIT
    return arguments


def properties_of(
    arguments: Mapping[str, Any],
    lock_duration: float,
    *,
    auto_delete: bool = False,
    server_version: tuple[int, ...] = (),
    known: frozenset[str] | None = None,
) -> QueueProperties:
    """Read a queue's arguments as settings; one that is deleted with its last consumer has an idle time of 0.

    Of an incomplete reading ``known`` are the names of the arguments that are known.

    From RabbitMQ 4 on, a quorum queue without a setting drops after 20 deliveries. The client keeps locks, in seconds.
    """
    limit = _number(arguments.get(DELIVERY_LIMIT))
    if limit is None and arguments.get(QUEUE_TYPE) == "quorum" and server_version >= (4,):
        limit = 20
    size = _number(arguments.get(MAX_BYTES))
    expires = _number(arguments.get(EXPIRES))
    ttl = _number(arguments.get(MESSAGE_TTL))
    return QueueProperties(
        max_size_megabytes=None if size is None else math.ceil(size / _MEGABYTE),
        max_delivery_count=None if limit is None or not 0 <= limit < _NO_LIMIT else limit + 1,
        default_time_to_live=None if ttl is None else ttl / 1000,
        auto_delete_after=0.0 if auto_delete else None if expires is None else expires / 1000,
        lock_duration=lock_duration,
        dead_letter_on_expiration=arguments.get(DEAD_LETTER_EXCHANGE) is not None,
        batched_operations=True,
        single_consumer=is_single(arguments),
        drops_when_full=_drops(arguments),
        keeps_completed=arguments.get(QUEUE_TYPE) == "stream",
        unread=() if known is None else tuple(name for name, key in _SETTINGS.items() if key not in known),
    )


def _drops(arguments: Mapping[str, Any]) -> bool:
    """Whether a queue with these arguments drops its oldest messages when full, as RabbitMQ's queues do by default.

    A stream is a log, from which nothing is consumed: there it is no loss.
    """
    bounded = arguments.get(MAX_BYTES) is not None or arguments.get(MAX_LENGTH) is not None
    rejects = arguments.get(OVERFLOW) in ("reject-publish", "reject-publish-dlx")
    return bounded and not rejects and arguments.get(QUEUE_TYPE) != "stream"


def is_single(arguments: Mapping[str, Any]) -> bool:
    return arguments.get(SINGLE_CONSUMER) is True and arguments.get(QUEUE_TYPE) == "quorum"


def _delivery_limit(count: int | None, doing: str) -> int:
    """The redeliveries that a quorum queue allows: one less than the deliveries, the largest number for no limit."""
    if count is None or count >= _UNLIMITED_COUNT:
        return _NO_LIMIT
    if count % 1 or count < 1:
        raise _malformed(doing, "max_delivery_count", count, "a whole number from 1 on, or None")
    return int(count) - 1


def _milliseconds(seconds: float, name: str, doing: str) -> int:
    if not 0 < seconds <= _MAX_MS / 1000:
        raise _malformed(doing, name, seconds, f"seconds above 0 and at most {_MAX_MS // 1000}, or None")
    return min(math.ceil(seconds * 1000), _MAX_MS)


def _malformed(doing: str, name: str, value: object, wanted: str) -> Exception:
    return _errors.refused(doing, f"{name} is {value!r}: {wanted}", FailureReason.MALFORMED)


def _number(value: object) -> int | None:
    return value if type(value) is int else None

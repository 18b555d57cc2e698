"""What the transport supports, and which queues and exchanges of the broker represent an entity.

Without an import of the client, so that it can be listed.

A queue is the queue of its path; a topic is the exchange of its path, and a subscription a queue bound to it. Names
that PairMQ creates contain a segment that begins with ``$``, or begin with ``pairmq.``.
"""

from __future__ import annotations

from pairmq.model import Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Capabilities

_DEAD_LETTER = "/$dead-letter"
_SUBSCRIPTIONS = "/$subscriptions/"
_LONGEST = 255  # bytes, of any name in AMQP 0-9-1

MAX_PATH_LENGTH = _LONGEST - len(_DEAD_LETTER)
"""Longest path in bytes: its dead-letter queue needs a name, too."""

MAX_MESSAGE_BYTES = 128 * 1024 * 1024
"""RabbitMQ's ``max_message_size`` from 3.8 on; 4.0 made it 16 MiB, and a server may be configured with another."""

CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_path_length=MAX_PATH_LENGTH,
    topics=True,
    scheduling=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    ordered_consumer=True,
    durable=True,
)
"""What RabbitMQ supports through this transport; its README has the details."""

_RECORD = "/x-pairmq-record"  # where a pair keeps what all its processes read

OWN_PREFIX = "pairmq."
"""Prefix of the broker's objects that belong to no entity, such as delay queues."""


def queue_of(source: Source) -> str:
    """The name of the queue that a receiver of the source reads; reason *malformed* when it is too long."""
    check(source.entity)
    name = source.entity.path
    if source.subscription is not None:
        name += _SUBSCRIPTIONS + source.subscription
    if len(name.encode()) > MAX_PATH_LENGTH:
        raise _too_long(name)
    return name + _DEAD_LETTER if source.dead_letter else name


def dead_letter_of(queue: str) -> str:
    return queue + _DEAD_LETTER


def check(entity: Entity) -> None:
    """Check that the broker can have an entity of this name; reason *malformed* if not."""
    if len(entity.path.encode()) > MAX_PATH_LENGTH:
        raise _too_long(entity.path)


def is_record(entity: Entity) -> bool:
    """Whether a pair keeps its record there, from which none of many processes may fetch while another one reads."""
    return entity.path.endswith(_RECORD)


def is_system(entity: Entity) -> bool:
    return is_system_name(entity.path)


def is_system_name(path: str) -> bool:
    """The same for any name in RabbitMQ, also those that no entity can have: the names of direct replies."""
    return path.startswith(("amq.", OWN_PREFIX)) or any(segment.startswith("$") for segment in path.split("/"))


def _too_long(name: str) -> TransportError:
    text = f"{name[:40]}… has {len(name.encode())} bytes: RabbitMQ allows {MAX_PATH_LENGTH} here"
    return TransportError(text, FailureKind.REFUSED, FailureReason.MALFORMED)

"""PairMQ's errors as the ones that aio-pika raises, so that existing except clauses keep their meaning."""

from __future__ import annotations

from typing import Final

from aio_pika.exceptions import (
    AMQPChannelError,
    AMQPConnectionError,
    AMQPError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)
from aiormq.exceptions import ChannelAccessRefused

from pairmq import (
    BacklogUnavailable,
    EntityNotFound,
    MessageTooLarge,
    PairClosed,
    PairFaulted,
    PairMQError,
    PrimaryUnavailable,
    ReservedPropertyError,
    SendUnknown,
    Unauthorized,
)


class NotDeliveredError(AMQPConnectionError, TimeoutError):
    """Neither broker took the message in time; certainly nothing holds it.

    It is aio-pika's error of a lost connection and asyncio's of a ``timeout`` that ran out, since it may be both.
    """


class PublishOutcomeUnknownError(AMQPConnectionError, TimeoutError):
    """The message may have been accepted, or not: a confirmation was lost, and nothing else took it.

    Publish it again under the same ``message_id`` if a second copy is harmless.
    """


class ReservedHeaderError(AMQPError, ValueError):
    """The message has a header of a name that a pair needs for itself (``x-ms-path`` and its like)."""


_CLASSES: Final[tuple[tuple[type[PairMQError], type[Exception]], ...]] = (
    (SendUnknown, PublishOutcomeUnknownError),
    (MessageTooLarge, ChannelPreconditionFailed),
    (EntityNotFound, ChannelNotFoundEntity),
    (Unauthorized, ChannelAccessRefused),
    (ReservedPropertyError, ReservedHeaderError),
    (BacklogUnavailable, NotDeliveredError),
    (PrimaryUnavailable, NotDeliveredError),
    (PairClosed, ChannelInvalidStateError),
    (PairFaulted, ChannelInvalidStateError),
)


def as_client_error(error: PairMQError) -> Exception:
    """Make aio-pika's error of PairMQ's.

    Args:
        error: what the pair raised.

    Returns:
        An exception that users of aio-pika catch, with ``error`` as its ``__cause__``. A channel or connection is not
        closed by it, whatever its class.
    """
    kind = next((chosen for kind, chosen in _CLASSES if isinstance(error, kind)), AMQPChannelError)
    made = kind(str(error))
    made.__cause__ = error
    return made

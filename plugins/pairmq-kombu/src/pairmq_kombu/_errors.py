"""How a send's end is reported to users of Kombu and Celery, who catch `kombu.exceptions.OperationalError`."""

from __future__ import annotations

from amqp.exceptions import IrrecoverableConnectionError, RecoverableChannelError
from kombu.exceptions import OperationalError

from pairmq import EntityNotFound, PairMQError, SendUnknown


class PublishRefused(OperationalError):
    """No broker has the message, and none will: ``__cause__`` is PairMQ's error, which says why (SPEC 3.1)."""


class PublishUnknown(OperationalError):
    """A broker may have the message or not: to publish it again may make a second copy (SPEC 3.1)."""


class QueueMissing(RecoverableChannelError):  # type: ignore[misc]  # py-amqp has no types
    """The primary has no such queue or exchange; Kombu declares it anew and publishes again where it may retry."""


class Unreachable(OperationalError, OSError):
    """The primary does not take a connection; Kombu tries again where it may retry."""


class StillUnreachable(OperationalError, IrrecoverableConnectionError):  # type: ignore[misc]  # py-amqp has no types
    """The primary has not taken a connection for so long that Kombu is not to try again, even without a limit."""


def kombu_error(error: PairMQError) -> Exception:
    """Convert what a send raised to what Kombu's callers know.

    None of them makes Kombu connect anew and try again: a pair has done so until the send's deadline.
    """
    if isinstance(error, EntityNotFound):
        return QueueMissing(str(error))
    if isinstance(error, SendUnknown):
        return PublishUnknown(str(error))
    return PublishRefused(str(error))

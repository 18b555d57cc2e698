"""Emptying a queue, subscription or dead-letter queue: what is received is removed at once."""

from __future__ import annotations

from typing import Any

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq.model import FailureReason, Source, TransportError
from pairmq_servicebus import _errors, _private
from pairmq_servicebus._client import Namespace

_AT_ONCE = 500  # messages a receive
_QUIET = 1.0  # s without a message after which it is empty
_NO_SESSION = 1.0  # s without a free session after which there is none


async def purge(namespace: Namespace, source: Source) -> int:
    """Delete what a source holds and nobody has locked; one session after the other where it has sessions.

    Returns:
        How many messages.

    Raises:
        TransportError: the service did not.
    """
    doing = f"purge {source}"
    try:
        return await _receive_all(namespace, source, doing)
    except TransportError as error:
        if error.reason is not FailureReason.NOT_SUPPORTED:
            raise
    removed = 0
    while True:
        try:
            removed += await _receive_all(
                namespace, source, doing, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=_NO_SESSION
            )
        except TransportError as error:
            if isinstance(error.__cause__, OperationTimeoutError):
                return removed
            raise


async def _receive_all(namespace: Namespace, source: Source, doing: str, **session: Any) -> int:
    client = namespace.new_receiver(source, delete=True, **session)
    limit = namespace.url.connect_timeout + (_NO_SESSION if session else 0.0)
    await namespace.open(client, doing, limit)
    _private.mend_arrivals(client)
    removed = 0
    try:
        while True:
            received = await client.receive_messages(_AT_ONCE, _QUIET)
            if not received:
                # What is sent from now on is not ours to delete.
                await _private.take_back_credit(client)
                break
            removed += len(received)
    except Exception as error:
        failed = _errors.failure(error, doing, maybe_applied=True)
        raise failed from failed.__cause__
    finally:
        namespace.spawn(namespace.farewell(client))
    return removed

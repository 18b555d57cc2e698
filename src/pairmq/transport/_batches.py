"""What senders of batches need: chunks within a broker's limits, and nothing of a session behind a failed message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from pairmq.model import FailureKind, FailureReason, Message, TransportError

T = TypeVar("T")


def in_chunks(items: Iterable[T], size_of: Callable[[T], int], most: int, most_bytes: int) -> Iterator[list[T]]:
    """Cut a batch into chunks, each for one operation.

    Args:
        items: what is to be sent, in order.
        size_of: an item's size in bytes.
        most: items of a chunk.
        most_bytes: of a chunk; an item that is larger is a chunk of its own.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if chunk and (len(chunk) == most or total + size > most_bytes):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk


async def send_chunks(
    chunks: Iterable[Sequence[T]],
    send: Callable[[Sequence[T]], Awaitable[Sequence[TransportError | None]]],
    *,
    in_order: bool = False,
) -> list[TransportError | None]:
    """Send chunks one after the other, and return the outcomes of their messages.

    Args:
        chunks: not empty.
        send: sends one; returns an outcome for each of its messages, or raises `TransportError` for all of them.
        in_order: send nothing behind a message that failed.

    A cancelled call may have sent the first chunks, and any part of the next one.
    """
    outcomes: list[TransportError | None] = []
    for chunk in chunks:
        failed = next(filter(None, outcomes), None) if in_order else None
        if failed is not None:
            outcomes += [behind_failed(failed) for _ in chunk]
            continue
        try:
            outcomes += await send(chunk)
        except TransportError as error:
            outcomes += [error] * len(chunk)
        except asyncio.CancelledError as cancellation:
            if outcomes:  # that nothing was sent may be true of this chunk; of the batch it is not
                raise asyncio.CancelledError(*cancellation.args) from None
            raise
    return outcomes


def behind_failed(error: TransportError) -> TransportError:
    """Make the failure of a message that `Sender.send_in_order` did not send, being behind one that failed.

    Args:
        error: why that one failed.
    """
    text = f"not sent, since an earlier message of its session failed: {error}"
    if error.reason is FailureReason.CLOSED:
        return TransportError(text, error.kind, error.reason)
    return TransportError(text, FailureKind.TRANSIENT)


def outcomes_in_order(
    messages: Sequence[Message], store: Callable[[int, Message], TransportError | None]
) -> list[TransportError | None]:
    """Store several messages at once, and of each session none behind one that failed, as `Sender.send_in_order`.

    Args:
        messages: to be stored.
        store: called with a message and its place among them; returns its failure, None when it is stored.
    """
    outcomes: list[TransportError | None] = []
    failed: dict[str | None, TransportError] = {}
    for place, message in enumerate(messages):
        earlier = failed.get(message.session_id)
        outcome = store(place, message) if earlier is None else behind_failed(earlier)
        if outcome is not None:
            failed.setdefault(message.session_id, outcome)
        outcomes.append(outcome)
    return outcomes

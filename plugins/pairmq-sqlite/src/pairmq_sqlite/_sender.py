"""Sending: a row in a table, confirmed by the commit that brings it to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.transport import Sender, encode_header
from pairmq_sqlite._context import Context
from pairmq_sqlite._rows import NewRow, microseconds_of, since_1970

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""More than other brokers take, so that this one can stand behind any of them. SQLite itself ends at 1 GB a row."""

_CHUNK_MESSAGES = 1000
_CHUNK_BYTES = 4 * 1024 * 1024


class SQLiteSender(Sender):
    """Sends to one queue or topic."""

    def __init__(self, context: Context, entity: Entity) -> None:
        self._context = context
        self._entity = entity
        self._doing = f"send to {entity}"
        self._calls = context.calls(self._doing)
        self.scope = self._calls.scope

    async def send(self, message: Message) -> None:
        row = _row(message)
        if row.size > MAX_MESSAGE_BYTES:
            raise self._too_large(row)
        await self._store([row])

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send in chunks, each in one transaction: all of a chunk is stored, or nothing of it."""
        outcomes: list[TransportError | None] = []
        for chunk in _chunks(messages):
            fitting = [row for row in chunk if row.size <= MAX_MESSAGE_BYTES]
            failed: TransportError | None = None
            try:
                await self._store(fitting)
            except TransportError as error:
                failed = error
            except asyncio.CancelledError as cancellation:
                if outcomes:  # that nothing was sent may be true of this chunk; of the batch it is not
                    raise asyncio.CancelledError(*cancellation.args) from None
                raise
            outcomes += [failed if row.size <= MAX_MESSAGE_BYTES else self._too_large(row) for row in chunk]
        return outcomes

    async def _store(self, rows: Sequence[NewRow]) -> None:
        await self._calls.run(lambda store: store.send(self._entity, rows), self._doing)
        self._context.arrivals.notify(self._entity.path)

    def _too_large(self, row: NewRow) -> TransportError:
        text = f"{self._doing}: the message has {row.size} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
        return TransportError(text, FailureKind.REFUSED, FailureReason.TOO_LARGE)


def _row(message: Message) -> NewRow:
    due_at, lives = message.scheduled_enqueue_at, message.time_to_live
    return NewRow(
        encode_header(message),
        message.body,
        due_at=None if due_at is None else since_1970(due_at),
        time_to_live=None if lives is None else microseconds_of(lives),
    )


def _chunks(messages: Sequence[Message]) -> Iterator[list[NewRow]]:
    """Cut a batch so that a chunk is worth its commit, and holds neither the lock nor the memory for long."""
    chunk: list[NewRow] = []
    size = 0
    for message in messages:
        row = _row(message)
        if chunk and (len(chunk) == _CHUNK_MESSAGES or size + row.size > _CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += row.size
    if chunk:
        yield chunk

"""The transport, which reads the URL, says what it can do, and makes what it needs without IO; and its senders."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from typing import Any

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import (
    Admin,
    Capabilities,
    Receiver,
    Sender,
    Transactional,
    Transport,
    encode_header,
    in_chunks,
    send_chunks,
)
from pairmq_sqlite import _errors, _outbox
from pairmq_sqlite._admin import SQLiteAdmin
from pairmq_sqlite._receiver import SQLiteReceiver
from pairmq_sqlite._store import NewRow, microseconds_of, since_1970
from pairmq_sqlite._url import parse_url
from pairmq_sqlite._worker import Context

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""More than other brokers take, so that this one can stand behind any of them. SQLite itself ends at 1 GB a row."""

_CHUNK_MESSAGES = 1000
_CHUNK_BYTES = 4 * 1024 * 1024


class SQLiteSender(Sender):
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
        return await send_chunks(_chunks(messages), self._store_chunk)

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        chunks = list(_chunks(messages))
        if any(row.size > MAX_MESSAGE_BYTES for chunk in chunks for row in chunk):
            return await super().send_in_order(messages)
        return await send_chunks(chunks, self._store_chunk, in_order=True)

    async def _store_chunk(self, rows: Sequence[NewRow]) -> list[TransportError | None]:
        failed = None
        try:
            await self._store([row for row in rows if row.size <= MAX_MESSAGE_BYTES])
        except TransportError as error:
            failed = error
        return [failed if row.size <= MAX_MESSAGE_BYTES else self._too_large(row) for row in rows]

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
    return in_chunks(map(_row, messages), lambda row: row.size, _CHUNK_MESSAGES, _CHUNK_BYTES)


CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    topics=True,
    scheduling=True,
    counts_scheduled=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    quiet_peek=True,
    ordered_consumer=True,
    ordered_batches=True,
    durable=True,
)
"""What SQLite does, as `_store` uses it. What is not named is disclaimed: there are no sessions."""

_RELEASE_WITHIN, _STOP_WITHIN = 1.0, 0.7
"""Seconds; a close takes 2 at the most."""


class SQLiteTransport(Transport, Transactional):
    """Queues and topics in one SQLite file; the options of its URL are in the README."""

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        super().__init__(parsed.endpoint)
        self._context = Context(parsed, self.scope)
        self._admin = SQLiteAdmin(self._context)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return SQLiteSender(self._context, entity)

    def receiver(self, source: Source) -> Receiver:
        return SQLiteReceiver(self._context, source)

    def measure(self, message: Message) -> int:
        return len(encode_header(message)) + len(message.body)

    async def database(self) -> tuple[int, int]:
        # Without opening it: the caller's transaction may hold the file's lock already.
        try:
            status = os.stat(self._context.url.path)
        except OSError as error:
            raise _errors.failure(error, "find the file") from error
        return status.st_dev, status.st_ino

    async def store(self, database: object, queue: Entity, messages: Sequence[Message], connection: Any) -> None:
        assert isinstance(database, tuple)  # noqa: S101  # from `database`
        await _outbox.store(database, queue, messages, connection)

    async def _close(self) -> None:
        releases = [asyncio.ensure_future(receiver.close()) for receiver in tuple(self._context.receivers)]
        if releases:
            await asyncio.wait(releases, timeout=_RELEASE_WITHIN)
        await self._context.worker.stop(_STOP_WITHIN)

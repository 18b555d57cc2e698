"""The transport: it reads the URL, says what it can do, and makes senders, receivers and the admin. No IO here."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from pairmq.model import Entity, Message, Source
from pairmq.transport import (
    Admin,
    Capabilities,
    Receiver,
    Sender,
    Transactional,
    Transport,
    encode_header,
)
from pairmq_sqlite import _errors, _outbox
from pairmq_sqlite._admin import SQLiteAdmin
from pairmq_sqlite._context import Context
from pairmq_sqlite._receiver import SQLiteReceiver
from pairmq_sqlite._sender import MAX_MESSAGE_BYTES, SQLiteSender
from pairmq_sqlite._url import parse_url

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
    durable=True,
)
"""What SQLite does, as `_store` uses it. What is not named is disclaimed: there are no sessions."""

_RELEASE_WITHIN, _STOP_WITHIN = 1.0, 0.7
"""Seconds; a close takes 2 at the most."""


class SQLiteTransport(Transport, Transactional):
    """Queues and topics in one SQLite file; the options of its URL are in the README."""

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        super().__init__(parsed.endpoint)
        self._context = Context(parsed, self.scope)
        self._admin = SQLiteAdmin(self._context)

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

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

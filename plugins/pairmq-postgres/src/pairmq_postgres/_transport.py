"""The transport: it reads the URL, says what it can do, and makes senders, receivers and the admin. No IO here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pairmq.model import Entity, Message, Source
from pairmq.transport import Admin, Receiver, Scope, Sender, SessionReceiver, Transactional, Transport
from pairmq_postgres import _sql
from pairmq_postgres._admin import PostgresAdmin
from pairmq_postgres._capabilities import CAPABILITIES
from pairmq_postgres._outbox import CallersTransactions
from pairmq_postgres._pool import Calls, Pool
from pairmq_postgres._receiver import LeftLocks, PostgresReceiver, PostgresSessionReceiver
from pairmq_postgres._sender import Headers, PostgresSender, lacks_session
from pairmq_postgres._url import parse_url

_RELEASE_WITHIN = 1.0
"""Seconds; a close takes 2 at the most."""


class PostgresTransport(Transport, Transactional):
    """Queues and topics in one PostgreSQL database; the options of its URL are in the README."""

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        parsed = parse_url(url)
        parsed.check_files()
        super().__init__(parsed.endpoint)
        self._pool = Pool(parsed)
        self._admin = PostgresAdmin(self._calls(""))
        self._headers = Headers()
        self._callers = CallersTransactions(self._headers, notify=parsed.listen)
        self._left: dict[Source, LeftLocks] = {}
        self._receivers: set[PostgresReceiver] = set()
        self._with_sessions: set[Entity] = set()

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return PostgresSender(self._calls(f"send to {entity}"), self._headers, entity, self._with_sessions)

    def receiver(self, source: Source) -> Receiver:
        return PostgresReceiver(self._calls(f"receive from {source}"), source, self._left, self._receivers)

    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        calls = self._calls(f"receive from {source}")
        receiver = PostgresSessionReceiver(calls, source, self._left, self._receivers)
        accepted = False
        try:
            accepted = await receiver.accept(session_id, wait)
        finally:
            if not accepted:
                self._receivers.discard(receiver)
        return receiver if accepted else None

    def measure(self, message: Message) -> int:
        return self._headers.measure(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        super().check_message(entity, message)
        if message.session_id is None and entity in self._with_sessions:
            raise lacks_session(f"send to {entity}")

    async def database(self) -> object:
        ((found,),) = await self._calls("").run("find the database", (_sql.DATABASE, {}))
        return found

    async def store(self, database: object, queue: Entity, messages: Sequence[Message], connection: object) -> None:
        await self._callers.store(database, queue, messages, connection)

    def _calls(self, doing: str) -> Calls:
        return Calls(self._pool, Scope(self.scope, doing))

    async def _close(self) -> None:
        releases = [asyncio.ensure_future(receiver.close()) for receiver in tuple(self._receivers)]
        if releases:
            await asyncio.wait(releases, timeout=_RELEASE_WITHIN)
        await self._pool.close()

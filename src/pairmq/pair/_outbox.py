"""What applications send with in a transaction of their database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pairmq.model import Entity, Message, Receipt, TransportError
from pairmq.runner import Engine


class PairOutbox:
    """Sends to one entity of the primary when a transaction of the caller's commits (SPEC 12).

    The message is stored in the secondary, a database, through the caller's connection: it is sent if the transaction
    commits, and never existed if it does not. The pair's syphon, in this or another process, then moves it to the
    primary. Cheap to make and safe to share between tasks. Made by `Pair.outbox`.
    """

    def __init__(self, engine: Engine, entity: Entity) -> None:
        self._engine = engine
        self._entity = entity
        self._outbox, self._state = engine.outbox_state(entity)

    @property
    def entity(self) -> Entity:
        """Where it sends to."""
        return self._entity

    async def send(self, message: Message, *, connection: Any) -> Receipt:
        """Store one message in the caller's transaction; commits nothing.

        Args:
            message: what to send; given an id if it has none.
            connection: with an open transaction, or one that begins with its first statement: a connection of psycopg
                3, psycopg2, asyncpg, sqlite3 or aiosqlite, as the secondary is PostgreSQL or SQLite; a ``Connection``,
                ``AsyncConnection``, ``Session`` or ``AsyncSession`` of SQLAlchemy 2 or Django's ``connection`` over one
                of these. A blocking connection blocks the event loop, as all its calls do.

        Returns:
            The receipt, with `Route.OUTBOX`: valid once the transaction has committed.

        Raises:
            SendRefused: nothing was stored: the connection leads to another database, is closed, commits each statement
                by itself or has a transaction that has failed; the database refused; or as `PairSender.send`.
            PairClosed, PairFaulted: the pair has ended.
            TypeError: it is not such a connection, or ``message`` not a `Message`.

        After cancellation roll back: whether the message is part of the transaction is unknown.
        """
        return (await self.send_batch((message,), connection=connection))[0]

    async def send_batch(self, messages: Iterable[Message], *, connection: Any) -> list[Receipt]:
        """Store many messages in the caller's transaction, all or none.

        Args:
            messages: stored in order.
            connection: as for `send`.

        Returns:
            One receipt a message, in order.

        Raises:
            SendRefused, PairClosed, PairFaulted, TypeError: as `send`; none was stored.
        """
        whole = list(messages)
        if not whole:
            return []
        self._engine.check_here()
        sending = self._outbox.draft(self._state, whole)
        if not sending.ready:
            sending = await self._outbox.begin(sending)
        try:
            if not await self._outbox.store(sending, connection, last=False):
                sending = await self._outbox.begin(sending, anew=True)
                await self._outbox.store(sending, connection, last=True)
        except TransportError as error:
            self._outbox.failed(sending, error)
        receipts = self._outbox.stored(sending)
        self._outbox.report(sending)
        return receipts

    def __repr__(self) -> str:
        return f"PairOutbox({str(self._entity)!r})"

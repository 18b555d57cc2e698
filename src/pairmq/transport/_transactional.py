"""Storing through a connection of the caller's, inside the caller's transaction (SPEC 12).

A coroutine here that is given a blocking connection calls it and never suspends, so that code without an event loop
can run it to its end in the thread that owns the connection.

Behind that the interface of a store of which messages were handled or are being handled.
"""

from __future__ import annotations

import enum
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError

_DRIVERS = frozenset(("psycopg", "psycopg2", "asyncpg", "sqlite3", "aiosqlite"))


class OtherDatabase(Exception):
    """A connection does not lead to the transport's database, or that was restarted."""


class Transactional(ABC):
    """What a `Transport` also is if it stores messages in a transaction of the caller's (SPEC 12.1)."""

    @abstractmethod
    async def database(self) -> object:
        """Find out, over a connection of the transport's own, which database `store` is to find.

        Raises:
            TransportError: it could not be asked.
        """

    @abstractmethod
    async def store(self, database: object, queue: Entity, messages: Sequence[Message], connection: object) -> None:
        """Store messages in a queue, in the transaction that a connection has open, or begins with this; all or none.

        Nothing is committed. Nothing is changed if it fails, unless the database itself gives up the transaction.

        Args:
            database: from `database`.
            queue: holds them once the transaction is committed; its properties apply as to those of a `Sender`.
            messages: without session id, time-to-live and schedule.
            connection: a database driver's, from `driver_connection`. A blocking one is not awaited.

        Raises:
            TypeError: the connection is not one of a driver that the transport knows.
            OtherDatabase: it leads elsewhere.
            TransportError: it has no transaction that can be committed, the queue does not exist, or the database
                refuses. Kind and reason are about this attempt, not about the transport.
        """


class Inbox(ABC):
    """Remembers in a consumer's own database which messages were handled (SPEC 12.6); for `pairmq.Deduplicator`."""

    @abstractmethod
    async def claim(self, key: str, window: float, connection: object) -> bool:
        """Claim a key in the transaction that a connection has open, or begins with this.

        Waits while another transaction has claimed it, until that is committed or rolled back.

        Args:
            key: at most 64 ASCII characters.
            window: seconds for which a claim is kept that is committed.
            connection: as for `Transactional.store`.

        Returns:
            False if it was claimed before.

        Raises:
            TypeError, TransportError: as `Transactional.store`.
        """


async def driver_connection(connection: Any, *, blocking: bool = False) -> object:
    """Find the database driver's connection below one of SQLAlchemy's or Django's; any other is returned as it is.

    Neither is imported: their connections are known by their attributes.

    Args:
        connection: a ``Connection``, ``AsyncConnection``, ``Session`` or ``AsyncSession`` of SQLAlchemy 2, Django's
            ``connection``, or a driver's connection.
        blocking: the caller has no event loop.

    Raises:
        TypeError: it has to be awaited, and ``blocking`` is set.
        TransportError: it is closed, or its transaction has failed.
    """
    kind: Any = type(connection)
    if blocking and _has_to_be_awaited(kind):
        raise TypeError(f"{_name(connection)} is for asyncio: use pairmq.Pair, or give a blocking connection")
    if _is_drivers(kind):
        return connection
    if hasattr(connection, "in_atomic_block"):  # Django's
        if connection.needs_rollback:
            raise unusable("its transaction has failed")
        if connection.connection is None:
            raise unusable("it is closed, or has no transaction: use it in transaction.atomic()")
        return connection.connection
    if hasattr(connection, "get_bind"):  # SQLAlchemy's sessions
        try:
            connection = connection.connection()
            if inspect.isawaitable(connection):
                connection = await connection
        except Exception as error:
            raise unusable(f"the session gives no connection: {error}") from error
    awaited = None
    if hasattr(connection, "sync_connection"):
        awaited, connection = connection, connection.sync_connection
        if connection is None:
            raise unusable("it is not open")
    if hasattr(connection, "exec_driver_sql"):  # SQLAlchemy's connections
        if connection.closed:
            raise unusable("it is closed")
        if not connection.in_transaction():
            connection.begin()  # as its first statement would: without, its commit would do nothing
        found: Any = connection.connection.driver_connection
        if awaited is not None and hasattr(found, "is_in_transaction") and not found.is_in_transaction():
            # Below SQLAlchemy, asyncpg's transaction begins with the first statement that SQLAlchemy itself executes.
            try:
                await awaited.exec_driver_sql("SELECT 1")
            except Exception as error:
                raise unusable(f"its transaction does not begin: {error}") from error
        return found
    return connection


@lru_cache(maxsize=64)
def _is_drivers(kind: type) -> bool:
    """Whether it is one of a driver's own classes, as nearly always: none of what follows is to be looked for."""
    return kind.__module__.partition(".")[0] in _DRIVERS


@lru_cache(maxsize=64)
def _has_to_be_awaited(kind: type) -> bool:
    methods = (inspect.unwrap(getattr(kind, name)) for name in ("commit", "execute") if hasattr(kind, name))
    return any(map(inspect.iscoroutinefunction, methods))


def unusable(text: str) -> TransportError:
    """The error of a connection that has no transaction in which anything could be stored."""
    return TransportError(f"the connection can't be used: {text}", FailureKind.REFUSED, FailureReason.OTHER)


def _name(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


class Claim(enum.StrEnum):
    """A store's answer to a consumer that wants to handle a message."""

    WON = "won"
    """The caller holds it, until the lease ends or it is released."""
    HELD = "held"
    """Another consumer holds it, and may succeed or fail."""
    DONE = "done"
    """It was handled."""


class ClaimStore(ABC):
    """Keeps one claim for each key: free, held under a lease, or done for a while.

    Every step is atomic among all users of the store. Objects belong to the loop that first awaited them; methods may
    be called concurrently. A call that failed or was cancelled may have been applied; it may be repeated with the same
    arguments. Time limits come from above, as cancellation.

    Every method except `close` raises `TransportError` if the store is unavailable.
    """

    def __repr__(self) -> str:
        """Name the store in errors, without a secret."""
        return f"{type(self).__name__}()"

    @abstractmethod
    async def claim(self, key: str, token: str, lease: float) -> Claim:
        """Claim a free key, or extend the caller's own claim.

        Args:
            key: names a message; 1 to 200 characters of ASCII.
            token: identifies the claimant, for one delivery; random.
            lease: seconds until the claim expires unless renewed.
        """

    @abstractmethod
    async def renew(self, key: str, token: str, lease: float) -> bool:
        """Extend the caller's claim to ``lease`` seconds from now; False if the caller no longer holds it."""

    @abstractmethod
    async def confirm(self, key: str, token: str, window: float) -> bool:
        """Record for ``window`` seconds that the message was handled, regardless of the claim's current holder.

        Returns:
            Whether the caller held the claim, or it was done: if not, another consumer may have handled the message,
            too.
        """

    @abstractmethod
    async def release(self, key: str, token: str) -> None:
        """Release the caller's claim; without effect if another consumer holds it, or it is done."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections; idempotent, never raises."""

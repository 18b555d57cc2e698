"""Connections: a pool that retries nothing, and the one that listens.

Not psycopg's own pool: that one connects in the background, again and again, and reports a time-out where a caller must
learn why there is no connection, and whether anything was sent.

A call that is cancelled drops its connection, if a statement is on its way: whatever the server makes of it, no later
call meets it. psycopg by itself would ask the server to cancel the statement, and wait for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

import psycopg
from psycopg import AsyncConnection, waiting
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format, TransactionStatus

from pairmq.model import TransportError
from pairmq.transport import Arrivals, Scope, nothing_sent, start_task
from pairmq_postgres import _errors, _sql
from pairmq_postgres._errors import NotSent
from pairmq_postgres._url import PostgresUrl

Rows = list[tuple[Any, ...]]
Statement = tuple[Any, Mapping[str, Any]]

_NOTIFIED_WITHIN = 0.5  # s that a close waits for notifications of what was sent
_SOON = 0.05  # s
_AT_ONCE = 64  # reads of one answer, of some KiB each, without a turn for others
_SHORT, _GATHERS = 4, 0.0005  # waits for more of an answer that begin at once, and s before later ones
_EVENTS: dict[int, int] = {
    waiting.WAIT_R: select.POLLIN,
    waiting.WAIT_W: select.POLLOUT,
    waiting.WAIT_RW: select.POLLIN | select.POLLOUT,
}
_SILENT = 1.0  # s without an answer after which a cancelled call makes the idle connections doubtful


class Array:
    """An array of one of the types below, ready to be sent: psycopg makes one value after the other, in Python.

    Args:
        values: none of them None.
    """

    __slots__ = ("values",)
    oid: ClassVar[int]

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def encoded(self) -> Sequence[bytes]:
        """The values in PostgreSQL's binary format."""
        return self.values


class Texts(Array):
    """``text[]``."""

    oid = 25

    def encoded(self) -> Sequence[bytes]:
        return [value.encode() for value in self.values]


class Blobs(Array):
    """``bytea[]``."""

    oid = 17


class Numbers(Array):
    """``bigint[]``."""

    oid = 20

    def encoded(self) -> Sequence[bytes]:
        return list(map(_NUMBER.pack, self.values))


_NUMBER, _LENGTH, _ARRAY = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">iiIii")
_ARRAYS = {25: 1009, 17: 1001, 20: 1016}


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self.oid = _ARRAYS[cls.oid]  # type: ignore[attr-defined]

    def dump(self, obj: Array) -> bytes:
        values = obj.encoded()
        if not values:
            return _ARRAY.pack(0, 0, obj.oid, 0, 1)[:12]
        parts = [_ARRAY.pack(1, 0, obj.oid, len(values), 1)]
        length = _LENGTH.pack
        for value in values:
            parts += (length(len(value)), value)
        return b"".join(parts)


class _Connection(AsyncConnection[tuple[Any, ...]]):
    # psycopg's own wakes at an interval, for Ctrl-C, and for each of the 8 KiB that a server sends at a time.
    async def wait(self, gen: Any, *_: Any, **options: Any) -> Any:
        if options.get("timeout") is not None:  # of `notifies`, which is not used so
            return await super().wait(gen, **options)
        try:
            return await _answer(gen, self.pgconn.socket)
        except asyncio.CancelledError:
            self.pgconn.finish()
            raise


async def _answer(gen: Any, fileno: int) -> Any:
    """Run one of psycopg's generators to its end; a long answer gathers for a moment before more of it is read."""
    loop = asyncio.get_running_loop()
    reads = waits = 0
    try:
        wanted = next(gen)
        while True:
            reads += 1
            if reads % _AT_ONCE == 0:  # others have their turn
                await asyncio.sleep(0)
            ready = _ready_now(fileno, wanted)
            if not ready:
                waits += 1
                if waits > _SHORT and wanted == waiting.WAIT_R:
                    await asyncio.sleep(_GATHERS)
                await _readiness(loop, fileno, wanted)
                ready = _ready_now(fileno, wanted)
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _ready_now(fileno: int, wanted: int) -> int:
    """Which of what a generator waits for, to read or to write, is possible; an error is found by either."""
    poll = select.poll()
    poll.register(fileno, _EVENTS[wanted])
    for _, events in poll.poll(0):
        return wanted & (
            (waiting.READY_R if events & ~select.POLLOUT else 0) | (waiting.READY_W if events & ~select.POLLIN else 0)
        )
    return 0


async def _readiness(loop: asyncio.AbstractEventLoop, fileno: int, wanted: int) -> None:
    found: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not found.done():
            found.set_result(None)

    if wanted & waiting.WAIT_R:
        loop.add_reader(fileno, ready)
    if wanted & waiting.WAIT_W:
        loop.add_writer(fileno, ready)
    try:
        await found
    finally:
        loop.remove_reader(fileno)
        loop.remove_writer(fileno)


class Pool:
    """A transport's connections, made when they are needed.

    Args:
        url: where to, and how many at most.
    """

    def __init__(self, url: PostgresUrl) -> None:
        self.url = url
        self.arrivals = Arrivals()
        self._idle: list[_Connection] = []
        self._era = 0  # how many times the server was found to be another one, or down
        self._place: tuple[str, int] | None = None
        self._turns = asyncio.Semaphore(url.pool_size)
        self._listening: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._to_notify: set[str] = set()
        self._notifying: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, statements: Sequence[Statement], begin: Callable[[], None] | None = None) -> list[Rows]:
        """Run statements in one round trip and one transaction, and return the rows of each.

        Args:
            statements: each with its parameters.
            begin: called before the first byte is sent.

        Raises:
            NotSent: there is no connection.
            psycopg.Error: as the server or libpq reported it.
        """
        async with self._connection() as connection:
            if begin is not None:
                begin()
            if len(statements) == 1:
                return [await _rows(await _execute(connection, statements[0]))]
            async with connection.pipeline():
                if not self.url.listen:  # else the settings say so
                    await connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                cursors = [await _execute(connection, each) for each in statements]
                if not self.url.listen:
                    await connection.execute("COMMIT")
            return [await _rows(cursor) for cursor in cursors]

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[_Connection]:
        async with self._turns:
            connection = self._idle_one()
            if connection is None:
                connection = await self.connect()
                place = (connection.info.host, connection.info.port)
                if self._place not in (None, place):  # another one of the hosts takes writes now
                    self._distrust()
                self._place = place
            era = self._era
            loop = asyncio.get_running_loop()
            began = loop.time()
            try:
                yield connection
            except Exception as error:
                if _errors.leads_elsewhere(error) or connection.closed:
                    connection.pgconn.finish()
                    self._distrust()
                raise
            except asyncio.CancelledError:
                if loop.time() - began >= _SILENT:  # a firewall may have forgotten them all
                    self._drop_idle()
                raise
            finally:
                is_idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
                if self._closed or era != self._era or not is_idle:
                    connection.pgconn.finish()
                else:
                    self._idle.append(connection)

    def _idle_one(self) -> _Connection | None:
        """Find an idle connection that the server has not ended meanwhile."""
        connection = self._idle.pop() if self._idle else None
        if connection is not None and _has_news(connection):
            connection.pgconn.finish()
            self._distrust()
            return None
        return connection

    async def connect(self) -> _Connection:
        """Connect to the first host that takes writes.

        Raises:
            NotSent: none does.
        """
        try:
            made = await _Connection.connect(
                **self.url.parameters(),
                autocommit=True,
                prepare_threshold=0 if self.url.listen else None,
            )
        except (psycopg.Error, OSError) as error:
            raise NotSent(error) from None
        for kind in (Texts, Blobs, Numbers):
            made.adapters.register_dumper(kind, _ArrayDumper)
        return made

    def _distrust(self) -> None:
        """Drop what is idle, and later what is in use: it was connected to the same server."""
        self._era += 1
        self._drop_idle()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.pgconn.finish()
        self._idle.clear()

    # Notifications.

    def notify(self, path: str) -> None:
        """Wake the receivers of a path in all processes, a moment after the send that was confirmed.

        Not in the send's own transaction: those that notify are committed one after the other, throughout the database.
        Senders would wait for each other's writes to the disk.
        """
        self.arrivals.notify(path)
        self._to_notify.add(path)
        if self._notifying is None and not self._closed:
            self._notifying = start_task(self._notify())

    async def _notify(self) -> None:
        try:
            while self._to_notify:
                paths, self._to_notify = sorted(self._to_notify), set()
                # Receivers look without being notified, only less often.
                with contextlib.suppress(NotSent, psycopg.Error):
                    await self.run([(_sql.NOTIFY, {"paths": paths})])
        finally:
            self._notifying = None

    @property
    def listens(self) -> bool:
        """Whether notifications are heard now."""
        return self._listening is not None and self._heard.is_set()

    async def listen(self) -> bool:
        """Listen for notifications; False if it already did, or can't: then look again soon."""
        if not self.url.listen or self._closed or self.listens:
            return False
        if self._listening is None:
            self._listening = start_task(self._listen())
        await self._heard.wait()
        return self._listening is not None

    async def _listen(self) -> None:
        connection = None
        try:
            connection = await self.connect()
            await connection.execute("LISTEN pairmq")
            self._heard.set()
            async for notification in connection.notifies():
                self.arrivals.notify(notification.payload)
        except (NotSent, psycopg.Error):
            pass  # the next look reports it, if it concerns more than this connection
        finally:
            if connection is not None:
                connection.pgconn.finish()
            self._listening = None
            self._heard.set()
            self._heard = asyncio.Event()
            self.arrivals.notify_all()

    async def close(self) -> None:
        """End all connections, those in use too."""
        self._closed = True
        if self._notifying is not None:
            await asyncio.wait((self._notifying,), timeout=_NOTIFIED_WITHIN)
        tasks = [task for task in (self._notifying, self._listening) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_SOON)
        self._drop_idle()


class Calls:
    """The calls of one object, which end when it closes.

    Args:
        pool: runs them.
        scope: ends them.
    """

    def __init__(self, pool: Pool, scope: Scope) -> None:
        self.pool = pool
        self.scope = scope

    async def run(self, doing: str, *statements: Statement, answer_within: float | None = None) -> list[Rows]:
        """Run statements in one round trip and one transaction.

        Args:
            doing: what they do, in words: ``send to orders``.
            statements: each with its parameters.
            answer_within: seconds from the first byte on, for callers whose own limit is a long poll's.

        Raises:
            TransportError: they were not run, or that is in doubt.
        """
        self.scope.check()
        call = _Call(doing, answer_within)
        self.scope.add(call)
        task = start_task(self.pool.run(statements, call.begin))
        try:
            await asyncio.wait((task, call.ended), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise call.ended.result()
            return task.result()
        except (NotSent, psycopg.Error) as error:
            made = _errors.failure(error, doing)
            raise made from made.__cause__
        except asyncio.CancelledError as cancellation:
            if not call.begun:
                nothing_sent(cancellation)
            raise
        finally:
            self.scope.discard(call)
            call.stop()
            task.cancel()
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen, if it fails now


class _Call:
    def __init__(self, doing: str, answer_within: float | None) -> None:
        self.begun = False
        self.ended: asyncio.Future[TransportError] = asyncio.get_running_loop().create_future()
        self._doing, self._answer_within = doing, answer_within
        self._limit: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.begun = True
        if self._answer_within is not None:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(self._answer_within, self._expire)

    def stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _expire(self) -> None:
        self.end(_errors.failure(TimeoutError(), self._doing))

    def end(self, error: TransportError) -> None:
        if not self.ended.done():
            error.maybe_applied = self.begun
            self.ended.set_result(error)


def _has_news(connection: _Connection) -> bool:
    """Whether the server has sent anything over a connection that asked for nothing: its end, or changed settings."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))


async def _execute(connection: _Connection, statement: Statement) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    query, parameters = statement
    return await connection.cursor(binary=True).execute(query, parameters)


async def _rows(cursor: psycopg.AsyncCursor[tuple[Any, ...]]) -> Rows:
    return await cursor.fetchall() if cursor.description else []

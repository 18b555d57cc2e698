"""Connections: a pool that retries nothing, and the one that listens.

Not psycopg's own pool: that one connects in the background, again and again, and reports a time-out where a caller must
learn why there is no connection, and whether anything was sent.

A call that is cancelled drops its connection, if a statement is on its way, once the calls that share it have ended:
whatever the server makes of it, no later call meets it. psycopg by itself would ask the server to cancel the statement,
and wait for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from pairmq.model import TransportError
from pairmq.transport import Arrivals, Scope, nothing_sent, start_task
from pairmq_postgres import _errors, _sql
from pairmq_postgres._connection import Connection, Hosts, Rows, Statement
from pairmq_postgres._errors import NotSent
from pairmq_postgres._url import PostgresUrl

A = TypeVar("A")

_NOTIFIED_WITHIN = 0.5  # s that a close waits for notifications of what was sent
_SOON = 0.05  # s
_FAR = 0.01  # s of an answer, from which on calls are pipelined
_FORGETS = 1.02  # so much longer is what the quickest answer counts for with each later one
_MOMENT = 0.005
"""Seconds that a call waits at the most for the one before it, to serve more at once: at a distance it takes longer."""
_SILENT = 1.0  # s without an answer after which a cancelled call makes the idle connections doubtful


class Pool:
    """A transport's connections, made when they are needed."""

    def __init__(self, url: PostgresUrl) -> None:
        self.url = url
        self.arrivals = Arrivals()
        self._hosts = Hosts(url)
        self._idle: list[Connection] = []
        self._era = 0  # how many times the server was found to be another one, or down
        self._place: tuple[str, int] | None = None
        self._turns = asyncio.Semaphore(url.pool_size)
        self._shared: Connection | None = None  # the one for pipelined calls, while it is in use
        self._quickest = math.inf  # s, of the answers lately: so far away is the server
        self._listening: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._to_notify: set[str] = set()
        self._notifying: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Run statements in one round trip and one transaction, and return the rows of each. Raises `NotSent`, or
        psycopg's error."""
        return await self.ask(lambda: statements)

    async def ask(self, begin: Callable[[], Sequence[Statement]], *, pipelined: bool = False) -> list[Rows]:
        """Do the same with the statements that ``begin`` returns, which is called before the first byte is sent.

        To a distant server ``pipelined`` calls, none of which waits for a lock, share a connection: each by itself
        would wait for the answer to the one before it, or for six round trips that make another connection.
        """
        connection = self._shared if pipelined else None
        if connection is None:
            await self._turns.acquire()
            try:
                connection = self._idle_one() or await self._connect()
            except BaseException:
                self._turns.release()
                raise
            if pipelined and self.url.listen and _FAR <= self._quickest < math.inf:
                self._shared = connection
        era = self._era
        connection.users += 1
        try:
            return await self._ask(connection, begin)
        finally:
            connection.users -= 1
            if not connection.users:
                self._turns.release()
                self._put_back(connection, era)

    async def _connect(self) -> Connection:
        connection = await self._hosts.connect()
        place = (connection.info.host, connection.info.port)
        if self._place not in (None, place):  # another one of the hosts takes writes now
            self._distrust()
        self._place = place
        return connection

    async def _ask(self, connection: Connection, begin: Callable[[], Sequence[Statement]]) -> list[Rows]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            run = connection.run_pipelined if connection is self._shared else connection.run
            found = await run(begin())
            self._quickest = min(loop.time() - began, self._quickest * _FORGETS)
            return found
        except Exception as error:
            if _errors.leads_elsewhere(error) or connection.closed:
                self._distrust()
            raise
        except asyncio.CancelledError:
            if connection is self._shared:  # what has no answer may never have one, nor what follows it
                self._shared = None
            if loop.time() - began >= _SILENT:  # a firewall may have forgotten them all
                self._drop_idle()
            raise

    def _put_back(self, connection: Connection, era: int) -> None:
        if connection is self._shared:
            self._shared = None
        is_idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if self._closed or era != self._era or not is_idle:
            connection.drop()
        else:
            self._idle.append(connection)

    def _idle_one(self) -> Connection | None:
        """Find an idle connection that the server has not ended meanwhile."""
        connection = self._idle.pop() if self._idle else None
        if connection is not None and _has_news(connection):
            connection.pgconn.finish()
            self._distrust()
            return None
        return connection

    def _distrust(self) -> None:
        """Drop what is idle, and later what is in use: it was connected to the same server."""
        self._era += 1
        self._shared = None
        self._drop_idle()

    def _drop_idle(self) -> None:
        self._hosts.look_again()
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
                    await self.ask(lambda: [(_sql.NOTIFY, {"paths": paths})], pipelined=True)  # noqa: B023  # at once
        finally:
            self._notifying = None

    @property
    def listens(self) -> bool:
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
            connection = await self._hosts.connect()
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


class Shared(Generic[A]):
    """A call that several wait for, which ends with the last of them.

    The argument of ``work``, called before the first byte is sent, returns what those ask for that wait.
    """

    def __init__(self, work: Callable[[Callable[[], list[A]]], Coroutine[Any, Any, Any]]) -> None:
        self.begun = False
        self.waiting: dict[_Call, A] = {}
        self.task = start_task(work(self._begin))
        self.task.add_done_callback(self._end)

    def leave(self, call: _Call) -> None:
        """It no longer waits."""
        if self.waiting.pop(call, self) is not self and not self.waiting:
            self.task.cancel()

    def _begin(self) -> list[A]:
        self.begun = True
        for call in self.waiting:
            call.begin()
        return list(self.waiting.values())

    def _end(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # seen, even if no call waits now
        for call in self.waiting:
            call.end(None)


class Together(Generic[A]):
    """Calls of one kind that are made as one: each waits for the one before it, for a moment at the most, and serves
    all that ask for the same meanwhile. All of them ask for ``most`` at the most, unless one does."""

    def __init__(self, work: Callable[[Callable[[], list[A]]], Coroutine[Any, Any, Any]], most: int) -> None:
        self._work = work
        self._most = most
        self._size = 0
        self._latest: Shared[A] | None = None

    def join(self, size: int, *, alone: bool = False) -> Shared[A]:
        latest = self._latest
        self._size += size
        if latest is None or latest.begun or not latest.waiting or alone or self._size > self._most:
            self._size = self._most if alone else size
            self._latest = Shared(lambda begin: self._run(latest, begin))
        return self._latest  # type: ignore[return-value]

    async def _run(self, before: Shared[A] | None, begin: Callable[[], list[A]]) -> Any:
        if before is not None and not before.task.done():
            await asyncio.wait((before.task,), timeout=_MOMENT)
        return await self._work(begin)


class Calls:
    """The calls of one object, which end when it closes."""

    def __init__(self, pool: Pool, scope: Scope) -> None:
        self.pool = pool
        self.scope = scope

    async def run(
        self, doing: str, *statements: Statement, answer_within: float | None = None, pipelined: bool = False
    ) -> list[Rows]:
        """Run statements in one round trip and one transaction; ``doing`` is what they do, in words. Raises
        `TransportError`.

        ``answer_within`` is in seconds from the first byte on, for callers whose own limit is a long poll's;
        ``pipelined`` as in `Pool.ask`.
        """

        def work(begin: Callable[[], list[None]]) -> Coroutine[Any, Any, list[Rows]]:
            return self.pool.ask(lambda: (begin(), statements)[1], pipelined=pipelined)

        found: list[Rows] = await self.share(doing, None, lambda: Shared(work), answer_within)
        return found

    async def share(
        self, doing: str, asked: A, join: Callable[[], Shared[A]], answer_within: float | None = None
    ) -> Any:
        """Wait for the call that ``join`` finds, for which others may wait too; its result. Raises `TransportError`."""
        self.scope.check()
        shared = join()
        call = _Call(doing, answer_within, shared)
        shared.waiting[call] = asked
        self.scope.add(call)
        try:
            error = await call.ended
            if error is not None:
                raise error
            return shared.task.result()
        except (NotSent, psycopg.Error) as failed:
            made = _errors.failure(failed, doing)
            raise made from made.__cause__
        except asyncio.CancelledError as cancellation:
            if not shared.begun:
                nothing_sent(cancellation)
            raise
        finally:
            self.scope.discard(call)
            call.stop()
            shared.leave(call)


class _Call:
    def __init__(self, doing: str, answer_within: float | None, shared: Shared[Any]) -> None:
        self.ended: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()
        self._doing, self._answer_within, self._shared = doing, answer_within, shared
        self._limit: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._answer_within is not None:
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(self._answer_within, self._expire)

    def stop(self) -> None:
        if self._limit is not None:
            self._limit.cancel()

    def _expire(self) -> None:
        self.end(_errors.failure(TimeoutError(), self._doing))

    def end(self, error: TransportError | None) -> None:
        if not self.ended.done():
            if error is not None:
                error.maybe_applied = self._shared.begun
                self._shared.leave(self)  # what has not begun is not done
            self.ended.set_result(error)


def _has_news(connection: Connection) -> bool:
    """Whether the server has sent anything over a connection that asked for nothing: its end, or changed settings."""
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))

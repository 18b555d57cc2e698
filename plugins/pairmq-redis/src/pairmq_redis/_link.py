"""A connection that many tasks share, made when first needed and made anew after it was lost.

Commands are written in the order of the calls, at once, and replies are matched by their order: concurrent
calls are pipelined without any call waiting for its turn, and a single call costs one write and one read.

What becomes of a connection:

- It is *lost*: every call on it ends with `Unanswered`; the next call connects.
- A call on it is *cancelled*: its reply may still come, or the server may be hung. The connection is
  *retired*: it takes no more commands, the calls in flight on it may still get their replies, and with the
  last of them it is dropped. So a cancelled call harms no other, and no later call waits on a connection in
  doubt.
- The server answers that it is not the one to ask (any more), such as READONLY: the connection is retired as well, so
  that the next call resolves the address again. One that was made a moment ago is kept: it leads where the address
  leads now, and a thousand refused calls must not make a thousand connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pairmq.model import TransportError
from pairmq.transport import Scope, in_turns, nothing_sent, start_task
from pairmq_redis._errors import NotSent, Unanswered, leads_elsewhere
from pairmq_redis._wire import Command, Reply, Wire

_MOMENT = 0.5  # s for which a connection counts as just made


class Waiter:
    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, error: TransportError) -> None:
        """Give up waiting: nothing was written."""
        error.maybe_applied = False
        self.wake(error)

    def wake(self, error: Exception | None) -> None:
        """Wait no longer."""
        if self.future.done():
            return
        if error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(error)


class _Call(asyncio.Future[None]):
    """One call's replies, as they come in; done with the last one. Thousands may be in flight: it is one object."""

    __slots__ = ("expected", "replies")

    def __init__(self, expected: int) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self.expected = expected
        self.replies: list[Reply] | None = None

    def end(self, error: TransportError) -> None:
        if not self.done():
            self.set_exception(error)

    def lose(self, cause: BaseException) -> None:
        """The connection was lost, and the missing replies with it."""
        if not self.done():
            replies = self.replies or []
            self.replies = replies + [Unanswered(cause) for _ in range(self.expected - len(replies))]
            self.set_result(None)


class _Session:
    """One open connection with the calls in flight on it; ``elsewhere`` is called when its server is the wrong one."""

    def __init__(self, wire: Wire, elsewhere: Callable[[], None], leads: Callable[[Exception], bool]) -> None:
        self.wire = wire
        self._elsewhere = elsewhere
        self._leads_elsewhere = leads
        self._made_at = asyncio.get_running_loop().time()
        self._calls: deque[_Call] = deque()
        self._waiting = 0  # calls that wait for their replies: in `_calls` are also those that were cancelled
        self._retired = False
        self.usable = True
        self.reader = start_task(self._read())

    def begin(self, commands: Sequence[Command]) -> _Call:
        """Write commands, to be followed by `finish`."""
        call = _Call(len(commands))
        try:
            self.wire.write(commands)
        except Exception as error:
            self.end(error)
            raise NotSent(error) from error
        self._calls.append(call)
        self._waiting += 1
        return call

    def finish(self) -> None:
        """A call waits no longer for its replies."""
        self._waiting -= 1
        if self._retired and not self._waiting:
            self.end(ConnectionAbortedError("the connection was dropped"))

    def end(self, cause: BaseException) -> None:
        """Drop the connection; calls in flight get `Unanswered` in place of each missing reply."""
        self.usable = False
        self.wire.abort()
        self.reader.cancel()
        calls, self._calls = self._calls, deque()
        in_turns(lambda call: call.lose(cause), [call for call in calls if not call.done()])

    def retire_if_old(self) -> None:
        """Retire it, unless it was made a moment ago."""
        if self.usable and asyncio.get_running_loop().time() - self._made_at >= _MOMENT:
            self.retire()

    def retire(self) -> None:
        """Take no more calls, and drop the connection with the last of those that wait."""
        self.usable = False
        self._retired = True
        if not self._waiting:
            self.end(ConnectionAbortedError("the connection was dropped"))

    async def _read(self) -> None:
        try:
            await self.wire.deliver(self._take)
        except Exception as error:
            self.end(error)

    def _take(self, reply: Reply) -> None:
        if not self._calls:
            raise ConnectionError("the server sent a reply without a command")
        call = self._calls[0]
        if call.replies is None:
            call.replies = [reply]
        else:
            call.replies.append(reply)
        if len(call.replies) == call.expected:
            self._calls.popleft()
            if not call.done():
                call.set_result(None)
        if isinstance(reply, Exception) and self.usable and self._leads_elsewhere(reply):
            self._elsewhere()


class Line(Protocol):
    """What carries commands: a `Link`, or one for each node of a cluster."""

    async def call(self, commands: Sequence[Command], scope: Scope) -> list[Reply]:
        """Write commands and return one reply each: an error reply, or `Unanswered`, takes its command's place;
        `NotSent` too, where others were sent.

        Raises `NotSent` if nothing was written, and `TransportError` if the scope was closed. A call that is cancelled
        before it has written reports that with `nothing_sent`.
        """

    async def nodes(self, scope: Scope) -> Sequence[Line]:
        """Find the servers that have a part of the keys, for what is asked of each. Raises as `call`."""

    def leave(self, which: Callable[[Wire], bool]) -> None:
        """End connections, retired ones too: what their server still answers is worth nothing any more."""

    def look_up_again(self) -> None:
        """Let the next call resolve the address and connect anew, unless this was done a moment ago."""

    async def close(self) -> None:
        """Drop what is open for good and wait until its tasks have ended, which takes no IO."""


class Link:
    """One connection at a time, shared: the `Line` to one server.

    When an error reply ``leads`` to another server, ``elsewhere`` is called, or `look_up_again` when left out.
    """

    def __init__(
        self,
        make: Callable[[], Wire],
        elsewhere: Callable[[], None] | None = None,
        leads: Callable[[Exception], bool] = leads_elsewhere,
    ) -> None:
        self._make = make
        self._elsewhere = elsewhere or self.look_up_again
        self._leads_elsewhere = leads
        self._session: _Session | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._waiters: dict[Waiter, None] = {}  # of this attempt, in the order of their calls
        self._sessions: set[_Session] = set()  # retired ones too, until their readers have ended
        self._queued = 0  # calls that wait for a connection, or were woken and have not written yet
        self._closed = False

    async def call(self, commands: Sequence[Command], scope: Scope) -> list[Reply]:
        scope.check()
        session = self._session
        call = None
        if session is not None and session.usable and not self._queued:
            try:
                call = session.begin(commands)
            except NotSent:
                call = None  # it was lost a moment ago and nothing left: this is the next call, which connects anew
        if session is None or call is None:
            session = await self._connected(scope)
            call = session.begin(commands)
        del commands  # of thousands of calls in flight the garbage collector would go through them each time
        scope.add(call)
        try:
            await call
        except asyncio.CancelledError:
            session.retire()
            raise
        finally:
            scope.discard(call)
            session.finish()
        return call.replies or []

    async def _connected(self, scope: Scope) -> _Session:
        """Wait for a connection, behind the calls that wait for one already."""
        self._queued += 1
        try:
            if self._usable():
                # The connection was made a moment ago, and those who waited for it have been woken and not yet run:
                # one turn of the loop later this call comes behind them.
                await asyncio.sleep(0)
            scope.check()
            if not self._usable():
                await self._connect(scope)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise
        finally:
            self._queued -= 1
        scope.check()
        session = self._session
        if session is None or not session.usable:
            raise NotSent(ConnectionResetError("the connection was lost as soon as it was made"))
        return session

    def _usable(self) -> bool:
        return self._session is not None and self._session.usable

    async def nodes(self, scope: Scope) -> Sequence[Line]:
        return (self,)

    def leave(self, which: Callable[[Wire], bool]) -> None:
        for session in list(self._sessions):
            if which(session.wire):
                session.end(ConnectionResetError("another server is the master now"))

    def look_up_again(self) -> None:
        if self._session is not None:
            self._session.retire_if_old()

    async def close(self) -> None:
        self._closed = True
        self._session = None
        sessions = list(self._sessions)
        for session in sessions:  # calls may wait on retired ones too
            session.end(ConnectionAbortedError("the connection was closed"))
        tasks = [session.reader for session in sessions]
        if self._attempt is not None:
            self._attempt.cancel()
            tasks.append(self._attempt)
            self._wake(NotSent(ConnectionAbortedError("the connection was closed")))  # it may not even have begun
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _connect(self, scope: Scope) -> None:
        """Wait for one connection attempt, which all waiting calls share; the last to leave takes it with them."""
        if self._closed:
            raise NotSent(ConnectionAbortedError("the connection was closed"))
        if self._attempt is None:
            self._attempt = start_task(self._open())
        attempt = self._attempt
        waiter = Waiter()
        self._waiters[waiter] = None
        scope.add(waiter)
        try:
            await waiter.future
        finally:
            scope.discard(waiter)
            self._waiters.pop(waiter, None)
            if not self._waiters and self._attempt is attempt:
                self._attempt = None
                attempt.cancel()

    async def _open(self) -> None:
        try:
            wire = self._make()
            await wire.open()
        except asyncio.CancelledError:
            self._settle(NotSent(ConnectionAbortedError("the connection was closed")))
            raise
        except Exception as error:
            self._settle(NotSent(error))
            return
        if self._closed or self._attempt is not asyncio.current_task():
            wire.abort()
            self._settle(NotSent(ConnectionAbortedError("the connection was closed")))
            return
        session = self._session = _Session(wire, self._elsewhere, self._leads_elsewhere)
        self._sessions.add(session)
        session.reader.add_done_callback(lambda _: self._sessions.discard(session))
        self._settle(None)

    def _settle(self, error: NotSent | None) -> None:
        """End this attempt, unless all its callers have left: those that wait by then wait for the next one."""
        if self._attempt is asyncio.current_task():
            self._attempt = None
            self._wake(error)

    def _wake(self, error: NotSent | None) -> None:
        waiters, self._waiters = self._waiters, {}
        if error is not None:
            in_turns(lambda waiter: waiter.wake(NotSent(error.cause)), waiters)
            return
        for waiter in waiters:  # in one turn: calls that begin after it come behind them
            waiter.wake(None)

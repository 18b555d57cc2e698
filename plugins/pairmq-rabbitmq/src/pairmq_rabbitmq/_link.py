"""A link: one connection at a time, made when first needed and made anew after it was lost or given up.

No connection is made that no caller asked for, and none is waited for on its way back: whether and when to try again is
decided above (SPEC 3.6).

A call that was given up says little about its connection: distance and a short stall look like a dead one. So the next
calls get another connection, and those that go on with this one keep it, until no call uses it or the driver misses its
heartbeats (SPEC 14.3).

Where the URL names several nodes of a cluster, a connection is made to the first of them that answers: they are tried
in an order of this process's own, and one that does not answer soon is not waited for. A node that stops responding is
noticed by its missing heartbeats, sooner than the driver does (SPEC 14.1).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from aiormq.channel import Channel
from aiormq.connection import exception_by_code

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import bracketed, start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._driver import Connection, DriverLoop, close_channel, connection_context, next_closed
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._url import Node, RabbitUrl
from pairmq_rabbitmq._wire import Wire

_STAGGER = 0.25  # s that a node of a cluster may take to let a client in before the next one is tried beside it
_LOOK = 0.5  # s between two looks at whether a node of a cluster still responds
_QUIET = 2  # looks without a frame after which new calls go to another node, where calls wait for answers
_SILENT = 0.8  # of a heartbeat, without a frame: a node that responds writes one twice in a heartbeat
_AFTERLIFE = 15.0  # s between two looks at whether a retired connection is still used
_SILENCE = 0.1  # s without a frame from the broker after which a reply that is not waited for puts it in doubt
_MOST_FORSAKEN = 20  # calls that are not waited for any more, until their connection is replaced to get rid of them

T = TypeVar("T")

ACCESS_REFUSED = 403
_CLEARED = 0.2  # s for the driver to put away what it has of a connection that is gone
_FRAME_MAX = 131_072  # of RabbitMQ unless configured otherwise
_FRAME_OVERHEAD = 8
_REFILL = 0.1  # s after which a channel that was taken from the reserve is made up for
_SPARE_CHANNELS = 8  # of the broker's limit: it counts a channel for a moment longer than the driver does


class Nodes:
    """The nodes of a cluster, in the order in which this process tries them: not all start with the same one."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.order = random.SystemRandom().sample(nodes, len(nodes))

    def prefer(self, node: Node) -> None:
        """This one let a client in: the process's other connections go there, too."""
        self.order.remove(node)
        self.order.insert(0, node)

    def avoid(self, node: Node) -> None:
        """This one did not answer, or lost a connection."""
        self.order.remove(node)
        self.order.append(node)


class Link:
    """One connection at a time, shared; ``nodes`` are those of the transport's other links, too.

    With ``leaves``, calls that wait for answers from a quiet node make new ones go to another node: to be used where no
    locks are held and no call waits for something to happen.
    """

    def __init__(
        self,
        url: RabbitUrl,
        tls: ssl.SSLContext | None,
        purpose: str,
        nodes: Nodes | None = None,
        *,
        leaves: bool = False,
    ) -> None:
        self._url = url
        self._tls = tls
        self._purpose = purpose
        self._nodes = nodes or Nodes(url.nodes)
        self._leaves = leaves
        self._session: Session | None = None
        self._attempt: asyncio.Task[Session] | None = None
        self._waiters = 0
        self._retired: dict[Session, int | None] = {}
        """With how many frames had come when it fell silent; None for one that is not used again."""
        self._tries: set[asyncio.Task[Session]] = set()
        self._made: list[Session] = []
        """All that were opened, or are being opened, and have not been cleared away."""
        self._closed = False

    @property
    def is_cluster(self) -> bool:
        return len(self._url.nodes) > 1

    @property
    def current(self) -> Session | None:
        """The open connection; None when the next call would connect."""
        if self._session is None or not self._session.usable:
            self._session = next((one for one, then in self._retired.items() if _lives(one, then)), None)
            if self._session is not None:
                del self._retired[self._session]
        return self._session

    @property
    def max_payload(self) -> int:
        """Bytes of a frame, as far as is known without connecting."""
        session = self.current
        return _FRAME_MAX - _FRAME_OVERHEAD if session is None else session.max_payload

    async def session(self) -> Session:
        """Return the open connection, or open one. Callers that wait share one attempt."""
        if self._closed:
            raise Unsent(_errors.closed("connect"))
        session = self.current
        if session is not None:
            return session
        if self._attempt is None:
            self._attempt = start_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        attempt = self._attempt
        self._waiters += 1
        try:
            await asyncio.wait((attempt,))
        finally:
            self._waiters -= 1
            if not self._waiters and self._attempt is attempt:
                # No caller waits any more. The next one shall not wait for an attempt whose time is half over.
                self._attempt = None
                attempt.cancel()
        if attempt.cancelled():
            raise Unsent(_errors.closed("connect"))
        error = attempt.exception()
        if error is not None:
            raise Unsent(error)
        return attempt.result()

    def retire(self, session: Session, *, silent: bool) -> None:
        """Stop using a connection for new calls, unless a silent one is heard of again; it ends when no call uses it
        any more."""
        if self._session is session:
            self._session = None
        if not session.usable:
            return
        if silent:
            self._nodes.avoid(session.node)
        known = session in self._retired
        self._retired[session] = session.wire.frames if silent else None
        if not known:
            session.on_end(lambda _: self._forget(session))
            asyncio.get_running_loop().call_later(_AFTERLIFE, self._end_if_unused, session)

    def doubt(self, asked: Asked) -> None:
        """A caller stopped waiting for a reply: let new calls use another connection if it says something about this
        one."""
        silent = asked.silent
        if silent or asked.session.forsaken >= _MOST_FORSAKEN:
            self.retire(asked.session, silent=silent)

    def _forget(self, session: Session) -> None:
        self._retired.pop(session, None)

    def _end_if_unused(self, session: Session) -> None:
        if session not in self._retired:
            return
        if session.users:
            asyncio.get_running_loop().call_later(_AFTERLIFE, self._end_if_unused, session)
        else:
            session.end(TimeoutError("the broker did not answer in time"))

    async def close(self, timeout: float) -> None:
        """Close every connection within ``timeout`` seconds."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
        self._session = None
        closing = [asyncio.ensure_future(session.close(timeout)) for session in self._made]
        if closing or self._tries:
            await asyncio.wait((*closing, *self._tries))

    async def _connect(self) -> Session:
        async with asyncio.timeout(self._url.connect_timeout):
            session = await (self._try(self._url.nodes[0]) if len(self._url.nodes) == 1 else self._first_to_answer())
        self._session = session
        return session

    async def _try(self, node: Node) -> Session:
        session = Session(node)
        self._made = [*(one for one in self._made if not one.cleared), session]
        try:
            await session.open(self._url, self._tls, self._purpose)
        except BaseException as error:
            session.end(error if isinstance(error, Exception) else ConnectionAbortedError("given up"))
            raise
        return session

    async def _first_to_answer(self) -> Session:
        """Try the nodes in turn, the next one as soon as one fails or takes long; the first connection is the one."""
        left = list(self._nodes.order)
        trying: dict[asyncio.Task[Session], Node] = {}
        failed: list[str] = []
        try:
            while left or trying:
                if left:
                    node = left.pop(0)
                    trying[start_task(self._try(node), keep=self._tries)] = node
                done, _ = await asyncio.wait(
                    trying, timeout=_STAGGER if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    node, error = trying[task], task.exception()
                    if error is None:
                        del trying[task]
                        self._nodes.prefer(node)
                        return self._watched(task.result())
                    failure = _errors.failure(error, f"{bracketed(node[0])}:{node[1]}")
                    if failure.kind is FailureKind.REFUSED:
                        raise error  # who we are, or the virtual host: it is the same at all nodes
                    failed.append(str(failure))
                    self._nodes.avoid(trying.pop(task))
        finally:
            for task, node in reversed(trying.items()):
                self._nodes.avoid(node)  # it is slower than another one, or hangs; what had the most time comes last
                if not task.cancel() and not task.cancelled() and task.exception() is None:
                    task.result().end(ConnectionAbortedError("another node answered first"))
        raise ConnectionError(f"no node of the cluster lets a client in ({'; '.join(failed)})")

    def _watched(self, session: Session) -> Session:
        session.on_end(lambda _: self._nodes.avoid(session.node))
        self._watch(session, -1, 0)
        return session

    def _watch(self, session: Session, frames: int, quiet: int) -> None:
        """Look now and then at whether the node still responds; it writes a frame twice in a heartbeat."""
        if not session.usable:
            return
        quiet = quiet + 1 if session.wire.frames == frames else 0
        if quiet * _LOOK >= _SILENT * self._url.heartbeat:
            session.end(TimeoutError("no heartbeat came from the node"))
            return
        if quiet >= _QUIET and self._leaves and session.users and not session.wire.blocked:
            self.retire(session, silent=True)
        asyncio.get_running_loop().call_later(_LOOK, self._watch, session, session.wire.frames, quiet)

    def _attempted(self, attempt: asyncio.Task[Session]) -> None:
        if self._attempt is attempt:
            self._attempt = None
        if attempt.cancelled():
            return
        if attempt.exception() is None and (self._closed or self._session is not attempt.result()):
            attempt.result().end(ConnectionAbortedError("given up"))


def _lives(session: Session, then: int | None) -> bool:
    return session.usable and then is not None and session.wire.frames != then


class Session:
    """One open connection: calls on it end at the latest when it does.

    It never comes back: a caller that finds it ended asks the link for the next one.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.wire = Wire(self._lost)
        self.cause: BaseException | None = None
        self.forsaken = 0  # calls that no caller waits for any more, and that have not ended
        self.users = 0  # who would lose something with it: calls that are waited for, and channels that lock messages
        self._connection: Connection | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: list[Callable[[BaseException], None]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = DriverLoop()
        self._lost_at_login: BaseException | None = None
        self._reserve: asyncio.Task[Channel] | None = None
        self._room = asyncio.Lock()

    @property
    def usable(self) -> bool:
        return self.cause is None

    @property
    def cleared(self) -> bool:
        """Whether it has ended, and every task that was started for it."""
        return self.cause is not None and not self._tasks and not self._loop.tasks

    @property
    def server_version(self) -> tuple[int, ...]:
        """The broker's version, such as (3, 10, 8); empty if it does not report one."""
        version = str(self._driver.server_properties.get("version", ""))
        return tuple(int(part) for part in version.split("-")[0].split(".") if part.isdigit())

    @property
    def max_payload(self) -> int:
        """Bytes of a frame, without those around its payload."""
        return (int(self._driver.connection_tune.frame_max or 0) or _FRAME_MAX) - _FRAME_OVERHEAD

    async def open(self, url: RabbitUrl, tls: ssl.SSLContext | None, purpose: str) -> None:
        """Connect and log in. Raises the driver's exceptions; nothing of a message was written."""
        connection = Connection(url, self.node, tls, purpose, self.wire, self._loop)
        try:
            await self._detached(connection.connect())
        except Exception as error:
            raise self._why_refused(error) from error
        self._connection = connection
        if self._lost_at_login is not None:
            self._lost(self._lost_at_login)

    async def open_channel(self, *, confirms: bool) -> Channel:
        """Open a channel. Raises `Unsent`."""
        try:
            return await self.run(self._open_channel(confirms))
        except Exception as error:
            raise Unsent(self.cause or (error.cause if isinstance(error, Unsent) else error)) from error

    async def _open_channel(self, confirms: bool) -> Channel:
        """Count the channels where the driver begins one: of many calls at once, each would find the same number."""
        if self._is_full:
            async with self._room:  # one call at a time: a channel that is closed makes room for one
                while self._is_full:
                    closing = next_closed(self._driver)
                    if closing is None:
                        most = self._driver.connection_tune.channel_max
                        text = f"the connection has all {most} channels that the broker allows: use fewer entities"
                        raise TransportError(text, FailureKind.TRANSIENT, FailureReason.QUOTA)
                    await asyncio.wait((closing,))
        channel: Channel = await self._driver.channel(publisher_confirms=confirms, on_return_raises=True)
        return channel

    @property
    def _is_full(self) -> bool:
        most = self._driver.connection_tune.channel_max
        return bool(most) and len(self._driver.channels) >= most - _SPARE_CHANNELS

    def give_back(self, channel: Channel) -> None:
        """Close a channel in the background; no caller waits."""
        if self.usable and not channel.is_closed:
            self._background(close_channel(channel))

    def reserve_publisher(self) -> None:
        """Open a channel for publishing ahead of the next caller, and another one when that is taken.

        The first publish to an entity then takes one question to the broker, its own, and not three.
        """
        if self._reserve is None and self.cause is None:
            self._reserve = self._background(self.open_channel(confirms=True))

    def take_publisher(self) -> Channel | None:
        """Take the channel in reserve; None without one that is open."""
        reserve = self._reserve
        if reserve is None or not reserve.done():
            return None
        self._reserve = None
        if reserve.cancelled() or reserve.exception() is not None or reserve.result().is_closed:
            return None
        # Not at once: a publish that could not wait for a channel is about to be written.
        asyncio.get_running_loop().call_later(_REFILL, self.reserve_publisher)
        return reserve.result()

    async def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await a call of the driver, or the end of the connection.

        A cancelled caller gets control back at once: the driver cleans up with further calls to the broker, which may
        never answer; that goes on behind the scenes. A cancellation that no caller asked for is never raised.
        """
        if self.cause is not None:
            operation.close()
            raise Unsent(self.cause)
        return await self._detached(operation)

    def on_end(self, listener: Callable[[BaseException], None]) -> None:
        """Call ``listener`` with the cause when it ends; at once if it has."""
        if self.cause is not None:
            listener(self.cause)
        else:
            self._listeners.append(listener)

    def remove_on_end(self, listener: Callable[[BaseException], None]) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)

    def end(self, cause: BaseException) -> None:
        """Drop the connection: calls in flight end with ``cause``."""
        if self.cause is not None:
            return
        self.cause = cause
        self.wire.abort()
        if not self._ended.done():
            self._ended.set_result(None)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(cause)
        for task in tuple(self._tasks):
            task.cancel()
        if self._connection is not None:
            self._background(self._connection.close())

    async def close(self, timeout: float) -> None:
        """Do the close handshake within ``timeout`` seconds, then drop the connection."""
        if self.cause is None and self._connection is not None and not self.wire.blocked:
            closing = self._background(self._connection.close())
            await asyncio.wait((closing, self._ended), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        self.end(ConnectionAbortedError("the connection was closed"))
        # The loop may stop running once this returns, and some of the driver's tasks start others when they end.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEARED):
                while tasks := self._tasks | self._loop.tasks:
                    await asyncio.wait(tasks)

    @property
    def _driver(self) -> Any:
        if self._connection is None or self._connection.transport is None:
            raise Unsent(self.cause or ConnectionError("not connected"))
        return self._connection.transport.connection

    def _why_refused(self, error: Exception) -> Exception:
        """Why the login failed: the broker's words, which the driver passes on for a wrong password only."""
        close_frame = self.wire.close_frame
        if close_frame is None or close_frame.reply_code == ACCESS_REFUSED:
            return error
        return exception_by_code(close_frame)

    async def _detached(self, operation: Coroutine[Any, Any, T]) -> T:
        task = self._background(operation)
        self.users += 1
        try:
            await asyncio.wait((task, self._ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not task.done():
                self.forsaken += 1
                task.add_done_callback(self._no_longer_forsaken)
            raise
        finally:
            self.users -= 1
        if not task.done():
            task.cancel()
            raise self.cause or ConnectionAbortedError("the connection was closed")
        if task.cancelled():  # the driver's way to report a lost connection
            raise self.cause or ConnectionResetError("the connection was lost")
        error = task.exception()
        if error is None:
            return task.result()
        if self.cause is not None and not isinstance(error, Exception):
            raise self.cause
        raise error

    def _background(self, operation: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = start_task(operation, context=connection_context())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _no_longer_forsaken(self, _: asyncio.Task[Any]) -> None:
        self.forsaken -= 1

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: no caller may be waiting for it any more

    def _lost(self, cause: BaseException) -> None:
        close_frame = self.wire.close_frame
        if close_frame is not None:
            cause = exception_by_code(close_frame)
        elif not isinstance(cause, Exception):
            cause = ConnectionResetError("the connection was lost")
        if self._connection is None:
            self._lost_at_login = cause  # the driver knows best what went wrong, if it still looks
            return
        # What came before the end is still on its way through the driver's queues.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self.end, cause)


class Asked:
    __slots__ = ("_frames", "at", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.at = asyncio.get_running_loop().time()
        self._frames = session.wire.frames

    @property
    def silent(self) -> bool:
        return self.session.wire.frames == self._frames and asyncio.get_running_loop().time() - self.at >= _SILENCE


class Opening(Generic[T]):
    """A channel that is being opened: a cancelled caller leaves it to the next one."""

    def __init__(self, open: Callable[[Opening[T]], Coroutine[Any, Any, T]]) -> None:
        self._asked: Asked | None = None
        self.task = start_task(open(self))
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved in any case

    def on(self, session: Session) -> Session:
        """Note the connection that it will be on; returns it."""
        self._asked = Asked(session)
        return session

    @property
    def session(self) -> Session | None:
        return None if self._asked is None else self._asked.session

    def forsake(self, link: Link) -> bool:
        """A caller stopped waiting: returns whether the others shall not wait either, as the broker is silent."""
        if self._asked is None or self.task.done() or not self._asked.silent:
            return False
        link.retire(self._asked.session, silent=True)
        return True

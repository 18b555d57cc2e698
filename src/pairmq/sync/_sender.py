"""What blocking applications send with, also in a transaction of their database."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing
from typing import Any, NoReturn, Self, TypeVar

from pairmq import pair as asynchronous
from pairmq.model import Entity, Message, PairClosed, Receipt, SendError, TransportError
from pairmq.runner import Outbox, OutboxSend
from pairmq.sync._loop import OfPair, PerProcess, check_thread, finish, run, soon

T = TypeVar("T")


class PairSender:
    """Sends to one entity of the primary, or to a backlog queue of the secondary while the entity is failed over.

    Cheap to make and safe to share between threads. Made by `Pair.sender`.
    """

    def __init__(self, attached: Callable[[], Awaitable[asynchronous.Pair]], path: str, kind: str) -> None:
        self._inner = OfPair(attached, lambda pair: pair.sender(path, kind=kind))

    @property
    def entity(self) -> Entity:
        """Where it sends to."""
        return self._inner.value.entity

    @property
    def id(self) -> str:
        """Its name in the envelopes of what it diverts; another one in a forked child."""
        return self._inner.value.id

    def send(self, message: Message, *, timeout: float | None = None) -> Receipt:
        """Send one message and return once a broker has confirmed it (SPEC 3).

        Args:
            message: what to send; given an id if it has none.
            timeout: seconds for the whole send. Default: the pair's ``send_timeout``.

        Returns:
            Where the message went, and whether a second copy may exist.

        Raises:
            SendRefused: no broker accepted it; subclasses give the reason.
            SendUnknown: it may or may not have been accepted; send it again under the same id if a duplicate is
                harmless.
            PairClosed: the pair or this sender is closed.
            PairFaulted: the pair lost a broker permanently.

        An exception of a signal handler, such as Ctrl-C's, cancels the send; its outcome is unknown, and nothing else
        of the pair is disturbed (SPEC 3.7).
        """
        return self._run(lambda sender: sender.send(message, timeout=timeout))

    def send_batch(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Receipt | SendError]:
        """Send many messages in few operations (SPEC 3.5).

        Args:
            messages: sent in order, in chunks of at most 500 messages or 1 MiB; eight of them at once, of at most 4 MiB
                together, where a broker takes 20 ms or more to answer and no order is kept.
            timeout: seconds for each chunk. Default: the pair's ``send_timeout``.

        Returns:
            One entry per message, in order: its receipt, or the error that `send` would have raised.

        Raises:
            PairClosed, PairFaulted: as `send`, if nothing was sent.
            TypeError: one of them is not a `Message`; none was sent.

        After an interruption the outcome of the chunks in flight is unknown; later messages were not sent.
        """
        whole = list(messages)  # read here: the caller's iterable may block, and belongs to the caller's thread
        return self._run(lambda sender: sender.send_batch(whole, timeout=timeout))

    def send_stream(
        self, source: Iterable[Message], *, window: int = 1000, timeout: float | None = None
    ) -> Iterator[Receipt | SendError]:
        """Send messages as they arrive, many in flight.

        Args:
            source: read in the caller's thread, and only as fast as messages are confirmed, with at most 4 MiB of
                bodies in flight. While it blocks, results are not yielded; messages already read are still sent.
            window: most messages read and not yet yielded; at least 1.
            timeout: seconds for each message. Default: the pair's ``send_timeout``.

        Yields:
            One entry per message, in the order of the source: its receipt, or the error that `send` would have raised.

        Raises:
            PairClosed, PairFaulted: as `send`; if the pair ends meanwhile, after the results of the messages read so
                far.
            ValueError: the window is below 1.

        Exceptions of the source are raised after the results of the messages read so far. Leaving the loop early
        abandons the messages in flight; their outcome is unknown. A stream belongs to the process that started it: a
        child forked during it may leave the loop, and gets `PairClosed` if it continues.
        """
        if window < 1:
            raise ValueError(f"window is {window}: it must be at least 1")
        return self._streamed(source, window, timeout)

    def _streamed(self, source: Iterable[Message], window: int, timeout: float | None) -> Iterator[Receipt | SendError]:
        stream = run(_Stream.begin(self._inner.own, window, timeout), unwanted=_Stream.end)
        in_window = 0
        failure: Exception | None = None
        try:
            messages = iter(source)
            while failure is None:
                while in_window == window or not stream.results.empty():
                    result = stream.next()
                    in_window -= 1
                    yield result
                try:
                    message = next(messages)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                else:
                    stream.give(message)
                    in_window += 1
            stream.give(None)
            while in_window:
                result = stream.next()
                in_window -= 1
                yield result
        finally:
            if stream.is_here:
                finish(stream.end())
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Refuse further sends; those in flight continue, and the last closes the link. Idempotent, never raises."""
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._inner.value)

    def _run(self, operation: Callable[[asynchronous.PairSender], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            return await operation(await self._inner.own())

        return run(asked())


class _End:
    """The last thing among a stream's results."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _Stream:
    """A `send_stream` on the loop: messages come from the caller's thread one by one, and results go back to it."""

    def __init__(self) -> None:
        self.results: queue.SimpleQueue[Receipt | SendError | _End] = queue.SimpleQueue()
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._process = PerProcess(None)

    @property
    def is_here(self) -> bool:
        """Whether it belongs to this process: in a forked child it makes no progress, and a wait would never end."""
        return self._process.is_here

    @classmethod
    async def begin(
        cls, own: Callable[[], Awaitable[asynchronous.PairSender]], window: int, timeout: float | None
    ) -> _Stream:
        stream = cls()
        sender = await own()
        _streams.add(stream)
        stream._task = asyncio.create_task(stream._work(sender, window, timeout), name="pairmq send_stream")
        return stream

    def give(self, message: Message | None) -> None:
        """Send one more; None is the end."""
        self._check()
        soon(self._messages.put_nowait, message)

    def next(self) -> Receipt | SendError:
        """The next result; raises what ended the stream."""
        self._check()
        result = self.results.get()
        if isinstance(result, _End):
            self.results.put(result)
            if result.error is not None:
                raise result.error
            raise RuntimeError("a stream ended before its last result")
        return result

    def _check(self) -> None:
        if not self.is_here:
            raise PairClosed("the stream belongs to the parent process: open a new one after the fork")

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        _streams.discard(self)

    async def _work(self, sender: asynchronous.PairSender, window: int, timeout: float | None) -> None:
        try:
            results: Any = sender.send_stream(self._source(), window=window, timeout=timeout)
            async with aclosing(results):
                async for result in results:
                    self.results.put(result)
        except Exception as error:
            self.results.put(_End(error))
        except asyncio.CancelledError:
            self.results.put(_End(None))
            raise
        else:
            self.results.put(_End(None))

    async def _source(self) -> AsyncIterator[Message]:
        while (message := await self._messages.get()) is not None:
            yield message


_streams: set[_Stream] = set()
"""Streams in progress, also a parent's: one referenced only by its generator would be destroyed with it while
working."""


class PairOutbox:
    """Sends to one entity of the primary when a transaction of the caller's commits, as `pairmq.PairOutbox` (SPEC 12).

    Cheap to make and safe to share between threads. Made by `Pair.outbox`.
    """

    def __init__(self, attached: Callable[[], Awaitable[asynchronous.Pair]], path: str, kind: str) -> None:
        self._inner = OfPair(attached, lambda pair: pair.outbox(path, kind=kind))

    @property
    def entity(self) -> Entity:
        """Where it sends to."""
        return self._inner.value.entity

    def send(self, message: Message, *, connection: Any) -> Receipt:
        """Store one message in the caller's transaction, in the caller's thread; commits nothing.

        Args:
            message: what to send; given an id if it has none.
            connection: with an open transaction, or one that begins with its first statement: a connection of psycopg
                3, psycopg2 or sqlite3, as the secondary is PostgreSQL or SQLite; a ``Connection`` or ``Session`` of
                SQLAlchemy 2 or Django's ``connection`` over one of these.

        Returns:
            The receipt, with `Route.OUTBOX`: valid once the transaction has committed.

        Raises:
            SendRefused, PairClosed, PairFaulted, TypeError: as `pairmq.PairOutbox.send`; nothing was stored.
        """
        return self.send_batch((message,), connection=connection)[0]

    def send_batch(self, messages: Iterable[Message], *, connection: Any) -> list[Receipt]:
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
        check_thread()
        # The loop's thread takes part only where something has to be asked or reported: two changes of threads cost as
        # much as the row.
        inner = self._inner.value if self._inner.is_here else run(self._inner.own())
        inner._engine.check_open()
        outbox = inner._outbox
        sending = outbox.draft(inner._state, whole)
        if not sending.ready:
            sending = run(outbox.begin(sending))
        try:
            if not finished(outbox.store(sending, connection, last=False, blocking=True)):
                sending = run(outbox.begin(sending, anew=True))
                finished(outbox.store(sending, connection, last=True, blocking=True))
        except TransportError as error:
            run(_failed(outbox, sending, error))
        receipts = outbox.stored(sending)
        if outbox.is_observed:  # to wake the loop's thread for nothing would cost more than the rest
            soon(outbox.report, sending)
        return receipts

    def __repr__(self) -> str:
        return repr(self._inner.value)


def finished(operation: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, as with a connection that blocks, in this thread."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    operation.close()
    raise TypeError("the connection has to be awaited: use pairmq.Pair, or give a blocking connection")


async def _failed(outbox: Outbox, sending: OutboxSend, failure: TransportError) -> NoReturn:
    """Report on the loop, where observers are called."""
    outbox.failed(sending, failure)

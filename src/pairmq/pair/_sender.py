"""What applications send with."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NoReturn, Self

from pairmq.core.send import CHUNK, CHUNK_BYTES
from pairmq.model import Entity, Message, PairClosed, PairFaulted, Receipt, SendError, SendRefused
from pairmq.pair._arguments import count, seconds
from pairmq.pair._tracing import Send, SendTracing
from pairmq.runner import FAILURES, Engine, SenderState
from pairmq.transport import in_chunks, start_task

_AT_ONCE = 8  # operations of a batch: 4000 messages take one round trip to a distant broker


class PairSender:
    """Sends to one entity of the primary, or to a backlog queue of the secondary while the entity is failed over.

    Cheap to make and safe to share between tasks. Made by `Pair.sender`. One that is dropped leaves its link to the
    next one of its entity; `close` gives the link back.
    """

    def __init__(
        self, engine: Engine, entity: Entity, state: SenderState, timeout: float, tracing: SendTracing | None = None
    ) -> None:
        self._engine = engine
        self._entity = entity
        self._state = state
        self._timeout = timeout
        self._carry_out: Send = partial(engine.sends.send, state)
        if tracing is not None:
            self._carry_out = partial(_traced, engine, tracing, entity, self._carry_out)
        self._closed = False
        self._in_flight = 0

    @property
    def entity(self) -> Entity:
        """Where it sends to."""
        return self._entity

    @property
    def id(self) -> str:
        """The sender's id in the envelopes of diverted messages."""
        return self._state.sender_id

    async def send(self, message: Message, *, timeout: float | None = None) -> Receipt:
        """Send one message and return once a broker has confirmed it (SPEC 3).

        Args:
            message: what to send; given an id if it has none.
            timeout: seconds for the whole send. Default: the pair's ``send_timeout``.

        Returns:
            Where the message went, and whether a second copy may exist.

        Raises:
            SendRefused: no broker accepted it; subclasses give the reason (`MessageTooLarge`, `EntityNotFound`,
                `Unauthorized`, `BacklogUnavailable`, `PrimaryUnavailable`, `ReservedPropertyError`).
            SendUnknown: it may or may not have been accepted; send it again under the same id if a duplicate is
                harmless.
            PairClosed: the pair or this sender is closed.
            PairFaulted: the pair lost a broker permanently.
            TypeError, ValueError: ``timeout`` is not a number, or not above 0.

        A cancelled send's outcome is unknown; nothing else of the pair is disturbed (SPEC 3.7).
        """
        if self._closed:
            self._check_open()  # raises; whether the pair is open, its engine sees
        limit = self._timeout if timeout is None else seconds("timeout", timeout)
        self._in_flight += 1
        try:
            result = (await self._carry_out((message,), limit))[0]
        finally:
            self._in_flight -= 1
            if self._closed:
                self._end_if_idle()
        if isinstance(result, Receipt):
            return result
        try:
            raise result
        finally:
            del result  # its trace has this frame, and together only the garbage collector would free them

    async def send_batch(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Receipt | SendError]:
        """Send many messages in few operations (SPEC 3.5).

        Args:
            messages: sent in order, in chunks of at most 500 messages or 1 MiB; eight of them at once, of at most 4 MiB
                together, where a broker takes 20 ms or more to answer and no order is kept.
            timeout: seconds for each chunk. Default: the pair's ``send_timeout``.

        Returns:
            One entry per message, in order: its receipt, or the error that `send` would have raised.

        Raises:
            PairClosed, PairFaulted: as `send`, if nothing was sent.
            TypeError: one of them is not a `Message`, or ``timeout`` not a number; none was sent.
            ValueError: ``timeout`` is not above 0.

        After cancellation the outcome of the chunks in flight is unknown; later messages were not sent.
        """
        self._check_open()
        if timeout is not None:
            seconds("timeout", timeout)
        results: list[Receipt | SendError] = []
        whole = list(messages)
        for message in whole:  # before the first is sent: an error half-way would take the receipts with it
            _size(message)
        in_flight: deque[tuple[asyncio.Task[list[Receipt | SendError]], int]] = deque()
        self._in_flight += 1  # from the first chunk to the last: it is one send, and needs its link between them too
        try:
            chunks = list(in_chunks(whole, _size, CHUNK, CHUNK_BYTES))
            for chunk in chunks:
                size = sum(map(_size, chunk))
                while in_flight and not self._has_room(size, [others for _, others in in_flight]):
                    results += await in_flight[0][0]
                    in_flight.popleft()
                sending = self._send_chunk(chunk, timeout, raising=not results and not in_flight)
                # One alone gets no task: a cancellation between its end and ours would take its results with it.
                if self._engine.sends.far and len(chunks) > 1:
                    in_flight.append((start_task(sending), size))
                else:
                    results += await sending
            while in_flight:
                results += await in_flight[0][0]
                in_flight.popleft()
        finally:
            if in_flight:
                await _given_up([task for task, _ in in_flight])
            self._in_flight -= 1
            if self._closed:
                self._end_if_idle()
        return results

    def _has_room(self, size: int, in_flight: Sequence[int]) -> bool:
        """Whether a chunk of a batch may be sent beside others."""
        sends = self._engine.sends
        return sends.far and len(in_flight) < _AT_ONCE and sum(in_flight) + size <= sends.room

    async def send_stream(
        self, source: Iterable[Message] | AsyncIterable[Message], *, window: int = 1000, timeout: float | None = None
    ) -> AsyncIterator[Receipt | SendError]:
        """Send messages as they arrive, many in flight, in chunks as `send_batch` does (SPEC 3.5).

        Args:
            source: read only as fast as messages are confirmed, with at most 4 MiB of bodies in flight; an async
                generator is closed at the end.
            window: most messages read and not yet yielded; at least 1.
            timeout: seconds for each message. Default: the pair's ``send_timeout``.

        Yields:
            One entry per message, in the order of the source: its receipt, or the error that `send` would have raised.

        Raises:
            PairClosed, PairFaulted: as `send`; if the pair ends meanwhile, after the results of the messages read so
                far.
            TypeError, ValueError: ``window`` or ``timeout`` is not a number, or too small.

        Exceptions of the source, including `CancelledError`, are raised after the results of the messages read so far.
        Leaving the loop early abandons the messages in flight; their outcome is unknown.
        """
        self._check_open()
        count("window", window)
        if timeout is not None:
            seconds("timeout", timeout)
        stream = _Stream(self, source, window, timeout)
        try:
            async with aclosing(stream.results()) as results:
                async for result in results:
                    yield result
        finally:
            await stream.end()

    async def close(self) -> None:
        """Refuse further sends; those in flight continue, and the last one closes the link. Idempotent, never raises.

        A stream stops reading its source, and ends with `PairClosed` after the results of the messages read.
        """
        if not self._closed and not self._engine.is_gone:
            self._closed = True
            ending = self._end_if_idle()
            if ending is not None:
                await asyncio.wait((ending,))

    def _end_if_idle(self) -> asyncio.Task[None] | None:
        # A link that is closed under a send would look like a failing primary to all senders of the entity; and a send
        # that has its result must neither wait for an unresponsive broker's close handshake (SPEC 3.1) nor lose it to
        # an error.
        return None if self._in_flight else self._engine.end_sender(self._state)

    def __del__(self) -> None:
        # Not by weakref.finalize, which takes memory for each sender. What is sending holds it, so that it is idle now.
        if not self._closed:
            self._engine.drop_sender(self._state)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        # Two would have one link, and each would give it back.
        raise TypeError("a sender can't be copied or pickled: make one with Pair.sender")

    def __repr__(self) -> str:
        return f"PairSender({str(self._entity)!r})"

    def _check_open(self) -> None:
        if self._closed:
            raise PairClosed(f"the sender to {self._entity} is closed")
        self._engine.check_here()

    async def _send_chunk(
        self, chunk: Sequence[Message], timeout: float | None, *, raising: bool
    ) -> list[Receipt | SendError]:
        limit = self._timeout if timeout is None else seconds("timeout", timeout)
        self._in_flight += 1
        try:
            return await self._carry_out(chunk, limit)
        except (PairClosed, PairFaulted) as error:
            # The pair ended between two chunks: the earlier results must not be lost with it.
            if raising:
                raise
            return _ended(self._entity, chunk, error)
        finally:
            self._in_flight -= 1
            if self._closed:
                self._end_if_idle()

    async def _send_of_stream(self, chunk: Sequence[Message], timeout: float | None) -> list[Receipt | SendError]:
        try:
            self._check_open()  # its link may have been closed since the chunk was read
        except (PairClosed, PairFaulted) as error:
            return _ended(self._entity, chunk, error)
        return await self._send_chunk(chunk, timeout, raising=False)


class _Stream:
    """One `send_stream`: a reader that starts operations as the window allows, and their results in order."""

    def __init__(
        self,
        sender: PairSender,
        source: Iterable[Message] | AsyncIterable[Message],
        window: int,
        timeout: float | None,
    ) -> None:
        self._sender = sender
        self._source = source
        self._window = window
        self._timeout = timeout
        self._in_window = 0
        self._in_flight = 0  # bytes of bodies
        self._freed = asyncio.Event()
        self._operations: asyncio.Queue[asyncio.Task[list[Receipt | SendError]] | None] = asyncio.Queue()
        self._running: set[asyncio.Task[list[Receipt | SendError]]] = set()
        self._reader = start_task(self._read(), name="send_stream reader")

    async def results(self) -> AsyncGenerator[Receipt | SendError, None]:
        while (task := await self._operations.get()) is not None:
            results = await task
            for result in results:
                yield result
            self._in_window -= len(results)
            self._freed.set()
        await self._reader  # raises what the source raised

    async def end(self) -> None:
        """Stop reading, and give up what is in flight."""
        await _given_up([self._reader, *self._running])

    async def _read(self) -> None:
        size = max(1, min(CHUNK, self._window // 4))
        try:
            # Closed here and now: left to the garbage collector, a source would be closed by a task of no one's.
            async with aclosing(_gather(self._source, size)) as chunks:
                async for chunk in chunks:
                    taken = sum(len(message.body) for message in chunk)
                    while not self._has_room(len(chunk), taken):
                        self._freed.clear()
                        await self._freed.wait()
                    self._in_window += len(chunk)
                    self._in_flight += taken
                    task = start_task(self._sender._send_of_stream(chunk, self._timeout))
                    self._running.add(task)
                    task.add_done_callback(partial(self._operation_ended, taken))
                    self._operations.put_nowait(task)
                    self._sender._check_open()  # an ended pair, or sender, would refuse an endless source forever
        finally:
            self._operations.put_nowait(None)

    def _has_room(self, messages: int, taken: int) -> bool:
        """Whether a chunk may be sent; one larger than the window is sent alone."""
        if self._in_window and self._in_window + messages > self._window:
            return False
        return not self._in_flight or self._in_flight + taken <= self._sender._engine.sends.room

    def _operation_ended(self, taken: int, task: asyncio.Task[list[Receipt | SendError]]) -> None:
        self._running.discard(task)
        self._in_flight -= taken
        self._freed.set()


async def _given_up(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what is in flight, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _traced(
    engine: Engine, tracing: SendTracing, entity: Entity, send: Send, messages: Sequence[Message], limit: float
) -> Coroutine[Any, Any, list[Receipt | SendError]]:
    """Begin no trace of a send that the pair refuses because it has ended."""
    engine.check_here()
    return tracing.run(entity, send, messages, limit)


def _ended(entity: Entity, chunk: Sequence[Message], error: Exception) -> list[Receipt | SendError]:
    """The results of messages that were not sent as their pair, or sender, had ended."""
    results: list[Receipt | SendError] = []
    for message in chunk:
        text = f"message {message.message_id} to {entity}: not sent: {error}"
        results.append(SendRefused(text, entity=entity.path, message_id=message.message_id, causes=(error,)))
    return results


def _size(message: Message) -> int:
    """The size of its body in bytes. Raises `TypeError` if it is not a `Message`."""
    if not isinstance(message, Message):
        raise TypeError(f"a {type(message).__name__} can't be sent: make a Message of it")
    return len(message.body)


async def _gather(source: Iterable[Message] | AsyncIterable[Message], size: int) -> AsyncGenerator[list[Message], None]:
    """Cut a source into chunks: full ones while it is fast, partial ones when it pauses.

    A chunk has ``size`` messages at most, and ends with the one that brings it to a mebibyte of bodies.
    """
    if not isinstance(source, AsyncIterable):
        chunk: list[Message] = []
        taken = 0
        try:
            for message in source:
                taken += _size(message)
                chunk.append(message)
                if len(chunk) >= size or taken >= CHUNK_BYTES:
                    yield chunk
                    chunk, taken = [], 0
                    await asyncio.sleep(0)
        except FAILURES:
            if chunk:
                yield chunk  # what was read is sent before the source's error is raised
            raise
        if chunk:
            yield chunk
        return
    waiting: asyncio.Queue[tuple[Message, int] | None] = asyncio.Queue(maxsize=size)

    async def read() -> None:
        try:
            try:
                async for message in source:
                    await waiting.put((message, _size(message)))
            finally:  # on CancelledError too: the source may have awaited a task that was cancelled elsewhere
                if gathering:  # otherwise the queue has no consumer
                    await waiting.put(None)
        finally:
            if isinstance(source, AsyncGenerator):
                await source.aclose()

    gathering = True
    reader = start_task(read(), name="send_stream source")
    try:
        ended = False
        while not ended:
            chunk, taken = [], 0
            next_one = await waiting.get()
            while next_one is not None:
                chunk.append(next_one[0])
                taken += next_one[1]
                if len(chunk) >= size or taken >= CHUNK_BYTES or waiting.empty():
                    break
                next_one = waiting.get_nowait()
            ended = next_one is None
            if chunk:
                yield chunk
        await reader  # raises what the source raised
    finally:
        gathering = False
        reader.cancel()
        await asyncio.wait((reader,))

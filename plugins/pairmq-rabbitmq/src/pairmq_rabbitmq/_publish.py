"""Publishing on one channel in confirm mode, pipelined: what was written, and the broker's answer to each of it.

The driver writes each frame separately, and keeps a future for each unconfirmed publish. Here a batch is one write and
one wake-up, however many messages it has, and a multiple confirm is handled as one: the broker numbers the publishes of
a channel, and everything that is published on these channels is published here.

A return carries no number: its publish is found by the message id. Two publishes of one id in flight
on one channel could produce a false ack, and are kept apart. A return without a readable id could belong to any of
those in flight: none of them counts as confirmed then.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import AMQPChannelError
from pamqp import commands

from pairmq.model import TransportError
from pairmq.transport import in_turns
from pairmq_rabbitmq import _header
from pairmq_rabbitmq._driver import BasicPublish, close_channel
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._link import Asked, Session
from pairmq_rabbitmq._wire import Taker

_FRAME = struct.Struct(">BHI")
_CONTENT = struct.Struct(">HxxQ")
_BASIC = 60  # class of all methods that publish
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
ALONE = 1 << 20
"""Bytes of a body from which it is published alone on its channel, as one that is too large closes it."""


def publish_method(exchange: str, routing_key: str) -> bytes:
    """The payload of the method frame that publishes a message there, to be returned if no queue takes it."""
    method = BasicPublish(exchange=exchange, routing_key=routing_key, mandatory=True)
    payload: bytes = method.marshal()
    return struct.pack(">I", method.index) + payload


@dataclass(slots=True)
class Parcel:
    method: bytes
    message_id: str
    header: bytes
    body: bytes

    @classmethod
    def of(cls, method: bytes, properties: commands.Basic.Properties, body: bytes) -> Parcel:
        """Pack a message; the driver needs its properties to have a message id."""
        header = _CONTENT.pack(_BASIC, len(body)) + properties.marshal()
        return cls(method, properties.message_id or "", header, body)

    @property
    def size(self) -> int:
        return len(self.header) + len(self.body) + 64


class Returned:
    """No queue took it: no queue holds it."""


class Nacked:
    """The broker rejected it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer arrived, and none will; if it was ``alone`` on the channel, a refusal can only mean this one."""

    cause: BaseException
    alone: bool


class Pending:
    """No answer yet."""


Answer = Pending | Returned | Nacked | Lost | TransportError | None
"""The result of a publish; None: confirmed."""

_PENDING, _RETURNED, _NACKED = Pending(), Returned(), Nacked()


class Batch:
    __slots__ = ("_waiter", "answers", "asked", "channel", "cut_off", "first", "ids", "last", "open", "parcels", "todo")

    def __init__(self, channel: PublishChannel, parcels: Sequence[Parcel]) -> None:
        self.channel = channel
        self.parcels = parcels
        self.ids = [parcel.message_id for parcel in parcels]
        self.asked = Asked(channel.session)
        self.answers: list[Answer] = [_PENDING] * len(parcels)
        self.open = len(parcels)  # without an answer of the broker's
        self.first = self.last = 0  # their numbers on the channel
        self.todo = 0  # all with smaller numbers are answered
        self.cut_off = False
        self._waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def number(self, first: int) -> None:
        self.first = self.todo = first
        self.last = first + len(self.ids) - 1

    def answered(self, start: int, stop: int, answer: Answer) -> None:
        self.open -= stop - start
        if self.cut_off:
            return
        self.answers[start:stop] = [answer] * (stop - start)
        if not self.open and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: TransportError) -> None:
        if not self._waiter.done():
            self.answers = [error if isinstance(answer, Pending) else answer for answer in self.answers]
            self.cut_off = True
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until all have their answers; False when they don't within so many seconds."""
        if seconds is None:
            await self._waiter
        else:
            await asyncio.wait((self._waiter,), timeout=seconds)
        return self._waiter.done()


class PublishChannel(Taker):
    """A channel in confirm mode; ``on_unused`` is called once it was retired and nothing is in flight any more."""

    def __init__(self, session: Session, raw: Channel, on_unused: Callable[[PublishChannel], None]) -> None:
        self.session = session
        self.proven = False  # something was answered: its user may publish there
        self.took = False  # something was confirmed
        self.made_at = asyncio.get_running_loop().time()
        self._raw = raw
        self._on_unused = on_unused
        self._numbers: dict[str, int] = {}  # of the publishes without an answer, by message id
        self._batches: deque[Batch] = deque()  # in which they were written
        self._last = 0  # number of the last publish
        self._changed = asyncio.Event()
        self._cause: BaseException | None = None
        self._retired = False
        self._forsaken = False  # retired with publishes in flight
        raw.closing.add_done_callback(self._closing)
        session.wire.take(raw.number, self)
        session.on_end(self._lost)

    @property
    def usable(self) -> bool:
        return self._cause is None and not self._retired and self.session.usable

    @property
    def idle(self) -> bool:
        return not self._numbers

    def has_in_flight(self, message_ids: Sequence[str] | None) -> bool:
        """Whether one of these ids is in flight; with None, anything at all."""
        return bool(self._numbers) and (message_ids is None or not self._numbers.keys().isdisjoint(message_ids))

    async def clear(self, message_ids: Sequence[str] | None) -> None:
        """Wait until none of these ids is in flight, with None nothing at all, or until the channel is unusable."""
        while self.usable and self.has_in_flight(message_ids):
            self._changed.clear()
            await self._changed.wait()

    async def write(self, batch: Batch) -> None:
        """Write publishes back to back, of ids that differ and are not in flight here; `Unsent` if nothing was written.

        There is one such call at a time.
        """
        raw = self._raw
        try:
            if not self.usable or raw.is_closed:  # no answer would arrive
                raise ConnectionAbortedError("the channel is closed")
            payload = b"".join(self._frames(batch.parcels))
            batch.number(self._last + 1)
            self._batches.append(batch)
            self._numbers.update(zip(batch.ids, range(batch.first, batch.last + 1), strict=True))
            self._last = batch.last
            # The future makes the driver respect the socket's buffer limit; no caller waits for it.
            drained = asyncio.get_running_loop().create_future()
            frame = ChannelFrame(payload, should_close=False, drain_future=drained)
            if raw.write_queue.full():
                # The driver's writer may have ended with the connection, and would never make room.
                await self.session.run(raw.write_queue.put(frame))
            else:
                raw.write_queue.put_nowait(frame)
        except Exception as error:
            raise Unsent(self._cause or error) from error

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        answer = None if taken else _NACKED
        if multiple:
            for batch in self._batches:
                if batch.first > tag:
                    break
                self._answer_up_to(batch, min(tag, batch.last), answer)
        else:
            self._answer(tag, answer)
        while self._batches and not self._batches[0].open:
            self._batches.popleft()
        self._settled()

    def returned(self, header: bytes) -> None:
        """No queue took a publish; its ack follows, and means nothing.

        If it is unknown which one it was, all that have no answer are in doubt.
        """
        properties = _header.read(header)
        if properties.headers and _header.UNREADABLE in properties.headers:
            self._give_up(ConnectionAbortedError("the broker returned a message whose properties can't be read"))
            self.retire()
            return
        number = self._numbers.get(properties.message_id or "")
        if number is not None:
            self._answer(number, _RETURNED)
            self._settled()

    def _answer(self, number: int, answer: Answer) -> None:
        """The answer to one publish, unless it had one before."""
        for batch in self._batches:
            if number <= batch.last:
                if number >= batch.first:
                    self._answer_in(batch, number, answer)
                return

    def _answer_in(self, batch: Batch, number: int, answer: Answer) -> None:
        index = number - batch.first
        message_id = batch.ids[index]
        if self._numbers.get(message_id) == number:
            del self._numbers[message_id]
            batch.answered(index, index + 1, answer)

    def _answer_up_to(self, batch: Batch, number: int, answer: Answer) -> None:
        """The answer to all up to a number that had none before; all at once where none was answered by itself."""
        start, stop = batch.todo, number + 1
        if stop <= start:
            return
        batch.todo = stop
        if batch.open == batch.last + 1 - start:
            for message_id in batch.ids[start - batch.first : stop - batch.first]:
                del self._numbers[message_id]
            batch.answered(start - batch.first, stop - batch.first, answer)
        else:
            for one in range(start, stop):
                self._answer_in(batch, one, answer)

    def _settled(self) -> None:
        self._changed.set()
        if self._forsaken and not self._numbers:
            self._forsaken = False
            self.session.forsaken -= 1
            self._unused()

    def retire(self) -> None:
        """Take no more publishes; those in flight may still be answered."""
        if not self._retired:
            self._retired = True
            self._changed.set()
            if not self._numbers:
                self._unused()
            else:
                self._forsaken = True
                self.session.forsaken += 1

    def _frames(self, parcels: Sequence[Parcel]) -> list[bytes]:
        number = self._raw.number
        most = self.session.max_payload
        frames: list[bytes] = []
        for parcel in parcels:
            frames += (_FRAME.pack(_METHOD, number, len(parcel.method)), parcel.method, _END)
            frames += (_FRAME.pack(_HEADER, number, len(parcel.header)), parcel.header, _END)
            body = parcel.body
            parts = [body] if 0 < len(body) <= most else [body[at : at + most] for at in range(0, len(body), most)]
            for part in parts:
                frames += (_FRAME.pack(_BODY, number, len(part)), part, _END)
        return frames

    def _closing(self, closing: asyncio.Future[object]) -> None:
        if closing.cancelled():
            return
        self._lost(closing.exception() or ConnectionAbortedError("the channel was closed"))

    def _lost(self, cause: BaseException) -> None:
        if self._cause is None:
            self._cause = cause if isinstance(cause, Exception) else ConnectionResetError("the connection was lost")
            self.session.remove_on_end(self._lost)
            self._changed.set()
            self.session.wire.leave(self._raw.number, self)
        # Whatever was known before: no other answer will arrive for these.
        # A connection is never closed because of a publish that we write; a channel may be.
        self._give_up(self._cause, alone=len(self._numbers) == 1 and isinstance(cause, AMQPChannelError))

    def _give_up(self, cause: BaseException, *, alone: bool = False) -> None:
        lost = Lost(cause, alone)

        def end(batch: Batch) -> None:
            self._answer_up_to(batch, batch.last, lost)
            self._settled()

        batches, self._batches = self._batches, deque()
        in_turns(end, batches)
        self._settled()

    def _unused(self) -> None:
        self.session.remove_on_end(self._lost)
        self._on_unused(self)

    async def close(self) -> None:
        if self._cause is None and self.session.usable:
            self._cause = ConnectionAbortedError("the channel was closed")
            await self.session.run(close_channel(self._raw))

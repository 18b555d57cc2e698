"""Publishing on one channel in confirm mode, pipelined: what was written, and what the broker said to each of it.

The driver keeps one entry per unconfirmed publish, and tells it of ack, nack and return. Ours stand among its own: a
batch is one write and one wake-up, however many messages it has.

The driver finds the publish that a return belongs to by the message id. Two publishes of one id in flight on one
channel could show a false ack, and are kept apart here.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from aiormq.exceptions import AMQPChannelError, PublishError
from pamqp import commands
from pamqp.header import ContentHeader

from pairmq.model import TransportError
from pairmq_rabbitmq._channel import Publish
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._session import Session

_FRAME = struct.Struct(">BHI")
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, b"\xce"
_FRAME_OVERHEAD = 8
ALONE = 1 << 20
"""Bytes of a body from which it is published alone on its channel, as one that is too large closes it."""


def publish_method(exchange: str, routing_key: str) -> bytes:
    """The payload of the method frame that sends a message there, to be returned if no queue takes it."""
    method = Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    return struct.pack(">I", method.index) + method.marshal()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A message ready to be written.

    Args:
        method: of `publish_method`.
        message_id: as in the properties.
        header: the payload of the content header's frame.
        body: as it is.
    """

    method: bytes
    message_id: str
    header: bytes
    body: bytes

    @classmethod
    def of(cls, method: bytes, properties: commands.Basic.Properties, body: bytes) -> Parcel:
        """Pack a message; the driver needs its properties to have a message id."""
        header = ContentHeader(body_size=len(body), properties=properties).marshal()
        return cls(method, properties.message_id or "", header, body)

    @property
    def size(self) -> int:
        """Bytes on the wire, about."""
        return len(self.header) + len(self.body) + 64


class Returned:
    """No queue took it: it is nowhere."""


class Nacked:
    """The broker does not take responsibility for it."""


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer came, and none will.

    Args:
        cause: why.
        alone: nothing else was in flight on the channel, so that the broker's refusal can only mean this one.
    """

    cause: BaseException
    alone: bool


class Pending:
    """No answer yet."""


Answer = Pending | Returned | Nacked | Lost | TransportError | None
"""What became of a publish; None: confirmed."""

_PENDING, _RETURNED, _NACKED = Pending(), Returned(), Nacked()


class Batch:
    """Publishes that were written together."""

    __slots__ = ("_left", "_waiter", "answers", "cut_off")

    def __init__(self, count: int) -> None:
        self.answers: list[Answer] = [_PENDING] * count
        self.cut_off = False
        self._left = count
        self._waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, index: int, answer: Answer) -> None:
        """The broker's answer to one of them."""
        if self.cut_off:
            return
        self.answers[index] = answer
        self._left -= 1
        if not self._left and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: TransportError) -> None:
        """Wait no more: those without an answer get this error."""
        if not self._waiter.done():
            self.answers = [error if isinstance(answer, Pending) else answer for answer in self.answers]
            self.cut_off = True
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until all are answered, or the end."""
        await self._waiter


class _Slot:
    """One publish in flight, in the place of the driver's future."""

    __slots__ = ("_batch", "_channel", "_index", "message_id", "pending")

    def __init__(self, batch: Batch, index: int, channel: PublishChannel, message_id: str) -> None:
        self._batch = batch
        self._index = index
        self._channel = channel
        self.message_id = message_id
        self.pending = True

    def done(self) -> bool:
        return not self.pending

    def cancelled(self) -> bool:
        return False

    def set_result(self, _: object) -> None:
        self.settle(None)

    def set_exception(self, error: BaseException) -> None:
        self.settle(_RETURNED if isinstance(error, PublishError) else _NACKED)

    def settle(self, answer: Answer) -> None:
        if self.pending:
            self.pending = False
            self._channel.settled(self)
            self._batch.answered(self._index, answer)


class PublishChannel:
    """A channel in confirm mode.

    Args:
        session: the connection that it is on.
        raw: the driver's channel.
        on_unused: called when it was retired and nothing is in flight on it any more.
    """

    def __init__(self, session: Session, raw: Channel, on_unused: Callable[[PublishChannel], None]) -> None:
        self.session = session
        self.proven = False  # something was confirmed: its user may publish there
        self._raw = raw
        self._on_unused = on_unused
        self._slots: dict[str, _Slot] = {}
        self._changed = asyncio.Event()
        self._cause: BaseException | None = None
        self._retired = False
        closing = raw.closing
        closing.add_done_callback(self._closing)
        session.on_end(self._lost)

    @property
    def usable(self) -> bool:
        """Whether new publishes may go here."""
        return self._cause is None and not self._retired and self.session.usable

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return not self._slots

    def has_in_flight(self, message_ids: Sequence[str] | None) -> bool:
        """Whether one of these ids is in flight; with None, anything at all."""
        return bool(self._slots) and (message_ids is None or any(one in self._slots for one in message_ids))

    async def clear(self, message_ids: Sequence[str] | None) -> None:
        """Wait until none of these ids is in flight, with None nothing at all, or until the channel is of no use."""
        while self.usable and self.has_in_flight(message_ids):
            self._changed.clear()
            await self._changed.wait()

    async def write(self, parcels: Sequence[Parcel], batch: Batch) -> None:
        """Write publishes back to back, as one.

        Args:
            parcels: their message ids differ, and none is in flight here.
            batch: gets the answers.

        Raises:
            Unsent: the channel is closed; nothing was written.
        """
        raw = self._raw
        try:
            async with raw.lock:
                if not self.usable:  # nobody would answer
                    raise ConnectionAbortedError("the channel is closed")
                payload = b"".join(self._frames(parcels))
                tag = raw.delivery_tag
                for index, parcel in enumerate(parcels):
                    slot = _Slot(batch, index, self, parcel.message_id)
                    self._slots[parcel.message_id] = slot
                    tag += 1
                    raw.confirmations[tag] = cast(asyncio.Future[object], slot)
                    raw.message_id_delivery_tag[parcel.message_id] = tag
                raw.delivery_tag = tag
                # The future makes the driver heed the socket's buffer; nobody waits for it.
                drained = asyncio.get_running_loop().create_future()
                frame = ChannelFrame(payload, should_close=False, drain_future=drained)
                if raw.write_queue.full():
                    # The driver's writer may have ended with the connection, and would never make room.
                    await self.session.run(raw.write_queue.put(frame))
                else:
                    raw.write_queue.put_nowait(frame)
        except Exception as error:
            raise Unsent(self._cause or error) from error

    def settled(self, slot: _Slot) -> None:
        """A publish got its answer."""
        if self._slots.get(slot.message_id) is slot:
            del self._slots[slot.message_id]
            self._raw.message_id_delivery_tag.pop(slot.message_id, None)
            self._changed.set()
            if self._retired and not self._slots:
                self.session.forsaken -= 1
                self._unused()

    def retire(self) -> None:
        """Take no more publishes; those in flight may still be answered."""
        if not self._retired:
            self._retired = True
            self._changed.set()
            if not self._slots:
                self._unused()
            else:
                self.session.forsaken += 1

    # ------------------------------------------------------------------ private

    def _frames(self, parcels: Sequence[Parcel]) -> list[bytes]:
        number = self._raw.number
        most = self.session.frame_max - _FRAME_OVERHEAD
        frames: list[bytes] = []
        for parcel in parcels:
            frames += (_FRAME.pack(_METHOD, number, len(parcel.method)), parcel.method, _END)
            frames += (_FRAME.pack(_HEADER, number, len(parcel.header)), parcel.header, _END)
            body = parcel.body
            if len(body) <= most:
                if body:
                    frames += (_FRAME.pack(_BODY, number, len(body)), body, _END)
            else:
                for start in range(0, len(body), most):
                    part = body[start : start + most]
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
        # Whatever was known before: nobody else will answer these.
        slots = tuple(self._slots.values())
        # A connection is never closed because of a publish that we write; a channel may be.
        answer = Lost(self._cause, alone=len(slots) == 1 and isinstance(cause, AMQPChannelError))
        for slot in slots:
            slot.settle(answer)

    def _unused(self) -> None:
        self.session.remove_on_end(self._lost)
        self._on_unused(self)

    async def close(self) -> None:
        """Give the channel back to the broker."""
        if self._cause is None and self.session.usable:
            self._cause = ConnectionAbortedError("the channel was closed")
            await self.session.run(self._raw.close())

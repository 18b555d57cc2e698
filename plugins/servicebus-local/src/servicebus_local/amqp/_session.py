"""Sessions: windows, numbers, and what waits to go out (AMQP 1.0 specification, part 2, section 2.5)."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Protocol

from servicebus_local.amqp._link import Delivery, Link
from servicebus_local.amqp.frames import FRAME_HEADER_SIZE
from servicebus_local.amqp.performatives import (
    MAX_UINT,
    RECEIVER,
    SENDER,
    AmqpError,
    Begin,
    DispositionFrame,
    End,
    Flow,
    Outcome,
)

INCOMING_WINDOW: Final = 5000
"""Transfer frames that the peer may send ahead; given anew whenever half of them have come."""

OUTGOING_WINDOW: Final = 2**31 - 1
MAX_LINKS: Final = 1024

_FIRST_OUTGOING_ID: Final = 1

_U32 = struct.Struct(">BI").pack
# `rcv-settle-mode`, `state`, `resume`, `aborted` and `batchable` are never set.
_TAIL = b"\x40" * 5


class SessionConnection(Protocol):
    """What a session needs of its connection."""

    peer_frame_size: int

    def write_performative(self, channel: int, performative: Any) -> None: ...
    def write_payload(self, channel: int, head: bytes, payload: bytes | memoryview) -> None: ...
    def defer(self, session: Session) -> None: ...


@dataclass(slots=True)
class _Outgoing:
    delivery: Delivery
    payload: bytes
    position: int = 0
    head: TransferHead | None = None


@dataclass(slots=True)
class _Range:
    first: int
    last: int
    settled: bool
    outcome: Outcome | None


class Session:
    """A session that the peer has begun.

    Attributes:
        channel: its number, ours and the peer's.
        connection: where it is.
        state: ``open``, ``ending`` (we have ended it and wait for the peer), or ``ended``.
        peer_links: the links by the peer's handles, including those that only we have detached.
        incoming, outgoing: the deliveries that are not settled, by their numbers.
        user_data: for the server above.
    """

    def __init__(self, connection: SessionConnection, channel: int, begin: Begin) -> None:
        self.connection = connection
        self.channel = channel
        self.state = "open"
        self.user_data: Any = None
        self.peer_links: dict[int, Link] = {}
        self.incoming: dict[int, Delivery] = {}
        self.outgoing: dict[int, Delivery] = {}
        self.peer_handle_max = begin.handle_max
        self._handles: set[int] = set()
        self._next_incoming_id = begin.next_outgoing_id
        self._incoming_window = INCOMING_WINDOW
        self._next_outgoing_id = _FIRST_OUTGOING_ID
        self._peer_window = begin.incoming_window
        self._next_delivery_id = 0
        self._queue: deque[_Outgoing] = deque()
        self._ranges: dict[bool, _Range] = {}
        self.write(
            Begin(
                remote_channel=channel,
                next_outgoing_id=_FIRST_OUTGOING_ID,
                incoming_window=INCOMING_WINDOW,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=MAX_LINKS - 1,
            )
        )

    @property
    def links(self) -> list[Link]:
        return [link for link in self.peer_links.values() if link.state != "detached"]

    def end(self, error: AmqpError | None = None) -> None:
        """End the session and everything on it; does nothing if it is not open. No event reports it."""
        if self.state != "open":
            return
        self.write(End(error))
        self.lose()
        self.state = "ending"

    def lose(self) -> None:
        """Forget everything on the session, without telling the peer."""
        self.state = "ended"
        for link in self.links:
            link.lose()
        self._queue.clear()
        self._ranges.clear()

    def free_handle(self) -> int | None:
        """Take a number for a link of ours; None when the peer allows no more."""
        limit = min(self.peer_handle_max + 1, MAX_LINKS)
        handle = next((handle for handle in range(limit) if handle not in self._handles), None)
        if handle is not None:
            self._handles.add(handle)
        return handle

    def forget_link(self, link: Link) -> None:
        self._handles.discard(link.handle)
        deliveries = self.incoming if link.peer_role is SENDER else self.outgoing
        for delivery_id in link.unsettled:
            deliveries.pop(delivery_id, None)
        if any(waiting.delivery.link is link for waiting in self._queue):
            self._queue = deque(waiting for waiting in self._queue if waiting.delivery.link is not link)

    def write(self, performative: Any) -> None:
        """Write a frame, after the dispositions that came before it."""
        if self.state == "open":
            self.flush()
            self.connection.write_performative(self.channel, performative)

    def write_flow(self) -> None:
        self._write_flow(None, None, None, None, False)

    def write_link_flow(
        self, handle: int, delivery_count: int, credit: int, available: int | None, drain: bool
    ) -> None:
        """Tell the peer a link's flow state and the session's."""
        self._write_flow(handle, delivery_count, credit, available, drain)

    def _write_flow(
        self, handle: int | None, delivery_count: int | None, credit: int | None, available: int | None, drain: bool
    ) -> None:
        if self.state != "open":
            return
        self._incoming_window = INCOMING_WINDOW
        self.connection.write_performative(
            self.channel,
            Flow(
                next_incoming_id=self._next_incoming_id,
                incoming_window=INCOMING_WINDOW,
                next_outgoing_id=self._next_outgoing_id,
                outgoing_window=OUTGOING_WINDOW,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=credit,
                available=available,
                drain=drain,
            ),
        )

    def transmit(self, delivery: Delivery, payload: bytes) -> None:
        """Send a delivery as soon as the peer's window lets it through."""
        self._queue.append(_Outgoing(delivery, payload))
        self.pump()

    def pump(self) -> None:
        """Write as much of the queue as the peer's window lets through."""
        queue = self._queue
        while queue and self._peer_window > 0:
            waiting = queue[0]
            delivery = waiting.delivery
            head = waiting.head
            if head is None:
                self._number(delivery)
                head = waiting.head = TransferHead(delivery)
            payload = waiting.payload
            position = waiting.position
            first = position == 0
            room = self.connection.peer_frame_size - head.size(first)
            rest = len(payload) - position
            more = rest > room
            self.connection.write_payload(
                self.channel,
                head.encode(first=first, more=more),
                payload if first and not more else memoryview(payload)[position : position + room],
            )
            self._next_outgoing_id = (self._next_outgoing_id + 1) & MAX_UINT
            self._peer_window -= 1
            if more:
                waiting.position = position + room
            else:
                queue.popleft()

    def _number(self, delivery: Delivery) -> None:
        # Only now, since a link that is lost takes its waiting deliveries along, and numbers must not have gaps.
        delivery.delivery_id = delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & MAX_UINT
        if not delivery.settled:
            self.outgoing[delivery_id] = delivery
            delivery.link.unsettled[delivery_id] = delivery

    def dispose(self, delivery: Delivery, settled: bool, outcome: Outcome | None) -> None:
        """Tell the peer about a delivery, together with its neighbours that get the same."""
        delivery_id = delivery.delivery_id
        link = delivery.link
        if settled:
            self.settled(delivery)
        if link.state != "open" or self.state != "open" or delivery_id < 0:
            return
        role = RECEIVER if link.peer_role is SENDER else SENDER
        pending = self._ranges.get(role)
        if pending is not None:
            # A range does not go across the wrap of the numbers, since not every peer reads such a one.
            if pending.last + 1 == delivery_id and pending.settled == settled and pending.outcome == outcome:
                pending.last = delivery_id
                return
            self._write_range(role, pending)
        self._ranges[role] = _Range(delivery_id, delivery_id, settled, outcome)
        self.connection.defer(self)

    def settled(self, delivery: Delivery) -> None:
        deliveries = self.incoming if delivery.link.peer_role is SENDER else self.outgoing
        deliveries.pop(delivery.delivery_id, None)
        delivery.link.unsettled.pop(delivery.delivery_id, None)

    def flush(self) -> None:
        for role, pending in self._ranges.items():
            self._write_range(role, pending)
        self._ranges.clear()

    def _write_range(self, role: bool, pending: _Range) -> None:
        frame = DispositionFrame(role, pending.first, pending.last, pending.settled, pending.outcome)
        self.connection.write_performative(self.channel, frame)

    def count_incoming(self) -> None:
        """Count a transfer frame of the peer's against the window, and open the window again in time."""
        self._next_incoming_id = (self._next_incoming_id + 1) & MAX_UINT
        self._incoming_window -= 1
        if self._incoming_window <= INCOMING_WINDOW // 2:
            self.write_flow()

    def take_flow(self, flow: Flow) -> None:
        """Take over the peer's window, and send what it lets through."""
        seen = _FIRST_OUTGOING_ID if flow.next_incoming_id is None else flow.next_incoming_id
        unseen = (self._next_outgoing_id - seen) & MAX_UINT
        self._peer_window = max(0, flow.incoming_window - unseen)
        self.pump()


class TransferHead:
    """What stands before the payload in the frames of one delivery."""

    __slots__ = ("_handle", "_rest")

    def __init__(self, delivery: Delivery) -> None:
        tag = delivery.tag
        settled = b"\x41" if delivery.settled else b"\x42"
        self._handle = _uint(delivery.link.handle)
        self._rest = b"".join(
            (_uint(delivery.delivery_id), b"\xa0", bytes((len(tag),)), tag, _uint(delivery.message_format), settled)
        )

    def size(self, first: bool) -> int:
        """Give the bytes that a frame needs besides its payload."""
        # Frame header, descriptor (3), list8 with size and count (3), handle, fields, more (1), tail (5).
        return FRAME_HEADER_SIZE + 12 + len(self._handle) + len(self._rest if first else _CONTINUED)

    def encode(self, *, first: bool, more: bool) -> bytes:
        """The performative; only the first frame of a delivery has to repeat what it is."""
        fields = b"".join((self._handle, self._rest if first else _CONTINUED, b"\x41" if more else b"\x42", _TAIL))
        return b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields


_CONTINUED = b"\x40" * 4


def _uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    return bytes((0x52, value)) if value < 256 else _U32(0x70, value)

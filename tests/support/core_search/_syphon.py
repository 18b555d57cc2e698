"""The syphon of a process: its gates and the machines of its pumps, driven as the runner drives them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, NamedTuple

from core_search._cells import Outputs, View
from core_search._design import Design, Naive
from core_search._sends import FAILURES as OF_SENDS
from core_search._sends import TICK, options_of
from pairmq.core import Diversion, divert
from pairmq.core.gates import Gates
from pairmq.core.lanes import LaneStep, LaneWatch
from pairmq.core.pump import DestinationLine, Item, Next, PumpMachine, Room
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.transport import behind_failed

# A destination that is missing makes poison only when that lasts; this is poison at once.
FAILURES: Final = {**OF_SENDS, "poison": TransportError("", FailureKind.REFUSED, FailureReason.MALFORMED)}
_ENTITY: Final = Entity("orders")
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_TIME_TO_LIVE: Final = 100.0
_LOCK: Final = 60.0
_TOOK = 0.001  # of its time limit, each operation: brokers are near, or the window would grow with the distance
_AFTER_ALL: Final = math.inf
"""The delay of a message in doubt may end at any moment: when it goes on is up to the primary anyway."""


class Settling(NamedTuple):
    """A message that is to be completed or dead-lettered."""

    message: int
    position: int
    dead: bool


class PumpFacts(NamedTuple):
    """What can be seen of a pump from outside. ``held``: what it has locked, as far as it knows, by position;
    ``stale``: what it has to renew before it sends on; ``step``: what it does next at a lane; ``copying``: what it is
    copying to the tail, as ``held``."""

    room: Room
    more: bool
    broken: bool
    delivering: bool
    held: tuple[tuple[int, int], ...]
    settling: tuple[Settling, ...]
    stale: tuple[int, ...]
    step: LaneStep | None
    copying: tuple[tuple[int, int], ...]


class Facts(NamedTuple):
    """What can be seen of a syphon from outside."""

    shut: bool
    pumps: tuple[PumpFacts, ...]


class Driven:
    """One pump's machine, its line, and what of the line is in an operation at the primary."""

    __slots__ = ("anew", "copying", "lane", "line", "machine", "more", "room", "sending", "stale", "step", "tail")

    def __init__(self, machine: PumpMachine, lane: LaneWatch | None) -> None:
        self.lane = lane
        self.step: LaneStep | None = None
        self.machine = machine
        self.line: DestinationLine | None = None
        self.sending: tuple[Item, ...] = ()
        self.stale: tuple[Item, ...] = ()
        self.copying: tuple[Item, ...] = ()
        self.tail: DestinationLine | None = None
        """The line of what is being copied, which may end meanwhile."""
        self.anew = False
        self.room = Room.ENOUGH
        self.more = False


class Syphon:
    """The machines of one process with a syphon."""

    VIEW: ClassVar[dict[str, View]] = dict.fromkeys(("design", "now", "_out", "_answers"))

    def __init__(self, design: Design) -> None:
        self.design = design
        self.now = 0.0
        self.gates = Gates(1.0)
        lane = design.world.consumer
        self.pumps = [
            # A patience may be over at any moment, as may all that takes time.
            Driven(_pump_of(design, self.gates), LaneWatch(0.0) if lane else None)
            for _ in range(design.world.queues)
        ]
        for pump in self.pumps:
            one = design.world.ordered and not design.does(Naive.TWO_CONSUMERS)
            pump.machine.opened(_LOCK, ordered=one)
        self._out: list[tuple[Any, ...]] = []
        self._answers: bool | None = None
        for pump in self.pumps:
            self._at_lane(pump)

    def order(self) -> Hashable:
        """Nothing: no instant of a pump has an order that matters."""
        return ()

    def shared(self) -> Iterable[object]:
        """What never changes."""
        return self.design, options_of(self.design), _ENTITY, *FAILURES.values()

    def take(self, what: str, *details: Any) -> Outputs:
        """Hand the machines one fact."""
        self.now += TICK
        self._out = []
        getattr(self, f"_on_{what}")(*details)
        for pump in self.pumps:
            pump.room = pump.machine.room(_AFTER_ALL)
            pump.more = pump.room is Room.ASK and pump.machine.room(_AFTER_ALL, primary_answers=True) is Room.ENOUGH
            self._at_lane(pump)
        self._answers = None
        out, self._out = tuple(self._out), []
        return out

    def _at_lane(self, pump: Driven) -> None:
        if pump.lane is not None:
            machine, is_open = pump.machine, self.gates.lets_through(_ENTITY)
            stuck = machine.stuck and not self.design.does(Naive.LANE_HELD)
            held = len(machine)
            pump.step = pump.lane.step(self.now, held, stuck=stuck, is_open=is_open, primary_answers=self._answers)

    def _on_counted(self, index: int, pending: int) -> None:
        """It has looked at its lane."""
        lane = self.pumps[index].lane
        assert lane is not None
        lane.seen(pending, self.now)

    def _on_asked(self, index: int, answers: bool) -> None:
        """It has asked the primary."""
        self._answers = answers

    def _on_nothing(self, index: int) -> None:
        """A receive gave nothing."""
        pump = self.pumps[index]
        assert pump.lane is not None
        pump.lane.received(0, len(pump.machine), self.now)

    def _on_received(self, index: int, number: int, position: int, count: int, overdue: bool, origin: int) -> None:
        pump = self.pumps[index]
        if pump.lane is not None:
            pump.lane.received(1, len(pump.machine), self.now)
        at = _BEGAN - timedelta(seconds=2 * _TIME_TO_LIVE if overdue else 0)
        session = "s" if self.design.world.ordered else None
        live = _TIME_TO_LIVE if self.design.world.expires else None
        message = Message(b"", f"m{number}", session_id=session, time_to_live=live)
        envelope = divert(message, Diversion(_ENTITY, at, "sender", origin or position))
        _, lines = pump.machine.received([Delivery(envelope, None, count, str(position))], self.now, _BEGAN)
        if lines:
            pump.line = lines[0]
        self._go(index)

    def _go(self, index: int) -> None:
        """Let a line do what it does next, if it can do it now."""
        pump = self.pumps[index]
        line, machine = pump.line, pump.machine
        if line is None or line.taken:
            return
        step = machine.next(line, _AFTER_ALL)
        if step is Next.END:
            self.gates.leave(line.gate)
            pump.line, pump.anew = None, False
        elif step is Next.SEND:
            items = machine.take(line, _AFTER_ALL)
            pump.stale = tuple(machine.stale(items, self.now))
            if not pump.stale:
                self._send(index)

    def _send(self, index: int) -> None:
        pump = self.pumps[index]
        line, machine = pump.line, pump.machine
        assert line is not None
        items = [item for item in line.taken if not item.lost]
        send, settle = machine.screened(items, _BEGAN)
        if machine.waits_for(settle):
            return
        pump.sending = tuple(send)
        if not send:
            self._ended(index)
        for item in send:
            self._out.append(("out", index, _number(item), item.delivery.sequence_number))

    def _ended(self, index: int) -> None:
        pump = self.pumps[index]
        if pump.line is not None:
            pump.machine.ended(pump.line)
            self._go(index)

    def _on_sent(self, index: int, why: str | None, before: int = 0) -> None:
        """The operation at the primary ended: of its messages so many were confirmed before the one that failed."""
        pump = self.pumps[index]
        error = None if why is None else FAILURES[why]
        items, pump.sending = pump.sending, ()
        line, machine = pump.line, pump.machine
        assert line is not None
        if error is not None and self._releases(error):
            for item in items:
                machine._lose(item)
                self._out.append(("release", index, int(item.delivery.sequence_number)))
            self._ended(index)
            return
        sent = machine.sent(line.gate, items, self._results(error, before, len(items)), _TOOK, self.now)
        if sent.failure is not None:
            self.gates.shut(line.gate)
            self._out += [("unknown", _number(item)) for item in items if item.unknown]
        if not machine.waits_for(sent.settle):
            self._ended(index)

    def _results(self, error: TransportError | None, before: int, count: int) -> list[TransportError | None]:
        if error is None or error.maybe_applied:
            return [error] * count
        behind = None if self.design.does(Naive.REST_COUNTS_AS_DELIVERED) else behind_failed(error)
        return [*([None] * before), error, *([behind] * (count - before - 1))]

    def _releases(self, error: Any) -> bool:
        if self.gates.is_poison(_ENTITY, error, self.now):
            return self.design.does(Naive.POISON_IS_TRIED_AGAIN)
        return self.design.does(Naive.OUTAGE_SPENDS_DELIVERIES)

    def _on_probed(self) -> None:
        """The destination was found working."""
        gate = self.gates.get(_ENTITY)
        assert gate is not None
        self.gates.probed(gate, None, self.now)
        for index in range(len(self.pumps)):
            self._go(index)

    def _on_settled(self, index: int, position: int, why: str | None) -> None:
        pump = self.pumps[index]
        machine, line = pump.machine, pump.line
        item = next(each for each in machine._settling if each.delivery.sequence_number == str(position))
        error = None if why is None else FAILURES[why]
        machine.settled([item], [item.delivery], [error], _TOOK if item.poison is None else None)
        if line is not None and line.taken and not pump.sending and not pump.stale and not machine.waits_for([item]):
            self._ended(index)  # it waited for this dead-letter

    def _on_renewed(self, index: int, position: int, good: bool) -> None:
        """One lock was renewed, or found to be lost."""
        pump = self.pumps[index]
        machine = pump.machine
        item = next(each for each in machine._locked if each.delivery.sequence_number == str(position))
        outcome = item.delivery if good else FAILURES["lock lost"]
        machine.renewing(item, self.now)
        machine.renewed(item, item.delivery, outcome, self.now)
        if item in pump.stale:
            pump.stale = tuple(each for each in pump.stale if each is not item)
        if pump.stale and all(each.lost for each in pump.stale):
            pump.stale = ()
        if pump.line is not None and pump.line.taken and not pump.sending and not pump.stale:
            self._send(index)

    def _on_anew(self, index: int) -> None:
        """Order was lost with a lock, or a lane is let go, and nothing is being delivered: all locked is released."""
        pump = self.pumps[index]
        machine, line = pump.machine, pump.line
        if pump.lane is not None:
            pump.lane.let_go()
            machine.drop_lines()
        pump.stale = ()
        machine.release()
        machine.give_up()
        if line is not None and not pump.sending:
            self.gates.leave(line.gate)
            pump.line = None
        pump.anew = pump.line is not None

    def _on_postponed(self, index: int) -> None:
        """It holds all that it may, the primary answers, and the destination still takes nothing."""
        pump = self.pumps[index]
        line = pump.machine.fullest(_AFTER_ALL)
        if line is not None and pump.machine.primary_seen(line, answers=True):
            pump.tail, pump.copying = line, tuple(pump.machine.postpone(line, _AFTER_ALL))

    def _on_copied(self, index: int, why: str | None) -> None:
        """The copy at the tail is stored, or failed."""
        pump = self.pumps[index]
        items, line, machine = pump.copying, pump.tail, pump.machine
        pump.copying, pump.tail = (), None
        assert line is not None
        error = None if why is None else FAILURES[why]
        _, begun = machine.copied(line, items, [error] * len(items), self.now)
        self._out += [("unknown", _number(item)) for item in items if item.unknown]
        if pump.line is line and not machine.is_current(line):
            self.gates.leave(line.gate)
            pump.line = None
        pump.line = pump.line or begun
        self._go(index)


class _Trusting(PumpMachine):
    def opened(self, lock_duration: float | None, *, ordered: bool) -> None:
        super().opened(lock_duration, ordered=ordered)
        self.in_order = False


class _Hasty(PumpMachine):
    def copied(
        self, line: DestinationLine, items: Sequence[Item], results: Sequence[TransportError | None], now: float
    ) -> tuple[list[Item], DestinationLine | None]:
        return super().copied(line, items, [None] * len(items), now)


def _pump_of(design: Design, gates: Gates) -> PumpMachine:
    kind = _Trusting if design.does(Naive.REST_COUNTS_AS_DELIVERED) else PumpMachine
    kind = _Hasty if design.does(Naive.FAILED_COPY_COUNTS) else kind
    return kind(options_of(design), gates, _no_system, ordered_batches=design.world.batches)


def facts(cell: Syphon) -> Facts:
    """What can be seen of a syphon from outside."""
    gate = cell.gates.get(_ENTITY)
    return Facts(gate is not None and not gate.is_open, tuple(map(_pump_facts, cell.pumps)))


def _pump_facts(pump: Driven) -> PumpFacts:
    machine = pump.machine
    return PumpFacts(
        room=Room.SOON if pump.anew or pump.copying else pump.room,
        more=pump.more,
        broken=machine.broken,
        delivering=machine.delivering,
        held=tuple((_number(item), _position(item)) for item in machine._locked),
        settling=tuple(Settling(_number(item), _position(item), item.poison is not None) for item in machine._settling),
        stale=tuple(map(_position, pump.stale)),
        step=pump.step,
        copying=tuple((_number(item), _position(item)) for item in pump.copying),
    )


def _number(item: Item) -> int:
    return int((item.message.message_id or "")[1:])


def _position(item: Item) -> int:
    return int(item.delivery.sequence_number)


def _no_system(_: Entity) -> bool:
    return False

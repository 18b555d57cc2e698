"""What reading the pump has found, and the simulation had not: SPEC 7, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import MagicMock

import pytest

from pairmq import Message
from pairmq import testing as simulated
from pairmq.core import Diversion, PairOptions, divert
from pairmq.core.gates import Gates
from pairmq.core.pump import Item, PumpMachine
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, TransportError
from pairmq.model.events import MessageMoved, SyphonFailed
from pairmq.runner import Clock
from pairmq.runner.pump._reader import Settler
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, virtual_wall

QUEUE = Entity("east/x-servicebus-transfer/0")
TOO_LARGE = b"x" * 1001


def leave(broker: SimulatedBroker, *bodies: bytes, entity: str = "orders", queue: Entity = QUEUE) -> None:
    """Put messages into a backlog queue, as another process would have diverted them."""
    at = datetime.fromtimestamp(virtual_wall(), UTC)
    for number, body in enumerate(bodies):
        message = Message(body, message_id=f"{entity}-{number}")
        broker.store(queue, divert(message, Diversion(Entity(entity), at, "other-process", number)))


def bodies_of(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def came_home(w, *bodies: bytes, entity: str = "orders") -> None:
    """Wait until a queue of the primary holds these messages, whatever their order."""
    async with asyncio.timeout(120):
        while sorted(w.home(entity)) != sorted(bodies):
            await asyncio.sleep(0.05)


def narrow() -> SimulatedBroker:
    """A primary that refuses messages of more than 1000 bytes."""
    return SimulatedBroker("east", capabilities=replace(SimulatedBroker("x").capabilities, max_message_bytes=1000))


@in_virtual_time
async def test_what_was_completed_is_reported_once_when_the_pump_begins_anew_in_the_middle_of_a_round(world):
    async with world(enable_syphon=True) as w:
        w.west.fail(Fault.BUSY, Operation.SETTLE, times=2)  # the completion and the dead-letter are tried once more
        w.pair.subscribe(lambda event: isinstance(event, MessageMoved) and w.west.fail(Fault.HANG, Operation.SETTLE))
        leave(w.west, b"good")
        w.west.store(QUEUE, Message(b"forged"))
        while not w.of(MessageMoved):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # in the second round the completion was confirmed, and the dead-letter hangs
        w.west.fail(Fault.DOWN, Operation.RECEIVE, times=1, entities=[QUEUE.path])
        await asyncio.sleep(2)
        w.west.heal()
        await asyncio.sleep(120)
        assert w.backlog() == []
        assert (w.pair.moved, [event.completed for event in w.of(MessageMoved)]) == (1, [True])


@in_virtual_time
async def test_what_was_moved_back_is_reported_although_its_completion_hangs_when_the_pump_begins_anew(world):
    async with world(enable_syphon=True, attempt_timeout=10.0) as w:
        w.west.fail(Fault.HANG, Operation.SETTLE)
        leave(w.west, b"1")
        await came_home(w, b"1")
        w.west.fail(Fault.DOWN, Operation.RECEIVE, times=1, entities=[QUEUE.path])
        await asyncio.sleep(3)
        assert [event.completed for event in w.of(MessageMoved)] == [False]


@in_virtual_time
async def test_a_destination_that_had_poison_and_is_unavailable_later_strands_no_other(world):
    async with world(enable_syphon=True, syphon_batch=10) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.5)  # so that a line is never empty

        def goes_away(event: object) -> None:
            if isinstance(event, MessageMoved) and w.pair.moved == 20:
                w.east.heal()
                w.east.fail(Fault.POISON, Operation.SEND, times=1)
                w.east.fail(Fault.DOWN, entities=["orders"])

        w.pair.subscribe(goes_away)
        leave(w.west, *bodies_of(150))
        leave(w.west, b"p", entity="prices")
        await came_home(w, b"p", entity="prices")


@in_virtual_time
async def test_what_is_under_way_when_a_receive_fails_is_not_sent_again(world):
    async with world(enable_syphon=True, attempt_timeout=5.0, backlog_queue_count=1) as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=1.0)
        leave(w.west, b"1")
        await asyncio.sleep(0.5)
        w.west.fail(Fault.BUSY, Operation.RECEIVE, times=1)
        before = w.east.operations["SEND"]
        await came_home(w, b"1")
        await asyncio.sleep(120)
        assert w.of(SyphonFailed)
        assert w.backlog() == []
        assert (before, w.east.operations["SEND"], w.home()) == (1, 1, [b"1"])


@in_virtual_time
async def test_a_pump_that_begins_anew_does_not_wait_for_a_destination_that_is_unavailable(world):
    async with world(enable_syphon=True, attempt_timeout=60.0, backlog_queue_count=1) as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        leave(w.west, b"1")
        await asyncio.sleep(0.5)
        w.west.fail(Fault.BUSY, Operation.RECEIVE, times=1)
        leave(w.west, b"p", entity="prices")
        await asyncio.sleep(0.5)
        w.east.heal()  # what hung fails now
        w.east.fail(Fault.DOWN, entities=["orders"])
        began_at = asyncio.get_running_loop().time()
        await came_home(w, b"p", entity="prices")
        assert asyncio.get_running_loop().time() < began_at + 10


@in_virtual_time
@pytest.mark.parametrize("beside", [[], [b"good"]])
async def test_a_message_that_is_too_large_closes_no_sender_that_others_use(world, monkeypatch, beside):
    closed: list[Entity] = []
    async with world(east=narrow(), enable_syphon=True) as w:
        monkeypatch.setattr(type(w.pair._engine.syphon), "_close_sender", lambda _, entity: closed.append(entity))
        leave(w.west, TOO_LARGE, *beside)
        await came_home(w, *beside)
        await asyncio.sleep(1)
        assert [reason for _, reason in w.west.dead_letters(QUEUE.path)] == ["too-large"]
    assert closed == []


@in_virtual_time
@pytest.mark.parametrize("reason", [FailureReason.MALFORMED, FailureReason.NOT_SUPPORTED, FailureReason.OTHER])
async def test_a_message_that_is_refused_for_its_own_sake_cuts_off_no_other_pump(world, monkeypatch, reason):
    """Its sender was closed: what another pump had under way through it was in doubt, and went home twice."""
    store = simulated.SimulatedSender._store

    def picky(self: simulated.SimulatedSender, message: Message, now: float) -> None:
        if message.body == b"bad":
            raise TransportError("not a message like this", FailureKind.REFUSED, reason)
        store(self, message, now)

    async def slow(self: simulated.SimulatedSender, messages: Sequence[Message]) -> list[TransportError | None]:
        await self._connection.call(
            self._calls, lambda now: [store(self, message, now) for message in messages], Operation.SEND, self._entity
        )
        await asyncio.sleep(0.5)  # the answer is on its way
        lost = TransportError("closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED, maybe_applied=True)
        return [lost if self._calls.closed else None for _ in messages]

    monkeypatch.setattr(simulated.SimulatedSender, "_store", picky)
    monkeypatch.setattr(simulated.SimulatedSender, "send_batch", slow)
    async with world(enable_syphon=True) as w:
        leave(w.west, *bodies_of(50))
        while not w.home():
            await asyncio.sleep(0.01)
        leave(w.west, b"bad", queue=Entity("east/x-servicebus-transfer/1"))
        async with asyncio.timeout(60):
            while w.backlog():
                await asyncio.sleep(0.1)
        assert [why for _, why in w.west.dead_letters("east/x-servicebus-transfer/1")] == [reason]
        assert sorted(w.home()) == sorted(bodies_of(50))


class BusyReceiver:
    """Completes nothing at first, and then all."""

    queue = QUEUE

    def __init__(self) -> None:
        self.busy = True

    async def complete(self, deliveries: Sequence[object]) -> tuple[list[TransportError | None], float]:
        busy = TransportError("try again", FailureKind.BUSY, FailureReason.OTHER)
        return [busy if self.busy else None for _ in deliveries], 0.0


@in_virtual_time
async def test_a_completion_is_tried_again_after_a_pump_began_anew_before_the_first_retry():
    """A task that is cancelled before its first step runs no `finally`: what it would have cleared stayed, for good."""
    receiver, machine = BusyReceiver(), PumpMachine(PairOptions(), Gates(1.0), lambda entity: False)
    settler = Settler(receiver, machine, MagicMock(clock=Clock(virtual_wall)), lambda: None)

    def stored(number: int) -> list[Item]:
        message = Message(b"1", message_id=str(number))
        diversion = Diversion(Entity("orders"), datetime.fromtimestamp(virtual_wall(), UTC), "other-process", number)
        _, [line] = machine.received([Delivery(divert(message, diversion), number)], 0.0, diversion.diverted_at)
        sent = machine.sent(line.gate, machine.take(line, 0.0), [None], 0.0, 0.0)
        machine.ended(line)
        machine.next(line, 0.0)
        return sent.settle

    await settler.settle(stored(1))
    await settler.stop_retries()  # in the same turn of the loop, as when a receive fails then
    await settler.give_up()
    await settler.settle(stored(2))
    receiver.busy = False
    await asyncio.sleep(60)
    assert (machine.moved, len(machine)) == (2, 0)


@in_virtual_time
async def test_a_secondary_that_settles_nothing_is_reported_once_for_all_messages_of_an_attempt(world):
    async with world(enable_syphon=True, attempt_timeout=5.0, backlog_queue_count=1) as w:
        w.west.fail(Fault.DOWN, Operation.SETTLE)
        leave(w.west, *bodies_of(90))
        await asyncio.sleep(5)
        failed = [event.error for event in w.of(SyphonFailed) if event.error.startswith("settle:")]
        assert 0 < len(failed) <= 20
        w.west.heal()
        await came_home(w, *bodies_of(90))

"""`pairmq receive --idle`: neither an outage of its broker nor its own work is idleness, in virtual time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

import pytest

from pairmq.cli._receive import ReceiveJob
from pairmq.cli._signals import Stop
from pairmq.model import Delivery, Entity, Message, Source
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time
from pairmq.transport import Receiver

IDLE = 5.0
OUTAGE = 4 * IDLE


class Taken:
    """An output that remembers."""

    name = "a list"

    def __init__(self, takes: float = 0.0) -> None:
        self.bodies: list[bytes] = []
        self._takes = takes

    async def write(self, deliveries: Sequence[Delivery]) -> None:
        await asyncio.sleep(self._takes)
        self.bodies += [delivery.message.body for delivery in deliveries]


async def broker_with(count: int) -> SimulatedBroker:
    """A broker with so many messages in its queue, that answers all but receives."""
    broker = SimulatedBroker("primary")
    transport = broker.transport()
    await transport.admin.create(Entity("orders"))
    sender = transport.sender(Entity("orders"))
    for number in range(count):
        await sender.send(Message(b"%d" % number))
    await transport.close()
    return broker


def job_at(broker: SimulatedBroker, output: Taken, *, prefetch: int = 10) -> ReceiveJob:
    return ReceiveJob(
        broker.transport(),
        Source(Entity("orders")),
        output,  # type: ignore[arg-type]
        most=None,
        idle=IDLE,
        prefetch=prefetch,
        unique=False,
        time_limit=2.0,
    )


@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.HANG, Fault.TRANSIENT, Fault.BUSY])
@in_virtual_time
async def test_an_outage_that_is_longer_than_the_idle_time_is_no_idleness(fault: Fault) -> None:
    broker = await broker_with(5)
    broker.fail(fault, Operation.RECEIVE)
    loop = asyncio.get_running_loop()
    loop.call_later(OUTAGE, broker.heal)
    taken = Taken()
    assert await job_at(broker, taken).run(Stop()) == 0
    assert taken.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.messages("orders") == []


@in_virtual_time
async def test_what_an_outage_held_up_has_the_idle_time_to_come() -> None:
    broker = await broker_with(0)
    taken = Taken()
    running = asyncio.create_task(job_at(broker, taken).run(Stop()))
    await asyncio.sleep(1)
    broker.fail(Fault.DOWN)
    await asyncio.sleep(OUTAGE)
    broker.heal()
    await asyncio.sleep(IDLE / 2)
    transport = broker.transport()
    await transport.sender(Entity("orders")).send(Message(b"late"))
    await transport.close()
    assert await running == 0
    assert taken.bodies == [b"late"]


@in_virtual_time
async def test_a_signal_ends_the_waiting_for_a_broker_that_stays_unavailable() -> None:
    broker = await broker_with(5)
    broker.fail(Fault.DOWN, Operation.RECEIVE)
    stop = Stop()
    asyncio.get_running_loop().call_later(OUTAGE, stop.request, signal.SIGTERM)
    assert await job_at(broker, Taken()).run(stop) == 143
    assert len(broker.messages("orders")) == 5


@in_virtual_time
async def test_writing_that_takes_longer_than_the_idle_time_is_no_idleness() -> None:
    broker = await broker_with(5)
    taken, began = Taken(takes=2 * IDLE), asyncio.get_running_loop().time()
    assert await job_at(broker, taken, prefetch=1).run(Stop()) == 0
    assert taken.bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert asyncio.get_running_loop().time() - began >= 5 * 2 * IDLE + IDLE


@in_virtual_time
async def test_a_first_receive_that_is_late_is_no_idleness(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, taken = await broker_with(5), Taken()
    job = job_at(broker, taken)
    make = job.transport.receiver

    def held_up(source: Source) -> Receiver:
        loop, receiver = asyncio.get_running_loop(), make(source)
        monkeypatch.setattr(loop, "time", late(loop.time))
        return receiver

    monkeypatch.setattr(job.transport, "receiver", held_up)
    assert await job.run(Stop()) == 0
    assert taken.bodies == [b"0", b"1", b"2", b"3", b"4"]


def late(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that goes on by twice the idle time after its first look."""
    looks: list[float] = []

    def time() -> float:
        looks.append(clock())
        return looks[-1] + 2 * IDLE * (len(looks) > 1)

    return time

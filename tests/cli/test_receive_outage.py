"""`pairmq receive --idle` waits through an outage of its broker, in virtual time."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import pytest

from pairmq.cli._receive import ReceiveJob
from pairmq.cli._signals import Stop
from pairmq.model import Delivery, Entity, Message, Source
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time

IDLE = 5.0
OUTAGE = 4 * IDLE


class Taken:
    """An output that remembers."""

    name = "a list"

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def write(self, deliveries: Sequence[Delivery]) -> None:
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


def job_at(broker: SimulatedBroker, output: Taken) -> ReceiveJob:
    return ReceiveJob(
        broker.transport(),
        Source(Entity("orders")),
        output,  # type: ignore[arg-type]
        most=None,
        idle=IDLE,
        prefetch=10,
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

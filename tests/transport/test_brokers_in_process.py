"""The brokers in this process, and each of their faults as the transport sees it."""

from __future__ import annotations

import asyncio
import gc
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from cut_calls import turns_until_done
from pairmq import Pair, PairOptions
from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import BrokerControl, registry
from pairmq.testing import MemoryBroker, memory_broker, run_virtual
from pairmq.transport import QueueProperties, Transport
from redis_queue import HELD, WAIT

Make = Callable[..., Message]
QUEUE = Entity("orders")
LIMIT = 120
"""Seconds in which what must happen has happened, and in which no lock ends (`HELD`)."""


@pytest.fixture(params=["memory", "fakeredis"])
def scheme(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def broker(scheme: str) -> AsyncIterator[MemoryBroker]:
    async with memory_broker(scheme=scheme) as broker:
        yield broker


@pytest.fixture
def message() -> Make:
    """Makes messages with an id."""

    def make(body: bytes | str = b"", **fields: Any) -> Message:
        return Message(body.encode() if isinstance(body, str) else body, message_id=uuid.uuid4().hex, **fields)

    return make


def control_of(url: str) -> Any:
    make = registry.transport_record(url).broker_control
    assert make is not None
    return make(url)


@pytest.fixture
async def transport(broker: MemoryBroker) -> AsyncIterator[Transport]:
    async with broker.transport() as transport:
        await transport.admin.create(QUEUE, QueueProperties(lock_duration=HELD))
        yield transport


async def error_of(call: object) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call  # type: ignore[misc]
    return caught.value


async def bodies(transport: Transport) -> list[bytes]:
    deliveries = await transport.receiver(Source(QUEUE)).receive(100, 0)
    return [delivery.message.body for delivery in deliveries]


async def test_the_control_is_a_broker_control(broker: MemoryBroker) -> None:
    control: BrokerControl = control_of(broker.url)
    assert control is control_of(broker.url)


async def test_a_stopped_broker_refuses_and_drops(broker: MemoryBroker, transport: Transport, message: Make) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("before"))
    await receiver.complete((await receiver.receive(1, WAIT))[0])
    waiting = asyncio.create_task(receiver.receive(1, 30))
    await asyncio.sleep(0.02)
    await broker.stop()
    assert await turns_until_done(waiting)
    error = await error_of(waiting)
    assert (error.kind, error.reason) == (FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    error = await error_of(sender.send(message("during")))
    assert (error.kind, error.reason) == (FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    assert not error.maybe_applied
    assert [o and o.kind for o in await sender.send_batch([message()])] == [FailureKind.UNAVAILABLE]
    assert (await error_of(transport.admin.probe(QUEUE))).kind is FailureKind.UNAVAILABLE
    await broker.restore()
    await sender.send(message("after"))
    assert await bodies(transport) == [b"after"]


async def test_what_was_accepted_survives_a_stop(broker: MemoryBroker, transport: Transport, message: Make) -> None:
    await transport.sender(QUEUE).send(message("kept"))
    await broker.stop()
    await broker.restore()
    assert await bodies(transport) == [b"kept"]


async def test_a_hung_broker_never_answers_and_a_cancelled_call_returns_at_once(
    broker: MemoryBroker, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("before"))
    await receiver.complete((await receiver.receive(1, WAIT))[0])
    await broker.hang()
    fresh = broker.transport()
    calls = [sender.send(message("late")), receiver.receive(1, 0), transport.admin.probe(QUEUE), fresh.admin.check()]
    for call in (*calls, sender.send(message("not sent")), transport.admin.check()):
        task = asyncio.ensure_future(call)
        assert not await turns_until_done(task)
        task.cancel()
        assert await turns_until_done(task)
    await broker.restore()
    await sender.send(message("after"))
    # As a real server does that wakes up, it did what it had been sent: the send, and the receive that took it.
    found = await receiver.receive(5, WAIT)
    assert sorted(d.message.body for d in found) == [b"after", b"late"]
    assert [d.delivery_count for d in found] == [1, 1]
    await fresh.close()


@pytest.fixture
def in_virtual_seconds(broker: MemoryBroker) -> Callable[[Callable[[Transport], Coroutine[Any, Any, None]]], None]:
    """Runs a coroutine with a transport to the broker, where seconds pass as the loop likes, busy machine or not."""

    def run(main: Callable[[Transport], Coroutine[Any, Any, None]]) -> None:
        async def with_transport() -> None:
            async with broker.transport() as transport:
                await transport.admin.create(QUEUE)
                await main(transport)

        run_virtual(with_transport())

    return run


def test_a_hung_broker_holds_a_waiting_receiver(broker: MemoryBroker, in_virtual_seconds) -> None:
    async def main(transport: Transport) -> None:
        waiting = asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 0.1))
        await asyncio.sleep(0.02)
        await broker.hang()
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await broker.restore()
        assert await waiting == []

    in_virtual_seconds(main)


def test_a_slow_broker_answers_late(broker: MemoryBroker, message: Make, in_virtual_seconds) -> None:
    async def main(transport: Transport) -> None:
        now = asyncio.get_running_loop().time
        sender = transport.sender(QUEUE)
        await sender.send(message())
        await broker.slow(0.1)
        before = now()
        await sender.send(message())
        assert 0.09 < now() - before < 0.11
        before = now()
        assert not any(await sender.send_batch([message() for _ in range(50)]))
        assert 0.09 < now() - before < 0.3
        await broker.restore()
        before = now()
        await sender.send(message())
        assert now() == before

    in_virtual_seconds(main)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("unavailable", FailureKind.UNAVAILABLE), ("busy", FailureKind.BUSY), ("refused", FailureKind.REFUSED)],
)
async def test_a_refusing_broker_refuses_writes_only(
    broker: MemoryBroker, transport: Transport, message: Make, kind: str, expected: FailureKind
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("before"))
    await broker.refuse(kind=kind)
    for call in (sender.send(message()), transport.admin.probe(QUEUE), transport.admin.create(Entity("other"))):
        error = await error_of(call)
        assert (error.kind, error.maybe_applied) == (expected, False)
    assert [o and o.kind for o in await sender.send_batch([message(), message()])] == [expected] * 2
    [delivery] = await receiver.receive(5, WAIT)
    await receiver.complete(delivery)
    await transport.admin.check()
    await broker.restore()
    await transport.admin.probe(QUEUE)
    assert await bodies(transport) == []


@pytest.mark.parametrize("applied", [True, False])
async def test_lost_confirmations_leave_the_outcome_open(
    broker: MemoryBroker, transport: Transport, message: Make, applied: bool
) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(message("before"))
    await broker.lose_confirms(applied=applied)
    error = await error_of(sender.send(message("single")))
    assert (error.kind, error.reason, error.maybe_applied) == (FailureKind.UNAVAILABLE, FailureReason.CONNECTION, True)
    outcomes = await sender.send_batch([message("batch 1"), message("batch 2")])
    assert [o and (o.kind, o.maybe_applied) for o in outcomes] == [(FailureKind.UNAVAILABLE, True)] * 2
    await broker.restore()
    await sender.send(message("after"))
    doubtful = [b"single", b"batch 1", b"batch 2"] if applied else []
    assert await bodies(transport) == [b"before", *doubtful, b"after"]


async def test_faults_are_checked(broker: MemoryBroker) -> None:
    with pytest.raises(ValueError, match="kind"):
        await broker.refuse(kind="sometimes")
    with pytest.raises(ValueError, match="delay"):
        await broker.slow(-1)


async def test_a_forgotten_broker_is_empty(message: Make, scheme: str) -> None:
    async with memory_broker("forgetful", scheme=scheme) as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE)
        await transport.sender(QUEUE).send(message())
        await broker.forget()
        assert not await transport.admin.exists(QUEUE)
    async with memory_broker("forgetful", scheme=scheme).transport() as transport:
        assert await transport.admin.list_entities() == []


async def test_one_name_is_one_broker_and_two_names_are_two(message: Make, scheme: str) -> None:
    async with (
        memory_broker("shared", scheme=scheme) as broker,
        broker.transport() as one,
        registry.transport(f"{scheme}://shared") as two,
    ):
        await one.admin.create(QUEUE)
        assert await two.admin.exists(QUEUE)
        async with memory_broker("Shared", scheme=scheme) as other, other.transport() as three:
            assert not await three.admin.exists(QUEUE)


def test_loops_one_after_another_share_a_broker(scheme: str) -> None:
    async def first() -> None:
        async with registry.transport(f"{scheme}://loops") as transport:
            await transport.admin.create(QUEUE, QueueProperties(lock_duration=0.1))
            waiting = asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 30))
            await asyncio.sleep(0.02)
            waiting.cancel()
            await asyncio.wait([waiting])
            # A receiver still waits when the loop ends without a word.
            task = asyncio.create_task(registry.transport(f"{scheme}://loops").receiver(Source(QUEUE)).receive(1, 30))
            await asyncio.sleep(0.02)
            task.cancel()

    async def second() -> list[bytes]:
        async with registry.transport(f"{scheme}://loops") as transport:
            await transport.sender(QUEUE).send(Message(b"seen", message_id="1"))
            return await bodies(transport)

    asyncio.run(first())
    assert asyncio.run(second()) == [b"seen"]
    asyncio.run(control_of(f"{scheme}://loops").forget())
    gc.collect()


async def test_threads_share_a_broker(broker: MemoryBroker, transport: Transport) -> None:
    async def other() -> None:
        async with registry.transport(broker.url) as theirs:
            for n in range(20):
                await theirs.sender(QUEUE).send(Message(b"%d" % n, message_id=str(n)))

    thread = threading.Thread(target=lambda: asyncio.run(other()))
    receiver = transport.receiver(Source(QUEUE))
    waiting = asyncio.create_task(receiver.receive(1, WAIT))
    await asyncio.sleep(0.02)
    thread.start()
    got = await waiting
    while len(got) < 20:
        deliveries = await receiver.receive(20, WAIT)
        assert deliveries
        got += deliveries
    await asyncio.to_thread(thread.join)
    assert [d.message.body for d in got] == [b"%d" % n for n in range(20)]


async def test_a_receiver_that_left_takes_no_message(broker: MemoryBroker, transport: Transport, message: Make) -> None:
    for _ in range(3):
        waiting = asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 30))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait([waiting])
    await transport.sender(QUEUE).send(message("here"))
    assert await bodies(transport) == [b"here"]


async def test_a_subscription_may_be_named_like_an_option(transport: Transport, message: Make) -> None:
    topic = Entity("news", EntityKind.TOPIC)
    await transport.admin.create(topic)
    await transport.admin.create_subscription(topic, "BLOCK")
    receiver = transport.receiver(Source(topic, subscription="BLOCK"))
    assert await receiver.receive(1, 0.05) == []
    await transport.sender(topic).send(message("BLOCK"))
    assert len(await receiver.receive(1, WAIT)) == 1


async def test_a_body_may_read_like_an_option(broker: MemoryBroker, transport: Transport, message: Make) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(message())
    await broker.hang()
    sending = asyncio.create_task(sender.send(message(b"BLOCK")))
    await asyncio.sleep(0.02)
    sending.cancel()
    await asyncio.wait([sending])
    await broker.restore()  # it does what it had been sent
    assert b"BLOCK" in await bodies(transport)


def test_waiting_works_in_virtual_time(scheme: str) -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        async with registry.transport(f"{scheme}://virtual") as transport:
            await transport.admin.create(QUEUE)
            receiver = transport.receiver(Source(QUEUE))
            waiting = asyncio.create_task(receiver.receive(1, 90))
            await asyncio.sleep(30)
            await transport.sender(QUEUE).send(Message(message_id="1"))
            found = len(await waiting)
            assert await receiver.receive(1, 90) == []
            return loop.time(), found

    ended_at, found = run_virtual(main())
    assert (round(ended_at), found) == (120, 1)
    asyncio.run(control_of(f"{scheme}://virtual").forget())


async def held_and_left(broker: MemoryBroker, transport: Transport, message: Make) -> None:
    """Two messages that a receiver holds which closes while the broker is unavailable."""
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send_batch([message("a"), message("b")])
    assert len(await receiver.receive(2, WAIT)) == 2
    await broker.stop()
    await receiver.close()
    await broker.restore()


async def test_the_next_receiver_gets_what_one_held_that_closed_in_an_outage(
    broker: MemoryBroker, transport: Transport, message: Make
) -> None:
    await held_and_left(broker, transport, message)
    assert await bodies(transport) == [b"a", b"b"]


async def test_the_next_receiver_gets_it_when_its_first_receive_fails(
    broker: MemoryBroker, transport: Transport, message: Make
) -> None:
    await held_and_left(broker, transport, message)
    receiver = transport.receiver(Source(QUEUE))
    await broker.stop()
    await error_of(receiver.receive(2, 0))
    await broker.restore()
    assert [delivery.message.body for delivery in await receiver.receive(2, 0)] == [b"a", b"b"]


async def test_the_locks_of_open_receivers_outlast_an_outage(
    broker: MemoryBroker, transport: Transport, message: Make
) -> None:
    """Of another process' receiver and of this one's: only what a closed one has left is released."""
    async with broker.transport() as other:
        await transport.sender(QUEUE).send_batch([message("held"), message("held")])
        receivers = [each.receiver(Source(QUEUE)) for each in (transport, other)]
        held = [(await receiver.receive(1, WAIT))[0] for receiver in receivers]
        await held_and_left(broker, transport, message)
        assert await bodies(transport) == [b"a", b"b"]
        for receiver, delivery in zip(receivers, held, strict=True):
            await receiver.complete(delivery)


async def test_a_drain_goes_on_after_an_outage_of_the_secondary(broker: MemoryBroker, scheme: str) -> None:
    """What the pump held it gets again, and does not wait for the ends of its own locks (SPEC 7.6)."""
    options = PairOptions(failover_interval=0, ping_primary_interval=0.1, enable_syphon=True, backlog_queue_count=1)
    async with (
        memory_broker(scheme=scheme) as primary,
        broker.transport() as admin,
        Pair.connect(primary.url, broker.url, options=options) as pair,
    ):
        await pair.primary.admin.create(QUEUE)
        [backlog] = pair.backlog_queues
        await admin.admin.delete(backlog)
        await admin.admin.create(backlog, QueueProperties(lock_duration=HELD))
        pair.hold(QUEUE.path)
        await primary.refuse()
        for number in range(5):
            await pair.sender(QUEUE.path).send(Message(b"%d" % number))
        async with asyncio.timeout(LIMIT):
            while (await admin.admin.counts(Source(backlog))).locked < 5:
                await asyncio.sleep(0.01)
            await broker.stop()
            await asyncio.sleep(0.3)  # the pump has found out, and given up its receiver
            await broker.restore()
            await primary.restore()
            pair.mark_healthy(QUEUE.path)
            while (await admin.admin.counts(Source(backlog))).pending:
                await asyncio.sleep(0.01)

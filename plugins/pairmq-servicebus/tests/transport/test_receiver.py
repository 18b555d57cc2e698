"""Receiving and settling against a local server process."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import TcpProxy
from pairmq.transport import QueueProperties, Receiver, Transport
from pairmq_servicebus import _receive_link, _receiver
from pairmq_servicebus.testing import ServiceBusServer
from received import take

pytestmark = pytest.mark.real_server

Make = Callable[..., Message]

PATIENCE = 30.0  # s for what must come
SOON = 20.0
"""Seconds within which something ends that would take longer if it waited for what it must not wait for."""
LONG = 600.0  # s


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def test_messages_come_in_order_and_are_gone_when_completed(
    transport: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message(str(number)) for number in range(250)])
    receiver = transport.receiver(Source(queue))
    got: list[bytes] = []
    while len(got) < 250:
        deliveries = await receiver.receive(100, PATIENCE)
        assert 1 <= len(deliveries) <= 100
        got += [delivery.message.body for delivery in deliveries]
        assert set(await receiver.complete_batch(deliveries)) == {None}
    assert got == [str(number).encode() for number in range(250)]
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_a_delivery_has_its_count_place_and_lock(transport: Transport, queue: Entity, message: Make) -> None:
    about = timedelta(seconds=1)
    before = datetime.now(UTC) - about
    await transport.sender(queue).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    first, second = await take(receiver, 2)
    after = datetime.now(UTC) + about
    assert (first.delivery_count, second.delivery_count) == (1, 1)
    assert int(first.sequence_number) < int(second.sequence_number)
    assert first.enqueued_at is not None
    assert before < first.enqueued_at < after
    assert first.locked_until is not None
    assert before < first.locked_until - timedelta(minutes=1) < after


async def test_an_empty_queue_is_asked_once_or_waited_for(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    async with asyncio.timeout(SOON):
        assert await receiver.receive(10, 0) == []
        assert await receiver.receive(10, 0) == []
        began = time.monotonic()
        assert await receiver.receive(10, 0.7) == []
        assert time.monotonic() - began > 0.6


async def test_asking_once_finds_what_is_there(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the question and its answer take here.
    for name in ("_LEAST_ROUND_TRIP", "_MOST_ROUND_TRIP"):
        monkeypatch.setattr(_receive_link, name, PATIENCE)
    await transport.sender(queue).send(message("there"))
    assert [delivery.message.body for delivery in await transport.receiver(Source(queue)).receive(5, 0)] == [b"there"]


async def test_a_long_poll_ends_soon_after_the_first_message(
    transport: Transport, queue: Entity, message: Make
) -> None:
    receiver, sender = transport.receiver(Source(queue)), transport.sender(queue)
    await receiver.receive(1, 0)
    poll = asyncio.create_task(receiver.receive(100, LONG))
    await sender.send(message("late"))
    async with asyncio.timeout(SOON):
        assert [delivery.message.body for delivery in await poll] == [b"late"]


async def test_settling_does_not_wait_for_a_long_poll(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    await sender.send_batch([message(str(number)) for number in range(50)])
    receiver = transport.receiver(Source(queue))
    deliveries = await take(receiver, 50)
    poll = asyncio.create_task(receiver.receive(50, LONG))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(SOON):
        await asyncio.gather(*(receiver.complete(delivery) for delivery in deliveries[:-1]))
        await receiver.renew_lock(deliveries[-1])
        await receiver.abandon(deliveries[-1])
        again = await poll
    assert [(delivery.message.body, delivery.delivery_count) for delivery in again] == [(b"49", 2)]


async def test_a_poll_that_is_interrupted_keeps_the_order(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    await sender.send_batch([message(str(number)) for number in range(20)])
    receiver = transport.receiver(Source(queue))
    held = await take(receiver, 20)
    got: list[int] = []

    async def settle() -> None:
        for delivery in held:
            await receiver.complete(delivery)
            await asyncio.sleep(0.005)

    async def send() -> None:
        for number in range(100):
            await sender.send(message(str(number)))

    work = asyncio.gather(settle(), send())
    while len(got) < 100:
        deliveries = await receiver.receive(10, PATIENCE)
        assert all(delivery.delivery_count == 1 for delivery in deliveries)
        got += [int(delivery.message.body) for delivery in deliveries]
    await work
    assert got == list(range(100))


async def test_a_cancelled_receive_loses_nothing_and_holds_nothing(
    transport: Transport, queue: Entity, message: Make
) -> None:
    receiver, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    await asyncio.gather(receiver.receive(1, 0), other.receive(1, 0))
    poll = asyncio.create_task(receiver.receive(100, LONG))
    await asyncio.sleep(0.1)
    poll.cancel()
    done, _ = await asyncio.wait((poll,), timeout=SOON)
    assert done
    assert poll.cancelled()
    await transport.sender(queue).send(message("for the other"))
    got = await take(other, 1)
    assert [(delivery.message.body, delivery.delivery_count) for delivery in got] == [(b"for the other", 1)]
    await other.complete(got[0])


async def test_a_receive_cancelled_while_messages_arrive_gives_them_back(
    transport: Transport, queue: Entity, message: Make
) -> None:
    receiver, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    await asyncio.gather(receiver.receive(1, 0), other.receive(1, 0))
    sending = asyncio.create_task(transport.sender(queue).send_batch([message(str(number)) for number in range(60)]))
    poll = asyncio.create_task(receiver.receive(100, 30))
    await sending
    poll.cancel()
    await asyncio.wait((poll,))
    got: set[bytes] = set()
    if not poll.cancelled():
        got = {delivery.message.body for delivery in poll.result()}
    while len(got) < 60:
        deliveries = await other.receive(100, PATIENCE)
        assert deliveries
        got |= {delivery.message.body for delivery in deliveries}


async def test_giving_back_that_is_interrupted_goes_on_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    begun, answered = asyncio.Event(), asyncio.Event()

    async def give_back(link: object, shelf: object, unsettled: Any) -> None:
        for held in unsettled:
            if held == "b":
                begun.set()
                await answered.wait()
            given.append(held)

    class Link:
        def usable(self) -> bool:
            return True

    monkeypatch.setattr(_receiver, "abandon_all", give_back)
    nothing: Any = None
    link: Any = Link()
    job = _receiver.Receive(nothing, nothing, 1, 0.0, 1.0, "receive", nothing)
    unwanted: Any = ["a", "b", "c"]
    job._unwanted = unwanted
    interrupted = asyncio.create_task(job._set_aside(link))
    await begun.wait()
    interrupted.cancel()
    await asyncio.wait((interrupted,))
    answered.set()
    await job._set_aside(link)
    assert given == ["a", "b", "c"]


async def test_credit_of_a_receive_that_ended_locks_no_messages(
    transport: Transport, queue: Entity, message: Make
) -> None:
    idle, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    await asyncio.gather(idle.receive(10, 0), other.receive(1, 0))
    await transport.sender(queue).send(message("a"))
    assert [delivery.message.body for delivery in await other.receive(1, PATIENCE)] == [b"a"]


async def test_an_abandoned_message_is_redelivered_and_counts(
    transport: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("x"))
    receiver = transport.receiver(Source(queue))
    for count in (1, 2, 3):
        [delivery] = await take(receiver, 1)
        assert delivery.delivery_count == count
        await receiver.abandon(delivery)


async def test_a_dead_letter_keeps_its_reason_and_as_much_of_its_description_as_the_service_does(
    transport: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("x", application_properties={"kept": 1}))
    receiver, dead = transport.receiver(Source(queue)), transport.receiver(Source(queue, dead_letter=True))
    [delivery] = await take(receiver, 1)
    await receiver.dead_letter(delivery, "why", "because " * 1000)
    [found] = await take(dead, 1)
    assert found.message == delivery.message
    assert found.dead_letter_reason == "why"
    assert found.dead_letter_description == ("because " * 1000)[:4096]
    await dead.complete(found)
    assert await dead.receive(1, 0) == []


@pytest.fixture
async def brief(transport: Transport) -> Entity:
    """A queue with the shortest locks that the service has."""
    queue = Entity(f"brief/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(queue, QueueProperties(lock_duration=5.0))
    return queue


async def test_a_lock_that_ran_out_settles_nothing(transport: Transport, brief: Entity, message: Make) -> None:
    await transport.sender(brief).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(brief))
    lost, kept = await take(receiver, 2)
    # From now on locks are kept for a minute: what is renewed has time while the other one runs out.
    client: Any = transport.admin._service._good_client()  # type: ignore[attr-defined]
    description = await client.get_queue(brief.path)
    description.lock_duration = timedelta(minutes=1)
    await client.update_queue(description)
    renewed = await receiver.renew_lock(kept)
    assert renewed.locked_until is not None
    assert kept.locked_until is not None
    assert lost.locked_until is not None
    assert renewed.locked_until > kept.locked_until
    await asyncio.sleep((lost.locked_until - datetime.now(UTC)).total_seconds() + 0.3)
    for call in (
        receiver.complete(lost),
        receiver.abandon(lost),
        receiver.dead_letter(lost, "r", "d"),
        receiver.renew_lock(lost),
    ):
        with pytest.raises(TransportError) as caught:
            await call
        assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.LOCK_LOST)
    await receiver.complete(kept)  # the old delivery of a renewed lock settles as well
    [again] = await take(receiver, 1)
    assert (again.message.body, again.delivery_count) == (b"a", 2)


@pytest.mark.usefixtures("clock_behind")
async def test_a_lock_ends_by_this_machines_clock_although_that_is_behind(
    transport: Transport, queue: Entity, message: Make
) -> None:
    """A consumer would renew a lock of ten seconds after 20: by its clock more than two minutes were left."""
    assert await transport.admin.create(Entity(f"{queue.path}/short"), QueueProperties(lock_duration=10.0))
    queue = Entity(f"{queue.path}/short")
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    [delivery] = await take(receiver, 1)
    renewed = await receiver.renew_lock(delivery)
    for each in (delivery, renewed):
        assert each.locked_until is not None
        assert each.locked_until < datetime.now(UTC) - timedelta(minutes=1)


@pytest.mark.usefixtures("clock_ahead")
async def test_messages_are_settled_by_a_machine_whose_clock_is_ahead(
    transport: Transport, queue: Entity, message: Make
) -> None:
    """The client compared the locks' ends with that clock: nothing was ever completed, and a syphon drained nothing."""
    await transport.sender(queue).send_batch([message(name) for name in ("renewed", "abandoned", "dead")])
    receiver = transport.receiver(Source(queue))
    renewed, abandoned, dead = await take(receiver, 3)
    await receiver.complete(await receiver.renew_lock(renewed))
    await receiver.abandon(abandoned)
    await receiver.dead_letter(dead, "bad", "")
    [again] = await take(receiver, 1)
    assert [failed for failed in await receiver.complete_batch([again]) if failed] == []
    counts = await transport.admin.counts(Source(queue))
    assert (counts.active, counts.dead_letter) == (0, 1)


async def test_settling_twice_is_a_lost_lock(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    [delivery] = await take(receiver, 1)
    await receiver.complete(delivery)
    with pytest.raises(TransportError) as caught:
        await receiver.complete(delivery)
    assert caught.value.reason is FailureReason.LOCK_LOST


async def test_a_delivery_of_a_lost_link_still_settles_and_no_other_one_does(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send_batch([message(name) for name in ("old a", "old b", "old c")])
    old = await take(receiver, 3)
    server.drop_connections()
    await asyncio.sleep(0.2)
    await sender_again(transport, queue, message("new"))
    [new] = await receive_again(receiver)
    assert new.message.body == b"new"
    # On the new link the delivery numbers began anew: by its number, this would complete the new message.
    await receiver.complete(old[0])
    assert await receiver.complete_batch(old[1:2]) == [None]
    await receiver.dead_letter(old[2], "why", "because")
    counts = await transport.admin.counts(Source(queue))
    assert (counts.active, counts.dead_letter) == (1, 1)
    await receiver.complete(new)
    assert (await transport.admin.counts(Source(queue))).active == 0


async def sender_again(transport: Transport, queue: Entity, message: Message) -> None:
    sender = transport.sender(queue)
    await sender.send(message)
    await sender.close()


async def receive_again(receiver: Receiver) -> list[Delivery]:
    """The first call after a lost connection may still find it lost."""
    for _ in range(3):
        try:
            if got := await receiver.receive(1, PATIENCE):
                return got
        except TransportError:
            continue
    raise AssertionError("nothing came")


async def test_a_receive_from_a_missing_queue_is_refused(transport: Transport) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.receiver(Source(Entity("no-such-queue"))).receive(1, 1)
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)


async def test_a_killed_server_ends_a_long_poll_soon(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    receiver = transport.receiver(Source(queue))
    await receiver.receive(1, 0)
    poll = asyncio.create_task(receiver.receive(1, LONG))
    await asyncio.sleep(0.2)
    server.kill()
    async with asyncio.timeout(SOON):
        with pytest.raises(TransportError) as caught:
            await poll
    assert caught.value.kind is FailureKind.UNAVAILABLE
    server.start()
    await transport.admin.create(queue)
    await transport.sender(queue).send(message("after"))
    [delivery] = await receive_again(receiver)
    assert delivery.message.body == b"after"


async def test_a_settlement_without_an_answer_ends_by_the_callers_limit(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    first, second = await take(receiver, 2)
    server.fault({"at": "settle", "action": "silence", "apply": True, "times": 1})
    completing = asyncio.create_task(receiver.complete(first))
    # The fault has struck this one.
    await until(lambda: server.count(queue.path) == 1)
    async with asyncio.timeout(SOON):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await completing
    await receiver.complete(second)


async def test_a_cancelled_renewal_leaves_no_error_behind(
    server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    """The client runs such a request in a task of its own; that went on, and failed when its connection was shut."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
    async with registry.transport(f"{server.url}&connect-timeout=30") as transport:
        await transport.sender(queue).send(message("a"))
        receiver = transport.receiver(Source(queue))
        [delivery] = await take(receiver, 1)
        delivery = await receiver.renew_lock(delivery)  # opens the link for such requests
        server.fault({"at": "management", "action": "silence", "operation": "renew-lock"})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await receiver.renew_lock(delivery)
    gc.collect()
    assert reports == []


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("com.microsoft:message-lock-lost", FailureReason.LOCK_LOST),
        ("com.microsoft:message-not-found", FailureReason.LOCK_LOST),
        ("com.microsoft:server-busy", FailureReason.OTHER),
    ],
)
async def test_a_refused_settlement_says_why(
    transport: Transport,
    server: ServiceBusServer,
    queue: Entity,
    message: Make,
    condition: str,
    reason: FailureReason,
) -> None:
    await transport.sender(queue).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    deliveries = await take(receiver, 2)
    server.fault({"at": "settle", "action": "error", "condition": condition, "times": 1})
    first, second = await receiver.complete_batch(deliveries)
    assert first is not None
    assert first.reason is reason
    assert second is None


async def test_closing_releases_what_is_not_settled(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine it may take its time.
    monkeypatch.setattr(_receiver, "_GIVE_UP", PATIENCE)
    await transport.sender(queue).send_batch([message(str(number)) for number in range(5)])
    receiver, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    await take(receiver, 5)
    await receiver.close()
    await receiver.close()
    assert [delivery.delivery_count for delivery in await take(other, 5)] == [2] * 5
    with pytest.raises(TransportError) as caught:
        await receiver.receive(1, 0)
    assert caught.value.reason is FailureReason.CLOSED


async def test_a_close_ends_a_long_poll(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    await receiver.receive(1, 0)
    poll = asyncio.create_task(receiver.receive(1, 60))
    await asyncio.sleep(0.1)
    await receiver.close()
    with pytest.raises(TransportError) as caught:
        await poll
    assert caught.value.reason is FailureReason.CLOSED


async def test_a_malformed_message_is_dead_lettered_and_blocks_nothing(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    bad = ServiceBusMessage("bad", message_id="an id", application_properties={"x-pairmq-fields": "no json"})
    async with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue.path) as foreign,
    ):
        await foreign.send_messages(bad)
    receiver = transport.receiver(Source(queue))
    reported: list[Delivery] = []
    receiver.on_dead_lettered = reported.append
    assert await receiver.receive(1, 0.5) == []
    await transport.sender(queue).send(message("good"))
    assert [delivery.message.body for delivery in await receiver.receive(10, PATIENCE)] == [b"good"]
    async with asyncio.timeout(PATIENCE):
        # It may have come with the good one, and is put away behind its back then.
        while not (found := await transport.admin.peek(Source(queue, dead_letter=True), 5)):
            await asyncio.sleep(0.02)
    [dead] = found
    assert dead.message.body == b"bad"
    assert [(each.message.body, each.message.message_id) for each in reported] == [(b"bad", "an id")]
    raw = transport.receiver(Source(queue, dead_letter=True))
    # It can't be read there either; its reason is for people with other tools.
    assert await raw.receive(1, 0.3) == []


async def test_a_scheduled_message_comes_when_its_time_has_come(
    transport: Transport, queue: Entity, message: Make
) -> None:
    at = datetime.now(UTC) + timedelta(seconds=2)
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send_batch([message("later", scheduled_enqueue_at=at), message("now")])
    [first] = await take(receiver, 1)
    assert first.message.body == b"now"
    [second] = await take(receiver, 1)
    assert datetime.now(UTC) >= at
    assert second.message.scheduled_enqueue_at == at


async def test_an_expired_message_is_dead_lettered(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send(message("short", time_to_live=0.3))
    await asyncio.sleep(0.6)
    assert await transport.receiver(Source(queue)).receive(1, 0.3) == []
    [dead] = await take(transport.receiver(Source(queue, dead_letter=True)), 1)
    assert (dead.message.body, dead.dead_letter_reason) == (b"short", "TTLExpiredException")


async def test_a_stopped_server_holds_no_caller_and_nothing_is_lost_when_it_goes_on(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    first, second = await take(receiver, 2)
    server.pause()
    try:
        async with asyncio.timeout(SOON):
            for call in (receiver.complete(first), receiver.receive(1, LONG), receiver.renew_lock(second)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await call
    finally:
        server.resume()
    # The first may or may not have been completed; the second is still locked, and settles.
    with contextlib.suppress(TransportError):
        await receiver.complete(first)
    await receiver.complete(second)
    assert (await transport.admin.counts(Source(queue))).active == 0


async def test_a_receive_cancelled_while_it_is_interrupted_holds_nothing(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    receiver, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    await other.receive(1, 0)
    for seconds in (0.5, 5.0, 25.0):
        await sender.send(message("held"))
        [held] = await take(receiver, 1)
        poll = asyncio.create_task(receiver.receive(10, LONG))
        await asyncio.sleep(0.1)
        server.fault({"at": "settle", "action": "delay", "seconds": seconds, "times": 1})
        settling = asyncio.create_task(receiver.complete(held))
        await asyncio.sleep(0.1)
        await sender.send(message("for the other"))  # comes on the interrupted receive's credit
        interrupted = not settling.done()
        poll.cancel()
        await settling
        if interrupted:
            [delivery] = await take(other, 1)
            assert (delivery.message.body, delivery.delivery_count) == (b"for the other", 1)
            return
        # This was held up for longer than the settlement, and the receive went on: once more.
        await asyncio.wait((poll,))
        for delivery in await take(receiver, 1) if poll.cancelled() else poll.result():
            await receiver.complete(delivery)
    pytest.fail("no receive was interrupted for long enough")


async def test_a_receive_fails_when_the_service_went_silent_and_the_next_one_delivers(
    server: ServiceBusServer, transport: Transport, queue: Entity, message: Make
) -> None:
    limits = "operation-timeout=2&connect-timeout=30"
    near = registry.transport(f"{server.url}&{limits}")
    with TcpProxy("127.0.0.1", server.port) as proxy:
        through = registry.transport(proxy.rewrite(f"{server.url}&{limits}"))
        receiver, control = through.receiver(Source(queue)), near.receiver(Source(queue))
        assert not await receiver.receive(1, 0)
        assert not await control.receive(1, 0)
        proxy.silence(drop=True)
        async with asyncio.timeout(60):
            with pytest.raises(TransportError) as caught:
                await receiver.receive(1, LONG)
        assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        # A queue without messages is as quiet.
        assert not await control.receive(1, 5)
        await control.close()
        proxy.restore()
        await transport.sender(queue).send(message("after"))
        [delivery] = await receiver.receive(1, PATIENCE)
        assert delivery.message.body == b"after"
        await through.close()
        await near.close()


async def test_short_receives_fail_in_the_end_when_the_service_went_silent(
    server: ServiceBusServer, transport: Transport, queue: Entity
) -> None:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        through = registry.transport(proxy.rewrite(f"{server.url}&operation-timeout=2&connect-timeout=30"))
        receiver = through.receiver(Source(queue))
        assert not await receiver.receive(1, 0)
        proxy.silence(drop=True)

        async def poll() -> None:
            while not await receiver.receive(1, 0.3):
                pass

        with pytest.raises(TransportError) as caught:
            await asyncio.wait_for(poll(), 60)
        assert caught.value.kind is FailureKind.UNAVAILABLE
        await through.close()

"""Sending to a local server process: outcomes, order, faults and cancellations."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Transport, is_nothing_sent
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

Make = Callable[..., Message]

PATIENCE = 30.0  # s for what must come
SOON = 20.0
"""Seconds within which something ends that would, by the transport's own limits, take longer."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


async def bodies(transport: Transport, queue: Entity, count: int) -> list[bytes]:
    """What the queue holds, without a look at more than ``count``."""
    return [delivery.message.body for delivery in await transport.admin.peek(Source(queue), count)]


async def test_concurrent_sends_share_batches_and_keep_their_order(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message("first"))
    await asyncio.gather(*(sender.send(message(str(number))) for number in range(400)))
    expected = [b"first", *(str(number).encode() for number in range(400))]
    assert await bodies(transport, queue, 500) == expected


async def test_a_batch_is_confirmed_in_its_order_across_sessions(
    transport: Transport, queue: Entity, message: Make
) -> None:
    batch = [message(str(number), session_id=f"s{number // 7 % 3}") for number in range(60)]
    assert set(await transport.sender(queue).send_batch(batch)) == {None}
    assert await bodies(transport, queue, 100) == [str(number).encode() for number in range(60)]


async def test_one_bad_message_of_a_batch_is_refused_alone(transport: Transport, message: Make) -> None:
    queue = Entity("needs-sessions")
    await transport.admin.create(queue, QueueProperties(requires_session=True))
    outcomes = await transport.sender(queue).send_batch(
        [message("a", session_id="s"), message("b"), message("c", session_id="s")]
    )
    assert outcomes[0] is None
    assert outcomes[2] is None
    failed = outcomes[1]
    assert failed is not None
    assert failed.kind is FailureKind.REFUSED
    assert not failed.maybe_applied


async def test_a_message_that_is_too_large_is_refused_and_the_link_is_kept(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    most = 256 * 1024
    outcomes = await sender.send_batch([message("a"), message(b"x" * most), message("b")])
    assert (outcomes[0], outcomes[2]) == (None, None)
    failed = outcomes[1]
    assert failed is not None
    assert failed.reason is FailureReason.TOO_LARGE
    assert not failed.maybe_applied
    assert transport.capabilities.max_message_bytes == most
    room = most - transport.measure(message(b""))
    await sender.send(message(b"y" * (room - 16)))


async def test_large_messages_are_spread_over_batches(transport: Transport, queue: Entity, message: Make) -> None:
    batch = [message(bytes([number]) * 100_000) for number in range(7)]
    assert set(await transport.sender(queue).send_batch(batch)) == {None}
    assert (await transport.admin.counts(Source(queue))).active == 7


async def test_a_missing_queue_is_reported_to_all_callers_at_once(transport: Transport, message: Make) -> None:
    sender = transport.sender(Entity("no-such-queue"))
    outcomes = await asyncio.gather(*(sender.send(message()) for _ in range(20)), return_exceptions=True)
    for failed in outcomes:
        assert isinstance(failed, TransportError)
        assert (failed.kind, failed.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)
        assert not failed.maybe_applied


async def test_a_message_of_the_pings_content_type_is_refused(transport: Transport, message: Make) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.sender(Entity("any")).send(message(content_type="application/vnd.ms-servicebus-ping"))
    assert caught.value.reason is FailureReason.MALFORMED


@pytest.mark.parametrize(
    ("condition", "kind", "reason", "in_doubt"),
    [
        ("com.microsoft:server-busy", FailureKind.BUSY, FailureReason.OTHER, False),
        ("com.microsoft:timeout", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, True),
        ("amqp:internal-error", FailureKind.UNAVAILABLE, FailureReason.OTHER, True),
        ("com.microsoft:entity-disabled", FailureKind.REFUSED, FailureReason.DISABLED, False),
        ("amqp:resource-limit-exceeded", FailureKind.UNAVAILABLE, FailureReason.QUOTA, False),
        ("com.microsoft:argument-error", FailureKind.REFUSED, FailureReason.MALFORMED, False),
        ("com.microsoft:never-heard-of", FailureKind.UNAVAILABLE, FailureReason.OTHER, True),
    ],
)
async def test_a_rejected_send_fails_as_its_condition_says_and_the_next_one_works(
    transport: Transport,
    server: ServiceBusServer,
    queue: Entity,
    message: Make,
    condition: str,
    kind: FailureKind,
    reason: FailureReason,
    in_doubt: bool,
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.fault({"at": "send", "action": "error", "condition": condition, "times": 1})
    async with asyncio.timeout(SOON):
        with pytest.raises(TransportError) as caught:
            await sender.send(message())
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    assert caught.value.maybe_applied is in_doubt
    await sender.send(message())


async def test_a_refusal_without_an_info_map_ends_by_the_callers_limit(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.fault({"at": "send", "action": "error", "condition": "amqp:internal-error", "info": False, "times": 1})
    # The client waits forever where the error's list ends before the map, and fails at once where it holds a null.
    with pytest.raises((TimeoutError, TransportError)) as caught:
        async with asyncio.timeout(5):
            await sender.send(message())
    assert not is_nothing_sent(caught.value)
    await sender.send(message("after"))


async def test_a_silent_service_blocks_no_call_beyond_its_own_limit(
    server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    transport = registry.transport(f"{server.url}&operation-timeout=0.6&connect-timeout=30")
    sender = transport.sender(queue)

    async def send() -> None:
        # A server that was held up for that long is silent, too.
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    return await sender.send(message())
                except TransportError as error:
                    if error.reason is not FailureReason.TIMEOUT:
                        raise

    await send()
    server.fault({"at": "send", "action": "silence", "times": 1})
    with pytest.raises(TransportError) as caught:
        await sender.send(message())
    assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.TIMEOUT, True)
    await send()
    await transport.close()


@pytest.mark.parametrize("action", ["drop", "detach", "close"])
async def test_a_link_lost_under_a_send_leaves_it_in_doubt(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make, action: str
) -> None:
    sender = transport.sender(queue)
    await sender.send(message("before"))
    server.fault({"at": "send", "action": action, "apply": True, "times": 1, "condition": "amqp:connection:forced"})
    with pytest.raises(TransportError) as caught:
        await sender.send(message("in doubt"))
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert caught.value.maybe_applied
    await sender.send(message("after"))
    assert await bodies(transport, queue, 5) == [b"before", b"in doubt", b"after"]


async def test_a_connection_lost_while_idle_fails_no_send(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.drop_connections()
    await asyncio.sleep(1.1)  # idle long enough to be looked at first
    await sender.send(message())


async def test_a_killed_server_fails_sends_soon_and_is_found_again(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.kill()
    for _ in range(2):
        async with asyncio.timeout(SOON):
            with pytest.raises(TransportError) as caught:
                await sender.send(message())
        assert caught.value.kind is FailureKind.UNAVAILABLE
    assert not caught.value.maybe_applied  # refused connections are certain
    server.start()
    await transport.admin.create(queue)
    await sender.send(message())


async def test_a_stopped_server_holds_no_caller_and_its_silence_while_connecting_is_certain(
    server: ServiceBusServer, message: Make
) -> None:
    transport = registry.transport(f"{server.url}&connect-timeout=300")
    sender = transport.sender(Entity("stopped"))
    server.pause()
    try:
        async with asyncio.timeout(SOON):
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.3):
                    await sender.send(message())
            assert is_nothing_sent(caught.value)
            await transport.close()
    finally:
        server.resume()


async def test_a_cancelled_send_that_was_under_way_is_in_doubt_and_the_others_go_on(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.fault({"at": "send", "action": "silence", "apply": True, "times": 1})
    first = asyncio.create_task(sender.send(message("first")))
    await until(lambda: server.count(queue.path) == 2)
    second = asyncio.create_task(sender.send(message("second")))  # waits behind it
    third = asyncio.create_task(sender.send(message("third")))
    await asyncio.sleep(0.05)
    third.cancel()
    with pytest.raises(asyncio.CancelledError) as untouched:
        await third
    assert is_nothing_sent(untouched.value)
    first.cancel()
    with pytest.raises(asyncio.CancelledError) as in_doubt:
        await first
    assert not is_nothing_sent(in_doubt.value)
    await second
    assert (await bodies(transport, queue, 5))[-1] == b"second"


async def test_a_closed_sender_fails_and_so_does_what_was_under_way(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    server.fault({"at": "send", "action": "silence", "apply": True, "times": 1})
    under_way = asyncio.create_task(sender.send(message()))
    await until(lambda: server.count(queue.path) == 2)
    waiting = asyncio.create_task(sender.send(message()))
    await asyncio.sleep(0)
    await sender.close()
    await sender.close()
    for task, in_doubt in ((under_way, True), (waiting, False)):
        with pytest.raises(TransportError) as caught:
            await task
        assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.CLOSED, in_doubt)
    with pytest.raises(TransportError) as caught:
        await sender.send(message())
    assert caught.value.reason is FailureReason.CLOSED
    assert [outcome.reason for outcome in await sender.send_batch([message()]) if outcome] == [FailureReason.CLOSED]


async def test_a_closed_transport_fails_everything(server: ServiceBusServer, queue: Entity, message: Make) -> None:
    transport = registry.transport(f"{server.url}&connect-timeout=30")
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send(message())
    await receiver.receive(1, 1)
    async with asyncio.timeout(SOON):
        await transport.close()
    for call in (
        sender.send(message()),
        receiver.receive(1, 0),
        transport.admin.exists(queue),
        transport.admin.probe(queue),
        transport.sender(queue).send(message()),
        transport.accept_session(Source(queue), wait=0),
    ):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.CLOSED


async def test_a_link_that_was_detached_just_now_leaves_no_send_in_doubt(
    transport: Transport, server: ServiceBusServer, message: Make
) -> None:
    queue = Entity(f"gone-{time.monotonic_ns()}")
    server.create_queue(queue.path)
    sender: Any = transport.sender(queue)

    async def news() -> None:
        # Sooner than an idle link is looked at, unless this is held up.
        await until(lambda: sender._box.link.unread())

    await sender.send(message("a"))
    server.delete_queue(queue.path)
    await news()
    with pytest.raises(TransportError) as caught:
        await sender.send(message("b"))
    assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.NOT_FOUND, False)
    server.create_queue(queue.path)
    await sender.send(message("c"))
    server.delete_queue(queue.path)
    server.create_queue(queue.path)
    await news()
    await sender.send(message("d"))
    assert await bodies(transport, queue, 10) == [b"d"]


async def test_too_many_properties_are_refused_before_they_are_sent(
    transport: Transport, queue: Entity, message: Make
) -> None:
    fits, does_not = ({"k": "v" * (64 * 1024 - room)} for room in (200, 10))
    sender = transport.sender(queue)
    await sender.send(message(application_properties=fits))
    with pytest.raises(TransportError) as caught:
        await sender.send(message(application_properties=does_not))
    assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.TOO_LARGE, False)


async def test_an_answer_without_all_its_fields_is_understood(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    """The client alone would wait forever for the error's third field."""
    rule = {"at": "send", "action": "error", "condition": "amqp:not-allowed", "info": False, "times": 1}
    sender = transport.sender(queue)
    await sender.send(message("first"))
    server.fault(rule)
    async with asyncio.timeout(SOON):
        with pytest.raises(TransportError) as caught:
            await sender.send(message("second"))
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.REFUSED, False)


async def test_opening_under_way_when_the_transport_closes_is_no_cancellation(
    server: ServiceBusServer, message: Make
) -> None:
    transport = registry.transport(f"{server.url}&connect-timeout=300")
    server.fault({"at": "attach", "action": "silence"})
    sending = asyncio.create_task(transport.sender(Entity("nowhere")).send(message("x")))
    accepting = asyncio.create_task(transport.accept_session(Source(Entity("nowhere")), "s", wait=20))
    await asyncio.sleep(0.5)
    await transport.close()
    for task in (sending, accepting):
        with pytest.raises(TransportError) as caught:
            await task
        assert caught.value.reason is FailureReason.CLOSED


async def test_what_a_link_has_reported_is_known_without_the_server(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    large = message(bytes(300_000))
    transport.check_message(queue, large)  # a Premium namespace might take it
    await transport.sender(queue).send(message("opens a link"))
    server.stop()
    with pytest.raises(TransportError) as caught:
        transport.check_message(queue, large)
    assert caught.value.reason is FailureReason.TOO_LARGE
    transport.check_message(queue, message(bytes(200_000)))
    with pytest.raises(TransportError, match="its properties have"):
        transport.check_message(Entity("another"), message("x", application_properties={"a": "x" * 70_000}))

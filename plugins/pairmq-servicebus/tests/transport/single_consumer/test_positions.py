"""How far a queue with one consumer at a time is settled, told by browsing up to a marker on a local server."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import Transport
from pairmq_servicebus import _contents, _private
from pairmq_servicebus.testing import ServiceBusServer
from received import take

pytestmark = pytest.mark.real_server

PATIENCE = 30.0  # s

Make = Callable[..., Message]


async def test_a_look_reports_the_oldest_that_is_not_settled_and_more_than_the_newest(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send_batch([message(each) for each in "abc"])
    held = await take(receiver, 2)
    places = [int(each.sequence_number) for each in held]
    told = await transport.admin.positions(queue)
    assert told.oldest == places[0], "what is locked is not settled"
    assert told.newest > places[1]
    # Settled out of order: the one before it counts.
    await receiver.complete(held[1])
    assert (await transport.admin.positions(queue)).oldest == places[0]
    await receiver.dead_letter(held[0], "why", "because")
    again = await transport.admin.positions(queue)
    assert again.oldest == places[1] + 1
    await sender.send(message("d"))
    [third, fourth] = await take(receiver, 2)
    assert int(fourth.sequence_number) > again.newest, "what comes later stands behind the mark"
    await receiver.complete_batch([third, fourth])
    assert (await transport.admin.positions(queue)).oldest is None


async def test_a_look_leaves_nothing_behind(transport: Transport, queue: Entity) -> None:
    await transport.admin.positions(queue)
    assert (await transport.admin.counts(Source(queue))).pending == 0


@pytest.mark.usefixtures("clock_behind")
async def test_a_look_leaves_nothing_behind_on_a_machine_whose_clock_is_behind(
    transport: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message())
    await take(transport.receiver(Source(queue)), 1)
    looks = [await transport.admin.positions(queue) for _ in range(3)]
    assert all(look.oldest is not None for look in looks)
    assert (await transport.admin.counts(Source(queue))).pending == 1


async def test_looks_side_by_side_do_not_take_each_other_for_messages(
    transport: Transport, stranger: Transport, queue: Entity
) -> None:
    looks = [each.admin.positions(queue) for each in (transport, stranger) for _ in range(10)]
    assert {told.oldest for told in await asyncio.gather(*looks)} == {None}


async def test_markers_that_a_killed_process_left_behind_count_as_nothing_and_reach_no_consumer(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object) -> None:
        raise ConnectionError

    left = 0
    with monkeypatch.context() as patch:
        patch.setattr(ServiceBusSender, "cancel_scheduled_messages", killed)
        due = 0.2
        while left < 12:  # more than are browsed in the first two steps
            patch.setattr(_contents, "_DUE_IN", timedelta(seconds=due))
            began, left = time.monotonic(), left + 1
            try:
                assert (await transport.admin.positions(queue)).oldest is None
            except TransportError:
                # A look that was held up finds its marker gone, which is another message when it is due.
                assert time.monotonic() - began > due
                due *= 5
    async with asyncio.timeout(PATIENCE):
        while (counts := await transport.admin.counts(Source(queue))).scheduled:
            await asyncio.sleep(0.1)
    assert counts.active == left
    assert (await transport.admin.positions(queue)).oldest is None
    assert await transport.admin.peek(Source(queue), 10) == []
    await transport.sender(queue).send(message("x"))
    [seen] = await transport.admin.peek(Source(queue), 10)
    told = await transport.admin.positions(queue)
    assert told.oldest == int(seen.sequence_number)
    receiver = transport.receiver(Source(queue))
    [held] = await take(receiver, 1)
    assert held.message.body == b"x"
    await receiver.complete(held)
    assert await receiver.receive(1, 0) == []
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_what_waits_for_its_time_has_no_position_before(
    transport: Transport, queue: Entity, message: Make
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await transport.sender(queue).send(message("later", scheduled_enqueue_at=later))
    assert (await transport.admin.positions(queue)).oldest is None
    await transport.sender(queue).send(message("now"))
    assert (await transport.admin.positions(queue)).oldest is not None


async def test_what_others_sent_under_a_session_of_their_own_blocks_nothing(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    async with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as azure,
        azure.get_queue_sender(queue.path) as sender,
    ):
        await sender.send_messages([ServiceBusMessage("theirs", session_id="theirs") for _ in range(30)])
        assert (await transport.admin.positions(queue)).oldest is None
        await sender.send_messages(ServiceBusMessage("ours", session_id="x-pairmq-single-consumer"))
    told = await transport.admin.positions(queue)
    [held] = await take(transport.receiver(Source(queue)), 1)
    assert (held.message.body, int(held.sequence_number)) == (b"ours", told.oldest)


@pytest.mark.parametrize("shown", ["nothing", "what is newer"])
async def test_a_service_that_does_not_show_the_marker_proves_nothing(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """Browsing has been seen to show less than there was: an empty answer is no empty queue."""
    browse = _private.browse

    async def shows_less(sender: ServiceBusSender, first: int, most: int) -> list[ServiceBusReceivedMessage]:
        if shown == "nothing":
            return []
        if shown == "what is newer":
            await transport.sender(queue).send(message("newer"))
        found = await browse(sender, first, 250)
        return [each for each in found if each.state is not ServiceBusMessageState.SCHEDULED]

    monkeypatch.setattr(_private, "browse", shows_less)
    with pytest.raises(TransportError, match="marker") as caught:
        await transport.admin.positions(queue)
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert (await transport.admin.counts(Source(queue))).scheduled == 0


async def test_an_ordinary_queue_has_no_positions(transport: Transport) -> None:
    plain = Entity(f"plain/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(plain)
    with pytest.raises(TransportError) as caught:
        await transport.admin.positions(plain)
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


async def test_positions_of_a_queue_that_was_deleted_are_not_found(
    transport: Transport, stranger: Transport, queue: Entity
) -> None:
    await transport.admin.positions(queue)
    await stranger.admin.delete(queue)
    for _ in range(2):
        with pytest.raises(TransportError) as caught:
            await transport.admin.positions(queue)
        assert caught.value.reason is FailureReason.NOT_FOUND

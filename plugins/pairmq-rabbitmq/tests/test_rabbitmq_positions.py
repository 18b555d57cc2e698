"""What markers prove on a real server, and that no other client notices them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pika
import pytest
from aiormq.channel import Channel
from aiormq.exceptions import DeliveryError
from pamqp.commands import Basic

from ordered_queue import PATIENCE, QUEUE, SOURCE, Connect, receive, with_queue
from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.transport import QueuePositions, Transport
from pairmq_rabbitmq import _contents
from pairmq_rabbitmq._markers import WINDOW, Marker, MarkerLine
from pairmq_rabbitmq._receiving import RabbitReceiver
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server


@pytest.fixture
async def looker(connect: Connect) -> Transport:
    """With the queue created."""
    return await with_queue(connect())


async def put(transport: Transport, *names: str) -> None:
    assert not any(await transport.sender(QUEUE).send_batch([Message(b"", message_id=name) for name in names]))


async def look(transport: Transport) -> QueuePositions:
    return await transport.admin.positions(QUEUE)


def left_of(told: QueuePositions) -> bool:
    """Whether something that was confirmed before is reported as unsettled."""
    return told.oldest is not None and told.oldest <= told.newest


async def until(ask: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await ask():
            await asyncio.sleep(0.01)


def is_settled(transport: Transport, mark: int) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        oldest = (await look(transport)).oldest
        return oldest is None or oldest > mark

    return ask


def ready(server: RabbitServer) -> int:
    return server.queues()[QUEUE.path][0]


# --------------------------------------------------------------------------- what is proved


async def test_an_empty_queue_is_proved_empty_without_a_reader_and_stays_so(
    looker: Transport, rabbit: RabbitServer
) -> None:
    assert (await look(looker)).oldest is None
    assert (await look(looker)).oldest is None
    assert ready(rabbit) == 0


async def test_messages_without_a_reader_are_not_settled_and_keep_their_order(
    looker: Transport, connect: Connect
) -> None:
    await put(looker, "a", "b", "c")
    assert left_of(await look(looker))
    assert [each.message.message_id for each in await receive(connect().receiver(SOURCE), 3)] == ["a", "b", "c"]


async def test_nothing_is_proved_while_one_message_before_it_is_held(looker: Transport, connect: Connect) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, "a", "b", "c")
    held = await receive(reader, 3)
    mark = (await look(looker)).newest
    await reader.complete(held[0])
    await reader.complete(held[2])
    # The reader has met the marker by the time it has given out what stands behind it.
    await put(looker, "d")
    await reader.complete((await receive(reader, 1))[0])
    assert not await is_settled(looker, mark)()
    await reader.complete(held[1])
    await until(is_settled(looker, mark))


async def test_nothing_is_proved_before_the_broker_has_confirmed_the_settling(
    looker: Transport, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, "a")
    [held] = await receive(reader, 1)
    mark = (await look(looker)).newest
    assert isinstance(reader, RabbitReceiver)
    assert reader._channel is not None
    confirmed, settling = asyncio.Event(), reader._channel._settling
    ask = settling.ask

    async def late() -> int:
        await confirmed.wait()
        return await ask()

    monkeypatch.setattr(settling, "ask", late)
    completing = asyncio.create_task(reader.complete(held))
    await asyncio.sleep(0.3)  # an answer that is given too early has come by then
    assert not await is_settled(looker, mark)()
    confirmed.set()
    await completing
    await until(is_settled(looker, mark))


async def test_a_dead_letter_is_settled_too(looker: Transport, connect: Connect) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, "a")
    held = await receive(reader, 1)
    mark = (await look(looker)).newest
    assert not await is_settled(looker, mark)()
    await reader.dead_letter(held[0], "bad", "it was bad")
    await until(is_settled(looker, mark))


async def test_later_messages_do_not_delay_a_proof(looker: Transport, connect: Connect) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, "a")
    [held] = await receive(reader, 1)
    mark = (await look(looker)).newest
    await put(looker, "b", "c")
    await reader.complete(held)
    await until(is_settled(looker, mark))
    assert left_of(await look(looker)), "b and c are there"


async def test_answer_proves_nothing_about_messages_behind_its_marker(
    looker: Transport, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_contents, "_FIRST_PAUSE", 0.0)  # each look has a marker of its own
    reader = connect().receiver(SOURCE)
    await put(looker, "a")
    [first] = await receive(reader, 1)
    earlier = (await look(looker)).newest
    await put(looker, "b")
    [second] = await receive(reader, 1)
    later = (await look(looker)).newest
    await reader.complete(first)
    await until(is_settled(looker, earlier))
    assert not await is_settled(looker, later)()
    await reader.complete(second)
    await until(is_settled(looker, later))


async def test_proof_survives_readers_that_die_with_messages_before_it(looker: Transport, connect: Connect) -> None:
    await put(looker, "a", "b")
    mark = (await look(looker)).newest
    for asked in (2, 1):
        reader = connect()
        held = await receive(reader.receiver(SOURCE), asked)
        assert held[0].message.message_id == "a"
        await reader.close()
        assert not await is_settled(looker, mark)()
    last = connect().receiver(SOURCE)
    assert not any(await last.complete_batch(await receive(last, 2)))
    await until(is_settled(looker, mark))


async def test_several_processes_look_at_one_queue_each_with_numbers_of_its_own(
    looker: Transport, connect: Connect
) -> None:
    other, reader = connect(), connect().receiver(SOURCE)
    await put(looker, "a")
    [held] = await receive(reader, 1)
    marks = [(each, (await look(each)).newest) for each in (looker, other, looker, other)]
    for each, mark in marks:
        assert not await is_settled(each, mark)()
    await reader.complete(held)
    for each, mark in marks:
        await until(is_settled(each, mark))


async def test_looks_side_by_side_share_no_number_with_what_was_sent_between_them(
    looker: Transport, connect: Connect
) -> None:
    first = asyncio.create_task(look(looker))
    await asyncio.sleep(0)
    second = look(looker)
    told = await asyncio.gather(first, second)
    assert told[0].newest != told[1].newest  # which of them asks first is the connection's business


# --------------------------------------------------------------------------- when markers are lost


async def test_a_marker_that_was_purged_is_followed_by_another(looker: Transport, rabbit: RabbitServer) -> None:
    await put(looker, "a")
    mark = (await look(looker)).newest
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    connection.channel().queue_purge(QUEUE.path)
    connection.close()
    await until(is_settled(looker, mark))


async def test_a_lost_connection_is_followed_by_another_marker(
    looker: Transport, connect: Connect, rabbit: RabbitServer
) -> None:
    await put(looker, "a")
    mark = (await look(looker)).newest
    await asyncio.to_thread(rabbit.drop_clients)
    reader = connect().receiver(SOURCE)
    await reader.complete((await receive(reader, 1))[0])

    async def ask() -> bool:
        try:
            return await is_settled(looker, mark)()
        except TransportError:
            return False

    await until(ask)


async def test_a_channel_that_rejects_markers_is_replaced(
    looker: Transport, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does forever in RabbitMQ 3.10 whose first publish met a queue without a leader."""
    monkeypatch.setattr(_contents, "_REJECTED_PAUSE", 0.0)
    publish, stuck = Channel.basic_publish, list[Channel]()

    async def rejecting(channel: Channel, *arguments: Any, **options: Any) -> Any:
        if not stuck:
            stuck.append(channel)
        if channel in stuck:
            raise DeliveryError(None, Basic.Nack(1))
        return await publish(channel, *arguments, **options)

    await put(looker, "a")
    monkeypatch.setattr(Channel, "basic_publish", rejecting)
    with pytest.raises(TransportError, match="it is full, or has no leader"):
        await look(looker)
    mark = (await look(looker)).newest
    assert stuck[0].is_closed
    reader = connect().receiver(SOURCE)
    await reader.complete((await receive(reader, 1))[0])
    await until(is_settled(looker, mark))


async def test_a_full_queue_is_sent_no_marker_for_a_while(
    looker: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_contents, "_REJECTED_PAUSE", 3600.0)
    rabbit.set_policy("full", f"^{QUEUE.path}$", {"max-length": 1, "overflow": "reject-publish"})
    await put(looker, "a")

    async def rejects() -> bool:  # a quorum queue takes some more before it does
        try:
            await looker.sender(QUEUE).send(Message(b""))
        except TransportError:
            return True
        return False

    await until(rejects)
    for _ in range(2):
        with pytest.raises(TransportError) as told:
            await look(looker)
        assert told.value.reason is FailureReason.QUOTA
    rabbit.set_policy("full", f"^{QUEUE.path}$", {"max-length": 1000, "overflow": "reject-publish"})
    with pytest.raises(TransportError, match="it is full"):  # not asked
        await look(looker)
    monkeypatch.setattr(_contents, "_REJECTED_PAUSE", 0.0)

    async def asked() -> bool:
        try:
            return left_of(await look(looker))
        except TransportError:
            return False

    await until(asked)


async def test_an_answer_that_was_lost_with_its_connection_is_given_again(
    looker: Transport, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 3.10 ends a connection that answers a marker of a node that is down."""
    monkeypatch.setattr(_contents, "_FIRST_PAUSE", 3600.0)  # no other marker follows
    answer, lost = MarkerLine._answer, list[Marker]()

    async def losing(line: MarkerLine, marker: Marker, doing: str) -> None:
        if not lost:
            lost.append(marker)
            raise ConnectionResetError
        await answer(line, marker, doing)

    monkeypatch.setattr(MarkerLine, "_answer", losing)
    await put(looker, "a")
    mark = (await look(looker)).newest
    reader = connect().receiver(SOURCE)
    await reader.complete((await receive(reader, 1))[0])
    await until(is_settled(looker, mark))
    assert lost


async def test_markers_of_ended_processes_are_removed_by_any_reader(
    looker: Transport, connect: Connect, rabbit: RabbitServer
) -> None:
    await put(looker, "a")
    for _ in range(3):
        gone = connect()
        await look(gone)
        await gone.close()
    reader = connect().receiver(SOURCE)
    [held] = await receive(reader, 1)
    await reader.complete(held)
    assert await reader.receive(10, 0.2) == [], "nobody is shown a marker"

    async def emptied() -> bool:
        return rabbit.queues()[QUEUE.path] == (0, 0)

    await until(emptied)


async def test_the_longer_nothing_moves_the_fewer_markers_are_published(
    looker: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_contents, "_FIRST_PAUSE", 3600.0)
    await put(looker, "a")
    for _ in range(20):
        await look(looker)
    assert ready(rabbit) == 2, "the message, and the first marker"


# --------------------------------------------------------------------------- who notices


async def test_markers_are_no_messages_in_counts(looker: Transport) -> None:
    await put(looker, "a", "b")
    await look(looker)
    counts = await looker.admin.counts(SOURCE)
    assert (counts.active, counts.locked) == (2, 0)
    reader = looker.receiver(SOURCE)
    held = await receive(reader, 2)
    counts = await looker.admin.counts(SOURCE)
    assert (counts.active, counts.locked) == (0, 2)
    assert not any(await reader.complete_batch(held))

    async def emptied() -> bool:
        return not (await looker.admin.counts(SOURCE)).pending

    await until(emptied)


async def test_a_marker_behind_more_than_a_window_is_met_in_its_turn(looker: Transport, connect: Connect) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, *(f"m{number}" for number in range(WINDOW + 20)))
    held = await receive(reader, 1)
    mark = (await look(looker)).newest
    while held:
        assert not any(await reader.complete_batch(held))
        held = await reader.receive(WINDOW, 0.2)
    await until(is_settled(looker, mark))


async def test_a_forged_marker_is_not_answered_to_a_queue(
    looker: Transport, connect: Connect, rabbit: RabbitServer
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    channel = connection.channel()
    channel.queue_declare("victim", durable=True)
    forged = pika.BasicProperties(type="pairmq.marker", message_id="0" * 32, correlation_id="0" * 32, reply_to="victim")
    channel.basic_publish("", QUEUE.path, b"", forged)
    connection.close()
    [delivery] = await receive(connect().receiver(SOURCE), 1)
    assert delivery.message.subject == "pairmq.marker"
    assert rabbit.queues()["victim"] == (0, 0)


async def test_positions_are_refused_for_a_queue_of_several_consumers(looker: Transport, rabbit: RabbitServer) -> None:
    await looker.admin.create(Entity("plain"))
    with pytest.raises(TransportError) as told:
        await looker.admin.positions(Entity("plain"))
    assert (told.value.kind, told.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
    assert rabbit.queues()["plain"] == (0, 0)


async def test_positions_raise_not_found_when_the_queue_was_deleted(looker: Transport, connect: Connect) -> None:
    await look(looker)
    await connect().admin.delete(QUEUE)
    with pytest.raises(TransportError) as told:
        await look(looker)
    assert told.value.reason is FailureReason.NOT_FOUND


async def test_an_alarm_disturbs_a_look_and_no_reader(
    looker: Transport, connect: Connect, rabbit: RabbitServer
) -> None:
    reader = connect().receiver(SOURCE)
    await put(looker, "a", "b")
    held = await receive(reader, 2)
    await look(looker)
    rabbit.block()
    try:
        for _ in range(2):  # its answer waits for the end of the alarm, and no settlement does
            async with asyncio.timeout(PATIENCE):
                await reader.complete(held.pop())
    finally:
        rabbit.unblock()
    await until(is_settled(looker, (await look(looker)).newest))

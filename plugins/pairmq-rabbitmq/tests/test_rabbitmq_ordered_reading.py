"""Reading a queue for one consumer at a time, on a real server: what one reader releases comes first, in order."""

from __future__ import annotations

import asyncio
from typing import Any

import pika
import pytest

from ordered_queue import ORDERED, PATIENCE, QUEUE, SOURCE, Connect, receive, with_queue
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import Receiver, Transport
from pairmq_rabbitmq._markers import WINDOW
from pairmq_rabbitmq._receiving import RabbitReceiver, _ordered_channel
from pairmq_rabbitmq._receiving._ordered_channel import ordered_channel
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server


@pytest.fixture
async def transport(connect: Connect) -> Transport:
    """With the queue created."""
    return await with_queue(connect())


async def put(transport: Transport, bodies: str) -> None:
    messages = [Message(body.encode(), message_id=f"m-{body}") for body in bodies]
    assert not any(await transport.sender(QUEUE).send_batch(messages))


def bodies(deliveries: list[Delivery]) -> str:
    return "".join(delivery.message.body.decode() for delivery in deliveries)


# --------------------------------------------------------------------------- whose turn it is


async def test_readers_that_die_with_fewer_messages_than_the_one_before_keep_the_order(
    transport: Transport, connect: Connect
) -> None:
    await put(transport, "abcdef")
    for asked in (3, 2, 1):
        reader = connect()
        assert bodies(await receive(reader.receiver(SOURCE), asked)) == "abcdef"[:asked]
        await reader.close()
    assert bodies(await receive(connect().receiver(SOURCE), 6)) == "abcdef"


async def test_a_reader_whose_connections_are_cut_leaves_its_order(
    transport: Transport, connect: Connect, rabbit: RabbitServer
) -> None:
    await put(transport, "abcdef")
    first = connect().receiver(SOURCE)
    held = await receive(first, 4)
    await first.complete(held[1])
    await asyncio.to_thread(rabbit.drop_clients)
    assert bodies(await receive(connect().receiver(SOURCE), 5)) == "acdef"


async def test_a_connection_that_is_lost_while_its_channel_opens_is_the_channels_cause(transport: Transport) -> None:
    session = await transport._context.consuming.session()
    raw = await session.open_channel(confirms=False)
    session.end(ConnectionResetError("it died"))
    assert str(ordered_channel(transport._context, session, raw, QUEUE.path).cause) == "it died"


async def test_release_of_one_message_releases_all_in_order(transport: Transport) -> None:
    await put(transport, "abcd")
    reader = transport.receiver(SOURCE)
    held = await receive(reader, 3)
    await reader.abandon(held[1])
    with pytest.raises(TransportError) as told:
        await reader.complete(held[0])
    assert told.value.reason is FailureReason.LOCK_LOST
    assert bodies(await receive(reader, 4)) == "abcd"


@pytest.mark.parametrize("by", ["abandon", "close", "cut", "peek"])
async def test_a_whole_window_is_released_in_order(
    transport: Transport, connect: Connect, rabbit: RabbitServer, by: str
) -> None:
    """A quorum queue puts more than 32 messages back in another order where one `basic.nack` releases them."""
    messages = [Message(b"", message_id=f"m{number}") for number in range(WINDOW + 10)]
    assert not any(await transport.sender(QUEUE).send_batch(messages))
    if by == "peek":
        assert len(await transport.admin.peek(SOURCE, WINDOW + 10)) == WINDOW
    else:
        reader = connect().receiver(SOURCE)
        held = await receive(reader, WINDOW)
        assert not any(await reader.complete_batch(held[1:10]))
        if by == "abandon":
            await reader.abandon(held[100])
        elif by == "close":
            await reader.close()
        else:
            await asyncio.to_thread(rabbit.drop_clients)
        del messages[1:10]
    wanted = [each.message_id for each in messages]
    reader = connect().receiver(SOURCE)
    found: list[Delivery] = []
    while len(found) < len(wanted):
        some = await reader.receive(WINDOW, PATIENCE)
        assert not any(await reader.complete_batch(some))
        found += some
    assert [each.message.message_id for each in found] == wanted


async def test_release_loses_no_settlement_begun_before(transport: Transport) -> None:
    await put(transport, "abcd")
    reader = transport.receiver(SOURCE)
    held = await receive(reader, 3)
    completing = asyncio.create_task(reader.complete(held[0]))
    await asyncio.sleep(0)
    await reader.abandon(held[2])
    await completing
    assert bodies(await receive(reader, 3)) == "bcd"


async def test_end_of_one_lock_releases_all_in_order(transport: Transport, connect: Connect) -> None:
    await put(transport, "abcd")
    reader = connect(lock_duration=3).receiver(SOURCE)
    await receive(reader, 1)
    _, third = await receive(reader, 2)

    async def renew_for_ever() -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                await reader.renew_lock(third)  # it would last; that of the first one ends
                await asyncio.sleep(0.05)

    with pytest.raises(TransportError) as told:
        await renew_for_ever()
    assert told.value.reason is FailureReason.LOCK_LOST
    assert bodies(await receive(connect().receiver(SOURCE), 4)) == "abcd"


async def test_a_poll_under_way_goes_on_when_a_lock_ends(transport: Transport, connect: Connect) -> None:
    await put(transport, "a")
    reader = connect(lock_duration=0.5).receiver(SOURCE)
    await receive(reader, 1)
    assert bodies(await receive(reader, 1)) == "a", "it came again, to the same poll"


async def test_waiting_messages_are_released_when_the_reader_stops_asking(
    transport: Transport, connect: Connect
) -> None:
    await put(transport, "ab")
    idle = connect(lock_duration=4).receiver(SOURCE)
    [held] = await receive(idle, 1)
    await idle.complete(held)
    assert bodies(await receive(connect().receiver(SOURCE), 1)) == "b"


async def let_go(reader: Receiver) -> None:
    """Wait until a reader has closed the channel on which it reads the queue, which it does after a pause."""
    assert isinstance(reader, RabbitReceiver)
    assert reader._channel is not None
    async with asyncio.timeout(PATIENCE):
        while reader._channel.usable or not reader._channel._raw.is_closed:
            await asyncio.sleep(0.01)


async def test_a_reader_that_holds_nothing_lets_another_have_the_queue(transport: Transport, connect: Connect) -> None:
    idle = connect().receiver(SOURCE)
    assert await idle.receive(1, 0) == []
    await put(transport, "a")
    [held] = await receive(idle, 1)
    await idle.complete(held)
    other = asyncio.create_task(receive(connect().receiver(SOURCE), 1))
    await let_go(idle)
    await put(transport, "b")
    assert bodies(await other) == "b"


async def test_a_reader_that_has_settled_all_lets_another_have_the_queue(
    transport: Transport, connect: Connect
) -> None:
    await put(transport, "ab")
    done = connect().receiver(SOURCE)
    held = await receive(done, 2)
    await asyncio.sleep(_ordered_channel._REST * 1.5)  # it looks after its locks meanwhile
    assert not any(await done.complete_batch(held))
    other = asyncio.create_task(receive(connect().receiver(SOURCE), 1))
    await let_go(done)
    await put(transport, "c")
    assert bodies(await other) == "c"


async def test_nothing_is_held_until_the_broker_loses_patience(
    transport: Transport, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ordered_channel, "LONGEST_HOLD", 2.0)
    await put(transport, "ab")
    first = connect().receiver(SOURCE)
    await receive(first, 1)
    assert bodies(await receive(connect().receiver(SOURCE), 2)) == "ab"


async def test_more_than_a_window_is_read_in_order(transport: Transport) -> None:
    messages = [Message(b"%d" % number, message_id=f"m{number}") for number in range(700)]
    assert not any(await transport.sender(QUEUE).send_batch(messages))
    reader = transport.receiver(SOURCE)
    found: list[Delivery] = []
    while len(found) < 700:
        some = await reader.receive(700, PATIENCE)
        assert not any(await reader.complete_batch(some))
        found += some
    assert [int(each.message.body) for each in found] == list(range(700))


async def test_ordered_reader_dead_letters_malformed_messages_and_keeps_the_order(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await put(transport, "a")
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    broken: dict[str, Any] = {"application-property-types": "broken"}
    connection.channel().basic_publish("", QUEUE.path, b"", pika.BasicProperties(message_id="x" * 200, headers=broken))
    connection.close()
    await put(transport, "bc")
    reader = transport.receiver(SOURCE)
    assert bodies(await receive(reader, 3)) == "abc"
    assert bodies(await receive(transport.receiver(Source(QUEUE, dead_letter=True)), 1)) == ""


# --------------------------------------------------------------------------- what such a queue is


async def test_it_is_a_quorum_queue_with_a_single_active_consumer(transport: Transport, rabbit: RabbitServer) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="RESOURCE_LOCKED"):
        connection.channel().basic_get(QUEUE.path)  # nobody takes a message past its consumer
    connection.close()
    assert ORDERED.differences(await transport.admin.properties(QUEUE)) == ()


async def test_classic_queue_is_refused_for_one_consumer_at_a_time(connect: Connect) -> None:
    with pytest.raises(TransportError, match="quorum") as told:
        await connect(queue_type="classic").admin.create(QUEUE, ORDERED)
    assert (told.value.kind, told.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)


async def test_classic_queue_with_a_single_active_consumer_is_not_reported_as_one(
    rabbit: RabbitServer, connect: Connect
) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(rabbit.url))
    connection.channel().queue_declare("theirs", durable=True, arguments={"x-single-active-consumer": True})
    connection.close()
    assert not (await connect().admin.properties(Entity("theirs"))).single_consumer


async def test_a_queue_with_a_long_name_is_recognised_by_other_processes(connect: Connect) -> None:
    maker, long = connect(), Entity("b" * 200)
    await maker.admin.create(long, ORDERED)
    await maker.sender(long).send_batch([Message(body, message_id=body.decode()) for body in (b"a", b"b")])
    assert bodies(await receive(connect().receiver(Source(long)), 1)) == "a"
    assert await connect().receiver(Source(long)).receive(1, 0.3) == [], "another one reads it, and has its turn"


async def test_queue_is_checked_again_when_created_again(transport: Transport, connect: Connect) -> None:
    other = connect()
    plain = Entity("plain")
    await other.admin.create(plain)
    reader = transport.receiver(Source(plain))
    assert await reader.receive(1, 0) == []
    polling = asyncio.create_task(reader.receive(1, PATIENCE))
    await asyncio.sleep(0.2)
    await other.admin.delete(plain)
    with pytest.raises(TransportError):
        await polling
    await other.admin.create(plain, ORDERED)
    await other.sender(plain).send_batch([Message(body, message_id=body.decode()) for body in (b"a", b"b")])
    await receive(reader, 1)
    assert await connect().receiver(Source(plain)).receive(1, 0.3) == [], "another one reads it, and has its turn"


# --------------------------------------------------------------------------- looking in


async def test_peek_into_an_ordered_queue_keeps_its_order(transport: Transport, connect: Connect) -> None:
    await put(transport, "abc")
    assert bodies(await transport.admin.peek(SOURCE, 2)) == "ab"
    assert bodies(await receive(connect().receiver(SOURCE), 3)) == "abc"


async def test_peek_is_refused_when_a_consumer_reads_the_queue(transport: Transport, connect: Connect) -> None:
    messages = [Message(b"", message_id=f"m{number}") for number in range(WINDOW + 10)]
    assert not any(await transport.sender(QUEUE).send_batch(messages))
    reader = connect().receiver(SOURCE)
    await receive(reader, 1)
    with pytest.raises(TransportError, match="a consumer reads it") as told:
        await transport.admin.peek(SOURCE, 1)
    assert told.value.reason is FailureReason.NOT_SUPPORTED

"""Sending: confirmed means stored, in order, and every failure says what may have happened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NoReturn
from uuid import UUID

import pytest

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import QueueProperties, Scope, Transport, is_nothing_sent, nothing_sent
from pairmq_redis import _transport
from pairmq_redis._context import Context
from pairmq_redis._url import parse_redis_url
from pairmq_redis._wire import Command, Reply
from redis_queue import WAIT, hasten

Make = Callable[..., Message]
FULL = Message(
    b"\x00\xffbody",
    message_id="id",
    session_id="s",
    time_to_live=30.000001,
    content_type="text/plain",
    content_encoding="gzip",
    correlation_id="c",
    subject="",
    to="t",
    reply_to="r",
    reply_to_session_id="rs",
    partition_key="s",
    priority=9,
    application_properties={
        "str": "é\u0000",
        "bytes": b"\x00",
        "bool": True,
        "int": 1,
        "float": 1.0,
        "big": -(2**63),
        "datetime": datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
        "uuid": UUID(int=7),
        "none": None,
        "decimal": Decimal("-1.10"),
        "sequence": (1, "a", (None, {})),
        "mapping": {"b": {"m": (b"\x00", Decimal("0.0"))}},
    },
)


async def test_every_field_arrives(transport: Transport, queue: Entity) -> None:
    await transport.sender(queue).send(FULL)
    [delivery] = await transport.receiver(Source(queue)).receive(1, WAIT)
    assert delivery.message == FULL
    assert [type(v) for v in delivery.message.application_properties.values()] == [
        type(v) for v in FULL.application_properties.values()
    ]


async def test_messages_are_in_the_order_sent(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    for n in range(5):
        await sender.send(message(f"single {n}"))
    assert not any(await sender.send_batch([message(f"batch {n}") for n in range(600)]))
    bodies = [d.message.body for d in await transport.receiver(Source(queue)).receive(1000, WAIT)]
    assert bodies == [b"single %d" % n for n in range(5)] + [b"batch %d" % n for n in range(600)]


async def test_concurrent_sends_are_all_stored_in_call_order(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sender = transport.sender(queue)
    await asyncio.gather(*(sender.send(message(str(n))) for n in range(200)))
    bodies = [int(d.message.body) for d in await transport.receiver(Source(queue)).receive(300, WAIT)]
    assert bodies == list(range(200))


async def test_sends_during_the_first_connect_keep_their_order(
    transport: Transport, queue: Entity, message: Make
) -> None:
    """Those that waited for the connection come before one that is made just as it is there."""
    sender, tasks = transport.sender(queue), []
    for n in range(30):
        tasks.append(asyncio.create_task(sender.send(message(b"%d" % n))))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    found = await transport.admin.peek(Source(queue), 100)
    assert [delivery.message.body for delivery in found] == [b"%d" % n for n in range(30)]


async def test_no_such_entity_is_refused(transport: Transport, queue: Entity, message: Make) -> None:
    for entity in (Entity("nobody"), Entity("nobody", EntityKind.TOPIC), Entity(queue.path, EntityKind.TOPIC)):
        with pytest.raises(TransportError) as caught:
            await transport.sender(entity).send(message())
        assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)
        assert not caught.value.maybe_applied
        outcomes = await transport.sender(entity).send_batch(
            [message(), message(scheduled_enqueue_at=datetime.now(UTC))]
        )
        assert [o and o.reason for o in outcomes] == [FailureReason.NOT_FOUND] * 2


async def test_a_name_with_brackets_is_refused(transport: Transport) -> None:
    for make in (lambda: transport.sender(Entity("a}b")), lambda: transport.receiver(Source(Entity("{a")))):
        with pytest.raises(TransportError) as caught:
            make()
        assert caught.value.reason is FailureReason.MALFORMED


async def test_an_empty_batch_is_nothing(transport: Transport, queue: Entity) -> None:
    assert await transport.sender(queue).send_batch([]) == []


async def test_a_message_that_is_too_large_is_refused_alone(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "MAX_MESSAGE_BYTES", 200)
    sender = transport.sender(queue)
    with pytest.raises(TransportError) as caught:
        await sender.send(message(b"x" * 300))
    assert caught.value.reason is FailureReason.TOO_LARGE
    outcomes = await sender.send_batch([message("a"), message(b"x" * 300), message("b")])
    assert [o and o.reason for o in outcomes] == [None, FailureReason.TOO_LARGE, None]
    assert (await transport.admin.counts(Source(queue))).active == 2


async def test_a_batch_larger_than_a_chunk_goes_in_several(transport: Transport, queue: Entity, message: Make) -> None:
    assert not any(await transport.sender(queue).send_batch([message(b"x" * 700_000) for _ in range(5)]))
    assert (await transport.admin.counts(Source(queue))).active == 5


async def test_chunks_of_a_batch_do_not_wait_for_each_other(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a distance a call would be as slow as its round trips."""
    monkeypatch.setattr(_transport, "CHUNK_MESSAGES", 1)
    sender = transport.sender(queue)
    sound, begun = sender._send_chunk, asyncio.Barrier(16)  # type: ignore[attr-defined]

    async def send_chunk(chunk: object) -> object:
        await begun.wait()
        return await sound(chunk)

    monkeypatch.setattr(sender, "_send_chunk", send_chunk)
    batch = [message(str(n)) for n in range(16)]
    async with asyncio.timeout(60):
        assert not any(await sender.send_batch(batch))
    assert (await transport.admin.counts(Source(queue))).active == len(batch)


async def test_a_batch_has_so_many_bytes_in_flight(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "CHUNK_MESSAGES", 1)
    monkeypatch.setattr(_transport, "_BYTES_IN_FLIGHT", 3500)
    sender = transport.sender(queue)
    sound, in_flight, most = sender._send_chunk, 0, 0  # type: ignore[attr-defined]

    async def send_chunk(chunk: object) -> object:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        try:
            return await sound(chunk)
        finally:
            in_flight -= 1

    monkeypatch.setattr(sender, "_send_chunk", send_chunk)
    assert not any(await sender.send_batch([message(b"x" * 1000) for _ in range(9)]))
    assert not any(await sender.send_batch([message(b"x" * 9000) for _ in range(2)]))  # each more than that
    assert most == 3


async def test_sessions_in_order_take_one_command_a_chunk(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    call = _transport.RedisSender._send_chunk_in_order

    async def counted(
        self: _transport.RedisSender, chunk: Sequence[tuple[Command, int]]
    ) -> list[TransportError | None]:
        calls.append(len(chunk))
        return await call(self, chunk)

    monkeypatch.setattr(_transport.RedisSender, "_send_chunk_in_order", counted)
    batch = [FULL, *(message(str(n), session_id="abc"[n % 3]) for n in range(_transport.CHUNK_MESSAGES))]
    assert list(await transport.sender(queue).send_in_order(batch)) == [None] * len(batch)
    assert calls == [_transport.CHUNK_MESSAGES, 1]
    stored = await transport.receiver(Source(queue)).receive(len(batch), WAIT)
    assert [delivery.message for delivery in stored] == batch


async def test_nothing_is_sent_in_order_behind_a_chunk_that_failed(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_transport, "CHUNK_MESSAGES", 2)
    sender = transport.sender(Entity("missing"))
    outcomes = await sender.send_in_order([message(str(n), session_id="s") for n in range(5)])
    assert outcomes[0] is not None
    assert outcomes[0].reason is FailureReason.NOT_FOUND
    assert [error and (error.kind, error.maybe_applied) for error in outcomes[1:]] == [
        (FailureKind.TRANSIENT, False)
    ] * 4


async def test_a_topic_without_subscriptions_takes_sessions_in_order(transport: Transport, message: Make) -> None:
    topic = Entity("news", EntityKind.TOPIC)
    await transport.admin.create(topic)
    assert list(await transport.sender(topic).send_in_order([message("a"), message("b")])) == [None, None]


async def test_a_scheduled_message_waits_for_its_time(transport: Transport, queue: Entity, message: Make) -> None:
    receiver, sender = transport.receiver(Source(queue)), transport.sender(queue)
    sent = message("later", scheduled_enqueue_at=datetime.now(UTC) + timedelta(hours=1), time_to_live=0.3)
    await sender.send(sent)
    assert (await transport.admin.counts(Source(queue))).scheduled == 1
    assert await receiver.receive(1, 0) == []
    await asyncio.sleep(0.4)  # its time-to-live counts from when it is due
    await hasten(transport, queue, 7200)
    [delivery] = await receiver.receive(1, WAIT)
    assert delivery.message == sent
    assert (await transport.admin.counts(Source(queue))).scheduled == 0
    soon = datetime.now(UTC) + timedelta(seconds=0.4)
    await sender.send(message("soon", scheduled_enqueue_at=soon))
    assert len(await receiver.receive(1, WAIT)) == 1
    assert datetime.now(UTC) >= soon


async def test_scheduled_messages_come_by_their_time_then_by_their_order(
    transport: Transport, queue: Entity, message: Make
) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    sender = transport.sender(queue)
    await sender.send(message("last", scheduled_enqueue_at=at + timedelta(milliseconds=50)))
    await sender.send_batch([message(str(n), scheduled_enqueue_at=at) for n in range(15)])
    await hasten(transport, queue, 7200)
    bodies = [d.message.body for d in await transport.receiver(Source(queue)).receive(20, WAIT)]
    assert bodies == [b"%d" % n for n in range(15)] + [b"last"]


async def test_a_schedule_in_the_past_is_now(transport: Transport, queue: Entity, message: Make) -> None:
    sent = message("past", scheduled_enqueue_at=datetime(2000, 1, 1, tzinfo=UTC))
    await transport.sender(queue).send(sent)
    [delivery] = await transport.receiver(Source(queue)).receive(1, 0)
    assert delivery.message == sent


@pytest.mark.parametrize("bury", [True, False])
async def test_an_expired_message_is_dead_lettered_or_dropped(transport: Transport, message: Make, bury: bool) -> None:
    entity = Entity("short-lived")
    await transport.admin.create(entity, QueueProperties(dead_letter_on_expiration=bury))
    await transport.sender(entity).send_batch([message("short", time_to_live=0.1), message("long", time_to_live=60)])
    await asyncio.sleep(0.15)
    [delivery] = await transport.receiver(Source(entity)).receive(10, WAIT)
    assert delivery.message.body == b"long"
    dead = await transport.receiver(Source(entity, dead_letter=True)).receive(10, 0)
    assert [(d.message.body, d.dead_letter_reason) for d in dead] == ([(b"short", "expired")] if bury else [])
    assert [d.message.time_to_live for d in dead] == ([0.1] if bury else [])


async def test_the_queues_own_time_to_live_is_a_limit(transport: Transport, message: Make) -> None:
    entity = Entity("limited")
    await transport.admin.create(entity, QueueProperties(default_time_to_live=0.1))
    await transport.sender(entity).send_batch([message("a"), message("b", time_to_live=60)])
    await asyncio.sleep(0.15)
    assert await transport.receiver(Source(entity)).receive(10, 0) == []
    assert (await transport.admin.counts(Source(entity))).dead_letter == 2


async def test_a_closed_sender_takes_nothing(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    await sender.send(message())
    await sender.close()
    await sender.close()
    with pytest.raises(TransportError) as caught:
        await sender.send(message())
    assert caught.value.reason is FailureReason.CLOSED
    assert [o and o.reason for o in await sender.send_batch([message()])] == [FailureReason.CLOSED]
    await transport.sender(queue).send(message())  # others go on


async def test_a_closed_transport_takes_nothing(transport: Transport, queue: Entity, message: Make) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    waiting = asyncio.create_task(receiver.receive(1, 30))
    await asyncio.sleep(0.05)
    await transport.close()
    await transport.close()
    for call in (waiting, sender.send(message()), transport.admin.check(), receiver.receive(1, 0)):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.CLOSED
    assert transport.ended


async def test_a_cancelled_send_harms_no_other(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    await sender.send(message("first"))
    tasks = [asyncio.create_task(sender.send(message(str(n)))) for n in range(20)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [n for n, outcome in enumerate(outcomes) if outcome is not None] == [7]
    await sender.send(message("last"))
    bodies = {d.message.body for d in await transport.receiver(Source(queue)).receive(50, WAIT)}
    assert {b"first", b"last"} | {b"%d" % n for n in range(20) if n != 7} <= bodies


async def test_the_measure_is_what_is_stored(transport: Transport) -> None:
    assert transport.measure(Message(b"x" * 100, message_id="id")) == 100 + 1 + 2 + 1


async def test_closing_a_sender_ends_its_batch(transport: Transport, queue: Entity, message: Make) -> None:
    sender = transport.sender(queue)
    batch = [message() for _ in range(20_000)]

    async def close_soon() -> None:
        await asyncio.sleep(0.02)
        await sender.close()

    outcomes, _ = await asyncio.gather(sender.send_batch(batch), close_soon())
    assert outcomes[-1] is not None
    assert (outcomes[-1].reason, outcomes[-1].maybe_applied) == (FailureReason.CLOSED, False)
    sure = sum(outcome is None for outcome in outcomes)
    assert sure <= (await transport.admin.counts(Source(queue))).active < 20_000


@pytest.mark.parametrize("chunks_before", [0, 1])
async def test_a_batch_says_that_nothing_was_sent_only_when_nothing_was(
    transport: Transport, queue: Entity, message: Make, monkeypatch: pytest.MonkeyPatch, chunks_before: int
) -> None:
    """The mark of a chunk that waits for a connection is about that chunk; the ones before it were sent."""
    sender = transport.sender(queue)
    sound = sender._send_chunk  # type: ignore[attr-defined]
    chunks, sent = 0, asyncio.Event()

    async def send_chunk(chunk: object) -> object:
        nonlocal chunks
        number = chunks = chunks + 1
        if number <= chunks_before:
            outcomes = await sound(chunk)
            sent.set()
            return outcomes
        try:
            if chunks_before:
                await sent.wait()
            if number == 2:  # both are under way
                for _ in range(10):
                    await asyncio.sleep(0)
                limit.reschedule(asyncio.get_running_loop().time())
            return await asyncio.Event().wait()
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise

    monkeypatch.setattr(sender, "_send_chunk", send_chunk)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(None) as limit:
            await sender.send_batch([message(str(n)) for n in range(2 * _transport.CHUNK_MESSAGES)])
    assert is_nothing_sent(caught.value) is (chunks_before == 0)


class GatedWire:
    """A connection that opens when it is told to, and never answers."""

    def __init__(self) -> None:
        self.opens = asyncio.Event()
        self.written: list[Command] = []

    async def open(self) -> None:
        await self.opens.wait()

    def write(self, commands: Sequence[Command]) -> None:
        self.written += commands

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    def abort(self) -> None:
        pass


@pytest.mark.parametrize("turns", range(4))
async def test_a_batch_that_is_cut_off_as_the_connection_opens_reports_nothing_sent(turns: int, message: Make) -> None:
    """The second chunk may get out while the first one's cancellation is on its way to the caller."""
    wire = GatedWire()
    context = Context(parse_redis_url("redis://127.0.0.1:1/0"), Scope(), lambda: wire)
    sender = _transport.RedisSender(context, Entity("orders"))
    batch = [message(str(number)) for number in range(2 * _transport.CHUNK_MESSAGES)]
    call = asyncio.create_task(sender.send_batch(batch))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not wire.written
    wire.opens.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await call
    assert not (wire.written and is_nothing_sent(caught.value))
    await context.sending.close()

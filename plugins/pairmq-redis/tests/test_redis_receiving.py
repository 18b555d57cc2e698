"""Receiving under peek-lock: who holds a message, until when, and what becomes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Receiver, Scope, Transport
from redis_queue import HELD, WAIT, dead_letters, end_locks, key, take

Make = Callable[..., Message]
LOCK = 0.3
"""Seconds, of the short locks here."""


@pytest.fixture
async def brief(transport: Transport) -> Entity:
    """A queue with short locks, for tests that wait for the end of one and need none to last."""
    entity = Entity("brief")
    await transport.admin.create(entity, QueueProperties(lock_duration=LOCK))
    return entity


async def fill(transport: Transport, queue: Entity, *bodies: str) -> None:
    outcomes = await transport.sender(queue).send_batch(
        [Message(body.encode(), message_id=f"{n}-{body}") for n, body in enumerate(bodies)]
    )
    assert not any(outcomes)


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


async def lost(receiver: Receiver, delivery: Delivery) -> None:
    """Check that a delivery can no longer be settled in any way."""
    calls = (
        receiver.complete(delivery),
        receiver.abandon(delivery),
        receiver.dead_letter(delivery, "r", "d"),
        receiver.renew_lock(delivery),
    )
    for call in calls:
        with pytest.raises(TransportError) as caught:
            await call
        assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.LOCK_LOST)


async def test_chunks_of_completions_do_not_wait_for_each_other(
    transport: Transport, queue: Entity, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(transport, queue, *map(str, range(1001)))
    receiver = transport.receiver(Source(queue))
    deliveries = await take(receiver, 1001)
    sound, begun = receiver._complete_chunk, asyncio.Barrier(3)  # type: ignore[attr-defined]

    async def complete_chunk(chunk: object) -> object:
        await begun.wait()
        return await sound(chunk)

    monkeypatch.setattr(receiver, "_complete_chunk", complete_chunk)
    async with asyncio.timeout(60):
        assert list(await receiver.complete_batch(deliveries)) == [None] * 1001
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_one_call_gives_more_than_one_script_takes_and_in_order(transport: Transport, queue: Entity) -> None:
    sent = [str(number) for number in range(1100)]
    await fill(transport, queue, *sent)
    receiver = transport.receiver(Source(queue))
    found = await receiver.receive(1050, 0)
    assert bodies(found) == sent[:1050]
    assert bodies(await receiver.receive(1050, 0)) == sent[1050:]
    assert await receiver.complete_batch(found) == [None] * 1050


async def test_a_delivery_has_all_its_properties(transport: Transport, queue: Entity) -> None:
    before = time.time()
    await fill(transport, queue, "a")
    [delivery] = await transport.receiver(Source(queue)).receive(1, WAIT)
    after = time.time()
    assert delivery.delivery_count == 1
    assert delivery.sequence_number
    assert delivery.enqueued_at is not None
    assert before - 0.01 <= delivery.enqueued_at.timestamp() <= after + 0.01  # it is told in ms
    assert delivery.locked_until is not None
    assert before - 0.01 <= delivery.locked_until.timestamp() - HELD <= after + 0.01
    assert (delivery.dead_letter_reason, delivery.dead_letter_description) == (None, None)


async def test_a_completed_message_is_gone(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a", "b")
    receiver = transport.receiver(Source(queue))
    first, second = await receiver.receive(2, WAIT)
    await receiver.complete(first)
    counts = await transport.admin.counts(Source(queue))
    assert (counts.active, counts.locked) == (0, 1)
    await receiver.complete(second)
    assert (await transport.admin.counts(Source(queue))).pending == 0
    await end_locks(transport, queue, receiver)
    assert await receiver.receive(10, 0) == []


async def test_two_receivers_never_hold_the_same_message(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, *map(str, range(100)))
    receivers = [transport.receiver(Source(queue)) for _ in range(4)]
    got = await asyncio.gather(*(receiver.receive(30, WAIT) for receiver in receivers))
    together = [body for deliveries in got for body in bodies(deliveries)]
    assert len(together) == len(set(together)) == 100


async def test_a_lock_that_ends_gives_the_message_to_another(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a")
    one, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    [first] = await one.receive(1, WAIT)
    assert await other.receive(1, 0) == []
    await end_locks(transport, queue, other)
    [again] = await other.receive(1, 0)
    assert (again.delivery_count, again.sequence_number) == (2, first.sequence_number)
    await lost(one, first)
    await other.complete(again)


async def test_who_waits_is_given_a_message_when_its_lock_ends(transport: Transport, brief: Entity) -> None:
    await fill(transport, brief, "a")
    one, other = transport.receiver(Source(brief)), transport.receiver(Source(brief))
    [first] = await one.receive(1, WAIT)
    [again] = await other.receive(1, WAIT)
    assert (again.delivery_count, again.sequence_number) == (2, first.sequence_number)
    assert again.locked_until is not None
    assert first.locked_until is not None
    assert again.locked_until > first.locked_until
    await lost(one, first)


async def test_a_delivery_whose_lock_ended_cannot_be_settled_even_if_it_was_not_redelivered(
    transport: Transport, brief: Entity
) -> None:
    await fill(transport, brief, "a")
    receiver = transport.receiver(Source(brief))
    [delivery] = await receiver.receive(1, WAIT)
    await asyncio.sleep(LOCK + 0.02)
    assert (await transport.admin.counts(Source(brief))).active == 1
    await lost(receiver, delivery)


async def test_a_renewed_lock_lasts(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a")
    one, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    [delivery] = await one.receive(1, WAIT)
    assert delivery.sequence_number is not None
    control, stream = transport._context.control, key(queue, "queue")  # type: ignore[attr-defined]
    id_ = delivery.sequence_number.encode()
    for _ in range(3):
        [[[_, consumer, _, count]]] = await control.call([(b"XPENDING", stream, b"pairmq", id_, id_, b"1")], Scope())
        # All but ten seconds of it are over.
        idle = b"%d" % ((HELD - 10) * 1000)
        aged = (b"XCLAIM", stream, b"pairmq", consumer, b"0", id_, b"IDLE", idle)
        await control.call([(*aged, b"RETRYCOUNT", b"%d" % count, b"JUSTID")], Scope())
        before = datetime.now(UTC)
        renewed = await one.renew_lock(delivery)
        assert renewed.locked_until is not None
        assert renewed.locked_until - before > timedelta(seconds=HELD - 0.01)
        [[[_, _, idle, _]]] = await control.call([(b"XPENDING", stream, b"pairmq", id_, id_, b"1")], Scope())
        assert idle < (HELD - 20) * 1000
        assert await other.receive(1, 0) == []
    await one.complete(delivery)  # the old one settles just as well


async def test_an_abandoned_message_comes_back_first_and_at_once(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a", "b", "c", "d")
    receiver = transport.receiver(Source(queue))
    first, second, third = await receiver.receive(3, WAIT)
    await receiver.abandon(third)
    await receiver.abandon(first)
    again = await transport.receiver(Source(queue)).receive(10, 0)
    assert bodies(again) == ["a", "c", "d"]
    assert [d.delivery_count for d in again] == [2, 2, 1]
    await receiver.complete(second)
    await lost(receiver, first)


async def test_a_waiting_receiver_is_given_what_another_abandons(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a")
    one, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    [delivery] = await one.receive(1, WAIT)
    waiting = asyncio.create_task(other.receive(1, WAIT))
    await asyncio.sleep(0.05)
    await one.renew_lock(delivery)
    await one.abandon(delivery)
    assert bodies(await waiting) == ["a"]


async def test_one_delivery_too_many_dead_letters(transport: Transport, message: Make) -> None:
    entity = Entity("twice")
    await transport.admin.create(entity, QueueProperties(max_delivery_count=2, lock_duration=HELD))
    receiver = transport.receiver(Source(entity))
    dead = Source(entity, dead_letter=True)
    await transport.sender(entity).send(message("abandoned"))
    for count in (1, 2):
        [delivery] = await receiver.receive(1, WAIT)
        assert delivery.delivery_count == count
        await receiver.abandon(delivery)
    assert (await transport.admin.counts(Source(entity))).dead_letter == 1
    await transport.sender(entity).send(message("let go"))
    for _ in range(2):
        assert len(await receiver.receive(1, WAIT)) == 1
        await end_locks(transport, entity, receiver)
    assert await receiver.receive(1, 0) == []
    found = await transport.admin.peek(dead, 10)
    assert [(d.message.body, d.dead_letter_reason) for d in found] == [
        (b"abandoned", "max-delivery-count"),
        (b"let go", "max-delivery-count"),
    ]


async def test_dead_letters_keep_reason_and_description(transport: Transport, queue: Entity, message: Make) -> None:
    sent = message("poison", application_properties={"a": 1}, time_to_live=30)
    await transport.sender(queue).send(sent)
    receiver = transport.receiver(Source(queue))
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.dead_letter(delivery, "not-allowed", "x" * 5000)
    await lost(receiver, delivery)
    assert (await transport.admin.counts(Source(queue))).pending == 0
    reader = transport.receiver(Source(queue, dead_letter=True))
    [dead] = await reader.receive(10, WAIT)
    assert dead.message == sent
    assert dead.dead_letter_reason == "not-allowed"
    assert dead.dead_letter_description is not None
    assert set(dead.dead_letter_description) == {"x"}
    with pytest.raises(TransportError) as caught:
        await reader.dead_letter(dead, "again", "and again")
    assert caught.value.reason is FailureReason.NOT_SUPPORTED
    await reader.abandon(dead)
    [dead] = await reader.receive(10, WAIT)
    assert dead.delivery_count == 2
    await reader.complete(dead)
    assert (await transport.admin.counts(Source(queue))).dead_letter == 0


async def test_a_batch_completes_what_it_can(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a", "b", "c")
    receiver = transport.receiver(Source(queue))
    deliveries = await receiver.receive(3, WAIT)
    await receiver.complete(deliveries[1])
    foreign = Delivery(Message(), lock_token=None)
    outcomes = await receiver.complete_batch([*deliveries, foreign])
    assert [o and o.reason for o in outcomes] == [None, FailureReason.LOCK_LOST, None, FailureReason.LOCK_LOST]
    assert (await transport.admin.counts(Source(queue))).pending == 0
    assert await receiver.complete_batch([]) == []


async def test_another_receivers_delivery_settles_nothing(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a")
    one, other = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    [delivery] = await one.receive(1, WAIT)
    await lost(other, delivery)
    await one.complete(delivery)


async def test_a_stale_delivery_settles_not_the_newer_one_of_the_same_receiver(
    transport: Transport, queue: Entity
) -> None:
    await fill(transport, queue, "a")
    receiver = transport.receiver(Source(queue))
    [stale] = await receiver.receive(1, WAIT)
    await end_locks(transport, queue, receiver)
    [newer] = await receiver.receive(1, WAIT)
    await lost(receiver, stale)
    await receiver.abandon(newer)
    [newest] = await receiver.receive(1, WAIT)
    await lost(receiver, newer)
    await receiver.complete(await receiver.renew_lock(newest))


async def test_the_lock_of_an_entry_that_is_gone_is_not_renewed(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a")
    receiver = transport.receiver(Source(queue))
    [delivery] = await receiver.receive(1, WAIT)
    assert delivery.sequence_number is not None
    delete = (b"XDEL", key(queue, "queue"), delivery.sequence_number.encode())
    await transport._context.control.call([delete], Scope())  # type: ignore[attr-defined]
    with pytest.raises(TransportError) as caught:
        await receiver.renew_lock(delivery)
    assert caught.value.reason is FailureReason.LOCK_LOST


@pytest.mark.parametrize("first", [(b"f", b"v"), (b"t", b"0.001")])
async def test_an_entry_of_thousands_of_fields_blocks_nothing(
    transport: Transport, queue: Entity, first: tuple[bytes, bytes]
) -> None:
    hostile = (b"XADD", key(queue, "queue"), b"*", *first, *(b"f", b"v") * 5000)
    await transport._context.control.call([hostile], Scope())  # type: ignore[attr-defined]
    await asyncio.sleep(0.01)
    await fill(transport, queue, "good")
    receiver = transport.receiver(Source(queue))
    assert bodies(await receiver.receive(10, WAIT)) == ["good"]
    assert len(await transport.admin.peek(Source(queue, dead_letter=True), 10)) == 1


async def test_small_messages_before_large_ones_do_not_make_a_reply_huge(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send_batch([message("small") for _ in range(50)] + [message(b"x" * 1_000_000) for _ in range(40)])
    found = await receiver.receive(1000, WAIT)
    assert 50 < len(found) < 70
    assert sum(len(d.message.body) for d in found) < 16_000_000


async def test_a_reader_that_continues_reads_past_the_script_and_in_order(
    transport: Transport, queue: Entity, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [str(number) for number in range(30)]
    await fill(transport, queue, *sent)
    receiver, bare = transport.receiver(Source(queue)), list[int]()
    receiver.read_ahead(20)
    run = receiver._context.run  # type: ignore[attr-defined]

    async def run_and_note(link: object, scope: object, commands: list[list[bytes]], doing: str) -> object:
        bare.extend(int(command[5]) for command in commands if command[0] == b"XREADGROUP")
        return await run(link, scope, commands, doing)

    monkeypatch.setattr(receiver._context, "run", run_and_note)  # type: ignore[attr-defined]
    assert bodies(await receiver.receive(10, 0)) == sent[:10]
    found = await receiver.receive(10, 0)
    assert (bodies(found), bare) == (sent[10:20], [9])
    assert await receiver.complete_batch(found) == [None] * 10

    receiver.read_ahead(0)
    assert bodies(await receiver.receive(10, 0)) == sent[20:]
    assert bare == [9]


async def test_a_reader_that_continues_is_given_the_abandoned_first(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, *map(str, range(20)))
    receiver = transport.receiver(Source(queue))
    receiver.read_ahead(20)
    await receiver.receive(5, 0)
    for delivery in (await receiver.receive(5, 0))[:2]:
        await receiver.abandon(delivery)
    assert bodies(await receiver.receive(5, 0)) == ["5", "10", "11", "12", "13"]
    assert bodies(await receiver.receive(5, 0)) == ["6", "14", "15", "16", "17"]


async def test_a_reader_that_continues_is_given_nothing_that_has_expired(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    receiver.read_ahead(20)
    # Ids in 1970 make them old from the start.
    ttls = [b"1" if n % 2 else b"4e9" for n in range(1, 9)]
    olds = [(b"XADD", key(queue, "queue"), b"1-%d" % n, b"t", ttl, b"b", b"%d" % n) for n, ttl in enumerate(ttls, 1)]
    await transport._context.control.call(olds, Scope())  # type: ignore[attr-defined]
    assert bodies(await receiver.receive(2, 0)) == ["2", "4"]
    assert bodies(await receiver.receive(4, 0)) == ["6", "8"]
    await dead_letters(transport, queue, 4)


async def test_a_reader_that_continues_gets_a_queue_with_a_time_to_live_from_the_script(transport: Transport) -> None:
    entity = Entity("short-lived")
    await transport.admin.create(entity, QueueProperties(lock_duration=HELD, default_time_to_live=3600))
    receiver = transport.receiver(Source(entity))
    receiver.read_ahead(20)
    await fill(transport, entity, "a", "b")
    assert bodies(await receiver.receive(2, 0)) == ["a", "b"]
    old = [(b"XADD", key(entity, "queue"), b"*", b"b", b"c")]
    await transport._context.control.call(old, Scope())  # type: ignore[attr-defined]
    assert receiver._plain(10) == 0  # type: ignore[attr-defined]
    assert bodies(await receiver.receive(10, 0)) == ["c"]


async def test_a_bare_read_asks_for_no_more_than_fit_if_all_are_as_large_as_the_largest(
    transport: Transport, queue: Entity, message: Make
) -> None:
    receiver = transport.receiver(Source(queue))
    receiver.read_ahead(1000)
    await transport.sender(queue).send_batch([message(b"x" * size) for size in (1, 100_000, 1)])
    assert len(await receiver.receive(3, 0)) == 3
    assert (receiver._plain(80), receiver._plain(100)) == (79, 0)  # type: ignore[attr-defined]

    receiver.read_ahead(0)
    await transport.sender(queue).send(message(b"x" * 1_000_000))
    assert len(await receiver.receive(3, 0)) == 1
    receiver.read_ahead(1000)
    assert (receiver._plain(8), receiver._plain(80)) == (7, 0)  # type: ignore[attr-defined]


@pytest.fixture
async def patient(url: str, transport: Transport) -> AsyncIterator[Transport]:
    """To the same broker; it looks after a minute, unless something else makes it."""
    async with registry.transport(url.replace("poll_interval=0.2", "poll_interval=60")) as other:
        yield other


async def test_a_long_poll_ends_with_the_first_message(
    transport: Transport, patient: Transport, queue: Entity, message: Make
) -> None:
    receiver, sender = patient.receiver(Source(queue)), transport.sender(queue)
    await sender.send(message("warm up"))
    await receiver.complete((await receiver.receive(1, WAIT))[0])
    waiting = asyncio.create_task(receiver.receive(10, 600))
    await asyncio.sleep(0.25)
    await sender.send(message("a"))
    async with asyncio.timeout(WAIT):
        assert bodies(await waiting) == ["a"]


async def test_a_long_poll_ends_when_its_time_is_over(patient: Transport, queue: Entity) -> None:
    receiver = patient.receiver(Source(queue))
    before = time.monotonic()
    async with asyncio.timeout(WAIT):
        assert await receiver.receive(1, 0.3) == []
        assert time.monotonic() - before >= 0.29
        assert await receiver.receive(1, 0) == []


async def test_a_message_that_ends_a_wait_but_has_expired_is_not_delivered(transport: Transport, queue: Entity) -> None:
    # An id in 1970 makes it old from the start.
    waiting = asyncio.create_task(transport.receiver(Source(queue)).receive(1, WAIT))
    await asyncio.sleep(0.05)
    old = (b"XADD", key(queue, "queue"), b"1-1", b"t", b"1", b"b", b"gone")
    await transport._context.control.call([old], Scope())  # type: ignore[attr-defined]
    await dead_letters(transport, queue, 1)
    await fill(transport, queue, "fresh")
    assert bodies(await waiting) == ["fresh"]


async def test_an_expired_message_that_cannot_be_dead_lettered_fails_no_wait(
    transport: Transport, queue: Entity
) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    receiver = transport.receiver(Source(queue))
    await control.call([(b"SET", key(queue, "dead"), b"no stream")], Scope())
    waiting = asyncio.create_task(receiver.receive(1, 0.2))
    await asyncio.sleep(0.05)
    await control.call([(b"XADD", key(queue, "queue"), b"1-1", b"t", b"1", b"b", b"gone")], Scope())
    assert await waiting == []
    await control.call([(b"DEL", key(queue, "dead"))], Scope())
    await end_locks(transport, queue, receiver)
    assert await receiver.receive(1, 0) == []
    assert (await transport.admin.counts(Source(queue))).dead_letter == 1


async def test_a_closing_receiver_releases_what_it_holds(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a", "b")
    receiver = transport.receiver(Source(queue))
    first, _ = await receiver.receive(2, WAIT)
    await receiver.complete(first)
    await receiver.close()
    await receiver.close()
    [again] = await transport.receiver(Source(queue)).receive(2, 0)
    assert (again.message.body, again.delivery_count) == (b"b", 2)
    with pytest.raises(TransportError) as caught:
        await receiver.receive(1, 0)
    assert caught.value.reason is FailureReason.CLOSED


async def test_a_closing_receiver_ends_its_own_wait(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    waiting = asyncio.create_task(receiver.receive(1, 30))
    await asyncio.sleep(0.05)
    await receiver.close()
    with pytest.raises(TransportError) as caught:
        await waiting
    assert caught.value.reason is FailureReason.CLOSED


async def test_a_closed_receiver_leaves_no_consumer_behind(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    await receiver.receive(1, 0)
    await receiver.close()
    assert b"r-" not in await consumers(transport, queue)


async def test_a_dead_receivers_messages_come_back(url: str, transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, "a", "b")
    other = registry.transport(url)
    dying = other.receiver(Source(queue))
    assert len(await dying.receive(2, WAIT)) == 2
    dying._used = False  # type: ignore[attr-defined]  # it dies without a word
    await other.close()
    assert await transport.receiver(Source(queue)).receive(5, 0) == []
    await end_locks(transport, queue)
    again = await take(transport.receiver(Source(queue)), 2)
    assert bodies(again) == ["a", "b"]
    assert [d.delivery_count for d in again] == [2, 2]


async def test_a_cancelled_receive_loses_nothing(transport: Transport, queue: Entity, message: Make) -> None:
    receiver = transport.receiver(Source(queue))
    sender = transport.sender(queue)
    for n in range(10):
        waiting = asyncio.create_task(receiver.receive(1, 60))
        await asyncio.sleep(0.02)
        send = asyncio.create_task(sender.send(message(str(n))))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting, send])
        deliveries = [] if waiting.cancelled() else waiting.result()
        deadline = time.monotonic() + WAIT
        while not deliveries and time.monotonic() < deadline:
            deliveries = await receiver.receive(1, WAIT)
        assert bodies(deliveries) == [str(n)]
        await receiver.complete(deliveries[0])


@pytest.mark.parametrize(
    ("url", "held"),
    [("fakeredis", 1), *(pytest.param("redis", held, marks=pytest.mark.real_server) for held in (1, 1000, 10_000))],
    indirect=["url"],
)
async def test_what_a_cut_off_receive_had_fetched_comes_back_at_once(transport: Transport, held: int) -> None:
    """However many its receiver holds: the script that releases it looks at a thousand of them at a time."""
    entity = Entity("long-locks")
    await transport.admin.create(entity, QueueProperties(lock_duration=HELD))
    await fill(transport, entity, *["given"] * held, "fetched")
    receiver = transport.receiver(Source(entity))
    given = await take(receiver, held)

    # A reply that never arrives: the server has handed out the message, and the call is cancelled.
    context = receiver._context  # type: ignore[attr-defined]
    who = (b"XREADGROUP", b"GROUP", receiver._source.group, receiver._name)  # type: ignore[attr-defined]
    read = (*who, b"COUNT", b"1", b"STREAMS", key(entity, "queue"), b">")
    assert await context.control.call([read], Scope())
    waiting = asyncio.create_task(receiver.receive(1, 10))
    await asyncio.sleep(0.02)
    waiting.cancel()
    await asyncio.wait([waiting])

    [fetched] = await receiver.receive(5, WAIT)
    assert (fetched.message.body, fetched.delivery_count) == (b"fetched", 1)  # an outage uses up no delivery
    assert not any(await receiver.complete_batch([*given, fetched]))


async def test_a_receive_cut_off_while_it_dead_letters_keeps_no_locks(
    transport: Transport, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = Entity("long-locks")
    await transport.admin.create(entity, QueueProperties(lock_duration=60))
    await transport.sender(entity).send(message("good"))
    foreign = (b"XADD", key(entity, "queue"), b"*", b"foreign", b"x")
    await transport._context.control.call([foreign], Scope())  # type: ignore[attr-defined]
    receiver = transport.receiver(Source(entity))
    reached = asyncio.Event()

    async def put_away(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(receiver, "_put_away", put_away)
        waiting = asyncio.create_task(receiver.receive(5, 60))
        await reached.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
    [good] = await receiver.receive(5, WAIT)
    assert (good.message.body, good.delivery_count) == (b"good", 1)


async def test_a_malformed_entry_is_dead_lettered_and_blocks_nothing(
    transport: Transport, queue: Entity, message: Make
) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    await transport.sender(queue).send(message("before"))
    for fields in ([b"foreign", b"\xff\x00"], [b"b", b"body", b"t", b"nan"], [b"b", b"", b"a", b"{"]):
        await control.call([(b"XADD", key(queue, "queue"), b"*", *fields)], Scope())
    await transport.sender(queue).send(message("after"))
    receiver = transport.receiver(Source(queue))
    reported: list[Delivery] = []
    receiver.on_dead_lettered = reported.append
    assert bodies(await receiver.receive(10, WAIT)) == ["before", "after"]
    dead = await transport.receiver(Source(queue, dead_letter=True)).receive(10, WAIT)
    assert [d.dead_letter_reason for d in dead] == ["malformed"] * 3
    assert dead[0].message.application_properties == {"raw:foreign": b"\xff\x00"}
    assert dead[1].message.body == b"body"
    assert [(d.message, d.dead_letter_reason) for d in reported] == [(d.message, "malformed") for d in dead]


async def test_a_malformed_entry_does_not_end_a_wait(transport: Transport, queue: Entity, message: Make) -> None:
    receiver = transport.receiver(Source(queue))
    waiting = asyncio.create_task(receiver.receive(10, WAIT))
    await asyncio.sleep(0.05)
    await transport._context.control.call([(b"XADD", key(queue, "queue"), b"*", b"x", b"y")], Scope())  # type: ignore[attr-defined]
    await asyncio.sleep(0.05)
    await transport.sender(queue).send(message("good"))
    assert bodies(await waiting) == ["good"]


async def test_a_deleted_queue_ends_a_wait(transport: Transport, queue: Entity) -> None:
    receiver = transport.receiver(Source(queue))
    waiting = asyncio.create_task(receiver.receive(1, 60))
    await asyncio.sleep(0.05)
    await transport.admin.delete(queue)
    with pytest.raises(TransportError) as caught:
        await waiting
    assert caught.value.reason is FailureReason.NOT_FOUND


async def test_reading_what_does_not_exist_is_refused(transport: Transport) -> None:
    for source in (Source(Entity("nobody")), Source(Entity("nobody"), dead_letter=True)):
        with pytest.raises(TransportError) as caught:
            await transport.receiver(source).receive(1, 0)
        assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)


async def test_at_least_one_message_must_be_asked_for(transport: Transport, queue: Entity) -> None:
    with pytest.raises(ValueError, match="max_messages"):
        await transport.receiver(Source(queue)).receive(0, WAIT)


async def consumers(transport: Transport, queue: Entity) -> bytes:
    control = transport._context.control  # type: ignore[attr-defined]
    [found] = await control.call([(b"XINFO", b"CONSUMERS", key(queue, "queue"), b"pairmq")], Scope())
    return repr(found).encode()


async def test_large_messages_come_fewer_at_a_time(transport: Transport, message: Make) -> None:
    entity = Entity("large")
    await transport.admin.create(entity, QueueProperties(lock_duration=60))
    await transport.sender(entity).send_batch([message(b"x" * 1_000_000) for _ in range(30)])
    receiver = transport.receiver(Source(entity))
    first = await receiver.receive(1000, WAIT)
    assert 1 <= len(first) <= 13
    for delivery in first:
        await receiver.abandon(delivery)
    again = await receiver.receive(1000, WAIT)
    assert 1 <= len(again) <= 13
    got = [d.message.message_id for d in again]
    while deliveries := await receiver.receive(1000, 0):
        got += [d.message.message_id for d in deliveries]
    assert len(got) == len(set(got)) == 30


async def test_a_batch_is_completed_in_any_order_and_with_gaps(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, *"abcdefghij")
    receiver = transport.receiver(Source(queue))
    a, b, c, d, e, f, g, h, i, j = await receiver.receive(10, WAIT)
    assert not any(await receiver.complete_batch([j, a, e]))  # backwards, and in pieces
    assert not any(await receiver.complete_batch([b, h, i]))  # more lies between than is asked for
    await receiver.complete(f)
    outcomes = await receiver.complete_batch([c, f, d, g])
    assert [outcome and outcome.reason for outcome in outcomes] == [None, FailureReason.LOCK_LOST, None, None]
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_a_delivery_of_an_ended_lock_completes_nothing_in_a_batch(transport: Transport, queue: Entity) -> None:
    await fill(transport, queue, *"abc")
    receiver = transport.receiver(Source(queue))
    stale = await receiver.receive(3, WAIT)
    for delivery in stale:
        await receiver.abandon(delivery)
    assert bodies(await receiver.receive(3, WAIT)) == ["a", "b", "c"]  # the same messages, delivered once more
    outcomes = await receiver.complete_batch(stale)
    assert [outcome and outcome.reason for outcome in outcomes] == [FailureReason.LOCK_LOST] * 3
    assert (await transport.admin.counts(Source(queue))).pending == 3


@pytest.mark.real_server
async def test_a_wait_that_nothing_else_would_end_in_time_is_ended_by_a_ping(
    redis_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis itself notices up to 0.1 s late that a wait is over; a command makes it look."""
    async with registry.transport(f"{redis_server.url}?poll_interval=5") as transport:  # type: ignore[attr-defined]
        entity = Entity("punctual")
        await transport.admin.create(entity)
        receiver = transport.receiver(Source(entity))
        await receiver.receive(1, 0)
        control = transport._context.control  # type: ignore[attr-defined]
        call, pinged_at = control.call, list[float]()

        async def recorded(commands: list[tuple[bytes, ...]], scope: Scope) -> object:
            if commands == [(b"PING",)]:
                pinged_at.append(time.monotonic())
            return await call(commands, scope)

        monkeypatch.setattr(control, "call", recorded)
        async with asyncio.timeout(WAIT):
            for pings in range(1, 4):
                while len(pinged_at) < pings:  # now and then Redis is the first to look, and on a busy machine often
                    before = time.monotonic()
                    assert await receiver.receive(1, 0.13) == []
                    assert time.monotonic() - before >= 0.13
                assert pinged_at[-1] - before >= 0.13

"""What is SQLite's own about locks, dead letters and counts; the rest is the conformance suite's."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from pairmq import Message, Pair, PairOptions
from pairmq.model import Entity, EntityKind, FailureReason, Source, TransportError
from pairmq.model.events import Event, MessageDeadLettered, MessageDelivered, Settlement
from pairmq.plugins import registry
from pairmq.transport import QueueCounts, QueueProperties
from pairmq_sqlite import _receiver, _store
from pairmq_sqlite._database import Database
from pairmq_sqlite.testing import FileLock

PATIENCE = 100.0
SHORT = 0.2
UNREADABLE = """
    INSERT INTO message (shelf, enqueued_at, free_at, header, body) SELECT shelf.id, 0, 0, ?, ''
    FROM shelf JOIN entity ON shelf.entity = entity.id WHERE path = ? AND NOT dead_letter
"""


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


def write(path, statement: str, *values: object) -> None:
    """Do what another program might do to the file."""
    connection = sqlite3.connect(path, timeout=PATIENCE)
    with connection:
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("to", ["orders", "missing"])
async def test_no_transaction_of_an_ordered_batch_follows_one_that_failed(transport, queue, message, to):
    """A batch is cut into transactions of a thousand messages."""
    outcomes = await transport.sender(Entity(to)).send_in_order([message(session_id="a") for _ in range(2500)])
    if to == queue.path:
        assert outcomes == [None] * 2500
    else:
        assert {error.reason for error in outcomes[:1000]} == {FailureReason.NOT_FOUND}
        assert all("not sent, since an earlier message" in str(error) for error in outcomes[1000:])


async def test_what_another_program_wrote_is_dead_lettered_and_what_is_behind_it_comes(path, transport, queue, message):
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send(message("before"))
    statement = "INSERT INTO message (shelf, enqueued_at, free_at, header, body) VALUES (1, 0, 0, ?, ?)"
    write(path, statement, '{"priority": "high"}', b"a body")
    write(path, statement, b"\xff", 7)
    await sender.send(message("after"))
    reported = []
    receiver.on_dead_lettered = reported.append
    found = [await receiver.receive(1, 0) for _ in range(3)]
    assert [[delivery.message.body for delivery in some] for some in found] == [[b"before"], [b"after"], []]
    dead = await transport.receiver(Source(queue, dead_letter=True)).receive(10, 0)
    assert [delivery.dead_letter_reason for delivery in dead] == ["malformed", "malformed"]
    assert dead[0].message.application_properties == {"raw:header": '{"priority": "high"}'}
    assert dead[0].message.body == b"a body"
    assert [each.message for each in reported] == [each.message for each in dead]
    assert [each.dead_letter_description for each in reported] == [each.dead_letter_description for each in dead]


@pytest.mark.parametrize("field", ["header", "body"])
async def test_text_of_another_encoding_stops_no_queue(path, transport, queue, message, field):
    """SQLite stores any bytes as text, and Python's module refuses to read them."""
    await transport.sender(queue).send(message("before"))
    write(path, f"UPDATE message SET {field} = CAST(x'7b22ff227d' AS TEXT)")
    await transport.sender(queue).send(message("after"))
    assert len(await transport.admin.peek(Source(queue), 5)) == 2
    assert [one.message.body for one in await transport.receiver(Source(queue)).receive(5, 0)] == [b"after"]
    [dead] = await transport.admin.peek(Source(queue, dead_letter=True), 5)
    assert dead.dead_letter_reason == "malformed"


@pytest.mark.parametrize("stored", ["", "{", "[]", '{"lock_duration": 5.0, "later": 1}'])
async def test_settings_of_another_version_are_read_as_far_as_they_are_known(path, transport, queue, stored):
    write(path, "UPDATE entity SET settings = ?", stored)
    read = await transport.admin.properties(queue)
    assert read == QueueProperties(lock_duration=5.0 if "later" in stored else 60.0)


async def test_a_pair_reports_what_its_receivers_dead_letter_themselves(path, tmp_path):
    found: list[Event] = []
    options = PairOptions(enable_syphon=True, backlog_queue_count=1)
    async with Pair.connect(f"sqlite://{path}", f"sqlite://{tmp_path / 'west'}", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        (backlog,) = pair.backlog_queues
        pair.subscribe(lambda e: found.append(e) if isinstance(e, MessageDeadLettered | MessageDelivered) else None)
        write(tmp_path / "west", UNREADABLE, "{", backlog.path)
        await until(lambda: asyncio.sleep(0, found))
        write(path, UNREADABLE, "{", "orders")
        assert await pair.receiver("orders").receive(wait=0) == []
        moved, consumed = found
        assert isinstance(moved, MessageDeadLettered)
        assert isinstance(consumed, MessageDelivered)
        assert (moved.queue, moved.entity, moved.reason) == (backlog.path, None, "malformed")
        assert moved.description
        assert (consumed.entity, consumed.settlement) == (Entity("orders"), Settlement.DEAD_LETTERED)
        assert (consumed.reason, consumed.error) == ("malformed", None)
        for admin, queue in ((pair.primary.admin, Entity("orders")), (pair.secondary.admin, backlog)):
            assert (await admin.counts(Source(queue))).dead_letter == 1


async def test_what_a_receiver_of_a_lane_dead_letters_itself_is_reported(path, tmp_path):
    options = PairOptions(backlog_queue_count=1, continuity=("orders",))
    found: list[MessageDeadLettered] = []
    async with Pair.connect(f"sqlite://{path}", f"sqlite://{tmp_path / 'west'}", options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        pair.subscribe(lambda event: found.append(event) if isinstance(event, MessageDeadLettered) else None)
        receiver = pair.receiver("orders")
        assert await receiver.receive(wait=0) == []
        (lane,) = [each for each in await pair.secondary.admin.list_entities() if "/x-pairmq-lane/" in each.path]
        write(tmp_path / "west", UNREADABLE, "{", lane.path)

        async def reported() -> bool:
            return await receiver.receive(wait=0.02) == [] and bool(found)

        await until(reported)
        assert [(each.queue, each.entity, each.reason) for each in found] == [(lane.path, "orders", "malformed")]
        assert (await pair.secondary.admin.counts(Source(lane))).dead_letter == 1


def test_pairmq_receive_warns_of_what_it_dead_letters_itself(path, tmp_path):
    async def fill() -> None:
        async with registry.transport(f"sqlite://{path}") as transport:
            await transport.admin.create(Entity("orders"))
            await transport.sender(Entity("orders")).send(Message(b"1"))

    asyncio.run(fill())
    write(path, UNREADABLE, "{", "orders")
    command = [sys.executable, "-m", "pairmq", "receive", "-e", "orders", "--idle", "50ms", "--primary"]
    ended = subprocess.run([*command, f"sqlite://{path}"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert "can't be read and is dead-lettered" in ended.stderr


async def test_expired_messages_count_as_dead_before_a_receiver_has_met_them(transport, queue, message):
    await transport.sender(queue).send_batch([message(time_to_live=0.05), message()])

    async def expired() -> bool:
        return await transport.admin.counts(Source(queue)) == QueueCounts(active=1, dead_letter=1)

    await until(expired)
    dead = await transport.receiver(Source(queue, dead_letter=True)).receive(10, 0)
    assert [delivery.dead_letter_reason for delivery in dead] == ["expired"]


async def test_expired_messages_are_gone_where_the_queue_does_not_keep_them(transport, message):
    queue = Entity("forgetful")
    await transport.admin.create(queue, QueueProperties(default_time_to_live=0.05, dead_letter_on_expiration=False))
    await transport.sender(queue).send_batch([message() for _ in range(3)])

    async def gone() -> bool:
        return await transport.admin.counts(Source(queue)) == QueueCounts()

    await until(gone)
    assert await transport.receiver(Source(queue)).receive(10, 0) == []
    assert await transport.receiver(Source(queue, dead_letter=True)).receive(10, 0) == []


async def test_a_message_does_not_expire_while_a_receiver_holds_it(transport, message, set_clock):
    queue = Entity("held")
    await transport.admin.create(queue, QueueProperties(lock_duration=6000, default_time_to_live=600))
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    (delivery,) = await receiver.receive(1, 0)
    set_clock(601)
    assert await receiver.receive(1, 0) == []  # which puts away what has expired
    assert await transport.admin.counts(Source(queue)) == QueueCounts(locked=1)
    await receiver.complete(delivery)


async def test_the_last_delivery_that_fails_is_dead_lettered(transport, message):
    queue = Entity("twice")
    await transport.admin.create(queue, QueueProperties(max_delivery_count=2))
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    for _ in range(2):
        (delivery,) = await receiver.receive(1, 0)
        await receiver.abandon(delivery)
    assert await transport.admin.counts(Source(queue)) == QueueCounts(dead_letter=1)
    assert await receiver.receive(1, 0) == []
    (dead,) = await transport.receiver(Source(queue, dead_letter=True)).receive(1, 0)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == (
        "max-delivery-count",
        "it was delivered 2 times and never completed",
    )


async def test_a_dead_letter_neither_wears_out_nor_expires(transport, message, set_clock):
    queue = Entity("once")
    await transport.admin.create(queue, QueueProperties(max_delivery_count=1, default_time_to_live=600))
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    (delivery,) = await receiver.receive(1, 0)
    await receiver.dead_letter(delivery, "reason", "description")
    set_clock(601)
    graveyard = transport.receiver(Source(queue, dead_letter=True))
    for _ in range(3):
        (dead,) = await graveyard.receive(1, 0)
        await graveyard.abandon(dead)


async def test_a_dead_letter_is_not_dead_lettered_again(transport, queue, message):
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    (delivery,) = await receiver.receive(1, 0)
    await receiver.dead_letter(delivery, "\ud800 reason", "d" * 5000)
    graveyard = transport.receiver(Source(queue, dead_letter=True))
    (dead,) = await graveyard.receive(1, 0)
    assert (dead.dead_letter_reason, len(dead.dead_letter_description or "")) == ("? reason", 1024)
    with pytest.raises(TransportError) as caught:
        await graveyard.dead_letter(dead, "again", "")
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


async def test_a_receive_that_was_cut_off_is_undone_and_counts_as_no_delivery(path, transport, queue, message):
    await transport.sender(queue).send(message("kept"))
    receiver = transport.receiver(Source(queue))
    worker = transport._context.worker
    begun = asyncio.Event()
    begin_jobs, loop = worker._begin_jobs, asyncio.get_running_loop()

    def begin_and_tell():
        jobs = begin_jobs()
        loop.call_soon_threadsafe(begun.set)
        return jobs

    worker._begin_jobs = begin_and_tell
    receiving = asyncio.ensure_future(receiver.receive(1, 0))
    await begun.wait()
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving
    worker._begin_jobs = begin_jobs
    (delivery,) = await transport.receiver(Source(queue)).receive(1, PATIENCE)
    assert delivery.delivery_count == 1


async def test_a_receive_hands_out_no_more_than_fits_into_memory(transport, queue, message, monkeypatch):
    monkeypatch.setattr("pairmq_sqlite._receiver._MOST_BYTES", 25_000)
    await transport.sender(queue).send_batch([message(bytes(10_000)) for _ in range(5)])
    receiver = transport.receiver(Source(queue))
    assert [len(await receiver.receive(10, 0)) for _ in range(3)] == [3, 2, 0]


async def test_a_waiting_receiver_finds_what_another_connection_sends(connect, queue, message):
    receiver = connect(poll_interval=0.05).receiver(Source(queue))
    waiting = asyncio.ensure_future(receiver.receive(1, PATIENCE))
    await asyncio.sleep(0.1)
    await connect().sender(queue).send(message("from afar"))
    assert [delivery.message.body for delivery in await waiting] == [b"from afar"]


@pytest.fixture
def set_clock(monkeypatch):
    """Sets the clock by a number of seconds: forward, or back with a negative one."""

    def step(seconds):
        real = _store.now_us
        for module in (_store, _receiver):
            monkeypatch.setattr(module, "now_us", lambda: real() + seconds * 1_000_000)

    return step


@pytest.fixture
def never_looks_by_itself(monkeypatch):
    monkeypatch.setattr("pairmq_sqlite._receiver._FIRST_LOOK", 10 * PATIENCE)


async def test_a_waiting_receiver_is_woken_by_its_own_transport(transport, queue, message, never_looks_by_itself):
    waiting = asyncio.ensure_future(transport.receiver(Source(queue)).receive(1, 5 * PATIENCE))
    await asyncio.sleep(0.2)
    await transport.sender(queue).send(message("from here"))
    async with asyncio.timeout(PATIENCE):
        assert [delivery.message.body for delivery in await waiting] == [b"from here"]


async def test_a_waiting_receiver_knows_when_a_lock_ends(transport, message, never_looks_by_itself):
    queue = Entity("short")
    await transport.admin.create(queue, QueueProperties(lock_duration=2 * SHORT))
    await transport.sender(queue).send(message())
    assert await transport.receiver(Source(queue)).receive(1, 0)
    async with asyncio.timeout(PATIENCE):
        (delivery,) = await transport.receiver(Source(queue)).receive(1, 5 * PATIENCE)
    assert delivery.delivery_count == 2


async def test_a_topic_keeps_a_copy_for_each_subscription_and_none_without(transport, message):
    topic = Entity("news", EntityKind.TOPIC)
    await transport.admin.create(topic)
    sender = transport.sender(topic)
    await sender.send(message("to nobody"))
    for name in ("alice", "bob"):
        await transport.admin.create_subscription(topic, name)
    await sender.send(message("to both"))
    for name in ("alice", "bob"):
        (delivery,) = await transport.receiver(Source(topic, name)).receive(10, 0)
        assert delivery.message.body == b"to both"


async def test_an_entity_of_the_other_kind_is_not_made_over(transport, queue):
    with pytest.raises(TransportError) as caught:
        await transport.admin.create(Entity(queue.path, EntityKind.TOPIC))
    assert caught.value.reason is FailureReason.ALREADY_EXISTS


async def test_deleting_a_queue_deletes_its_rows(path, transport, queue, message):
    await transport.sender(queue).send(message())
    assert await transport.admin.delete(queue)
    connection = sqlite3.connect(path)
    rows = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("entity", "shelf", "message")
    ]
    connection.close()
    assert rows == [0, 0, 0]


async def test_a_name_is_never_sql(transport, message):
    queue = Entity("x'; DROP TABLE message; --")
    await transport.admin.create(queue)
    await transport.sender(queue).send(message("safe"))
    assert await transport.admin.list_entities("x'") == [queue]
    assert [delivery.message.body for delivery in await transport.receiver(Source(queue)).receive(1, 0)] == [b"safe"]


async def test_an_old_delivery_does_not_touch_what_another_holds_by_now(transport, message, set_clock):
    queue = Entity("locked")
    await transport.admin.create(queue, QueueProperties(lock_duration=600))
    await transport.sender(queue).send(message())
    late, quick = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    (old,) = await late.receive(1, 0)
    set_clock(601)
    (new,) = await quick.receive(1, 0)
    with pytest.raises(TransportError) as caught:
        await late.complete(old)
    assert caught.value.reason is FailureReason.LOCK_LOST
    await quick.complete(new)


@pytest.mark.parametrize(
    "properties",
    [
        QueueProperties(lock_duration=0),
        QueueProperties(lock_duration=float("nan")),
        QueueProperties(default_time_to_live=-1),
        QueueProperties(default_time_to_live=float("inf")),
        QueueProperties(max_delivery_count=0),
        QueueProperties(max_delivery_count=2**60),
        QueueProperties(max_delivery_count=1.5),  # type: ignore[arg-type]
    ],
)
async def test_settings_that_can_not_be_kept_are_refused(transport, properties):
    with pytest.raises(TransportError) as caught:
        await transport.admin.create(Entity("orders"), properties)
    assert caught.value.reason is FailureReason.MALFORMED


async def test_a_receiver_that_can_not_release_locks_closes_all_the_same(path, connect, queue, message):
    transport = connect(busy_timeout=300)
    await transport.sender(queue).send(message())
    receiver = transport.receiver(Source(queue))
    assert await receiver.receive(1, 0)
    lock = FileLock(path)
    async with asyncio.timeout(PATIENCE):
        await receiver.close()
    lock.release()


# A clock that is set back.


async def abandon(receiver, delivery):
    await receiver.abandon(delivery)


async def release(receiver, delivery):
    await receiver.close()


async def take_back(receiver, delivery):
    token = delivery.lock_token
    await receiver._calls.run(lambda store: store.take_back(store.place(receiver._source), token.lock), "take back")


@pytest.mark.parametrize("give_back", [None, abandon, release, take_back])
async def test_what_is_not_locked_is_delivered_though_the_clock_was_set_back(transport, message, set_clock, give_back):
    queue = Entity("ordered")
    await transport.admin.create(queue, QueueProperties(single_consumer=True, lock_duration=60))
    sender = transport.sender(queue)
    await sender.send(message("first"))
    await sender.send(message("second", scheduled_enqueue_at=datetime.now(UTC) - timedelta(minutes=1)))
    if give_back is not None:
        receiver = transport.receiver(Source(queue))
        (delivery,) = await receiver.receive(1, 0)
        await give_back(receiver, delivery)
        await receiver.close()
    set_clock(-3600)
    await sender.send(message("third"))
    assert await transport.admin.counts(Source(queue)) == QueueCounts(active=3)
    found = await transport.receiver(Source(queue)).receive(10, 0)
    assert [delivery.message.body for delivery in found] == [b"first", b"second", b"third"]


@pytest.mark.parametrize("single", [False, True])
async def test_a_lock_ends_in_time_though_the_clock_was_set_back(transport, message, set_clock, single):
    """What a killed process had locked was locked for another hour."""
    queue = Entity("brief")
    await transport.admin.create(queue, QueueProperties(single_consumer=single, lock_duration=60))
    due = datetime.now(UTC) + timedelta(hours=2)
    await transport.sender(queue).send_batch([message("locked"), message("due", scheduled_enqueue_at=due)])
    gone, there = transport.receiver(Source(queue)), transport.receiver(Source(queue))
    assert len(await gone.receive(10, 0)) == 1
    set_clock(-3600)
    assert await there.receive(10, 0) == []
    set_clock(61)
    assert [delivery.message.body for delivery in await there.receive(10, 0)] == [b"locked"]
    assert (await transport.admin.counts(Source(queue))).scheduled == 1


async def test_dead_letters_are_had_though_the_clock_was_set_back(transport, message, set_clock):
    queue = Entity("mortal")
    await transport.admin.create(queue, QueueProperties(max_delivery_count=1))
    receiver = transport.receiver(Source(queue))
    bodies = ("refused", "worn out", "expired")
    await transport.sender(queue).send_batch([message(body) for body in bodies[:2]])
    refused, worn_out = await receiver.receive(2, 0)
    await receiver.dead_letter(refused, "reason", "description")
    await receiver.abandon(worn_out)
    await transport.sender(queue).send(message(bodies[2], time_to_live=0.001))

    async def expired() -> bool:
        return await transport.admin.counts(Source(queue)) == QueueCounts(dead_letter=3)

    await until(expired)
    assert await receiver.receive(1, 0) == []  # which puts them away
    set_clock(-3600)
    dead = await transport.receiver(Source(queue, dead_letter=True)).receive(10, 0)
    assert [delivery.message.body.decode() for delivery in dead] == list(bodies)


async def test_a_lifetime_counts_from_the_sending(path, transport, queue, message):
    due = datetime.now(UTC) + timedelta(hours=1)
    sender = transport.sender(queue)
    await sender.send(message("now", time_to_live=60))
    await sender.send(message("later", time_to_live=60, scheduled_enqueue_at=due))
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT expires_at - enqueued_at, free_at FROM message ORDER BY number").fetchall()
    connection.close()
    minute, later = 60 * 1_000_000, int(due.timestamp() * 1_000_000)
    assert found[0] == (minute, 0)
    assert abs(found[1][1] - later) <= 1
    assert found[1][0] > 59 * minute
    assert await transport.admin.counts(Source(queue)) == QueueCounts(active=1, scheduled=1)


async def test_the_next_receiver_gets_what_one_held_that_closed_while_the_file_was_gone(
    path, connect, transport, queue, message
):
    """And nothing that an open receiver holds."""
    await transport.admin.create(queue)
    sender, other = transport.sender(queue), connect().receiver(Source(queue))
    await sender.send(message("other"))
    (held,) = await other.receive(1, 0)
    await sender.send_batch([message("a"), message("b")])
    receiver = transport.receiver(Source(queue))
    assert len(await receiver.receive(2, 0)) == 2
    path.parent.rename(path.parent.with_name("away"))
    await receiver.close()
    following = transport.receiver(Source(queue))
    with pytest.raises(TransportError):
        await following.receive(2, 0)
    path.parent.with_name("away").rename(path.parent)
    assert [delivery.message.body for delivery in await following.receive(9, 0)] == [b"a", b"b"]
    await other.complete(held)


async def test_what_a_receive_took_whose_commit_is_in_doubt_is_received_at_once(transport, queue, message, monkeypatch):
    await transport.sender(queue).send(message("a"))
    receiver = transport.receiver(Source(queue))
    commit = Database.commit

    def commit_and_fail(database: Database) -> None:
        commit(database)
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(Database, "commit", commit_and_fail)
    with pytest.raises(TransportError) as caught:
        await receiver.receive(1, 0)
    assert caught.value.maybe_applied
    monkeypatch.undo()
    (delivery,) = await receiver.receive(1, 0)
    assert (delivery.message.body, delivery.delivery_count) == (b"a", 1)

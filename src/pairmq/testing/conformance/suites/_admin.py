"""What the administration keeps, and what a probe keeps: it fails where a send would, and is never seen (SPEC 6.2)."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import MAX_PATH_LENGTH, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import (
    MISSING,
    NOT_FOUND,
    NOT_SUPPORTED,
    Broker,
    Suite,
    bodies,
    capability,
    counted,
    cut_off,
    limit,
    limits,
    message,
    must_fail,
    probe,
    receive_all,
    receive_one,
    receive_some,
    refused,
)
from pairmq.transport import QueueCounts, QueueProperties


async def _scheduled_are_not_told(broker: Broker) -> None:
    queue = await broker.queue()
    assert (await broker.admin.counts(Source(queue))).scheduled == 0


class Admin(Suite):
    """`Admin` but its probe, which has a suite of its own."""

    async def test_a_broker_that_is_there_answers(self, broker: Broker) -> None:
        await broker.admin.check()

    async def test_an_entity_exists_from_its_making_to_its_end(self, broker: Broker) -> None:
        entity = Entity("orders")
        assert not await broker.admin.exists(entity)
        assert await broker.admin.create(entity) is True
        assert await broker.admin.exists(entity)
        assert await broker.admin.delete(entity) is True
        assert not await broker.admin.exists(entity)
        assert await broker.admin.delete(entity) is False

    async def test_making_an_entity_again_changes_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        before = await broker.admin.properties(queue)
        await broker.put(queue, "kept")
        assert await broker.admin.create(queue, QueueProperties(lock_duration=17.0, default_time_to_live=77.0)) is False
        assert await broker.admin.properties(queue) == before
        assert bodies(await receive_all(broker.receiver(queue), 1)) == ["kept"]

    async def test_a_deleted_queue_takes_its_messages_with_it(self, broker: Broker) -> None:
        queue = await broker.queue_with("gone")
        await broker.admin.delete(queue)
        await broker.admin.create(queue)
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    async def test_a_backlog_queues_name_and_settings_are_taken(self, broker: Broker) -> None:
        entity = Entity("contoso/x-servicebus-transfer/0")
        asked = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1, lock_duration=60.0)
        assert await broker.admin.create(entity, asked) is True
        await broker.put(entity, "diverted")
        assert bodies(await receive_all(broker.receiver(entity), 1)) == ["diverted"]

    async def test_settings_that_were_reported_can_be_asked_for(self, broker: Broker) -> None:
        properties = await broker.admin.properties(await broker.queue())
        copy = Entity("a-copy")
        await broker.admin.create(copy, properties)
        assert await broker.admin.properties(copy) == properties

    async def test_a_default_time_to_live_is_reported(self, broker: Broker) -> None:
        queue = await broker.queue(default_time_to_live=3600.0)
        assert (await broker.admin.properties(queue)).default_time_to_live == 3600.0

    @capability(
        "sessions",
        disclaimed=refused(
            lambda broker: broker.admin.create(Entity("by-session"), QueueProperties(requires_session=True))
        ),
    )
    async def test_a_queue_that_requires_sessions_has_the_property(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        assert (await broker.admin.properties(queue)).requires_session

    async def test_settings_of_a_missing_queue_are_not_found(self, broker: Broker) -> None:
        await must_fail(lambda: broker.admin.properties(MISSING), *NOT_FOUND)

    async def test_counts_report_what_waits_and_what_is_locked(self, broker: Broker) -> None:
        queue = await broker.queue()
        assert await broker.admin.counts(Source(queue)) == QueueCounts()
        await broker.put(queue, *"abc")
        assert await broker.admin.counts(Source(queue)) == QueueCounts(active=3)
        receiver = broker.receiver(queue)
        held = await receive_one(receiver)
        counts = await broker.admin.counts(Source(queue))
        assert counts.pending == 3 and counts.locked in (0, 1), f"one of three is locked: {counts}"
        await receiver.complete(held)
        assert (await broker.admin.counts(Source(queue))).pending == 2

    @capability("counts_scheduled", disclaimed=_scheduled_are_not_told)
    async def test_counts_report_what_waits_for_its_time(self, broker: Broker) -> None:
        queue = await broker.queue_with("later", scheduled_enqueue_at=datetime.now(UTC) + timedelta(hours=1))
        assert await broker.admin.counts(Source(queue)) == QueueCounts(scheduled=1)

    @capability(
        "dead_letter",
        disclaimed=lambda broker: _nothing_is_dead_lettered(broker),
    )
    async def test_counts_report_what_was_dead_lettered(self, broker: Broker) -> None:
        queue = await broker.queue_with("poison")
        receiver = broker.receiver(queue)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "a description")
        dead = QueueCounts(dead_letter=1)
        assert await counted(broker.admin, Source(queue), dead) == dead

    async def test_counts_of_a_missing_queue_are_not_found(self, broker: Broker) -> None:
        await must_fail(lambda: broker.admin.counts(Source(MISSING)), *NOT_FOUND)

    @capability("peek", disclaimed=refused(lambda broker: _peek(broker)))
    async def test_peeking_shows_the_oldest_first(self, broker: Broker) -> None:
        queue = await broker.queue()
        sent = await broker.put(queue, *"abc")
        shown = await broker.admin.peek(Source(queue), 2)
        assert [delivery.message for delivery in shown] == sent[:2]

    @capability("peek", disclaimed=refused(lambda broker: _peek(broker)))
    async def test_peeking_locks_and_takes_nothing(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        await broker.admin.peek(Source(queue), 3)
        assert bodies(await receive_all(broker.receiver(queue), 3)) == list("abc")

    @capability("quiet_peek", disclaimed=lambda broker: _peeking_counts_as_a_delivery(broker))
    async def test_peeking_counts_as_no_delivery(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        for _ in range(3):
            await broker.admin.peek(Source(queue), 1)
        assert (await receive_one(broker.receiver(queue))).delivery_count == 1

    @capability("peek", disclaimed=refused(lambda broker: _peek(broker)))
    async def test_peeking_into_nothing_shows_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        assert await broker.admin.peek(Source(queue), 3) == []

    async def test_purging_empties_a_queue_and_reports_how_many(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        assert await broker.admin.purge(Source(queue)) == 3
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    @capability("dead_letter", disclaimed=lambda broker: _nothing_is_dead_lettered(broker))
    async def test_purging_a_queue_or_its_dead_letter_queue_leaves_the_other(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        receiver = broker.receiver(queue)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "a description")
        await receiver.close()
        assert await broker.admin.purge(Source(queue)) == 2
        await broker.put(queue, "d")
        assert await broker.admin.purge(Source(queue, dead_letter=True)) == 1
        assert await broker.admin.counts(Source(queue)) == QueueCounts(active=1)

    @limit("max_path_length")
    async def test_the_longest_path_works(self, broker: Broker) -> None:
        longest = Entity("p" * min(broker.capabilities.max_path_length, MAX_PATH_LENGTH))
        assert await broker.admin.create(longest) is True
        await broker.put(longest, "hello")
        assert bodies(await receive_all(broker.receiver(longest), 1)) == ["hello"]

    @limit("max_path_length")
    async def test_a_longer_path_is_refused(self, broker: Broker) -> None:
        most = broker.capabilities.max_path_length
        if most >= MAX_PATH_LENGTH:
            with pytest.raises(ValueError, match="at most"):
                Entity("p" * (MAX_PATH_LENGTH + 1))
            return
        longer = Entity("p" * (most + 1))
        malformed = (FailureKind.REFUSED, FailureReason.MALFORMED)
        await must_fail(lambda: broker.admin.create(longer), *malformed)
        await must_fail(lambda: broker.sender(longer).send(message("hello")), *malformed)

    @capability("ordered_consumer", disclaimed=refused(lambda broker: _positions(broker)))
    async def test_positions_report_what_any_consumer_has_settled(self, broker: Broker) -> None:
        """`Admin.positions` may report less than is true for a while, but never more (SPEC 8.3)."""
        queue = await broker.queue(single_consumer=True)
        empty = await broker.admin.positions(queue)
        assert empty.oldest is None
        await broker.put(queue, "a")
        first = await broker.admin.positions(queue)
        await broker.put(queue, "b")
        before = await broker.admin.positions(queue)
        assert before.oldest is not None and empty.newest < before.oldest <= first.newest, "nothing is settled yet"
        receiver = broker.connect().receiver(Source(queue))
        held = await receive_some(receiver, 2)
        locked = await broker.admin.positions(queue)
        assert locked.oldest == before.oldest, "what another process holds locked is not settled"
        await receiver.complete(held[0])
        between = await broker.admin.positions(queue)
        assert between.oldest is not None and before.oldest <= between.oldest <= before.newest, "one is not settled"
        if len(held) == 1:
            held.append(await receive_one(receiver))
        await receiver.complete(held[1])
        # A transport may take a moment to learn of another process's changes, and must not report too much meanwhile.
        deadline = asyncio.get_running_loop().time() + limits().patience
        settled = await broker.admin.positions(queue)
        while settled.oldest is not None and settled.oldest <= before.newest:
            assert asyncio.get_running_loop().time() < deadline, "settled messages are still reported as unsettled"
            await asyncio.sleep(0.02)
            settled = await broker.admin.positions(queue)
        await broker.put(queue, "c")
        after = await broker.admin.positions(queue)
        assert after.oldest is not None and before.newest < after.oldest <= after.newest, "there is another message"

    @capability("ordered_consumer", disclaimed=refused(lambda broker: _positions(broker)))
    async def test_a_missing_queue_has_no_positions(self, broker: Broker) -> None:
        await must_fail(lambda: broker.admin.positions(MISSING), *NOT_FOUND)

    @capability("ordered_consumer", disclaimed=refused(lambda broker: broker.queue(single_consumer=True)))
    async def test_one_consumer_at_a_time_is_reported_as_a_setting(self, broker: Broker) -> None:
        queue = await broker.queue(single_consumer=True)
        assert (await broker.admin.properties(queue)).single_consumer
        assert not (await broker.admin.properties(await broker.queue())).single_consumer

    async def test_entities_are_listed_by_path(self, broker: Broker) -> None:
        for path in ("orders/b", "orders/a", "others"):
            await broker.admin.create(Entity(path))
        try:
            listed = await broker.admin.list_entities("orders/")
        except TransportError as error:
            # There is no capability for it: a transport either lists, or raises *not-supported*.
            assert (error.kind, error.reason) == NOT_SUPPORTED
            return
        assert listed == [Entity("orders/a"), Entity("orders/b")]
        everything = await broker.admin.list_entities()
        assert {Entity("orders/a"), Entity("orders/b"), Entity("others")} <= set(everything)
        assert not [entity for entity in everything if broker.admin.is_system_entity(entity)]

    async def test_what_users_name_is_no_system_entity(self, broker: Broker) -> None:
        assert not broker.admin.is_system_entity(Entity("orders"))
        assert not broker.admin.is_system_entity(Entity("contoso/x-servicebus-transfer/0"))


async def _positions(broker: Broker) -> object:
    return await broker.admin.positions(await broker.queue())


async def _peek(broker: Broker) -> object:
    return await broker.admin.peek(Source(await broker.queue()), 1)


async def _peeking_counts_as_a_delivery(broker: Broker) -> None:
    if not broker.capabilities.peek:
        await must_fail(lambda: _peek(broker), *NOT_SUPPORTED)
        return
    queue = await broker.queue_with("hello")
    await broker.admin.peek(Source(queue), 1)
    assert (await receive_one(broker.receiver(queue))).delivery_count > 1


async def _nothing_is_dead_lettered(broker: Broker) -> None:
    queue = await broker.queue_with("hello")
    assert (await broker.admin.counts(Source(queue))).dead_letter == 0


class Probe(Suite, needs="probes", disclaimed=refused(probe)):
    """`Admin.probe`."""

    async def test_it_passes_where_sends_pass(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        await broker.admin.probe(queue)

    async def test_no_consumer_ever_sees_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.connect().receiver(Source(queue))
        polling = asyncio.ensure_future(receiver.receive(10, 300.0))
        await asyncio.sleep(0.3)
        for _ in range(5):
            await broker.admin.probe(queue)
        await asyncio.sleep(0.3)
        await broker.put(queue, "a message")
        async with asyncio.timeout(limits().patience):
            found = bodies(await polling)
        assert found == ["a message"], f"a waiting consumer got {found}"

    async def test_it_leaves_nothing_behind(self, broker: Broker) -> None:
        queue = await broker.queue_with("a message")
        before = await broker.admin.counts(Source(queue))
        for _ in range(3):
            await broker.admin.probe(queue)
        receiver = broker.receiver(queue)
        await receiver.complete(await receive_one(receiver))
        assert await receiver.receive(1, 0.3) == [], "a consumer got a probe"
        after = await broker.admin.counts(Source(queue))
        assert (before.pending, after.pending, after.dead_letter) == (1, 0, 0)

    async def test_it_touches_no_message(self, broker: Broker) -> None:
        """One that it fetches counts as delivered once more, and a consumer gets the next one before it."""
        queue = await broker.queue_with("a message")
        await asyncio.gather(*(broker.admin.probe(queue) for _ in range(3)))
        receiver = broker.receiver(queue)
        delivery = await receive_one(receiver)
        assert delivery.delivery_count == 1, f"after three probes it is delivered for time {delivery.delivery_count}"
        await receiver.complete(delivery)

    async def test_a_missing_entity_fails_it(self, broker: Broker) -> None:
        await must_fail(lambda: broker.admin.probe(MISSING), *NOT_FOUND)

    @capability("topics", disclaimed=refused(lambda broker: broker.admin.create(Entity("news", EntityKind.TOPIC))))
    async def test_a_topic_is_probed_as_well(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        await broker.admin.probe(topic)
        assert await broker.receiver(Source(topic, "alice")).receive(1, 0.3) == [], "a subscriber got a probe"
        missing = Entity("no-such-news", EntityKind.TOPIC)
        await must_fail(lambda: broker.admin.probe(missing), *NOT_FOUND)

    async def test_a_stopped_broker_fails_it_until_it_is_back(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.stop()
        for _ in range(2):
            await must_fail(lambda: broker.admin.probe(queue), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.admin.create(queue)  # where the broker keeps nothing
        await broker.admin.probe(queue)

    async def test_a_broker_that_stores_nothing_fails_it_until_it_does(self, broker: Broker) -> None:
        """A probe finds out whether the entity accepts *writes* (`Admin.probe`, SPEC 6.2)."""
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.refuse_writes()
        for _ in range(2):  # it fails, or is not answered
            await cut_off(broker.admin.probe(queue), limit=1.0, why="the broker stores nothing")
        await broker.restore()
        await broker.admin.probe(queue)
        await broker.put(queue, "a message")
        assert bodies([await receive_one(broker.receiver(queue))]) == ["a message"]

    async def test_a_frozen_broker_fails_it_by_its_limit(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.freeze()
        await cut_off(broker.admin.probe(queue))
        await broker.restore()
        await broker.admin.probe(queue)
        await broker.put(queue, "a message")
        assert bodies([await receive_one(broker.receiver(queue))]) == ["a message"]

    async def test_an_entity_that_was_probed_and_deleted_fails_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.admin.delete(queue)
        failure = await must_fail(lambda: broker.admin.probe(queue))
        if failure.kind is FailureKind.UNAVAILABLE:  # the link went with the entity; the next probe knows
            failure = await must_fail(lambda: broker.admin.probe(queue))
        assert (failure.kind, failure.reason) == NOT_FOUND

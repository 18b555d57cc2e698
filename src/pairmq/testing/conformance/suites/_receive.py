"""What receiving keeps: peek-lock, long polls, and nothing lost or given twice under one lock; and settling."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta

from pairmq.model import Delivery, Entity, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import (
    LOCK_LOST,
    LONG_LOCK,
    MISSING,
    NOT_FOUND,
    NOT_SUPPORTED,
    Broker,
    LockClock,
    Stopwatch,
    Suite,
    bodies,
    capability,
    drain,
    limit,
    limits,
    message,
    must_fail,
    of_size,
    receive_all,
    receive_one,
    receive_some,
)
from pairmq.transport import Receiver

_LONG_POLL = 300.0
"""Seconds; longer than a test may take, so that a poll which ends has ended for another reason than its time."""

_CLOCKS = timedelta(seconds=5)
"""How far the broker's clock may be from ours."""


async def _a_queue_can_be_shared(broker: Broker) -> None:
    queue = await broker.queue_with("one", "two")
    first = await receive_one(broker.receiver(queue))
    second = await receive_one(broker.connect().receiver(Source(queue)))
    assert sorted(bodies([first, second])) == ["one", "two"]


async def _one_consumer_is_refused(broker: Broker) -> None:
    await must_fail(lambda: broker.queue(single_consumer=True), *NOT_SUPPORTED)


class Receive(Suite):
    """`Receiver.receive` and `Receiver.close`."""

    async def test_an_empty_queue_gives_nothing(self, broker: Broker) -> None:
        """`Receiver.receive` returns an empty list if nothing arrives in time."""
        queue = await broker.queue()
        assert await broker.receiver(queue).receive(10, 0.2) == []

    async def test_asking_once_returns_without_waiting(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        async with asyncio.timeout(limits().patience):
            assert await receiver.receive(10, 0) == []
            with Stopwatch() as watch:
                assert await receiver.receive(10, 0) == []
        assert watch.elapsed < limits().asking_once, f"it waited for {watch.elapsed:.1f} s, and was asked to wait for 0"

    async def test_a_wait_ends_when_its_time_is_over(self, broker: Broker) -> None:
        """`Receiver.receive` waits for the first message at most ``wait`` seconds."""
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        async with asyncio.timeout(limits().patience):
            assert await receiver.receive(10, 0) == []
            with Stopwatch() as watch:
                assert await receiver.receive(10, 0.5) == []
        most = 0.5 + limits().asking_once
        assert watch.elapsed < most, f"it waited for {watch.elapsed:.1f} s, and was asked to wait for 0.5"

    async def test_asking_once_finds_what_is_there(self, broker: Broker) -> None:
        """`Receiver.receive` with ``wait`` 0 polls once: what is there is returned."""
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        assert await receiver.receive(1, 0) == []
        await broker.put(queue, "there")
        assert bodies(await receiver.receive(1, 0)) == ["there"]

    async def test_a_long_poll_ends_with_the_first_message(self, broker: Broker) -> None:
        """`Receiver.receive` returns as soon as there is at least one message."""
        queue = await broker.queue()
        polling = asyncio.ensure_future(broker.receiver(queue).receive(10, _LONG_POLL))
        await asyncio.sleep(0.3)
        assert not polling.done(), "it did not wait"
        await broker.put(queue, "first")
        async with asyncio.timeout(limits().patience):
            assert bodies(await polling) == ["first"]

    async def test_no_more_come_than_were_asked_for(self, broker: Broker) -> None:
        """`Receiver.receive` returns up to ``max_messages``."""
        queue = await broker.queue_with(*"abcde")
        receiver = broker.receiver(queue)
        assert len(await receiver.receive(2, limits().patience)) in (1, 2)

    async def test_what_was_not_asked_for_stays_for_others(self, broker: Broker) -> None:
        """`Receiver.receive` locks what it returns, and nothing else unless `read_ahead` allows it."""
        queue = await broker.queue_with(*"abcde")
        mine = await receive_one(broker.receiver(queue))
        others = await receive_all(broker.connect().receiver(Source(queue)), 4)
        assert sorted(bodies([mine, *others])) == list("abcde")

    async def test_messages_come_in_the_brokers_order_over_several_receives(self, broker: Broker) -> None:
        """`Receiver.receive` returns deliveries in the broker's order."""
        queue = await broker.queue_with(*"abcdefghij")
        receiver = broker.receiver(queue)
        found = []
        for _ in range(10):
            found.append(await receive_one(receiver))
        assert bodies(found) == list("abcdefghij")

    async def test_a_delivery_has_its_properties(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        before = datetime.now(UTC)
        delivery = await receive_one(broker.receiver(queue))
        assert delivery.delivery_count == 1
        assert delivery.dead_letter_reason is None and delivery.dead_letter_description is None
        assert delivery.enqueued_at is None or abs(delivery.enqueued_at - before) < _CLOCKS + timedelta(
            seconds=limits().patience
        )

    async def test_the_broker_s_positions_are_unique(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        deliveries = await receive_all(broker.receiver(queue), 3)
        numbers = [delivery.sequence_number for delivery in deliveries if delivery.sequence_number]
        assert len(set(numbers)) == len(numbers)

    async def test_two_receivers_never_hold_the_same_message(self, broker: Broker) -> None:
        """`Receiver`: peek-lock, so that one receiver at a time has a message."""
        queue = await broker.queue()
        await broker.sender(queue).send_batch([message(str(number)) for number in range(40)])
        first, second = broker.receiver(queue), broker.connect().receiver(Source(queue))
        found: list[Delivery] = []
        deadline = asyncio.get_running_loop().time() + limits().patience
        while len(found) < 40 and asyncio.get_running_loop().time() < deadline:
            found += [*await first.receive(5, 1.0), *await second.receive(5, 1.0)]
        assert sorted(map(int, bodies(found))) == list(range(40))

    @capability("ordered_consumer", disclaimed=_a_queue_can_be_shared)
    async def test_one_consumer_at_a_time(self, broker: Broker) -> None:
        """`QueueProperties.single_consumer`: while one holds a message no other one gets any; it may hold but one."""
        queue = await broker.queue(single_consumer=True)
        await broker.put(queue, *"abc")
        first, second = broker.receiver(queue), broker.connect().receiver(Source(queue))
        held = await receive_some(first, 2)
        assert bodies(held) == list("ab")[: len(held)]
        assert await second.receive(3, 0.5) == [], "another one holds messages: it was not its turn"
        if len(held) == 2:
            await first.complete(held.pop(0))
            assert await second.receive(3, 0.5) == [], "the other one still holds a message"
        await first.complete(held.pop())
        await first.close()
        rest = await drain(second, 1)
        assert bodies(rest + await second.receive(3, 0.5)) in (["c"], ["b", "c"])

    @capability("ordered_consumer", disclaimed=_one_consumer_is_refused)
    async def test_the_next_consumer_begins_with_what_the_last_one_gave_back(self, broker: Broker) -> None:
        """`QueueProperties.single_consumer`: while one holds a message no other one gets any; it may hold but one."""
        queue = await broker.queue(single_consumer=True)
        await broker.put(queue, *"abcd")
        first, second = broker.receiver(queue), broker.connect().receiver(Source(queue))
        held = await receive_some(first, 3)
        settled = len(held[1:2])  # what is held last is released
        waiting = asyncio.ensure_future(drain(second, 4 - settled))
        await asyncio.sleep(0.2)
        for delivery in held[:settled]:
            await first.complete(delivery)
        await first.close()
        assert bodies(await waiting) == list("abcd")[settled:], "nothing newer may come before what was released"

    @capability("ordered_consumer", disclaimed=_one_consumer_is_refused)
    async def test_the_next_consumer_begins_with_what_the_last_one_lost(self, broker: Broker) -> None:
        """`QueueProperties.single_consumer`: while one holds a message no other one gets any; it may hold but one."""
        queue = await broker.queue(single_consumer=True, short_locks=True)
        await broker.put(queue, *"abcd")
        first, second = broker.receiver(queue), broker.connect().receiver(Source(queue))
        await receive_one(first)
        await first.receive(1, 0.5)  # where it may hold two: this lock ends later than that of the first
        found: list[str] = []
        deadline = asyncio.get_running_loop().time() + broker.harness.lock_duration + limits().patience
        while len(found) < 4 and asyncio.get_running_loop().time() < deadline:
            # A machine that stands still may let the locks of the second end too: then it gets the same ones again.
            some = await second.receive(4, 1.0)
            found += [body for body in bodies(some) if body not in found]
            await second.complete_batch(some)
        assert found == list("abcd"), "nothing may pass what another one had locked"

    async def test_a_lock_that_ends_gives_the_message_to_another(self, broker: Broker) -> None:
        """A lock lasts for ``lock_duration`` unless renewed: then the message is redelivered, and counted."""
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "hello")
        first = await receive_one(broker.receiver(queue))
        # No sleep: the wait is the lock's, however long this broker's clock takes for it.
        again = await receive_one(
            broker.connect().receiver(Source(queue)), wait=broker.harness.lock_duration + limits().patience
        )
        assert again.message == first.message
        assert again.delivery_count >= 2, "the first delivery was not counted"

    async def test_a_locked_message_is_not_delivered_to_others(self, broker: Broker) -> None:
        """`Receiver`: peek-lock, so that no other receiver gets a message before its lock ends."""
        queue = await broker.queue(short_locks=False)
        await broker.put(queue, "hello")
        held = await receive_one(broker.receiver(queue))
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == [], f"{held} was given twice"

    @capability("lock_renewal", disclaimed=lambda broker: _locks_last_as_long_as_the_connection(broker))
    async def test_the_end_of_a_lock_is_reported(self, broker: Broker) -> None:
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "hello")
        before = datetime.now(UTC)
        delivery = await receive_one(broker.receiver(queue))
        assert delivery.locked_until is not None
        lasts = (delivery.locked_until - before).total_seconds()
        assert 0 < lasts < LONG_LOCK, (
            f"the lock was asked to last {broker.harness.lock_duration} s, and lasts {lasts} s"
        )

    async def test_a_cancelled_receive_loses_nothing(self, broker: Broker) -> None:
        """What a cancelled `receive` had fetched is delivered again, at the latest when the locks end."""
        queue = await broker.queue(short_locks=True)
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(10, _LONG_POLL))
        await asyncio.sleep(0.2)
        sending = asyncio.ensure_future(broker.put(queue, *"abcdef"))
        # Into the middle of what comes, at some moment or other.
        await asyncio.sleep(0.01)
        polling.cancel()
        given: list[Delivery] = []
        with contextlib.suppress(asyncio.CancelledError):
            given = await polling
        await sending
        deadline = asyncio.get_running_loop().time() + broker.harness.lock_duration + limits().patience
        found = {delivery.message.body for delivery in given}
        while len(found) < 6 and asyncio.get_running_loop().time() < deadline:
            some = await receiver.receive(6, 1.0)
            found |= {delivery.message.body for delivery in some}
            await receiver.complete_batch(some)
        assert found == {body.encode() for body in "abcdef"}

    async def test_a_cancelled_receive_takes_nothing_that_comes_later(self, broker: Broker) -> None:
        """A cancelled call returns control and loses nothing: no request for messages stays behind."""
        queue = await broker.queue()
        other = broker.connect().receiver(Source(queue))
        assert await other.receive(1, 0) == []
        for _ in range(3):  # on a stalled machine a broker may notice the end too late
            receiver = broker.receiver(queue)
            polling = asyncio.ensure_future(receiver.receive(10, _LONG_POLL))
            await asyncio.sleep(0.2)
            polling.cancel()
            await asyncio.wait((polling,), timeout=limits().patience)
            await asyncio.sleep(0.1)
            await broker.put(queue, "later")
            await asyncio.sleep(limits().slack / 2)  # a request that looks for messages now and then has found this one
            if await other.receive(1, limits().patience / 6):
                return
        raise AssertionError("the receive was cancelled, but a message sent afterwards is locked")

    async def test_a_cancelled_receive_leaves_what_was_received_locked(self, broker: Broker) -> None:
        """A cancelled call leaves the object usable: what an earlier call has returned can be settled."""
        queue = await broker.queue_with("hello")
        receiver = broker.receiver(queue)
        held = await receive_one(receiver)
        polling = asyncio.ensure_future(receiver.receive(1, _LONG_POLL))
        await asyncio.sleep(0.2)
        polling.cancel()
        await asyncio.wait((polling,), timeout=limits().patience)
        await receiver.complete(held)

    async def test_a_closed_receiver_releases_what_it_held(self, broker: Broker) -> None:
        """`Receiver.close` releases unsettled messages for redelivery."""
        queue = await broker.queue_with(*"abc")
        receiver = broker.receiver(queue)
        held = await receive_all(receiver, 3)
        await receiver.complete(held[0])
        await receiver.close()
        again = await receive_all(broker.connect().receiver(Source(queue)), 2)
        assert sorted(bodies(again)) == ["b", "c"], "what it had not settled has to be there, long before its lock ends"

    async def test_receivers_of_a_closed_transport_release_what_they_held(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        transport = broker.connect()
        await receive_all(transport.receiver(Source(queue)), 3)
        await transport.close()
        again = await receive_all(broker.receiver(queue), 3)
        assert sorted(bodies(again)) == list("abc"), "what they held has to be there, long before its lock ends"

    async def test_reading_ahead_takes_no_more_than_it_may_and_loses_nothing(self, broker: Broker) -> None:
        """`Receiver.read_ahead`: at most so many are locked, they come in order, and a close releases what is left."""
        queue = await broker.queue_with(*"abcdefgh")
        receiver, other = broker.receiver(queue), broker.connect().receiver(Source(queue))
        receiver.read_ahead(4)
        held = await receive_all(receiver, 3)
        assert bodies(held) == list("abc")
        found = await receive_all(other, 4)
        assert len(found) == 4, "it was to lock 4 of 8 messages at most"
        await receiver.complete(held[0])
        await receiver.close()
        found += await receive_all(other, 3)
        assert sorted(bodies(found)) == list("bcdefgh"), "what it had fetched and not settled has to be there"

    async def test_a_missing_source_is_reported(self, broker: Broker) -> None:
        """`Receiver.receive` raises where the source can't be read: reason *not-found*."""
        receiver = broker.receiver(MISSING)
        await must_fail(lambda: receiver.receive(1, 0.2), *NOT_FOUND)

    async def test_a_source_that_is_made_later_is_found_by_the_same_receiver(self, broker: Broker) -> None:
        entity = Entity("made-later")
        receiver = broker.receiver(entity)
        await must_fail(lambda: receiver.receive(1, 0.2), *NOT_FOUND)
        await broker.admin.create(entity)
        await broker.put(entity, "hello")
        assert bodies([await receive_one(receiver)]) == ["hello"]


async def _locks_last_as_long_as_the_connection(broker: Broker) -> None:
    queue = await broker.queue_with("hello")
    receiver = broker.receiver(queue)
    delivery = await receive_one(receiver)
    assert delivery.locked_until is None, "a lock that ends, and can't be renewed, would end under a slow send"
    await must_fail(lambda: receiver.renew_lock(delivery), *NOT_SUPPORTED)


async def _dead_lettering_is_refused(broker: Broker) -> None:
    queue = await broker.queue()
    receiver, delivery = await _one(broker, queue)
    await must_fail(
        lambda: receiver.dead_letter(delivery, "reason", "description"),
        *NOT_SUPPORTED,
    )
    await receiver.complete(delivery)  # what was refused left it locked


async def _renewing_is_refused(broker: Broker) -> None:
    queue = await broker.queue()
    receiver, delivery = await _one(broker, queue)
    await must_fail(lambda: receiver.renew_lock(delivery), *NOT_SUPPORTED)


class Settlement(Suite):
    """`Receiver.complete`, `abandon`, `dead_letter`, `renew_lock` and their batches."""

    async def test_a_completed_message_is_gone(self, broker: Broker) -> None:
        """`Receiver.complete` removes a message from the broker, confirmed."""
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await receiver.close()  # which would release it
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    async def test_settling_twice_is_a_lost_lock(self, broker: Broker) -> None:
        """`Receiver.complete` raises reason *lock-lost* for a delivery that is settled."""
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await must_fail(lambda: receiver.complete(delivery), *LOCK_LOST)

    async def test_an_abandoned_message_is_redelivered_and_counts(self, broker: Broker) -> None:
        """`Receiver.abandon` releases a message for immediate redelivery, with its delivery count incremented."""
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        again = await receive_one(receiver)
        assert again.message == delivery.message
        assert again.delivery_count == 2, "one delivery has to be counted, and no more"

    async def test_a_message_that_is_abandoned_often_stays_as_it_was(self, broker: Broker) -> None:
        """`Receiver.abandon`: without a ``max_delivery_count`` no redelivery loses a message, or a part of it."""
        queue = await broker.queue()
        (sent,) = await broker.put(queue, "hello", correlation_id="c", subject="s", application_properties={"key": 7})
        receiver, counted = broker.receiver(queue), 0
        for _ in range(5):
            delivery = await receive_one(receiver)
            assert delivery.message == sent
            assert delivery.delivery_count > counted
            counted = delivery.delivery_count
            await receiver.abandon(delivery)

    async def test_an_abandoned_message_is_another_receivers_too(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        again = await receive_one(broker.connect().receiver(Source(queue)))
        assert again.message == delivery.message

    async def test_a_batch_completes_all_of_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.sender(queue).send_batch([message(str(number)) for number in range(30)])
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 30)
        assert list(await receiver.complete_batch(deliveries)) == [None] * 30
        await receiver.close()
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    async def test_a_batch_of_none_completes(self, broker: Broker) -> None:
        queue = await broker.queue()
        assert list(await broker.receiver(queue).complete_batch([])) == []

    async def test_a_batch_says_which_of_it_was_settled_before(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abc")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 3)
        await receiver.complete(deliveries[1])
        outcomes = await receiver.complete_batch(deliveries)
        assert [error and error.reason for error in outcomes] == [None, FailureReason.LOCK_LOST, None]

    async def test_another_receivers_delivery_is_not_settled(self, broker: Broker) -> None:
        """A delivery is settled through the receiver that returned it; any other one raises *lock-lost*."""
        queue = await broker.queue_with("a")
        other = broker.receiver(queue)
        foreign = await receive_one(other)
        await must_fail(lambda: broker.receiver(queue).complete(foreign), *LOCK_LOST)
        await must_fail(lambda: broker.receiver(queue).abandon(foreign), *LOCK_LOST)
        await other.complete(foreign)  # it is still the other one's

    async def test_a_batch_says_which_of_it_is_another_receivers(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"ab")
        receiver, other = broker.receiver(queue), broker.receiver(queue)
        mine, foreign = await receive_one(receiver), await receive_one(other)
        outcomes = await receiver.complete_batch([foreign, mine])
        assert [error and error.reason for error in outcomes] == [FailureReason.LOCK_LOST, None]
        await other.complete(foreign)  # it is still the other one's

    async def test_settling_one_leaves_the_others_locked(self, broker: Broker) -> None:
        """`Receiver.abandon` and a settlement that fails are about one delivery; the others stay locked."""
        queue = await broker.queue_with(*"abc")
        receiver, other = broker.receiver(queue), broker.connect().receiver(Source(queue))
        held = await receive_all(receiver, 3)
        await receiver.abandon(held[0])
        await must_fail(lambda: receiver.complete(held[0]), *LOCK_LOST)
        again = await receive_one(other)
        assert again.message == held[0].message
        assert await other.receive(1, 0.3) == [], "a message that was not abandoned is released"
        assert list(await receiver.complete_batch(held[1:])) == [None, None]

    async def test_many_may_settle_at_once(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abcdefgh")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 8)
        await asyncio.gather(*map(receiver.complete, deliveries[:4]), *map(receiver.abandon, deliveries[4:]))
        assert sorted(bodies(await receive_all(receiver, 4))) == list("efgh")

    async def test_settling_does_not_wait_for_a_long_poll(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(limits().patience):
            await receiver.complete(delivery)
        await broker.put(queue, "next")
        async with asyncio.timeout(limits().patience):
            assert bodies(await polling) == ["next"]

    async def test_several_who_settle_one_after_the_other_do_not_wait_for_a_long_poll(self, broker: Broker) -> None:
        queue = await broker.queue_with(*"abcdefgh")
        receiver = broker.receiver(queue)
        deliveries = await receive_all(receiver, 8)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.2)
        async with asyncio.timeout(limits().patience), asyncio.TaskGroup() as settling:
            for delivery in deliveries:  # each, it may be, while the one before it is on its way
                settling.create_task(receiver.complete(delivery))
                await asyncio.sleep(0.0005)
        await broker.put(queue, "next")
        async with asyncio.timeout(limits().patience):
            assert bodies(await polling) == ["next"]

    async def test_a_lock_that_ended_settles_nothing(self, broker: Broker) -> None:
        """`Receiver.complete` and `abandon` raise reason *lock-lost* if the lock has expired."""
        queue = await broker.queue(short_locks=True)
        receiver, delivery = await _one(broker, queue)
        # It has certainly expired once another receiver has the message.
        other = broker.connect().receiver(Source(queue))
        again = await receive_one(other, wait=broker.harness.lock_duration + limits().patience)
        await must_fail(lambda: receiver.complete(delivery), *LOCK_LOST)
        await must_fail(lambda: receiver.abandon(delivery), *LOCK_LOST)
        assert again.message == delivery.message

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_a_renewed_lock_lasts_longer(self, broker: Broker) -> None:
        """`renew_lock` makes the lock last its whole duration from now: no other receiver gets the message."""
        queue = await broker.queue(short_locks=True)
        await broker.put(queue, "hello")
        receiver, other = broker.receiver(queue), broker.connect()
        while not await _held_for_longer(broker, receiver, other.receiver(Source(queue))):
            pass  # this machine stalled for as long as a lock: once more

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_the_delivery_that_was_renewed_settles_just_as_well(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.renew_lock(delivery)
        await receiver.complete(delivery)

    @capability("lock_renewal", disclaimed=_renewing_is_refused)
    async def test_the_lock_of_a_settled_message_is_lost(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.complete(delivery)
        await must_fail(lambda: receiver.renew_lock(delivery), *LOCK_LOST)

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_keeps_message_reason_and_description(self, broker: Broker) -> None:
        queue = await broker.queue()
        (sent,) = await broker.put(queue, "poison", subject="a subject", application_properties={"key": 1})
        receiver = broker.receiver(queue)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "A description in a sentence, with ä.")
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message == sent
        given = (dead.dead_letter_reason, dead.dead_letter_description)
        assert given == ("a reason", "A description in a sentence, with ä.")

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_is_gone_from_its_queue(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.dead_letter(delivery, "a reason", "a description")
        await receiver.close()
        assert await broker.connect().receiver(Source(queue)).receive(1, 0.3) == []

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_description_of_any_length_is_taken(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        text = "ä long description. " * 10_000
        await receiver.dead_letter(delivery, "a reason", text)
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        described = dead.dead_letter_description or ""
        assert described and text.startswith(described.rstrip("…. ")), "it may be cut, and nothing else"

    @limit("max_message_bytes")
    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_the_largest_message_can_be_dead_lettered(self, broker: Broker) -> None:
        """`dead_letter` moves any delivery; it is the description that is cut to what the broker takes."""
        queue = await broker.queue()
        sender, receiver = broker.sender(queue), broker.receiver(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        await receiver.complete(await receive_one(receiver))
        largest = of_size(broker)
        await sender.send(largest)
        await receiver.dead_letter(await receive_one(receiver), "a reason", "a long description. " * 200)
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message.body == largest.body
        assert dead.dead_letter_reason == "a reason"

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_dead_letter_can_be_completed_there(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.dead_letter(delivery, "a reason", "a description")
        dead = broker.receiver(Source(queue, dead_letter=True))
        await dead.complete(await receive_one(dead))
        await dead.close()
        assert await broker.connect().receiver(Source(queue, dead_letter=True)).receive(1, 0.3) == []

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_message_that_was_delivered_too_often_is_dead_lettered(self, broker: Broker) -> None:
        queue = await broker.queue(max_delivery_count=2)
        if (await broker.admin.properties(queue)).max_delivery_count != 2:
            return  # the broker has no such limit, as reported
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        await receiver.abandon(await receive_one(receiver))
        assert await receiver.receive(1, 0.5) == [], "it came a third time"
        dead = await receive_one(broker.receiver(Source(queue, dead_letter=True)))
        assert dead.message == delivery.message

    @capability("dead_letter", disclaimed=_dead_lettering_is_refused)
    async def test_a_lock_that_ended_dead_letters_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver, delivery = await _one(broker, queue)
        await receiver.abandon(delivery)
        await must_fail(lambda: receiver.dead_letter(delivery, "a reason", "a description"), *LOCK_LOST)


async def _held_for_longer(broker: Broker, receiver: Receiver, other: Receiver) -> bool:
    """Hold a message for one and a half times as long as an unrenewed lock, while another one waits for it."""
    clock = LockClock(broker.harness.lock_duration)
    clock.ask()
    delivery = await receive_one(receiver)
    clock.begin()
    waiting = asyncio.ensure_future(other.receive(1, 300.0))
    try:
        for _ in range(5):
            await asyncio.wait((waiting,), timeout=broker.harness.lock_duration * 0.3)
            if waiting.done():
                given = await waiting
                assert not given or clock.is_over, "another receiver got the message whose lock is renewed"
                return False
            clock.ask()
            renewed = await receiver.renew_lock(delivery)
            clock.begin()
            assert renewed.message == delivery.message
            if delivery.locked_until is not None:
                assert renewed.locked_until is not None and renewed.locked_until > delivery.locked_until
            delivery = renewed
        await receiver.complete(delivery)
    except TransportError as error:
        if not clock.excuses(error):
            raise
        return False
    else:
        return True
    finally:
        waiting.cancel()
        await asyncio.wait((waiting,), timeout=limits().patience)
        await other.close()  # which releases its messages


async def _one(broker: Broker, queue: Entity) -> tuple[Receiver, Delivery]:
    """A receiver that holds one message."""
    await broker.put(queue, "hello")
    receiver = broker.receiver(queue)
    return receiver, await receive_one(receiver)

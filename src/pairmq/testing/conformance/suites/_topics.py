"""Topics and sessions.

Each subscription gets its own copy of every message, from its making on. A session has one reader at a time, its order,
its lock and its state.
"""

from __future__ import annotations

import asyncio

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Source, TransportError
from pairmq.testing.conformance._broker import (
    Broker,
    Suite,
    bodies,
    capability,
    counted,
    message,
    must_fail,
    receive_all,
    receive_one,
    refusal,
    refused,
)
from pairmq.testing.conformance._limits import limits
from pairmq.testing.conformance.suites._timing import LockClock
from pairmq.transport import QueueCounts, QueueProperties, SessionReceiver

_TOPIC = Entity("news", EntityKind.TOPIC)
_ALICE = Source(_TOPIC, "alice")
_NOT_FOUND = (FailureKind.REFUSED, FailureReason.NOT_FOUND)


async def _make_topic(broker: Broker) -> object:
    return await broker.admin.create(_TOPIC)


async def _send_to_topic(broker: Broker) -> None:
    await broker.sender(_TOPIC).send(message("hello"))


async def _receive_from_topic(broker: Broker) -> object:
    return await broker.receiver(_ALICE).receive(1, 0)


async def _subscribe(broker: Broker) -> object:
    return await broker.admin.create_subscription(_TOPIC, "alice")


class Topics(Suite):
    """`Admin.create_subscription`, and what is sent to a topic and received from its subscriptions."""

    @capability("topics", disclaimed=refused(_make_topic))
    async def test_a_topic_exists_from_its_making_to_its_end(self, broker: Broker) -> None:
        assert not await broker.admin.exists(_TOPIC)
        assert await broker.admin.create(_TOPIC) is True
        assert await broker.admin.create(_TOPIC) is False
        assert await broker.admin.exists(_TOPIC)
        assert await broker.admin.delete(_TOPIC) is True
        assert not await broker.admin.exists(_TOPIC)

    @capability("topics", disclaimed=refused(_send_to_topic))
    async def test_every_subscription_gets_every_message_in_order(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, *"abc")
        for name in ("alice", "bob"):
            assert bodies(await receive_all(broker.receiver(Source(topic, name)), 3)) == list("abc")

    @capability("topics", disclaimed=refused(_send_to_topic))
    async def test_a_batch_reaches_every_subscription_in_order(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        batch = [message(str(number)) for number in range(20)]
        assert list(await broker.sender(topic).send_batch(batch)) == [None] * 20
        for name in ("alice", "bob"):
            assert bodies(await receive_all(broker.receiver(Source(topic, name)), 20)) == [str(n) for n in range(20)]

    @capability("topics", disclaimed=refused(_receive_from_topic))
    async def test_what_one_subscription_completes_the_other_still_has(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, "hello")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.complete(await receive_one(alice))
        assert bodies(await receive_all(broker.receiver(Source(topic, "bob")), 1)) == ["hello"]
        await alice.close()
        assert await broker.connect().receiver(Source(topic, "alice")).receive(1, 0.3) == []

    @capability("topics", disclaimed=refused(_subscribe))
    async def test_a_subscription_gets_messages_from_its_making_on(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        await broker.put(topic, "before")
        assert await broker.admin.create_subscription(topic, "bob") is True
        assert await broker.admin.create_subscription(topic, "bob") is False
        await broker.put(topic, "after")
        assert bodies(await receive_all(broker.receiver(Source(topic, "bob")), 1)) == ["after"]

    @capability("topics", disclaimed=refused(_subscribe))
    async def test_counts_are_each_subscriptions_own(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, *"ab")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.complete(await receive_one(alice))
        for name, waiting in (("alice", QueueCounts(active=1)), ("bob", QueueCounts(active=2))):
            assert await counted(broker.admin, Source(topic, name), waiting) == waiting

    @capability("topics", disclaimed=refused(_send_to_topic))
    @capability("dead_letter", disclaimed=lambda broker: _no_dead_letters_of_topics(broker))
    async def test_a_subscription_has_a_dead_letter_queue_of_its_own(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, "poison")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.dead_letter(await receive_one(alice), "a reason", "a description")
        dead = await receive_one(broker.receiver(Source(topic, "alice", dead_letter=True)))
        assert (dead.message.body, dead.dead_letter_reason) == (b"poison", "a reason")
        waiting = QueueCounts(active=1)
        assert await counted(broker.admin, Source(topic, "bob"), waiting) == waiting

    @capability("topics", disclaimed=refused(_send_to_topic))
    async def test_a_missing_topic_is_reported(self, broker: Broker) -> None:
        await must_fail(lambda: _send_to_topic(broker), *_NOT_FOUND)

    @capability("topics", disclaimed=refused(_subscribe))
    async def test_a_subscription_of_a_missing_topic_is_not_found(self, broker: Broker) -> None:
        await must_fail(lambda: _subscribe(broker), *_NOT_FOUND)

    @capability("topics", disclaimed=refused(_receive_from_topic))
    async def test_a_missing_subscription_is_reported(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        receiver = broker.receiver(Source(topic, "nobody"))
        await must_fail(lambda: receiver.receive(1, 0.2), *_NOT_FOUND)

    @capability("topics", disclaimed=refused(_make_topic))
    async def test_a_queue_is_no_topic_and_a_topic_no_queue(self, broker: Broker) -> None:
        queue, topic = await broker.queue(), await broker.topic()
        assert not await broker.admin.exists(Entity(queue.path, EntityKind.TOPIC))
        assert not await broker.admin.exists(Entity(topic.path, EntityKind.QUEUE))


async def _no_dead_letters_of_topics(broker: Broker) -> None:
    topic = await broker.topic("alice")
    await broker.put(topic, "hello")
    alice = broker.receiver(Source(topic, "alice"))
    delivery = await receive_one(alice)
    await must_fail(
        lambda: alice.dead_letter(delivery, "a reason", "a description"),
        FailureKind.REFUSED,
        FailureReason.NOT_SUPPORTED,
    )


async def _accept(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), wait=0.2)


async def _accept_by_name(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), "a", wait=0.2)


async def _make(broker: Broker) -> object:
    return await broker.admin.create(Entity("by-session"), QueueProperties(requires_session=True))


class Sessions(Suite):
    """`Transport.accept_session` and `SessionReceiver`."""

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_session_is_read_alone_and_in_order(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body, session in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")):
            await broker.put(queue, body, session_id=session)
        receiver = await _session(broker, queue, "a")
        assert receiver.session_id == "a"
        assert bodies(await receive_all(receiver, 3)) == ["a1", "a2", "a3"]
        assert await receiver.receive(1, 0.3) == []

    @capability("sessions", disclaimed=refused(_accept))
    async def test_the_next_free_session_is_one_that_has_messages(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await broker.put(queue, "b1", session_id="b")
        first, second = await _session(broker, queue), await _session(broker, queue)
        assert {first.session_id, second.session_id} == {"a", "b"}

    @capability("sessions", disclaimed=refused(_accept))
    async def test_none_is_given_when_none_is_free_in_time(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        assert await broker.transport.accept_session(Source(queue), wait=0.3) is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_locked_session_is_not_delivered_to_others(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await _session(broker, queue, "a")
        assert await broker.connect().accept_session(Source(queue), "a", wait=0.3) is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_closed_session_is_the_next_ones_with_what_was_not_settled(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body in ("a1", "a2"):
            await broker.put(queue, body, session_id="a")
        first = await _session(broker, queue, "a")
        deliveries = await receive_all(first, 2)
        await first.complete(deliveries[0])
        await first.close()
        assert bodies(await receive_all(await _session(broker, queue, "a"), 1)) == ["a2"]

    @capability("sessions", disclaimed=refused(_accept))
    async def test_a_waiting_reader_gets_the_session_that_comes(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        waiting = asyncio.ensure_future(broker.transport.accept_session(Source(queue), wait=limits().patience))
        await asyncio.sleep(0.3)
        await broker.put(queue, "a1", session_id="a")
        receiver = await waiting
        assert receiver is not None and receiver.session_id == "a"

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_the_state_outlives_its_reader(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        first = await _session(broker, queue, "a")
        assert await first.get_state() is None
        await first.set_state(b"\x00 half way \xff")
        await first.close()
        second = await _session(broker, queue, "a")
        assert await second.get_state() == b"\x00 half way \xff"
        await second.set_state(None)
        assert await second.get_state() is None

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_renewed_session_lock_lasts_longer(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        clock = LockClock(broker.harness.lock_duration)
        while not await _held_for_longer(broker, queue, clock):
            pass  # this machine stalled for as long as a lock: once more

    @capability("sessions", disclaimed=refused(_accept_by_name))
    async def test_a_lost_session_lock_is_reported(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        receiver = await _session(broker, queue, "a")
        delivery = await receive_one(receiver)
        wait = broker.harness.lock_duration + limits().patience
        other = await broker.connect().accept_session(Source(queue), "a", wait=wait)
        assert other is not None, "the lock did not end"
        lost = (FailureKind.REFUSED, FailureReason.LOCK_LOST)
        await must_fail(lambda: receiver.complete(delivery), *lost)
        await must_fail(receiver.renew_session_lock, *lost)
        assert (await receive_one(other)).message == delivery.message

    @capability("sessions", disclaimed=refused(_accept))
    async def test_a_queue_without_sessions_has_none_to_accept(self, broker: Broker) -> None:
        await must_fail(lambda: _accept(broker), FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)

    @capability("sessions", disclaimed=refused(_make))
    async def test_a_message_without_a_session_is_refused_where_one_is_required(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        sender = broker.sender(queue)
        assert refusal(broker, queue, message("kept", session_id="a")) is None
        await sender.send(message("kept", session_id="a"))
        await must_fail(lambda: sender.send(message("lost")), FailureKind.REFUSED)
        assert refusal(broker, queue, message("lost")) is not None, "a backlog would take it, and never deliver it"


async def _held_for_longer(broker: Broker, queue: Entity, clock: LockClock) -> bool:
    """Hold a session for one and a half times as long as an unrenewed lock; False after a standstill."""
    clock.ask()
    receiver = await _session(broker, queue, "a")
    clock.begin()
    try:
        delivery = await receive_one(receiver)
        for _ in range(5):
            await asyncio.sleep(broker.harness.lock_duration * 0.3)
            before = receiver.locked_until
            clock.ask()
            assert await receiver.renew_session_lock() > before
            clock.begin()
        await receiver.complete(delivery)
    except TransportError as error:
        if not clock.excuses(error):
            raise
        return False
    return True


async def _session(broker: Broker, queue: Entity, name: str | None = None) -> SessionReceiver:
    receiver = await broker.transport.accept_session(Source(queue), name, wait=limits().patience)
    assert receiver is not None, "no session was free"
    return receiver

"""What topics keep: each subscription gets its own copy of every message, from its making on."""

from __future__ import annotations

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Source
from pairmq.testing.conformance._broker import Broker, bodies, counted, message, receive_all, receive_one
from pairmq.testing.conformance._capabilities import capability, must_fail, refused
from pairmq.testing.conformance._suite import Suite
from pairmq.transport import QueueCounts

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
    """Entities of the kind topic, and subscriptions."""

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
    async def test_a_missing_topic_is_told(self, broker: Broker) -> None:
        await must_fail(lambda: _send_to_topic(broker), *_NOT_FOUND)

    @capability("topics", disclaimed=refused(_subscribe))
    async def test_a_subscription_of_a_missing_topic_is_not_found(self, broker: Broker) -> None:
        await must_fail(lambda: _subscribe(broker), *_NOT_FOUND)

    @capability("topics", disclaimed=refused(_receive_from_topic))
    async def test_a_missing_subscription_is_told(self, broker: Broker) -> None:
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

"""What a probe keeps: it fails where a send would, and nobody ever sees it (SPEC 6.2)."""

from __future__ import annotations

import asyncio

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Source
from pairmq.testing.conformance._broker import PATIENCE, Broker, bodies, receive_one
from pairmq.testing.conformance._capabilities import capability, must_fail, refused
from pairmq.testing.conformance._suite import Suite
from pairmq.testing.conformance.suites._timing import cut_off


async def _probe(broker: Broker) -> None:
    await broker.admin.probe(await broker.queue())


class Probe(Suite):
    """`Admin.probe`."""

    @capability("probes", disclaimed=refused(_probe))
    async def test_it_passes_where_sends_pass(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "hello")
        await broker.admin.probe(queue)

    @capability("probes", disclaimed=refused(_probe))
    async def test_no_consumer_ever_sees_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.connect().receiver(Source(queue))
        polling = asyncio.ensure_future(receiver.receive(10, 300.0))
        await asyncio.sleep(0.3)
        for _ in range(5):
            await broker.admin.probe(queue)
        await asyncio.sleep(0.3)
        await broker.put(queue, "a message")
        async with asyncio.timeout(PATIENCE):
            found = bodies(await polling)
        assert found == ["a message"], f"a waiting consumer got {found}"

    @capability("probes", disclaimed=refused(_probe))
    async def test_it_leaves_nothing_behind(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "a message")
        before = await broker.admin.counts(Source(queue))
        for _ in range(3):
            await broker.admin.probe(queue)
        receiver = broker.receiver(queue)
        await receiver.complete(await receive_one(receiver))
        assert await receiver.receive(1, 0.3) == [], "a consumer got a probe"
        after = await broker.admin.counts(Source(queue))
        assert (before.pending, after.pending, after.dead_letter) == (1, 0, 0)

    @capability("probes", disclaimed=refused(_probe))
    async def test_a_missing_entity_fails_it(self, broker: Broker) -> None:
        missing = Entity("there-is-no-such-queue")
        await must_fail(lambda: broker.admin.probe(missing), FailureKind.REFUSED, FailureReason.NOT_FOUND)

    @capability("topics", disclaimed=refused(lambda broker: broker.admin.create(Entity("news", EntityKind.TOPIC))))
    @capability("probes", disclaimed=refused(_probe))
    async def test_a_topic_is_probed_as_well(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        await broker.admin.probe(topic)
        assert await broker.receiver(Source(topic, "alice")).receive(1, 0.3) == [], "a subscriber got a probe"
        missing = Entity("no-such-news", EntityKind.TOPIC)
        await must_fail(lambda: broker.admin.probe(missing), FailureKind.REFUSED, FailureReason.NOT_FOUND)

    @capability("probes", disclaimed=refused(_probe))
    async def test_a_stopped_broker_fails_it_until_it_is_back(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.stop()
        for _ in range(2):
            async with asyncio.timeout(PATIENCE):
                await must_fail(lambda: broker.admin.probe(queue), FailureKind.UNAVAILABLE)
        await broker.restore()
        await broker.admin.create(queue)  # where the broker keeps nothing
        await broker.admin.probe(queue)

    @capability("probes", disclaimed=refused(_probe))
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

    @capability("probes", disclaimed=refused(_probe))
    async def test_a_frozen_broker_fails_it_by_its_limit(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.freeze()
        await cut_off(broker.admin.probe(queue))
        await broker.restore()
        await broker.admin.probe(queue)
        await broker.put(queue, "a message")
        assert bodies([await receive_one(broker.receiver(queue))]) == ["a message"]

    @capability("probes", disclaimed=refused(_probe))
    async def test_an_entity_that_was_probed_and_deleted_fails_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.admin.probe(queue)
        await broker.admin.delete(queue)
        told = await must_fail(lambda: broker.admin.probe(queue))
        if told.kind is FailureKind.UNAVAILABLE:  # the link went with the entity; the next probe knows
            told = await must_fail(lambda: broker.admin.probe(queue))
        assert (told.kind, told.reason) == (FailureKind.REFUSED, FailureReason.NOT_FOUND)

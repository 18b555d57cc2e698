"""A pair whose primary is a Redis Cluster: slots move while in use, masters are demoted, killed, and hang."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from outage_traffic import QUEUE, Hands, Traffic, traffic
from pairmq import Entity, Message
from pairmq.model import Source
from pairmq_redis.testing import RedisCluster, RedisServer

pytestmark = pytest.mark.real_server

PATIENT = {"failover_interval": 60.0, "attempt_timeout": 60.0, "send_timeout": 120.0}
"""With these a busy machine brings no failover."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    with RedisCluster(replicas=request.param, password="p/ß") as cluster:
        yield cluster


@asynccontextmanager
async def sending(cluster: RedisCluster, hands: Hands, **changed: float) -> AsyncIterator[Traffic]:
    url = f"{cluster.url}?connect_timeout=30&poll_interval=0.2"
    async with traffic(url, f"memory://{uuid4().hex}", hands, timeouts=(120.0,), **{**PATIENT, **changed}) as under:
        yield under


@pytest.mark.parametrize("cluster", [0], indirect=True)
async def test_sends_and_receivers_follow_a_slot_that_moves(cluster: RedisCluster, hands: Hands) -> None:
    async with sending(cluster, hands) as under:
        other = Entity("invoices")  # in a slot of another node
        await under.pair.primary.admin.create(other)
        taken: list[str] = []
        ends = asyncio.Event()

        async def consume() -> None:
            receiver = under.pair.primary.receiver(Source(Entity(QUEUE)))
            while not ends.is_set():
                for delivery in await receiver.receive(20, 0.5):
                    await receiver.complete(delivery)
                    taken.append(delivery.message.message_id or "")
            await receiver.close()

        consumer = asyncio.create_task(consume())
        for turn in range(3):
            owner = cluster.owner(QUEUE)
            to = next(server for server in cluster.servers if server is not owner)
            await hands(lambda to=to, turn=turn: cluster.move(QUEUE, to, pause=0.15 * turn))
            await under.some(20)
            batch = [Message(b"", message_id=f"batch-{turn}-{number}") for number in range(600)]
            await under.pair.primary.sender(other).send_batch(batch)
        found = await under.pair.primary.admin.list_entities()
        assert {QUEUE, other.path} <= {entity.path for entity in found}
        ends.set()
        await consumer
        await under.stop()
        taken += await under.taken()
        under.report("slots moved", taken)
        under.check_never_diverted()
        under.check_books(taken)


@pytest.mark.parametrize("cluster", [1], indirect=True)
@pytest.mark.parametrize("fault", [RedisServer.kill, RedisServer.pause])
async def test_a_lost_master_loses_nothing_that_its_replica_has(
    cluster: RedisCluster, hands: Hands, fault: Callable[[RedisServer], None]
) -> None:
    async with sending(cluster, hands, attempt_timeout=2.0) as under:
        owner = cluster.owner(QUEUE)
        await under.halt()
        while f"offset={owner.info('master_repl_offset')}," not in owner.info("slave0"):
            await asyncio.sleep(0.05)
        await under.hit(lambda: fault(owner))
        under.flow()
        await under.some(60)
        await under.heal(cluster.start)
        await under.check_all_accepted(f"{fault.__name__} the master")


@pytest.mark.parametrize("cluster", [1], indirect=True)
async def test_sends_follow_a_promotion(cluster: RedisCluster, hands: Hands) -> None:
    """One that an operator asks for loses nothing: the replica has everything first."""
    async with sending(cluster, hands) as under:
        await hands(lambda: cluster.demote(QUEUE))
        await under.check_all_accepted("promoted replica")

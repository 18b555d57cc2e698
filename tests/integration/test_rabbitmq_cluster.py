"""A pair whose primary is a RabbitMQ cluster of three nodes: what a lost node costs, and that nothing fails over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from uuid import uuid4

import pytest

from outage_traffic import QUEUE, Hands, Traffic, traffic, until
from pairmq import Entity, EntityState, Message, Receipt, Route
from pairmq.model import FailureKind, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import TcpProxy
from pairmq_rabbitmq.testing import RabbitCluster, RabbitServer
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

PATIENT = {"failover_interval": 60.0, "attempt_timeout": 10.0, "send_timeout": 120.0}
"""With these a busy machine brings no failover; without one nothing is diverted."""


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[RabbitCluster]:
    # With Erlang's 60 s a leader that hangs would be given up that late.
    with RabbitCluster(net_ticktime=8, divisible=True) as cluster:
        yield cluster


@pytest.fixture
async def cluster(started_cluster: RabbitCluster, hands: Hands) -> RabbitCluster:
    """Three running nodes that hold nothing."""
    await hands(started_cluster.start)
    await hands(started_cluster.nodes[0].reset)
    return started_cluster


def connected(under: Traffic, cluster: RabbitCluster) -> RabbitServer:
    """The node that the pair's sends go to."""
    return next(each for each in cluster.nodes if str(under.pair.primary.node).endswith(f":{each.port}"))


@asynccontextmanager
async def sending(cluster: RabbitCluster, hands: Hands, queue_type: str = "quorum") -> AsyncIterator[Traffic]:
    url = f"{cluster.url}?queue_type={queue_type}&connect_timeout=30"
    async with traffic(url, f"memory://{uuid4().hex}", hands, timeouts=(120.0,), **PATIENT) as under:
        yield under


async def all_accepted(under: Traffic, what: str) -> None:
    """The cluster accepted every send, and holds each message; second copies only where receipts say so."""
    await under.some()
    await under.stop()
    found = await under.taken()
    ends = sorted(sent.ended for sent in under.sends)
    took = sorted(sent.ended - sent.began for sent in under.sends)
    gap = max(after - before for before, after in pairwise(ends))
    print(
        f"MEASURED {what}: {len(took)} sends, the longest {took[-1]:.2f} s, p99 {took[len(took) * 99 // 100]:.2f} s, "
        f"none was accepted for {gap:.2f} s"
    )
    under.report(what, found)
    assert [sent for sent in under.sends if not isinstance(sent.result, Receipt)] == []
    under.check_never_diverted()
    under.check_doubts()
    under.check_books(found)


async def test_a_killed_node_costs_no_failover(cluster: RabbitCluster, hands: Hands) -> None:
    async with sending(cluster, hands) as under:
        killed = connected(under, cluster)
        await under.hit(killed.kill)
        await under.some(100)
        assert connected(under, cluster) is not killed
        await under.heal(killed.start)
        await all_accepted(under, "killed node")


@pytest.mark.long  # a boot has two minutes
async def test_a_boot_that_hangs_is_begun_again(cluster: RabbitCluster, hands: Hands) -> None:
    node = cluster.nodes[2]
    await hands(node.kill)
    async with asyncio.TaskGroup() as tasks:
        start = tasks.create_task(hands(node.start))
        await until(lambda: node.running)
        hung = node.pid
        node.pause()
        await until(lambda: start.done(), 500)
    assert node.pid != hung
    await hands(cluster.start)


@pytest.mark.long  # each node boots once more
async def test_a_rolling_restart_costs_no_failover(cluster: RabbitCluster, hands: Hands) -> None:
    async with sending(cluster, hands) as under:
        for node in cluster.nodes:
            await under.hit(node.stop)
            await under.some()
            await under.heal(cluster.start)
            await under.some()
        await all_accepted(under, "rolling restart")


async def test_nodes_in_maintenance_one_after_the_other_cost_no_failover(cluster: RabbitCluster, hands: Hands) -> None:
    async with sending(cluster, hands) as under:
        for _ in cluster.nodes:
            node = connected(under, cluster)
            await under.hit(partial(node.erl, "rabbit_maintenance:drain()"))  # as `rabbitmq-upgrade drain`
            await under.some()
            assert connected(under, cluster) is not node
            await under.heal(partial(node.erl, "rabbit_maintenance:revive()"))
            await under.some()
        await all_accepted(under, "nodes in maintenance")


async def test_a_leader_that_moves_costs_nothing(cluster: RabbitCluster, hands: Hands) -> None:
    async with sending(cluster, hands) as under:
        for node in cluster.nodes:
            await under.hit(partial(cluster.move_leader, QUEUE, node))
            await under.some()
        await all_accepted(under, "moved leader")


@pytest.mark.long  # each node boots once more
async def test_all_nodes_killed_at_once_are_an_outage_like_that_of_one_server(
    cluster: RabbitCluster, hands: Hands
) -> None:
    url = f"{cluster.url}?queue_type=quorum&connect_timeout=30"
    async with traffic(url, f"memory://{uuid4().hex}", hands) as under:
        for node in cluster.nodes:
            await hands(node.settle)
        await under.hit(*(partial(node.kill, settle=False) for node in cluster.nodes))
        await under.failover()
        await under.outage()
        await under.heal(cluster.start)
        await under.recovery()
        await under.steady()
        await under.stop()
        await under.drained()
        found = await under.taken()
        under.report("all nodes killed", found)
        under.check_doubts()
        under.check_books(found)


async def test_nodes_that_are_black_holes_are_passed_by(cluster: RabbitCluster, hands: Hands) -> None:
    """Two nodes accept connections and never say a word."""
    with TcpProxy("127.0.0.1", cluster.nodes[0].port) as one, TcpProxy("127.0.0.1", cluster.nodes[1].port) as other:
        one.silence()
        other.silence()
        holes = f"127.0.0.1:{one.port},127.0.0.1:{other.port}"
        url = f"amqp://guest:guest@{holes},127.0.0.1:{cluster.nodes[2].port}/?queue_type=quorum&connect_timeout=30"
        async with traffic(url, f"memory://{uuid4().hex}", hands, timeouts=(120.0,), **PATIENT) as under:
            await all_accepted(under, "two black holes")


async def test_a_classic_queue_fails_over_while_its_node_is_down(cluster: RabbitCluster, hands: Hands) -> None:
    url = f"{cluster.url}?queue_type=classic&connect_timeout=30"
    async with traffic(url, f"memory://{uuid4().hex}", hands) as under:
        node = await hands(cluster.leader_of, QUEUE)
        await under.hit(node.kill)
        await under.failover()
        await under.outage()
        assert under.pair.primary.node is not None
        await under.heal(cluster.start)
        await under.recovery()
        await under.steady()
        await under.stop()
        await under.drained()
        found = await under.taken()
        under.report("classic queue, its node killed", found)
        under.check_failed_over()
        under.check_doubts()
        under.check_books(found)


@pytest.mark.parametrize("at", ["the leader", pytest.param("a follower", marks=pytest.mark.long)])
async def test_a_stopped_leader_costs_no_failover_when_connected_to(
    cluster: RabbitCluster, hands: Hands, at: str
) -> None:
    async with sending(cluster, hands) as under:
        node = connected(under, cluster)
        leader = node if at == "the leader" else next(each for each in cluster.nodes if each is not node)
        await hands(cluster.move_leader, QUEUE, leader)
        await under.hit(leader.pause)
        await under.some()
        await under.heal(leader.resume)
        await all_accepted(under, f"stopped leader, connected to {at}")
        # One that was down for the others may not come back by itself.
        await hands(leader.restart)


async def test_what_is_locked_through_a_lost_node_is_redelivered(cluster: RabbitCluster, hands: Hands) -> None:
    """The queues' leader is on another node, and does not requeue what a cancelled consumer of the lost one holds.

    All ways to read lose one node: a kill and a boot cost more than the rest.
    """
    ways = ("what it asks for", "ahead", "ahead, and then no more")
    queues = {reads: Entity(f"locked-{uuid4().hex}") for reads in ways}
    leader, node, _ = cluster.nodes
    async with registry.transport(f"{node.url}?queue_type=quorum") as far:
        for reads, queue in queues.items():
            await far.admin.create(queue)
            await hands(cluster.move_leader, queue.path, leader)
            await far.sender(queue).send_batch([Message(b"%d" % number) for number in range(30)])
            receiver = far.receiver(Source(queue))
            if reads != "what it asks for":
                receiver.read_ahead(10)
            taken = 0
            while taken < 10:
                taken += len(await receiver.receive(10 - taken, 60.0))
            if reads == "ahead, and then no more":
                receiver.read_ahead(0)
                assert len(await receiver.receive(1, 0.0)) == 1
        await hands(node.kill)
    found: dict[str, set[bytes]] = {reads: set() for reads in ways}
    async with registry.transport(f"{leader.url}?queue_type=quorum") as near:
        for reads, queue in queues.items():
            receiver = near.receiver(Source(queue))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(60.0):
                    while len(found[reads]) < 30:
                        found[reads].update(delivery.message.body for delivery in await receiver.receive(30, 60.0))
    assert {reads: len(bodies) for reads, bodies in found.items()} == dict.fromkeys(ways, 30)


@pytest.mark.parametrize(
    "silently", [pytest.param(False, marks=pytest.mark.long, id="cut"), pytest.param(True, id="silent")]
)
async def test_a_node_in_the_minority_costs_no_failover(cluster: RabbitCluster, hands: Hands, silently: bool) -> None:
    """It leads the queue, and has the connection: it pauses, and the majority serves."""
    async with sending(cluster, hands) as under:
        alone = connected(under, cluster)
        await hands(cluster.move_leader, QUEUE, alone)
        await under.hit(partial(cluster.isolate, alone, silently=silently))
        await until(lambda: not str(under.pair.primary.node).endswith((f":{alone.port}", "None")))
        await under.some(100)
        while await hands(alone.erl, "rabbit:is_running()") != "false":  # it tells no one
            await asyncio.sleep(0.2)
        async with registry.transport(alone.url) as minority:
            with pytest.raises(TransportError) as refused:
                await minority.admin.exists(Entity(QUEUE))
        assert refused.value.kind is FailureKind.UNAVAILABLE
        await under.heal(cluster.start)
        await all_accepted(under, f"minority, {'silent' if silently else 'cut'}")


@pytest.fixture(scope="module")
def started_careless() -> Iterator[RabbitCluster]:
    # RabbitMQ's default: a node that is left alone takes clients and pings, and its quorum queues have no leader.
    with RabbitCluster(partition_handling="ignore", net_ticktime=8) as cluster:
        yield cluster


@pytest.fixture
async def careless(started_careless: RabbitCluster, hands: Hands) -> RabbitCluster:
    """Three running nodes that hold nothing."""
    await hands(started_careless.start)
    await hands(started_careless.nodes[0].reset)
    return started_careless


async def left_alone(cluster: RabbitCluster, address: object, hands: Hands) -> tuple[Callable[[], None], ...]:
    """What kills all nodes at once but the one that a transport is connected to."""
    for node in cluster.nodes:
        await hands(node.settle)
    return tuple(
        partial(node.kill, settle=False) for node in cluster.nodes if not str(address).endswith(f":{node.port}")
    )


async def all_moved_back(under: Traffic, what: str) -> None:
    """The primary takes messages again, and in the end has what was accepted, and no copy without a word about it."""
    await until(lambda: under.sends[-1].began > under.healed_at and not under.sends[-1].diverted, 200)
    await under.some()
    await under.stop()
    await under.drained()
    found = await under.taken()
    under.report(what, found)
    under.check_deadlines()
    under.check_doubts()
    under.check_books(found)


@pytest.mark.long
async def test_a_queue_without_a_leader_fails_over_again_whenever_a_ping_ends_that_and_loses_nothing(
    careless: RabbitCluster, hands: Hands
) -> None:
    url = f"{careless.url}?queue_type=quorum&connect_timeout=30"
    async with traffic(url, f"memory://{uuid4().hex}", hands) as under:
        await under.hit(*(await left_alone(careless, under.pair.primary.node, hands)))
        for _ in range(3):
            await until(lambda: under.pair.state(QUEUE) is EntityState.FAILED_OVER)
            await until(lambda: under.pair.state(QUEUE) is not EntityState.FAILED_OVER)
        await until(lambda: under.pair.state(QUEUE) is EntityState.FAILED_OVER)
        await under.outage()
        await under.heal(careless.start)
        sends = [s for s in under.sends if under.hit_at < s.began and s.ended < under.healing_at]
        assert [s for s in sends if getattr(s.result, "route", None) is Route.PRIMARY] == []
        await all_moved_back(under, "no leader")


@pytest.mark.long
async def test_backlog_queues_without_leaders_take_messages_again_and_lose_none(
    careless: RabbitCluster, hands: Hands
) -> None:
    with RedisServer() as primary:
        async with traffic(primary.url, f"{careless.url}?connect_timeout=30", hands) as under:
            await under.hit(primary.kill)
            await until(lambda: under.pair.state(QUEUE) is EntityState.FAILED_OVER)
            await under.outage()
            killing = await left_alone(careless, under.pair.secondary.node, hands)
            for kill in killing:
                await hands(kill)
            refused = len(under.sends)
            await until(lambda: len(under.sends) > refused + 200)
            assert not isinstance(under.sends[-1].result, Receipt)
            await hands(careless.start)
            began = asyncio.get_running_loop().time()
            await until(lambda: any(s.began > began and s.diverted for s in under.sends), 120)
            await under.heal(primary.start)
            await all_moved_back(under, "backlog without leaders")

"""A pair whose primary is the master that Redis' sentinels name: it is killed, demoted, and hangs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import pytest
import redis

from outage_traffic import DOWN, Hands, Traffic, traffic, until
from pairmq import Receipt
from pairmq_redis.testing import RedisSentinels, RedisServer

pytestmark = pytest.mark.real_server

PATIENT = {"failover_interval": 60.0, "attempt_timeout": 60.0, "send_timeout": 120.0}
"""With these only the sentinels' word ends calls on a master that hangs, and a busy machine brings no failover."""


@pytest.fixture
def sentinels() -> Iterator[RedisSentinels]:
    with RedisSentinels(password="p/ß") as sentinels:
        yield sentinels


@asynccontextmanager
async def sending(sentinels: RedisSentinels, hands: Hands) -> AsyncIterator[Traffic]:
    url = f"{sentinels.url}?connect_timeout=30"
    async with traffic(url, f"memory://{uuid4().hex}", hands, timeouts=(120.0,), **PATIENT) as under:
        yield under


async def replicated(under: Traffic, master: RedisServer) -> None:
    """Send nothing for now, and wait until both replicas have what was confirmed."""
    await under.halt()

    def have_all() -> bool:
        states = [master.info(f"slave{number}") for number in range(2)]
        return all(f"offset={master.info('master_repl_offset')}," in state for state in states)

    while not await under.hands(have_all):
        await asyncio.sleep(0.05)


def replaced_for_good(sentinels: RedisSentinels, lost: RedisServer) -> None:
    """Wait until each sentinel has replaced a master, and let none replace the new one.

    On a busy machine it may not respond for a second, and what it alone has confirmed by then would be lost.
    """
    for each in sentinels.sentinels:
        with redis.Redis(port=each.port, socket_timeout=60) as asked:
            while asked.sentinel_get_master_addr_by_name(sentinels.service)[1] == lost.port:
                time.sleep(0.01)
        each.command("SENTINEL", "SET", sentinels.service, "down-after-milliseconds", "600000")


async def test_a_promoted_server_that_is_restarted_at_once_is_still_the_master(
    sentinels: RedisSentinels, hands: Hands
) -> None:
    """As a replica of its own replica it would have none, and no server would be a master."""
    await hands(sentinels.demote)
    await hands(sentinels.start)
    master = sentinels.master
    await hands(master.kill)
    await hands(sentinels.start)
    assert sentinels.master is master


@pytest.mark.parametrize("fault", [RedisServer.kill, RedisServer.pause])
async def test_a_lost_master_loses_nothing_that_its_replicas_have(
    sentinels: RedisSentinels, hands: Hands, fault: Callable[[RedisServer], None]
) -> None:
    async with sending(sentinels, hands) as under:
        master = sentinels.master
        await replicated(under, master)
        await under.hit(lambda: fault(master))
        under.flow()
        await hands(replaced_for_good, sentinels, master)
        await under.some(100)
        assert not str(under.pair.primary.node).endswith(f":{master.port}")
        await under.heal(sentinels.start)
        await under.check_all_accepted(f"{fault.__name__} the master")


async def test_sends_follow_a_demotion_and_lose_nothing_that_the_replicas_have(
    sentinels: RedisSentinels, hands: Hands
) -> None:
    """The old master stays one for some ten seconds more, and would lose what it confirms."""
    async with sending(sentinels, hands) as under:
        master = sentinels.master
        await replicated(under, master)
        await under.hit(lambda: sentinels.sentinels[0].command("SENTINEL", "FAILOVER", sentinels.service))
        await until(lambda: not str(under.pair.primary.node).endswith(f":{master.port}"))
        under.flow()
        await under.check_all_accepted("demoted master")


async def test_a_sentinel_that_hangs_is_not_waited_for(sentinels: RedisSentinels, hands: Hands) -> None:
    await hands(sentinels.sentinels[0].pause)
    await hands(sentinels.sentinels[1].kill)
    async with sending(sentinels, hands) as under:
        await under.check_all_accepted("one sentinel of three")


async def test_a_master_lost_with_the_quorum_of_its_sentinels_is_an_outage_that_ends(
    sentinels: RedisSentinels, hands: Hands
) -> None:
    """No replica is promoted by one sentinel of three: everything is diverted until the others are back."""
    async with traffic(f"{sentinels.url}?connect_timeout=30", f"memory://{uuid4().hex}", hands) as under:
        master = sentinels.master
        await replicated(under, master)
        await under.hit(*(each.kill for each in sentinels.sentinels[:2]), master.kill)
        under.flow()
        await under.failover()
        await under.outage()
        assert not [each for each in sentinels.servers if each.running and each.role == "master"]
        await under.heal(sentinels.start)
        await under.recovery()
        await under.steady()
        await under.stop()
        await under.drained()
        found = await under.taken()
        under.report("the quorum of sentinels lost", found)
        under.check_doubts()
        under.check_books(found)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets processes have any address of 127.0.0.0/8")
@pytest.mark.parametrize(
    "guard", ["wait_replicas=2", "min-replicas-to-write", pytest.param("none", marks=pytest.mark.long)]
)
async def test_a_master_that_is_cut_off_with_its_client(hands: Hands, guard: str) -> None:
    """Beside one sentinel of three it goes on as a master, while the others promote a replica."""
    with RedisSentinels(divisible=True) as sentinels:
        if guard == "min-replicas-to-write":
            for server in sentinels.servers:
                await hands(server.command, "CONFIG", "SET", guard, "1")
                await hands(server.command, "CONFIG", "SET", "min-replicas-max-lag", "1")
        url = f"{sentinels.url}?connect_timeout=30&{guard if 'wait' in guard else ''}"
        async with traffic(url, f"memory://{uuid4().hex}", hands, timeouts=(60.0,), send_timeout=60.0) as under:
            alone = sentinels.master
            await under.hit(partial(sentinels.isolate, alone, sentinels.sentinels[0]))
            if guard == "none":
                await until(lambda: any(each.role == "master" for each in sentinels.servers if each is not alone))
                await under.some(100)
            else:
                await until(lambda: under.changes(DOWN, under.struck_at))
                await under.outage()
            await under.heal(sentinels.start)
            await under.accepted()
            await under.drained()
            await under.stop()
            if guard == "min-replicas-to-write":
                for server in sentinels.servers:  # replicas of a busy machine lag by more than a second at any time
                    await hands(server.command, "CONFIG", "SET", guard, "0")
            found = await under.taken()
            under.report(f"cut off, {guard}", found)
            confirmed = [sent for sent in under.sends if isinstance(sent.result, Receipt)]
            lost = [sent for sent in confirmed if sent.message_id not in found]
            print(f"MEASURED cut off, {guard}: {len(lost)} of {len(confirmed)} confirmed sends lost")
            if guard == "wait_replicas=2":
                under.check_books(found)
            # What the old master confirmed until it knew.
            assert not [sent for sent in lost if sent.diverted or sent.ended < under.struck_at]
            if guard == "min-replicas-to-write":
                assert not [sent for sent in lost if sent.began > under.failures("NOREPLICAS")[0]]

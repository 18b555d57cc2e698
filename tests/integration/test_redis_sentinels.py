"""A pair whose primary is the master that Redis' sentinels name: it is killed, demoted, and hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from outage_traffic import Hands, Traffic, traffic, until
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

"""A blocking pair of two brokers, in this process and real ones, and programs run as users run them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pairmq import Entity
from pairmq.sync import Pair
from pairmq.testing import MemoryBroker, memory_broker
from pairmq_redis.testing import RedisServer


class InThisProcess:
    """A broker in this process that is killed and paused like a `RedisServer`."""

    def __init__(self) -> None:
        self._broker: MemoryBroker = memory_broker()
        self.url = self._broker.url

    def kill(self) -> None:
        asyncio.run(self._broker.stop())

    def pause(self) -> None:
        asyncio.run(self._broker.hang())

    def resume(self) -> None:
        asyncio.run(self._broker.restore())

    def forget(self) -> None:
        asyncio.run(self._broker.forget())


@pytest.fixture
def processes() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two servers that other processes can reach."""
    with RedisServer() as east, RedisServer() as west:
        yield east, west


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.real_server)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[InThisProcess | RedisServer, ...]]:
    """Two brokers, to be killed and paused."""
    if request.param == "redis":
        yield request.getfixturevalue("processes")
        return
    brokers = InThisProcess(), InThisProcess()
    yield brokers
    for broker in brokers:
        broker.forget()


@pytest.fixture
def pair(servers: tuple[InThisProcess | RedisServer, ...]) -> Iterator[Pair]:
    east, west = servers
    # An attempt may last as long as a busy disk: these servers sync every write, and what fails here fails at once.
    with Pair.connect(east.url, west.url, failover_interval=0, attempt_timeout=20, ping_primary_interval=0.2) as pair:
        pair.primary.admin.create(Entity("orders"))
        yield pair


@pytest.fixture
def program(
    processes: tuple[RedisServer, RedisServer],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program with the servers' URLs as its arguments, and gives what it printed; warnings are errors."""

    def run(text: str, *more: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        urls = [server.url for server in processes]
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", text, *urls, *more], capture_output=True, text=True, timeout=150
        )
        assert ended.returncode == status, ended.stderr
        return ended

    return run

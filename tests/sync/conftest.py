"""Two Redis servers, a blocking pair of them, and programs run as users run them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pairmq import Entity
from pairmq.sync import Pair
from pairmq_redis.testing import RedisServer


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer() as east, RedisServer() as west:
        yield east, west


@pytest.fixture
def pair(servers: tuple[RedisServer, RedisServer]) -> Iterator[Pair]:
    east, west = servers
    # An attempt may last as long as a busy disk: these servers sync every write, and what fails here fails at once.
    with Pair.connect(east.url, west.url, failover_interval=0, attempt_timeout=20, ping_primary_interval=0.2) as pair:
        pair.primary.admin.create(Entity("orders"))
        yield pair


@pytest.fixture
def program(
    servers: tuple[RedisServer, RedisServer],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program with the servers' URLs as its arguments, and gives what it printed; warnings are errors."""

    def run(text: str, *more: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        urls = [server.url for server in servers]
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", text, *urls, *more], capture_output=True, text=True, timeout=150
        )
        assert ended.returncode == status, ended.stderr
        return ended

    return run

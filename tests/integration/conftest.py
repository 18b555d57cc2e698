"""Real servers: Redis, fresh for each test, and RabbitMQ, kept for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pairmq_rabbitmq.testing import RabbitServer, pool
from pairmq_redis.testing import RedisServer


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two fresh redis-server processes that write every confirmed command to disk."""
    with RedisServer() as east, RedisServer() as west:
        yield east, west


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()

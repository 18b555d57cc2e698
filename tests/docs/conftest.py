"""A RabbitMQ that is kept for the whole run, and a fresh Redis, for the examples of the embeddings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq_rabbitmq.testing import RabbitServer, pool
from pairmq_redis.testing import RedisServer


@pytest.fixture(scope="session")
def rabbit_pool() -> Iterator[None]:
    yield
    pool.close()


@pytest.fixture
def rabbit(rabbit_pool: None) -> RabbitServer:
    """Runs and holds nothing."""
    return pool.take(1)[0]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """Writes every confirmed command to its disk."""
    with RedisServer() as server:
        yield server

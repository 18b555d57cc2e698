"""A RabbitMQ that is kept for the whole run, and a fresh Redis, for the examples of the embeddings; a log as before."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pairmq_rabbitmq.testing import RabbitServer, pool
from pairmq_redis.testing import RedisServer


@pytest.fixture
def quiet() -> Iterator[None]:
    """Takes back what a command does to the log."""
    logger = logging.getLogger("pairmq")
    before = logger.level, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


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

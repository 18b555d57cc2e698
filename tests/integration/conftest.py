"""Real servers: Redis, fresh for each test, and RabbitMQ, kept for the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


@pytest.fixture(scope="session")
def hands(rabbit_servers: object) -> Iterator[Callable[..., Awaitable[Any]]]:
    """Does to servers what blocks, beside the event loop: ``await hands(server.restart)``.

    In one thread that lives as long as the run: a server ends with the thread that started it.
    """
    with ThreadPoolExecutor(1, "hands") as executor:

        async def run(what: Callable[..., Any], *arguments: object) -> Any:
            return await asyncio.get_running_loop().run_in_executor(executor, what, *arguments)

        yield run

"""A real RabbitMQ, kept for the whole run and shared with the other test folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pairmq_rabbitmq.testing import RabbitServer, pool


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()


@pytest.fixture
def rabbit(rabbit_servers: Callable[[int], list[RabbitServer]]) -> RabbitServer:
    """One server that runs and holds nothing."""
    return rabbit_servers(1)[0]

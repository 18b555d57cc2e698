"""Real RabbitMQ servers, kept for the whole run and shared with the other test folders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import patient_examples  # noqa: F401  # by being imported
from pairmq.plugins import registry
from pairmq.transport import Transport
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


@pytest.fixture
async def connect(rabbit: RabbitServer) -> AsyncIterator[Callable[..., Transport]]:
    """Makes transports to the server, each as another process would have; options go into the URL."""
    made: list[Transport] = []

    def connect(**options: object) -> Transport:
        query = "&".join(f"{name}={value}" for name, value in {"connect_timeout": 30, **options}.items())
        made.append(registry.transport(f"{rabbit.url}?{query}"))
        return made[-1]

    yield connect
    for transport in made:
        await transport.close()

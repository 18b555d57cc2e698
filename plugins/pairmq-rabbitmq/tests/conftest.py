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
    """Returns any number of running, empty servers, the same ones each time: call it once in a test."""
    yield pool.take
    pool.close()


@pytest.fixture
def rabbit(rabbit_servers: Callable[[int], list[RabbitServer]]) -> RabbitServer:
    """One running, empty server."""
    return rabbit_servers(1)[0]


@pytest.fixture
async def connect(rabbit: RabbitServer) -> AsyncIterator[Callable[..., Transport]]:
    """Creates transports to the server, each like one of another process; options go into the URL."""
    made: list[Transport] = []

    def connect(**options: object) -> Transport:
        query = "&".join(f"{name}={value}" for name, value in {"connect_timeout": 30, **options}.items())
        made.append(registry.transport(f"{rabbit.url}?{query}"))
        return made[-1]

    yield connect
    for transport in made:
        await transport.close()

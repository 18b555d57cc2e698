"""One PostgreSQL server for all tests, emptied before each; its role may use the tables and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from broker_tests import message, queue, transport  # noqa: F401  # fixtures
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_postgres.testing import EMPTY, PostgresServer


@pytest.fixture(scope="session")
def running() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off", "max_connections": "60"}) as server:
        yield server


@pytest.fixture
def server(running: PostgresServer) -> PostgresServer:
    running.start()
    running.query(EMPTY)
    return running


@pytest.fixture
async def connect(server: PostgresServer) -> AsyncIterator[Callable[..., Transport]]:
    """Makes transports to the server; options become the URL's."""
    made: list[Transport] = []

    def make(url: str = "", **options: object) -> Transport:
        query = "&".join(f"{name}={value}" for name, value in {"connect_timeout": 30, **options}.items())
        made.append(registry.transport(f"{url or server.url}?{query}"))
        return made[-1]

    yield make
    for each in made:
        await each.close()

"""One PostgreSQL server for all tests, emptied before each; its role may use the tables and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from pairmq.model import Entity, Message
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_postgres.testing import PostgresServer


@pytest.fixture(scope="session")
def running() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off", "max_connections": "60"}) as server:
        yield server


@pytest.fixture
def server(running: PostgresServer) -> PostgresServer:
    running.start()
    running.query("TRUNCATE pairmq.entity, pairmq.source, pairmq.session, pairmq.message RESTART IDENTITY CASCADE")
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
    for transport in made:
        await transport.close()


@pytest.fixture
def transport(connect: Callable[..., Transport]) -> Transport:
    return connect()


@pytest.fixture
async def queue(transport: Transport) -> Entity:
    entity = Entity("orders")
    await transport.admin.create(entity)
    return entity


@pytest.fixture
def message() -> Callable[..., Message]:
    """Makes messages with an id."""

    def make(body: str | bytes = b"", **fields: object) -> Message:
        content = body.encode() if isinstance(body, str) else body
        return Message(content, **{"message_id": uuid.uuid4().hex, **fields})  # type: ignore[arg-type]

    return make

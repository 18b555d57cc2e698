"""The brokers that the tests run against: one in this process, and a real redis-server started once."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

import patient_examples  # noqa: F401  # by being imported
from pairmq.model import Entity, Message
from pairmq.plugins import registry
from pairmq.testing import MemoryBroker
from pairmq.transport import QueueProperties, Transport
from pairmq_redis.testing import RedisServer
from redis_queue import HELD


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer(appendfsync="no") as server:
        yield server


@pytest.fixture(params=["fakeredis", pytest.param("redis", marks=pytest.mark.real_server)])
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A broker without data."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        server.flush()
        yield f"{server.url}?poll_interval=0.2&connect_timeout=30"
        return
    name = f"plugin-{uuid.uuid4().hex[:8]}"
    yield f"fakeredis://{name}?poll_interval=0.2"
    await MemoryBroker(name, scheme="fakeredis").forget()


@pytest.fixture
async def transport(url: str) -> AsyncIterator[Transport]:
    transport = registry.transport(url)
    yield transport
    await transport.close()


@pytest.fixture
async def queue(transport: Transport) -> Entity:
    """A queue whose locks outlast the test; `redis_queue.end_locks` ends them."""
    entity = Entity("orders")
    await transport.admin.create(entity, QueueProperties(lock_duration=HELD))
    return entity


@pytest.fixture
def message() -> Callable[..., Message]:
    """Makes messages with an id."""

    def make(body: bytes | str = b"", **fields: object) -> Message:
        content = body.encode() if isinstance(body, str) else body
        return Message(content, **{"message_id": uuid.uuid4().hex, **fields})  # type: ignore[arg-type]

    return make

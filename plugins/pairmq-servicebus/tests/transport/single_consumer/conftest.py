"""What the tests of queues with one consumer at a time share: such a queue, and somebody else who uses it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from pairmq.model import Entity
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus.testing import ServiceBusServer


@pytest.fixture
def properties() -> QueueProperties:
    """Of the queue."""
    return QueueProperties(lock_duration=60.0, single_consumer=True)


@pytest.fixture
async def queue(transport: Transport, properties: QueueProperties) -> Entity:
    """A queue with one consumer at a time."""
    entity = Entity(f"ordered/{uuid.uuid4().hex[:10]}")
    assert await transport.admin.create(entity, properties)
    return entity


@pytest.fixture
async def stranger(server: ServiceBusServer) -> AsyncIterator[Transport]:
    """Another process's transport, which knows nothing of the queue."""
    transport = registry.transport(f"{server.url}&connect-timeout=30")
    yield transport
    await transport.close()

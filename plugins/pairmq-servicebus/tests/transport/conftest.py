"""What the tests of the transport share: messages of every kind, and one local server that runs for all of them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest
from azure.servicebus import _common, _servicebus_session

from pairmq.model import Entity, Message
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus import _client, _contents, _receiver
from pairmq_servicebus.testing import ServiceBusServer


@pytest.fixture(scope="session")
def shared_server(external: Any) -> Iterator[ServiceBusServer]:
    """One local server, or the namespace to calibrate with."""
    if external is not None:
        yield external
        return
    with ServiceBusServer(durable=False) as server:
        yield server


@pytest.fixture
def server(shared_server: ServiceBusServer) -> Iterator[ServiceBusServer]:
    """A server that runs and does nothing wrong; entities of other tests may be there."""
    shared_server.start()
    shared_server.heal()
    yield shared_server
    shared_server.start()
    shared_server.heal()


@pytest.fixture
async def transport(server: ServiceBusServer) -> AsyncIterator[Transport]:
    # A link may take its time on a busy machine; what is about that limit says its own.
    transport = registry.transport(f"{server.url}&connect-timeout=30")
    yield transport
    await transport.close()


@pytest.fixture
async def queue(transport: Transport, external: object) -> AsyncIterator[Entity]:
    """A new queue."""
    entity = Entity(f"orders/{uuid.uuid4().hex[:12]}")
    assert await transport.admin.create(entity, QueueProperties())
    yield entity
    if external is not None:
        await transport.admin.delete(entity)


def wrong_clock(monkeypatch: pytest.MonkeyPatch, ahead: timedelta) -> None:
    """This machine's clock is so much ahead of the service's."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + ahead

    for module in (_common.message, _servicebus_session):
        monkeypatch.setattr(module, "utc_now", lambda: Wrong.now(UTC))
    for own in (_client, _contents, _receiver):
        monkeypatch.setattr(own, "datetime", Wrong)


@pytest.fixture
def clock_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is ahead of the service's by two minutes, longer than a lock lasts."""
    wrong_clock(monkeypatch, timedelta(minutes=2))


@pytest.fixture
def clock_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is two minutes behind the service's."""
    wrong_clock(monkeypatch, timedelta(minutes=-2))


@pytest.fixture
def message() -> Callable[..., Message]:
    """Makes messages with an id."""

    def make(body: bytes | str = b"", **fields: object) -> Message:
        content = body.encode() if isinstance(body, str) else body
        return Message(content, **{"message_id": uuid.uuid4().hex, **fields})  # type: ignore[arg-type]

    return make

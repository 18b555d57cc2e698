"""Two local servers for all tests of the drop-in, and what makes clients and queues on them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pairmq import Entity, PairOptions
from pairmq.plugins import registry
from pairmq.testing.servers import start_together
from pairmq.transport import QueueProperties
from pairmq_servicebus._url import NamespaceUrl, parse_servicebus_url
from pairmq_servicebus.paired import _shared
from pairmq_servicebus.testing import ServiceBusServer

# A server that is killed refuses at once, and is failed over from at once; one that is only held up has not failed.
OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=0.3,
    ping_primary_interval=0.3,
    attempt_timeout=30.0,
    send_timeout=50.0,
    enable_syphon=True,
    syphon_receive_wait=1.0,
    flap_window=0.0,
    close_grace=2.0,
)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a link take its time to open: a connection string can't say so."""

    def read(*arguments: Any) -> NamespaceUrl:
        return replace(parse_servicebus_url(*arguments), connect_timeout=30.0)

    monkeypatch.setattr(_shared, "parse_servicebus_url", read)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ServiceBusServer, ServiceBusServer]]:
    primary, secondary = ServiceBusServer(), ServiceBusServer()
    try:
        start_together(primary, secondary)
        yield primary, secondary
    finally:
        primary.close()
        secondary.close()


@pytest.fixture
def primary(servers: tuple[ServiceBusServer, ServiceBusServer]) -> Iterator[ServiceBusServer]:
    """Runs, and runs again after a test that ended it."""
    servers[0].start()
    yield servers[0]
    servers[0].start()
    servers[0].heal()


@pytest.fixture
def secondary(servers: tuple[ServiceBusServer, ServiceBusServer]) -> Iterator[ServiceBusServer]:
    servers[1].start()
    yield servers[1]
    servers[1].start()
    servers[1].heal()


@pytest.fixture
def make_queue(primary: ServiceBusServer) -> Callable[..., str]:
    """Makes a new queue on the primary."""

    def make(*, sessions: bool = False) -> str:
        name = f"orders-{uuid.uuid4().hex[:10]}"

        async def create() -> None:
            transport = registry.transport(f"{primary.url}&connect-timeout=30")
            try:
                await transport.admin.create(Entity(name), QueueProperties(requires_session=sessions))
            finally:
                await transport.close()

        asyncio.run(create())
        return name

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    return make_queue()


@pytest.fixture
def given(primary: ServiceBusServer, secondary: ServiceBusServer) -> dict[str, Any]:
    """The arguments that make a client a paired one of these servers."""
    return {
        "secondary": secondary.connection_string,
        "options": OPTIONS,
        "admin_endpoint": f"http://127.0.0.1:{primary.admin_port}",
        "secondary_admin_endpoint": f"http://127.0.0.1:{secondary.admin_port}",
    }

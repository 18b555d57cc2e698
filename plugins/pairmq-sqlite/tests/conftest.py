"""A broker in a file of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pairmq.model import Entity, Message
from pairmq.plugins import registry
from pairmq.transport import Transport


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "broker.db"


@pytest.fixture
async def connect(path: Path) -> AsyncIterator[Callable[..., Transport]]:
    """Makes transports to the file; options become the URL's."""
    made: list[Transport] = []

    def make(**options: object) -> Transport:
        query = "&".join(f"{name}={value}" for name, value in {"poll_interval": 0.05, **options}.items())
        made.append(registry.transport(f"sqlite://{path}?{query}"))
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

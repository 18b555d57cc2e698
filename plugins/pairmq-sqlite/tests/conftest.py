"""A broker in a file of its own for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from broker_tests import message, queue, transport  # noqa: F401  # fixtures
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
    for each in made:
        await each.close()

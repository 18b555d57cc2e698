"""What the blocks of the documents run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from pairmq_rabbitmq.testing import RabbitServer, pool


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()

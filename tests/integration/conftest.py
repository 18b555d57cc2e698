"""Two real Redis servers, and the same on fakeredis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq_redis.testing import RedisServer


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two fresh redis-server processes that write every confirmed command to disk."""
    with RedisServer() as east, RedisServer() as west:
        yield east, west

"""A real RabbitMQ primary, kept for the run, a real Redis secondary, and what publishes and consumes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import kombu
import pytest

import pairmq_kombu
from pairmq.sync import Pair
from pairmq_kombu.transport import close_pairs
from pairmq_rabbitmq.testing import RabbitServer, pool
from pairmq_redis.testing import RedisServer

assert pairmq_kombu.__all__  # imported for what it makes known to Kombu


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()


@pytest.fixture
def rabbit(rabbit_servers: Callable[[int], list[RabbitServer]]) -> RabbitServer:
    """One server that runs and holds nothing."""
    return rabbit_servers(1)[0]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A fresh server."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def options(redis: RedisServer) -> dict[str, Any]:
    """Transport options of a pair that fails over at once and moves its own backlog back."""
    return {
        "pairmq": {
            "secondary": redis.url,
            "failover_interval": 0,
            "ping_primary_interval": 0.2,
            "backlog_queue_count": 2,
            "send_timeout": 60,
            # A server on a busy machine may well keep an attempt waiting for some seconds.
            "attempt_timeout": 15,
            "enable_syphon": True,
        }
    }


@pytest.fixture
def pairs_closed() -> Iterator[None]:
    """Closes the pairs of this process after the test."""
    yield
    close_pairs()


@pytest.fixture
def primary_in_memory(monkeypatch: pytest.MonkeyPatch, pairs_closed: None) -> str:
    """Lets the primary of each new pair be in memory, which no setting can name, and gives its URL."""
    url, connect = f"memory://{uuid4().hex}", Pair.connect
    monkeypatch.setattr(Pair, "connect", lambda **arguments: connect(**{**arguments, "primary": url}))
    return url


@pytest.fixture
def paired(rabbit: RabbitServer, options: dict[str, Any], pairs_closed: None) -> Iterator[kombu.Connection]:
    """A connection through the pair."""
    url = rabbit.url.replace("amqp://", "pairmq://")
    with kombu.Connection(url, transport_options=options, connect_timeout=4) as connection:
        yield connection


@pytest.fixture
def plain(rabbit: RabbitServer) -> Iterator[kombu.Connection]:
    """A connection to the primary with Kombu's own transport."""
    with kombu.Connection(rabbit.url) as connection:
        yield connection

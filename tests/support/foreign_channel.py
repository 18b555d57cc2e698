"""RabbitMQ through a client other than PairMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pika
from pika.adapters.blocking_connection import BlockingChannel

from pairmq_rabbitmq.testing import RabbitServer


@contextmanager
def foreign(server: RabbitServer) -> Iterator[BlockingChannel]:
    """A channel of another client."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()

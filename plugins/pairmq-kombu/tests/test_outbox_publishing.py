"""What is published in an `outbox` block is stored by the block's transaction, without any broker.

As docs/how-to/send-with-a-transaction.md and the plugin's README.md show it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import amqp
import kombu
import pytest
from kombu.exceptions import OperationalError

from pairmq import Entity, Route
from pairmq.sync import Pair
from pairmq_kombu import PublishRefused, outbox

PERSISTENT = {"delivery_mode": 2}


@pytest.fixture
def connection(primary_in_memory: str, tmp_path: Path) -> Iterator[kombu.Connection]:
    table = {"secondary": f"sqlite://{tmp_path}/shop.db?poll_interval=0.02", "enable_syphon": True}
    options = {"pairmq": {**table, "attempt_timeout": 30.0}}
    with kombu.Connection("pairmq://127.0.0.1:1//", transport_options=options, connect_timeout=1) as connection:
        yield connection


@pytest.fixture
def pair(connection: kombu.Connection) -> Pair:
    pair: Pair = connection.connection.process.opened()
    pair.primary.admin.create(Entity("celery"))
    return pair


@pytest.fixture
def channel(connection: kombu.Connection, pair: Pair) -> Any:
    return connection.channel()


@pytest.fixture
def shop(pair: Pair, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        yield connection


def bodies(pair: Pair, count: int) -> list[bytes]:
    found: list[bytes] = []
    with pair.receiver("celery") as receiver:
        while len(found) < count:
            found += [delivery.body for delivery in receiver.receive(10, 100)]
        return found + [delivery.body for delivery in receiver.receive(10, 0.1)]


def test_outbox_sends_what_its_transaction_has_committed(channel: Any, pair: Pair, shop: sqlite3.Connection) -> None:
    for body, ends in ((b"kept", shop.commit), (b"lost", shop.rollback)):
        with outbox(shop):
            receipt = channel.basic_publish(amqp.Message(body, **PERSISTENT), routing_key="celery")
        assert receipt.route is Route.OUTBOX
        ends()
    assert channel.basic_publish(amqp.Message(b"direct", **PERSISTENT), routing_key="celery")
    assert sorted(bodies(pair, 2)) == [b"direct", b"kept"]


def test_outbox_refuses_what_would_leave_before_the_commit(channel: Any, shop: sqlite3.Connection) -> None:
    with outbox(shop):
        for exchange, problem in (("unknown", "has not declared the exchange"), ("", "is at the primary only")):
            message = amqp.Message(b"1", reply_to="amq.rabbitmq.reply-to" if not exchange else None, **PERSISTENT)
            with pytest.raises(PublishRefused, match=f"can't wait in an outbox: .*{problem}"):
                channel.basic_publish(message, exchange, "celery")
    shop.close()
    with outbox(shop), pytest.raises(OperationalError, match="it is closed"):
        channel.basic_publish(amqp.Message(b"1", **PERSISTENT), routing_key="celery")
    with outbox(object()), pytest.raises(TypeError, match="is not a connection to SQLite"):
        channel.basic_publish(amqp.Message(b"1", **PERSISTENT), routing_key="celery")

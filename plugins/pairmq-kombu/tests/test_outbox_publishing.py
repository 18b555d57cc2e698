"""What is published in an `outbox` block is stored by the block's transaction, without any broker.

As docs/how-to/send-with-a-transaction.md and the plugin's README.md show it.
"""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import amqp
import pytest
from kombu.exceptions import OperationalError

from pairmq import Entity, Route
from pairmq.sync import Pair
from pairmq_kombu import PublishRefused, outbox
from pairmq_kombu._channel import PairedChannel
from pairmq_kombu._process import PairOfProcess, PairSettings

PERSISTENT = {"delivery_mode": 2}


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    return f"memory://{uuid.uuid4().hex}", f"sqlite://{tmp_path}/shop.db?poll_interval=0.02"


@pytest.fixture
def channel(urls: tuple[str, str]) -> Iterator[PairedChannel]:
    arguments = {"primary": urls[0], "secondary": urls[1], "enable_syphon": True, "attempt_timeout": 30.0}
    process = PairOfProcess(PairSettings(tuple(sorted(arguments.items()))))
    process.pair.open()
    process.pair.primary.admin.create(Entity("celery"))
    client = SimpleNamespace(declared_entities=set())
    yield PairedChannel(cast(Any, SimpleNamespace(client=client)), process)
    process.close()


@pytest.fixture
def shop(channel: PairedChannel, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        yield connection


def bodies(pair: Pair, count: int) -> list[bytes]:
    found: list[bytes] = []
    with pair.receiver("celery") as receiver:
        while len(found) < count:
            found += [delivery.body for delivery in receiver.receive(10, 100)]
        return found + [delivery.body for delivery in receiver.receive(10, 0.1)]


def test_outbox_sends_what_its_transaction_has_committed(channel: PairedChannel, shop: sqlite3.Connection) -> None:
    for body, ends in ((b"kept", shop.commit), (b"lost", shop.rollback)):
        with outbox(shop):
            receipt = cast(Any, channel.basic_publish(amqp.Message(body, **PERSISTENT), routing_key="celery"))
        assert receipt.route is Route.OUTBOX
        ends()
    assert channel.basic_publish(amqp.Message(b"direct", **PERSISTENT), routing_key="celery")
    assert sorted(bodies(channel._process.pair, 2)) == [b"direct", b"kept"]


def test_outbox_refuses_what_would_leave_before_the_commit(channel: PairedChannel, shop: sqlite3.Connection) -> None:
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

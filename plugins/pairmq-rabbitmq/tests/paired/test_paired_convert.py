"""Which parts of aio-pika's messages and URLs a pair supports, and which it refuses by name; brokers in memory."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from aio_pika import Message
from yarl import URL

from pairmq import (
    BacklogUnavailable,
    ConfigurationError,
    Entity,
    EntityKind,
    EntityNotFound,
    MessageTooLarge,
    Pair,
    PairClosed,
    PairSender,
    PrimaryUnavailable,
    ReservedPropertyError,
    SendRefused,
    SendUnknown,
    Unauthorized,
)
from pairmq_rabbitmq.paired import Publisher, as_client_error, pair_url


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    name = uuid4().hex
    async with Pair.connect(f"memory://a-{name}", f"memory://b-{name}", backlog_queue_count=1) as pair:
        await pair.primary.admin.create(Entity("orders"))
        topic = Entity("prices", EntityKind.TOPIC)
        await pair.primary.admin.create(topic)
        await pair.primary.admin.create_subscription(topic, "all")
        yield pair


async def published(
    pair: Pair, message: Message, exchange: str = "", exchange_type: str | None = None, routing_key: str = "orders"
) -> Any:
    """What consumers get of a message."""
    await Publisher(pair).publish(message, routing_key, exchange=exchange, exchange_type=exchange_type)
    async with pair.receiver(exchange or routing_key, subscription="all" if exchange else None) as receiver:
        [delivery] = await receiver.receive(2, 60)
        return delivery.message


async def test_properties_become_fields_of_the_message(pair: Pair):
    message = Message(b"b", message_id="m", correlation_id="c", type="t", expiration=1.5, priority=4, headers={"n": 1})
    found = await published(pair, message)
    assert (found.body, found.message_id, found.correlation_id, found.subject) == (b"b", "m", "c", "t")
    assert (found.time_to_live, found.priority, dict(found.application_properties)) == (1.5, 4, {"n": 1})


NAIVE = datetime(2030, 1, 2, 3, 4, 5, 678)  # noqa: DTZ001  # what programs give


@pytest.mark.parametrize("at", [NAIVE, NAIVE.replace(tzinfo=UTC)])
async def test_instants_are_cut_to_whole_seconds(pair: Pair, at: datetime):
    found = await published(pair, Message(b"", timestamp=at, headers={"at": at, "in": [{"at": at}]}))
    whole = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert dict(found.application_properties) == {"amqp.timestamp": whole, "at": whole, "in": ({"at": whole},)}


async def test_converted_message_is_not_modified(pair: Pair):
    at = datetime(2030, 1, 2, 3, 4, 5, 678, UTC)
    message = Message(b"", headers={"at": at}, timestamp=at)
    await published(pair, message, "prices", "topic", "steel")
    assert (message.headers, message.timestamp, message.type) == ({"at": at}, at, None)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message(b"", headers={"CC": ["other"]}), "CC"),
        (Message(b"", headers={"BCC": ["other"]}), "BCC"),
        (Message(b"", message_id="m" * 129), "message_id"),
        (Message(b"", expiration=timedelta(seconds=-1)), "expiration"),
        (Message(b"", headers={"x": object()}), "object"),
        (Message(b"", headers={"x": float("nan")}), "x"),
    ],
)
async def test_unsupported_message_is_refused_with_the_reason(pair: Pair, message: Message, words: str):
    with pytest.raises(ValueError, match=words):
        await published(pair, message)


@pytest.mark.parametrize(("given", "subject"), [(None, "steel"), ("steel", "steel")])
async def test_subject_is_the_routing_key_when_published_to_an_exchange(pair: Pair, given: str | None, subject: str):
    assert (await published(pair, Message(b"", type=given), "prices", "topic", "steel")).subject == subject


async def test_subject_is_the_message_type_when_the_exchange_ignores_keys(pair: Pair):
    assert (await published(pair, Message(b"", type="tick"), "prices", "fanout", "")).subject == "tick"


@pytest.mark.parametrize(("kind", "key"), [("topic", "steel"), ("topic", ""), (None, ""), ("fanout", "steel")])
async def test_message_type_is_refused_when_it_differs_from_the_routing_key(pair: Pair, kind: str | None, key: str):
    with pytest.raises(ValueError, match="type"):
        await published(pair, Message(b"", type="tick"), "prices", kind, key)


@pytest.mark.parametrize(
    ("exchange", "key", "carried"),
    [
        ("", "orders", True),
        ("prices", "", True),
        ("", "", False),
        ("", "amq.gen-1", False),
        ("", "amq.rabbitmq.reply-to.abc", False),
        ("", "amq.rabbitmq.reply-to.g1h2//../x", False),  # they are in base 64
        ("amq.topic", "steel", False),
        ("", "pairmq.ping", False),
        ("", f"amq_{'0a' * 16}", False),
    ],
)
def test_names_of_the_broker_are_not_carried_by_a_pair(exchange: str, key: str, carried: bool):
    assert Publisher.carries(exchange, key) is carried


@pytest.mark.parametrize(
    ("exchange", "reply_to", "carried"),
    [
        ("", "answers", True),
        ("", "amq.rabbitmq.reply-to", False),
        ("shop", "amq.gen-JzTY20BRgKO-HjmUJj0wLg", False),
        ("", f"amq_{'0a' * 16}", False),
    ],
)
def test_request_is_not_carried_when_its_answer_goes_to_a_name_of_the_broker(
    exchange: str, reply_to: str, carried: bool
):
    assert Publisher.carries(exchange, "orders", reply_to) is carried


async def test_publisher_closes_the_sender_of_the_name_that_was_unused_for_longest(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    closed: list[str] = []
    close = PairSender.close

    async def noting(sender: PairSender) -> None:
        closed.append(sender.entity.path)
        await close(sender)

    monkeypatch.setattr(PairSender, "close", noting)
    publisher = Publisher(pair)
    names = [f"q{number}" for number in range(1001)]
    for name in names:
        await pair.primary.admin.create(Entity(name))
    for name in (*names[:1000], "q0", names[1000], "q0", "q2"):
        await publisher.publish(Message(b""), name)
    assert closed == ["q1"]


@pytest.mark.parametrize(
    ("error", "caught"),
    [
        (SendUnknown("?"), "AMQPConnectionError TimeoutError ConnectionError AMQPError PublishOutcomeUnknownError"),
        (PrimaryUnavailable("?"), "AMQPConnectionError TimeoutError ConnectionError AMQPError NotDeliveredError"),
        (BacklogUnavailable("?"), "AMQPConnectionError TimeoutError NotDeliveredError"),
        (EntityNotFound("?"), "ChannelNotFoundEntity ChannelClosed AMQPChannelError AMQPError"),
        (Unauthorized("?"), "ChannelAccessRefused ChannelClosed AMQPChannelError"),
        (MessageTooLarge("?"), "ChannelPreconditionFailed ChannelClosed AMQPChannelError"),
        (ReservedPropertyError("?"), "ReservedHeaderError AMQPError ValueError"),
        (SendRefused("?"), "AMQPChannelError AMQPError"),
        (PairClosed("?"), "ChannelInvalidStateError RuntimeError"),
    ],
)
def test_errors_are_subclasses_of_aio_pika_errors(error: Exception, caught: str):
    client = as_client_error(error)
    assert set(caught.split()) <= {kind.__name__ for kind in type(client).__mro__}
    assert (str(client), client.__cause__) == ("?", error)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://u:p@h:5673/", "amqp://u:p@h:5673/"),
        ("amqp://u:p@h:5673//", "amqp://u:p@h:5673/"),
        ("amqp://u:p@h/shop", "amqp://u:p@h/shop"),
        ("amqp://u:p%2F@h/a%2Fb?name=x", "amqp://u:p%2F@h/a%2Fb"),
        ("amqp://h/?heartbeat=30&reconnect_interval=1", "amqp://h/?heartbeat=30"),
        ("amqps://h/?cafile=ca.pem&certfile=c.pem&keyfile=k.pem", None),
        ("amqps://h/?no_verify_ssl=1", "amqps://h/?ssl_cert_reqs=none"),
    ],
)
def test_pair_url_converts_the_url_of_aio_pika(url: str, expected: str | None):
    wanted = expected or "amqps://h/?ssl_ca_certs=ca.pem&ssl_certfile=c.pem&ssl_keyfile=k.pem"
    assert pair_url(URL(url)) == wanted


@pytest.mark.parametrize(
    ("url", "context"), [("amqps://h/?capath=x", None), ("amqps://h/", ssl.create_default_context())]
)
def test_url_option_is_refused_when_only_aio_pika_supports_it(url: str, context: ssl.SSLContext | None):
    with pytest.raises(ConfigurationError, match="pair="):
        pair_url(URL(url), context)

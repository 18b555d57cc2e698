"""A whole pair on real servers whose backlog queue others have written into: the good is moved back, the rest put away.

One product after the other is the secondary; the primary is Redis. What each transport makes of any single foreign
message is tested beside the transport.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import pika
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.core import Diversion, divert
from pairmq.model import Source
from pairmq.model.events import MessageDeadLettered
from pairmq.plugins import registry
from pairmq.transport import Scope, Transport
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

BACKLOG = Entity("hostile/backlog/0")
STREAM = f"pairmq:{{{BACKLOG.path}}}:queue".encode()  # of that queue, in Redis
AT = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)
GOOD = 12
LIMIT = 200.0
"""Seconds that a slow machine may take."""

Vandal = Callable[[Transport], Awaitable[None]]
"""Writes three messages into the backlog queue that can't be decoded."""


def envelope(body: bytes, path: str, number: int) -> Message:
    return divert(Message(body, message_id=f"m-{number}"), Diversion(Entity(path), AT, "sender-1", number))


ENVELOPE = dict(envelope(b"", "orders", 0).application_properties)
FORGED = [
    Message(b"stray", message_id="f-0"),
    envelope(b"nowhere", "nowhere", 1),
    envelope(b"backlog", BACKLOG.path, 2),
    envelope(b"backlog", BACKLOG.path.title(), 3),
    envelope(b"private", "private", 4),
    *(
        Message(b"forged", message_id=f"f-{name}-{number}", application_properties=ENVELOPE | {name: value})
        for name, values in {
            "x-ms-path": ("../orders", "orders*", "x" * 300, "orders\x00", "orders\u202e", 7, b"\xff", ("orders",)),
            "x-ms-timetolive": ("nan", "inf", "1e400", "-1", "9" * 400, 1.5),
            "x-ms-scheduledenqueuetimeutc": ("10000-01-01T00:00:00+00:00", "2025-06-30T23:59:60+00:00", AT),
            "x-ms-sessionid": ("s" * 129, "", True),
            "x-pairmq-sequence": ("-1", "1e3", "٣", "9" * 400),
            "x-pairmq-diverted-at": ("yesterday", ""),
            "x-pairmq-kind": ("subscription",),
            "x-pairmq-priority": ("256",),
            "x-pairmq-maybe-duplicate": ("false",),
        }.items()
        for number, value in enumerate(values)
    ),
]


@pytest.fixture(scope="module")
def primary() -> Iterator[RedisServer]:
    with RedisServer(appendfsync="no") as server:
        yield server


@pytest.fixture(params=["redis", "rabbitmq", pytest.param("servicebus", marks=pytest.mark.long)])
def secondary(request: pytest.FixtureRequest) -> Iterator[tuple[str, Vandal]]:
    """The URL of a server, and who vandalises its backlog queue."""
    match request.param:
        case "redis":
            with RedisServer(appendfsync="no") as redis:
                yield redis.url, write_to_redis
        case "rabbitmq":
            [rabbit] = request.getfixturevalue("rabbit_servers")(1)
            yield rabbit.url, lambda _: write_to_rabbitmq(rabbit.url)
        case "servicebus":
            with ServiceBusServer(durable=False) as bus:
                yield bus.url, lambda _: write_to_servicebus(bus.connection_string)


async def write_to_redis(transport: Transport) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    entries = ((b"\xff", b"\xfe"), (b"b", b"x", b"a", b"{"), (b"b", b"x", b"t", b"nan"))
    await control.call([(b"XADD", STREAM, b"*", *fields) for fields in entries], Scope())


async def write_to_rabbitmq(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.confirm_delivery()
    for headers in ({"x-opt-scheduled-enqueue-time": "soon"}, {"group-id": "s" * 200}, {"": 1}):
        channel.basic_publish("", BACKLOG.path, b"x", pika.BasicProperties(headers=headers), mandatory=True)
    connection.close()


async def write_to_servicebus(connection_string: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(BACKLOG.path) as sender,
    ):
        for fields in ("no json", "[" * 5000, '{"ttl":"nan"}'):
            sender.send_messages(ServiceBusMessage("x", application_properties={"x-pairmq-fields": fields}))


@pytest.mark.real_server
async def test_the_good_are_moved_back_and_all_forged_are_dead_lettered(
    primary: RedisServer, secondary: tuple[str, Vandal]
) -> None:
    url, vandal = secondary
    primary.flush()
    good = [envelope(b"good-%02d" % n, "orders", 100 + n) for n in range(GOOD)]
    async with registry.transport(primary.url) as setup:
        for path in ("orders", "private", BACKLOG.path, BACKLOG.path.title()):
            await setup.admin.create(Entity(path))
    async with registry.transport(url) as transport:
        await transport.admin.create(BACKLOG)
        await vandal(transport)
        mixed = [*FORGED]
        for number, message in enumerate(good):
            mixed.insert(number * len(FORGED) // GOOD + number, message)
        results = await transport.sender(BACKLOG).send_batch(mixed)
        assert [str(error) for error in results if error] == []
        options = PairOptions(
            enable_syphon=True,
            ping_primary_interval=0.5,  # what does not exist is waited for three times as long
            backlog_queue_count=1,
            backlog_name_template="hostile/backlog/{index}",
            allowed_entities=("orders", "nowhere", "*acklog*"),
        )
        dead: list[MessageDeadLettered] = []
        async with asyncio.timeout(LIMIT), Pair.connect(primary=primary.url, secondary=url, options=options) as pair:
            pair.subscribe(lambda event: dead.append(event) if isinstance(event, MessageDeadLettered) else None)
            while (await transport.admin.counts(Source(BACKLOG))).pending:
                await asyncio.sleep(0.05)
        assert (await transport.admin.counts(Source(BACKLOG))).dead_letter == len(FORGED) + 3
        reasons = {"malformed", "malformed-envelope", "not-found", "destination-not-allowed"}
        assert ({event.reason for event in dead}, len(dead)) == (reasons, len(FORGED) + 3)
        assert all(event.description for event in dead)
    async with registry.transport(primary.url) as transport:
        receiver = transport.receiver(Source(Entity("orders")))
        home = [delivery.message.body for delivery in await receiver.receive(100, 5)]
        assert home == [message.body for message in good]
        for path in ("private", BACKLOG.path, BACKLOG.path.title()):
            assert (await transport.admin.counts(Source(Entity(path)))).pending == 0

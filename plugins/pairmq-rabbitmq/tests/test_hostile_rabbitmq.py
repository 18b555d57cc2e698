"""Forged messages in RabbitMQ's queues: receiving continues, valid messages arrive, the rest is dead-lettered."""

from __future__ import annotations

import asyncio
import random
import struct
from bisect import bisect
from collections.abc import AsyncIterator, Iterator, Sequence

import pamqp.frame
import pika
import pika.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreign_channel import foreign
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Transport
from pairmq_rabbitmq._header import is_costly
from pairmq_rabbitmq._wire import Wire, _WatchedReader
from pairmq_rabbitmq.testing import RabbitServer

QUEUE = Entity("orders")
DEAD = Source(QUEUE, dead_letter=True)

# ------------------------------------------------------------------------------------- AMQP 0-9-1 by hand


class Raw(pika.BasicProperties):
    """Properties with the given bytes: flags, and the values they declare."""

    def __init__(self, flags: int, payload: bytes) -> None:
        super().__init__()
        self._bytes = struct.pack(">H", flags) + payload

    def encode(self) -> list[bytes]:
        return [self._bytes]


def headers(table: bytes) -> Raw:
    """Properties that are a table of headers."""
    return Raw(0x2000, sized(table))


def sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def entry(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + value


def array(*values: bytes) -> bytes:
    return b"A" + sized(b"".join(values))


def table(*entries: bytes) -> bytes:
    return b"F" + sized(b"".join(entries))


def text(content: bytes) -> bytes:
    return b"S" + sized(content)


def deep(depth: int, *, tables: bool) -> bytes:
    value = b"V"
    for _ in range(depth):
        value = table(entry(b"a", value)) if tables else array(value)
    return value


# Every type that the broker takes, with its ends and what is odd about it. (It refuses nan and inf itself.)
_VALUES = (
    b"t\x00",
    b"t\x07",
    b"b\x80",
    b"B\xff",
    b"s\x80\x00",
    b"u\xff\xff",
    b"I\x80\x00\x00\x00",
    b"i\xff\xff\xff\xff",
    b"l" + b"\x80" + bytes(7),
    b"L" + b"\xff" * 8,
    b"f\x7f\x7f\xff\xff",
    b"d\x80" + bytes(7),
    b"d\x00" + bytes(6) + b"\x01",
    b"D\xff\x7f\xff\xff\xff",
    b"D\x00\x80\x00\x00\x00",
    b"T" + bytes(8),
    b"T" + b"\xff" * 8,
    b"T\x7f" + b"\xff" * 7,
    b"V",
    b"x" + sized(b"\x00\xff"),
    text(b""),
    text(b"\xff\xfe"),
    text("\u202e\u2066../../*?\x00\r\n".encode()),
    text(b"x" * 3_000),
    text(b"cos\nsystem\n(S'true'\ntR."),
    array(),
    table(),
    array(*[b"V"] * 500),
    array(table(entry(b"", b"V"))),
    table(entry(b"", b"V"), entry(b"\xff", b"V")),
    table(entry(b"a", b"I" + bytes(4)), entry(b"a", b"V")),
    deep(17, tables=False),
    deep(17, tables=True),
    deep(400, tables=False),
    deep(400, tables=True),
)
_NAMES = (
    b"",
    b"a",
    b"\xff\xfe",
    b"x" * 255,
    "é".encode() * 127,
    b"to",
    b"ttl",
    b"subject",
    b"message-id",
    b"reply-to",
    b"content-type",
    b"group-id",
    b"reply-to-group-id",
    b"x-opt-partition-key",
    b"x-opt-scheduled-enqueue-time",
    b"application-properties",
    b"application-property-types",
    b"x-death",
    b"x-first-death-queue",
    b"x-first-death-reason",
    b"x-last-death-reason",
    b"x-last-death-queue",
    b"x-delivery-count",
    b"x-acquired-count",
    b"x-dead-letter-reason",
    b"x-dead-letter-description",
    b"x-unreadable-header",
    b"amqp.timestamp",
    b"amqp.user_id",
    b"x-ms-path",
)
_DEATH = table(
    entry(b"count", b"l" + b"\x7f" + b"\xff" * 7),
    entry(b"reason", text(b"../../\xff")),
    entry(b"queue", b"V"),
    entry(b"time", b"T" + b"\xff" * 8),
    entry(b"exchange", b"t\x01"),
    entry(b"original-expiration", text(b"9" * 400)),
    entry(b"routing-keys", array(b"V", table())),
)
_SHORT = 255


def short(content: bytes) -> bytes:
    return bytes((len(content),)) + content


FORGED: list[pika.BasicProperties] = [
    *(headers(entry(name, value)) for name in _NAMES for value in _VALUES[:25]),
    *(headers(entry(b"a", value)) for value in _VALUES),
    *(headers(entry(name, deep(17, tables=True))) for name in _NAMES),
    headers(entry(b"CC", array(text(b"\xff")))),
    headers(entry(b"BCC", array(text(b"nowhere"), text(b"amq.direct")))),
    headers(entry(b"x-death", array(_DEATH))),
    headers(entry(b"x-death", array(*[_DEATH] * 100))),
    headers(entry(b"x-death", _DEATH)),
    headers(entry(b"long", text(b"x" * 131_000))),
    headers(b"".join(entry(b"h%d" % number, b"V") for number in range(5000))),
    Raw(0x8000, short(b"\xff" * _SHORT)),  # content_type
    Raw(0x4000, short(b"\x00")),  # content_encoding
    Raw(0x1000, b"\x02"),  # delivery_mode
    Raw(0x0800, b"\xff"),  # priority
    Raw(0x0400, short(b"\xff")),  # correlation_id
    Raw(0x0200, short(b"\xff")),  # reply_to
    Raw(0x0100, short(b"4294967295")),  # expiration
    Raw(0x0080, short(b"\xff" * 200)),  # message_id
    Raw(0x0080, short(b"x" * _SHORT)),
    Raw(0x0080, short(b"")),
    Raw(0x0040, b"\xff" * 8),  # timestamp
    Raw(0x0040, bytes(8)),
    Raw(0x0020, short(b"\xff")),  # type
    Raw(0x0008, short(b"\xff")),  # app_id
    Raw(0x0004, short(b"\xff")),  # cluster_id
    Raw(0x0000, b""),
]


def arbitrary(seed: int, count: int) -> Iterator[pika.BasicProperties]:
    """Headers of random names, types and nesting."""
    chance = random.Random(seed)

    def value(depth: int) -> bytes:
        kind = chance.random()
        if kind < 0.2 and depth < 6:
            return array(*(value(depth + 1) for _ in range(chance.randrange(4))))
        if kind < 0.4 and depth < 6:
            return table(*(entry(name(), value(depth + 1)) for _ in range(chance.randrange(4))))
        return chance.choice(_VALUES[:24])

    def name() -> bytes:
        return chance.choice(_NAMES) if chance.random() < 0.7 else chance.randbytes(chance.randrange(8))

    for _ in range(count):
        yield headers(b"".join(entry(name(), value(0)) for _ in range(chance.randrange(1, 5))))


# ------------------------------------------------------------------------------------------------ clients


def publish(server: RabbitServer, forged: Sequence[pika.BasicProperties], body: bytes = b"forged") -> None:
    """Publish messages into the queue, each confirmed."""
    with foreign(server) as channel:
        channel.confirm_delivery()
        for properties in forged:
            channel.basic_publish("", QUEUE.path, body, properties, mandatory=True)


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.real_server) for kind in ("classic", "quorum")])
async def transport(rabbit: RabbitServer, request: pytest.FixtureRequest) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?queue_type={request.param}") as transport:
        await transport.admin.create(QUEUE)
        yield transport


def left(server: RabbitServer, source: Source) -> tuple[int, int]:
    """What a source's queue holds, as counted by its leader: RabbitMQ reports 0 when the leader is late."""
    name = f"{QUEUE.path}/$dead-letter" if source.dead_letter else QUEUE.path
    return server.queues().get(name, (0, 0))


async def take_all(server: RabbitServer, transport: Transport, source: Source) -> list[Delivery]:
    """Receive and complete until nothing is left."""
    found: list[Delivery] = []
    receiver = transport.receiver(source)
    while True:
        deliveries = await receiver.receive(1000, 0.2)
        if not deliveries and left(server, source) == (0, 0):
            break
        found += deliveries
        assert not [error for error in await receiver.complete_batch(deliveries) if error]
    await receiver.close()
    return found


@pytest.mark.parametrize("forged", [FORGED, list(arbitrary(1, 200))], ids=["forged", "random"])
async def test_every_good_neighbour_comes_and_every_forged_message_is_one_or_a_dead_letter(
    rabbit: RabbitServer, transport: Transport, forged: list[pika.BasicProperties]
) -> None:
    sender = transport.sender(QUEUE)
    third = len(forged) // 3
    for number, part in enumerate((forged[:third], forged[third : 2 * third], forged[2 * third :])):
        await sender.send(Message(b"good", message_id=f"good-{number}"))
        publish(rabbit, part)
    await sender.send(Message(b"good", message_id="good-3"))
    found = await take_all(rabbit, transport, Source(QUEUE))
    dead = await take_all(rabbit, transport, DEAD)
    good = [delivery.message.message_id for delivery in found if delivery.message.body == b"good"]
    assert good == ["good-0", "good-1", "good-2", "good-3"]
    assert len(found) + len(dead) == len(forged) + 4
    assert {delivery.dead_letter_reason for delivery in dead} <= {"malformed", "expired"}
    assert all(delivery.dead_letter_description for delivery in dead)
    assert all(delivery.message.body == b"forged" for delivery in dead)
    assert left(rabbit, Source(QUEUE)) == (0, 0)


async def test_received_message_can_be_sent_on(rabbit: RabbitServer, transport: Transport) -> None:
    """A foreign message that was received can always be moved."""
    publish(rabbit, FORGED)
    found = await take_all(rabbit, transport, Source(QUEUE))
    assert len(found) + left(rabbit, DEAD)[0] == len(FORGED)
    results = await transport.sender(QUEUE).send_batch([delivery.message for delivery in found])
    assert [str(error) for error in results if error] == []


async def test_forged_messages_can_be_peeked_at_in_rabbitmq(rabbit: RabbitServer, transport: Transport) -> None:
    publish(rabbit, FORGED[:200])
    shown = await transport.admin.peek(Source(QUEUE), 1000)
    assert len(shown) == 200
    async with asyncio.timeout(60):  # what was shown is on its way back
        while left(rabbit, Source(QUEUE)) != (200, 0):
            await asyncio.sleep(0.05)


# ------------------------------------------------------------------------------ headers that take long to read

_WIDE = (
    array(*[b"V"] * 130_000),
    array(*[b"t\x01"] * 65_000),
    array(*[array()] * 26_000),
    table(*[entry(b"", b"V")] * 65_000),
)
_NARROW = (
    array(*[b"V"] * 8_000),
    array(text(b"V" * 130_000)),
    b"x" + sized(b"V" * 130_000),
    table(*[entry(b"n" * 200, b"V")] * 600),
    deep(7_000, tables=False),
)


def content_header(value: bytes, *, before: bytes = b"") -> bytes:
    """The payload of a content header frame with one header, whose name is ``a``."""
    flags = 0x2000 | (0x8000 if before else 0)
    return struct.pack(">HHQH", 60, 0, 0, flags) + before + sized(entry(b"a", value))


@pytest.mark.parametrize("value", _WIDE, ids=range(4))
@pytest.mark.parametrize("before", [b"", short(b"text/plain")])
def test_headers_of_very_many_values_are_not_passed_to_the_parser(value: bytes, before: bytes) -> None:
    assert is_costly(content_header(value, before=before))


@pytest.mark.parametrize("value", _NARROW, ids=range(5))
def test_headers_of_some_values_or_of_long_ones_are_read(value: bytes) -> None:
    assert not is_costly(content_header(value))


@pytest.mark.parametrize("more", [1, 3])
def test_continued_flags_hide_no_values(more: int) -> None:
    """The parser reads 16 more bits of flags for each set low bit, however the broker interprets that."""
    whole = content_header(_WIDE[0])
    words = struct.pack(">H", 0x2001) + struct.pack(">H", 1) * (more - 1) + b"\0\0"
    assert is_costly(whole[:12] + words + whole[14:])


def test_endless_flags_are_left_to_the_parser() -> None:
    assert not is_costly(struct.pack(">HHQ", 60, 0, 0) + struct.pack(">H", 0x2001) * 20_000)


def test_accepted_message_is_readable_when_the_broker_has_added_its_headers() -> None:
    numbers = range(20_000)
    most = bisect(numbers, False, key=lambda n: is_costly(content_header(array(*[b"V"] * n)), sending=True)) - 1
    assert 0 < most < numbers[-1]
    death = array(table(*[entry(b"n" * 20, text(b"v" * 20))] * 12))
    value = array(*[b"V"] * most)
    added = struct.pack(">HHQH", 60, 0, 0, 0x2000) + sized(entry(b"a", value) + entry(b"x-death", death))
    assert not is_costly(added)


@given(st.binary(max_size=60), st.sampled_from(_WIDE), st.integers(0, 400))
def test_unparsable_header_is_left_to_the_parser(noise: bytes, value: bytes, at: int) -> None:
    whole = content_header(value)
    assert isinstance(is_costly(whole[:at] + noise + whole[at:]), bool)


async def test_a_message_of_very_many_values_is_dead_lettered_unread(
    rabbit: RabbitServer, transport: Transport
) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(Message(b"before", message_id="1"))
    publish(rabbit, [headers(entry(b"a", value)) for value in _WIDE[:3]])
    await sender.send(Message(b"after", message_id="2"))
    found = await take_all(rabbit, transport, Source(QUEUE))
    assert [delivery.message.body for delivery in found] == [b"before", b"after"]
    dead = await take_all(rabbit, transport, DEAD)
    assert [delivery.message.body for delivery in dead] == [b"forged"] * 3
    assert all("too many values" in str(delivery.dead_letter_description) for delivery in dead)


async def test_unreadable_message_is_refused_when_sent(rabbit: RabbitServer, transport: Transport) -> None:
    sender = transport.sender(QUEUE)
    with pytest.raises(TransportError, match="more values") as caught:
        await sender.send(Message(message_id="1", application_properties={"many": (None,) * 60_000}))
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.TOO_LARGE)
    large = Message(message_id="2", application_properties={"many": tuple(range(6_000))})
    await sender.send(large)
    [delivery] = await take_all(rabbit, transport, Source(QUEUE))
    assert delivery.message == large


@pytest.mark.parametrize("method", [(20, 40), (10, 50)], ids=["channel", "connection"])
@pytest.mark.parametrize("shift", range(3))
async def test_reason_that_the_broker_cut_within_a_character_is_read(method: tuple[int, int], shift: int) -> None:
    reason = ("NOT_FOUND - no queue '" + "q" * shift + "\u65e5" * 80).encode()[:255]
    payload = struct.pack(">HHHB", *method, 404, len(reason)) + reason + struct.pack(">HH", 50, 10)
    stream = asyncio.StreamReader()
    stream.feed_data(struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce")
    wire = Wire(lambda _: None)
    watched = _WatchedReader(stream, wire)
    start = await watched.readexactly(7)
    rest = await watched.readexactly(struct.unpack(">BHI", start)[2] + 1)
    _, _, frame = pamqp.frame.unmarshal(start + rest)
    assert frame.reply_code == 404
    assert reason.startswith(frame.reply_text.encode())
    assert (frame.class_id, frame.method_id) == (50, 10)

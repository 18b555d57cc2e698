"""What others write into Redis: whatever it is, receiving goes on, every good neighbour comes, the rest is put away."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import ConfigurationError, Delivery, Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Scope, Transport
from pairmq_redis import _codec
from pairmq_redis._url import parse_fakeredis_url, parse_redis_url
from redis_queue import key

Fields = tuple[bytes, ...]


_LETTERS = (b"t", b"b", b"e", b"a", b"i", b"s", b"c", b"n", b"y", b"r", b"l", b"o", b"p", b"q", b"k", b"!reason")
_VALUES = (
    b"",
    b"0",
    b"-1",
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"1e-400",
    b"0x10",
    b"9" * 400,
    b"9" * 5000,
    b"1_0",
    b" 1 ",
    b"253402300800000000",
    b"-62135596800000001",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\u202e\u2066x".encode(),
    b"\x00",
    b"a\r\nb",
    b"x" * 300,
    b"../../etc/passwd",
    b"*",
    b"{",
    b"[" * 5000,
    b'{"a":' * 5000,
    b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"":1}',
    b'{"a":{"n":"1E-999"}}',
    b'{"a":{"n":"sNaN"}}',
    b'{"a":{"d":99999999999999999999}}',
    b'{"a":{"u":"x"}}',
    b'{"a":{"b":"*"}}',
    b'{"a":{"x":1}}',
    b'{"a":"\\ud800"}',
    b'{"\\ud800":1}',
    b'{"a":1,"a":2}',
    json.dumps({"x" * 129: 1}).encode(),
    json.dumps({"a": ["é" * 1000]}).encode(),
    b"cos\nsystem\n(S'true'\ntR.",
)
FORGED: list[Fields] = [
    (b"x", b"y"),
    (b"", b""),
    (b"\xff", b"\xfe"),
    (b"body", b"x"),
    (b"b", b"one", b"b", b"two"),
    (b"b", b"x", b"!reason", b"mine", b"!description", b"\xff", b"!id", b"0-0", b"!count", b"-1"),
    (b"!reason", b"r"),
    (b"f", b"v") * 5000,
    (b"b", b"x" * 3_000_000),
    *((b"b", b"body", letter, value) for letter in _LETTERS for value in _VALUES),
    *((b"t", value, b"b", b"body") for value in _VALUES),
]


def arbitrary(seed: int, count: int) -> Iterable[Fields]:
    """Entries of random names and values, some of them ours."""
    chance = random.Random(seed)
    for _ in range(count):
        pairs = [
            (
                chance.choice(_LETTERS) if chance.random() < 0.7 else chance.randbytes(chance.randrange(1, 9)),
                chance.choice(_VALUES) if chance.random() < 0.5 else chance.randbytes(chance.randrange(40)),
            )
            for _ in range(chance.randrange(1, 8))
        ]
        yield tuple(part for pair in pairs for part in pair)


async def write(transport: Transport, stream: bytes, entries: Iterable[Fields]) -> None:
    """Put entries into a stream with commands of our own."""
    control = transport._context.control  # type: ignore[attr-defined]
    commands = [(b"XADD", stream, b"*", *fields) for fields in entries]
    assert not [reply for reply in await control.call(commands, Scope()) if isinstance(reply, Exception)]


async def take_all(transport: Transport, source: Source) -> list[Delivery]:
    """Receive and complete until nothing is left."""
    found: list[Delivery] = []
    receiver = transport.receiver(source)
    # Few at a time: each call is answered within its limit, also on a busy machine. One may find dead letters alone.
    while (deliveries := await receiver.receive(100, 0)) or (await transport.admin.counts(source)).pending:
        found += deliveries
        assert not [error for error in await receiver.complete_batch(deliveries) if error]
    await receiver.close()
    return found


@pytest.mark.parametrize("entries", [FORGED, list(arbitrary(1, 400))], ids=["forged", "random"])
async def test_every_good_neighbour_comes_and_every_forged_entry_is_a_message_or_a_dead_letter(
    transport: Transport, queue: Entity, entries: list[Fields]
) -> None:
    sender = transport.sender(queue)
    third = len(entries) // 3
    for number, part in enumerate((entries[:third], entries[third : 2 * third], entries[2 * third :])):
        await sender.send(Message(b"good", message_id=f"good-{number}"))
        await write(transport, key(queue, "queue"), part)
    await sender.send(Message(b"good", message_id="good-3"))
    found = await take_all(transport, Source(queue))
    dead = await take_all(transport, Source(queue, dead_letter=True))
    good = [delivery.message.message_id for delivery in found if delivery.message.body == b"good"]
    assert good == ["good-0", "good-1", "good-2", "good-3"]
    assert len(found) + len(dead) == len(entries) + 4
    assert {delivery.dead_letter_reason for delivery in dead} <= {"malformed", "expired"}
    assert all(delivery.dead_letter_description for delivery in dead)


async def test_what_can_not_be_decoded_is_reported_to_be_malformed(transport: Transport, queue: Entity) -> None:
    hostile = [fields for fields in arbitrary(2, 200) if b"t" not in fields]  # else it may have expired as well
    await write(transport, key(queue, "queue"), hostile)
    found = await take_all(transport, Source(queue))
    dead = await take_all(transport, Source(queue, dead_letter=True))
    assert len(dead) > 50
    assert [delivery.dead_letter_reason for delivery in dead] == ["malformed"] * (len(hostile) - len(found))


async def test_forged_entries_can_be_looked_at(transport: Transport, queue: Entity) -> None:
    await write(transport, key(queue, "queue"), FORGED)
    shown = await transport.admin.peek(Source(queue), len(FORGED))
    assert shown
    assert all(isinstance(delivery.message, Message) for delivery in shown)


async def test_a_forged_dead_letter_is_read_by_those_who_look(transport: Transport, queue: Entity) -> None:
    await write(transport, key(queue, "dead"), FORGED)
    assert len(await take_all(transport, Source(queue, dead_letter=True))) == len(FORGED)


@pytest.mark.parametrize("member", [b"", b"x", b"1", b"1-", b"-1-1", b"1-1-1", b"\xff", b"9" * 400, b"9" * 30 + b"-1"])
async def test_a_forged_schedule_blocks_nothing(transport: Transport, queue: Entity, member: bytes) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    await control.call([(b"ZADD", key(queue, "due"), b"0", member)], Scope())
    await transport.sender(queue).send(Message(b"good", message_id="m"))
    assert [delivery.message.body for delivery in await take_all(transport, Source(queue))] == [b"good"]
    [left] = await control.call([(b"ZCARD", key(queue, "due"))], Scope())
    assert left == 0


async def test_a_scheduled_message_that_can_not_be_decoded_is_dead_lettered(
    transport: Transport, queue: Entity
) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    [number] = await control.call([(b"XADD", key(queue, "waiting"), b"*", b"\xff", b"\xfe")], Scope())
    await control.call([(b"ZADD", key(queue, "due"), b"0", number)], Scope())
    assert await take_all(transport, Source(queue)) == []
    [dead] = await take_all(transport, Source(queue, dead_letter=True))
    assert dead.dead_letter_reason == "malformed"


@pytest.mark.parametrize("part", ["queue", "due", "waiting", "dead", "meta"])
async def test_a_key_of_the_wrong_type_is_a_described_failure(transport: Transport, queue: Entity, part: str) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    name = key(queue, part)
    await control.call([(b"DEL", name), (b"SET", name, b"\xff")], Scope())
    operations = (
        transport.sender(queue).send(Message(b"1", message_id="m")),
        transport.receiver(Source(queue)).receive(1, 0),
        transport.receiver(Source(queue, dead_letter=True)).receive(1, 0),
        transport.admin.counts(Source(queue)),
        transport.admin.probe(queue),
        transport.admin.properties(queue),
        transport.admin.peek(Source(queue), 1),
        transport.admin.list_entities(),
        transport.admin.purge(Source(queue)),
        transport.admin.delete(queue),
    )
    for operation in operations:
        with contextlib.suppress(TransportError):
            await operation


@pytest.mark.parametrize("values", [(b"lock", b"soon"), (b"max", b"\xff"), (b"ttl", b"nan"), (b"kind", b"nothing")])
async def test_settings_that_cannot_be_read_are_a_described_failure(
    transport: Transport, queue: Entity, values: Fields
) -> None:
    control = transport._context.control  # type: ignore[attr-defined]
    await control.call([(b"HSET", key(queue, "meta"), *values)], Scope())
    for operation in (
        transport.receiver(Source(queue)).receive(1, 0),
        transport.admin.properties(queue),
        transport.admin.list_entities(),
        transport.admin.counts(Source(queue)),
    ):
        with contextlib.suppress(TransportError):
            await operation


@pytest.mark.real_server
async def test_an_id_at_the_end_of_all_ids_makes_sends_fail_with_an_explanation(redis_server: object) -> None:
    """A client that may write to Redis can use up a stream's ids: that is reported, and nothing else is disturbed."""
    redis_server.flush()  # type: ignore[attr-defined]
    queue, other = Entity("full"), Entity("other")
    async with registry.transport(redis_server.url) as transport:  # type: ignore[attr-defined]
        for entity in (queue, other):
            await transport.admin.create(entity)
        control = transport._context.control  # type: ignore[attr-defined]
        last = b"18446744073709551615-18446744073709551615"
        await control.call([(b"XADD", key(queue, "queue"), last, b"b", b"forged")], Scope())
        with pytest.raises(TransportError):
            await transport.sender(queue).send(Message(b"1", message_id="1"))
        await transport.sender(other).send(Message(b"2", message_id="2"))
        [delivery] = await take_all(transport, Source(queue))
        assert (delivery.message.body, delivery.sequence_number) == (b"forged", last.decode())
        assert delivery.enqueued_at is not None
        assert delivery.enqueued_at.year == 9999


# ------------------------------------------------------------------------------------------------------------ pure

_names = st.sampled_from(_LETTERS) | st.binary(max_size=10)
_values = st.sampled_from(_VALUES) | st.binary(max_size=60)


@given(st.lists(st.tuples(_names, _values), max_size=12))
def test_arbitrary_entries_are_messages_or_malformed(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    with contextlib.suppress(_codec.MalformedEntry):
        message = _codec.decode(fields)
        # What was let in is a message like any other: it can be sent on, and is the same.
        assert _codec.decode(_codec.encode(message)) == message
    assert isinstance(_codec.decode_leniently(fields), Message)


_PIECES = (
    "redis://", "rediss://", "fakeredis://", "[", "]", "::1", "@", ":", "/", "?", "#", "&", "=", "%", "%00", "%zz",
    "0", "99999", "-1", "a" * 300, "wait_replicas", "poll_interval", "nan", "inf", "1e9", "name", "..", "\u202e", "\n",
    "host", "é", "\x00", "ssl_cert_reqs", "none", "٣",
)  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES) | st.text(max_size=5), max_size=14).map("".join))
def test_arbitrary_urls_are_read_or_refused(url: str) -> None:
    for parse in (parse_redis_url, parse_fakeredis_url):
        with contextlib.suppress(ConfigurationError):
            parsed = parse(url)
            assert parsed.endpoint.url
            assert parsed.endpoint.url.isprintable()
            Entity(f"{parsed.endpoint.name}/x-servicebus-transfer/0")

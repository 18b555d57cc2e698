"""What others send to Service Bus' queues: receiving goes on, every good neighbour comes, the rest is put away."""

from __future__ import annotations

import random
import socket
import struct
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from pairmq.model import Delivery, Entity, Message, Source
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus.testing import ServiceBusServer
from received import take
from servicebus_local import amqp
from servicebus_local.amqp import frames
from servicebus_local.amqp import performatives as p
from servicebus_local.testing import shared_access_signature

pytestmark = pytest.mark.real_server

# --------------------------------------------------------------------------------------- messages by hand


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def mapping(*parts: bytes) -> bytes:
    content = struct.pack(">I", len(parts)) + b"".join(parts)
    return b"\xd1" + struct.pack(">I", len(content)) + content


def listing(*parts: bytes) -> bytes:
    content = struct.pack(">I", len(parts)) + b"".join(parts)
    return b"\xd0" + struct.pack(">I", len(content)) + content


def nested(depth: int, inner: bytes = b"\x40") -> bytes:
    for _ in range(depth):
        inner = listing(inner)
    return inner


def binary(content: bytes) -> bytes:
    return b"\xb0" + struct.pack(">I", len(content)) + content


def string(content: bytes) -> bytes:
    return b"\xb1" + struct.pack(">I", len(content)) + content


BODY = section(0x75, binary(b"forged"))

# Every type of AMQP 1.0, with its ends and what is odd about it.
VALUES: tuple[bytes, ...] = (
    b"\x40",
    b"\x41",
    b"\x56\x07",
    b"\x50\xff",
    b"\x60\xff\xff",
    b"\x70" + b"\xff" * 4,
    b"\x80" + b"\xff" * 8,
    b"\x51\x80",
    b"\x61\x80\x00",
    b"\x71\x80\x00\x00\x00",
    b"\x81\x80" + bytes(7),
    b"\x72\x7f\xc0\x00\x00",
    b"\x72\xff\x80\x00\x00",
    b"\x82\x7f\xf8" + bytes(6),
    b"\x82\xff\xf0" + bytes(6),
    b"\x74" + b"\xff" * 4,
    b"\x84" + b"\xff" * 8,
    b"\x94" + b"\x7f" * 16,
    b"\x94\x78" + bytes(15),
    b"\x94\x5f\xff" + b"\xff" * 14,
    b"\x73\x00\x10\xff\xff",
    b"\x73\x00\x00\x00A",
    b"\x83\x7f" + b"\xff" * 7,
    b"\x83\x80" + bytes(7),
    b"\x98" + b"\xff" * 16,
    b"\xa0\x02\xff\xfe",
    b"\xa1\x00",
    string("\u202e\u2066../../*?\x00\r\n".encode()),
    string(b"x" * 3000),
    string(b"cos\nsystem\n(S'true'\ntR."),
    b"\xa3\x03sym",
    b"\x45",
    listing(b"\x40", listing(b"\x41")),
    mapping(),
    mapping(b"\x54\x01", b"\x40"),
    mapping(listing(), b"\x40"),
    mapping(b"\x40", mapping(b"\x40", b"\x40")),
    b"\xe0\x04\x02\x50\x01\x02",
    b"\xe0\x03\x01\x40",
    b"\xf0\x00\x00\x00\x09\x00\x00\x00\x00\x00\xa3\x01x\x40",
    b"\x00\xa3\x05a:b:c\x40",
    b"\x00\x53\x24\x45",
    b"\x00\x45\x40",
    b"\x00\x00\x53\x01\x53\x02\x40",
    nested(17),
    nested(31),
)
NAMES: tuple[bytes, ...] = (
    string(b""),
    string(b"a"),
    string(b"x" * 129),
    string(b"x-pairmq-fields"),
    string(b"x-ms-path"),
    string(b"DeadLetterReason"),
    string(b"DeadLetterErrorDescription"),
)
FIELDS = (
    b"[" * 5000,
    b'{"ttl":"1e400"}',
    b'{"ttl":1e400}',
    b'{"ttl":' + b"9" * 5000 + b"}",
    b'{"priority":true}',
    b'{"scheduled":"9999-12-31T23:59:59-12:00"}',
    b'{"scheduled":"0001-01-01T00:00:00+12:00"}',
    b'{"types":{"a":"json"}}',
    b'{"types":[]}',
    b'{"hidden":{"\\ud800":"1"}}',
    b'{"hidden":{"a":"\\"\\\\ud800\\""}}',
    b'{"hidden":{"a":"1e999"}}',
    b'{"hidden":{"a":"' + b"[" * 5000 + b'"}}',
    b'{"hidden":{"a":"{\\"$decimal\\":\\"1e99999999\\"}"}}',
    b'{"hidden":{"a":"{\\"$uuid\\":\\"x\\"}"}}',
    b"\xff",
)


def property_section(index: int, value: bytes) -> bytes:
    """A properties section with one field."""
    return section(0x73, listing(*[b"\x40"] * index, value))


FORGED: list[bytes] = [
    BODY,
    *(section(0x74, mapping(name, value)) + BODY for name in NAMES for value in VALUES),
    *(section(0x74, mapping(value, b"\x40")) + BODY for value in VALUES),
    *(section(0x74, mapping(string(b"x-pairmq-fields"), string(fields))) + BODY for fields in FIELDS),
    section(0x74, mapping(*[part for n in range(3000) for part in (string(b"p%d" % n), b"\x40")])) + BODY,
    section(0x74, mapping(string(b"a"), b"\x40", string(b"a"), b"\x41")) + BODY,
    section(0x74, mapping(string(b"a"), b"\x40", b"\xa3\x01a", b"\x41")) + BODY,
    *(section(0x77, value) for value in VALUES),
    *(section(0x76, listing(value, value)) for value in VALUES),
    *(section(0x72, mapping(b"\xa3\x13x-opt-partition-key", value)) + BODY for value in VALUES),
    *(section(0x72, mapping(b"\xa3\x08anything", value)) + BODY for value in VALUES),
    *(section(0x72, mapping(value, b"\x40")) + BODY for value in VALUES),
    *(section(0x78, mapping(b"\xa3\x01f", value)).join((BODY, b"")) for value in VALUES),
    *(property_section(index, value) + BODY for index in range(13) for value in VALUES[index % 4 :: 4]),
    section(0x75, binary(b"one")) + section(0x75, binary(b"two")),
    section(0x77, nested(31)),
    section(0x77, binary(b"x" * 50_000)),
]


def arbitrary(seed: int, count: int) -> Iterator[bytes]:
    """Messages of random sections with random values."""
    chance = random.Random(seed)
    for _ in range(count):
        message = b""
        if chance.random() < 0.5:
            message += section(0x72, mapping(b"\xa3\x01a", chance.choice(VALUES)))
        if chance.random() < 0.5:
            message += section(0x73, listing(*(chance.choice(VALUES) for _ in range(chance.randrange(4)))))
        if chance.random() < 0.7:
            pairs = [(chance.choice(NAMES), chance.choice(VALUES)) for _ in range(chance.randrange(4))]
            message += section(0x74, mapping(*(part for pair in pairs for part in pair)))
        message += chance.choice((BODY, section(0x77, chance.choice(VALUES)), section(0x76, listing())))
        yield message


# ------------------------------------------------------------------------------------------------ clients


class Writer:
    """A client that sends encoded messages as they are."""

    def __init__(self, server: ServiceBusServer, queue: Entity) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        self._socket.sendall(frames.AMQP_HEADER)
        self._frame(p.Open(container_id="raw", hostname="127.0.0.1"))
        self._frame(p.Begin(remote_channel=None, next_outgoing_id=0, incoming_window=5000, outgoing_window=5000))
        assert self._take(8) == frames.AMQP_HEADER
        answers = p.Attach(name="answers", handle=9, role=p.RECEIVER, source=p.Source(address="$cbs"))
        self._frame(replace(answers, target=p.Target(address="here")))
        self._attach("$cbs", 0)
        token = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "sb://127.0.0.1/"}
        properties = amqp.Properties(message_id=1)
        ask = amqp.encode_message(properties=properties, application_properties=token, body=signature(server))
        assert self._send(0, 0, ask)
        self._attach(queue.path, 1)

    def write(self, payloads: Sequence[bytes]) -> int:
        """Send messages; tells how many the service took, as it refuses some itself."""
        return sum(self._send(1, number, payload) for number, payload in enumerate(payloads, start=1))

    def write_in_parts(self, payload: bytes, size: int) -> bool:
        """Send one message in transfers of so many bytes."""
        parts = [payload[start : start + size] for start in range(0, len(payload), size)]
        for part in parts[:-1]:
            self._transfer(1, 1, part, more=True)
        return self._send(1, 1, parts[-1])

    def close(self) -> None:
        self._socket.close()

    def _attach(self, address: str, handle: int) -> None:
        source, target = p.Source(address="here"), p.Target(address=address)
        attach = p.Attach(name=address, handle=handle, role=p.SENDER, source=source, target=target)
        self._frame(replace(attach, initial_delivery_count=0))
        self._expect(p.Flow)

    def _send(self, handle: int, number: int, payload: bytes) -> bool:
        self._transfer(handle, number, payload)
        return isinstance(self._expect(p.DispositionFrame).state, amqp.Accepted)

    def _transfer(self, handle: int, number: int, payload: bytes, *, more: bool = False) -> None:
        tag = number.to_bytes(4, "big")
        head = p.TransferFrame(handle=handle, delivery_id=number, delivery_tag=tag, message_format=0, settled=False)
        self._frame(replace(head, more=more), payload)

    def _frame(self, performative: Any, payload: bytes = b"") -> None:
        self._socket.sendall(frames.write_frame(p.write_performative(performative) + payload, channel=0))

    def _take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the server hung up"
            data += part
        return data

    def _expect(self, kind: type) -> Any:
        while True:
            head = self._take(8)
            whole = head + self._take(struct.unpack(">I", head[:4])[0] - 8)
            found = frames.read_frame(whole, 0, len(whole), frames.AMQP_FRAME)
            if isinstance(found.body, kind):
                return found.body


def signature(server: ServiceBusServer) -> str:
    """A shared access signature for everything."""
    return shared_access_signature(server.key, "sb://127.0.0.1/", key_name=server.key_name)


def write(server: ServiceBusServer, queue: Entity, payloads: Sequence[bytes]) -> int:
    with closing(Writer(server, queue)) as writer:
        return writer.write(payloads)


async def take_all(transport: Transport, source: Source) -> list[Delivery]:
    """Receive and complete until nothing is left."""
    found: list[Delivery] = []
    receiver = transport.receiver(source)
    while True:
        deliveries = await receiver.receive(1000, 0.3)
        if not deliveries and not (await transport.admin.counts(source)).pending:
            break
        found += deliveries
        assert not [error for error in await receiver.complete_batch(deliveries) if error]
    await receiver.close()
    return found


@pytest.mark.parametrize("forged", [FORGED, list(arbitrary(1, 200))], ids=["forged", "random"])
async def test_every_good_neighbour_comes_and_every_forged_message_is_one_or_a_dead_letter(
    transport: Transport, server: ServiceBusServer, queue: Entity, forged: list[bytes]
) -> None:
    sender = transport.sender(queue)
    third = len(forged) // 3
    taken = 0
    for number, part in enumerate((forged[:third], forged[third : 2 * third], forged[2 * third :])):
        await sender.send(Message(b"good", message_id=f"good-{number}"))
        taken += write(server, queue, part)
    await sender.send(Message(b"good", message_id="good-3"))
    found = await take_all(transport, Source(queue))
    good = [delivery.message.message_id for delivery in found if delivery.message.body == b"good"]
    assert sorted(good) == ["good-0", "good-1", "good-2", "good-3"]  # a receive that ends releases what comes then
    dead = (await transport.admin.counts(Source(queue))).dead_letter
    assert taken > 100
    assert dead > 50
    assert len(found) + dead == taken + 4


async def test_what_came_in_can_be_sent_on(transport: Transport, server: ServiceBusServer, queue: Entity) -> None:
    """Nothing of a foreign message that was let in makes it impossible to move."""
    write(server, queue, FORGED)
    other = Entity(f"{queue.path}-other")
    await transport.admin.create(other)
    found = [delivery.message for delivery in await take_all(transport, Source(queue))]
    results = await transport.sender(other).send_batch(found)
    assert {str(error) for error in results if error} == set()
    again = [delivery.message for delivery in await take_all(transport, Source(other))]
    assert Counter(again) == Counter(found)  # a receive that ends releases what comes then


UNDECODABLE = [
    section(0x74, mapping(string(b"a"), b"\x73\x00\x00\x00A")) + BODY,
    section(0x74, mapping(string(b"a"), b"\x84" + bytes(8))) + BODY,
    section(0x72, mapping(b"\xa3\x08anything", b"\x74" + bytes(4))) + BODY,
    section(0x77, mapping(listing(), b"\x40")),
]
"""What Azure's client has no decoder for."""


@pytest.mark.parametrize("payload", UNDECODABLE, ids=range(len(UNDECODABLE)))
async def test_what_the_client_can_not_decode_is_dead_lettered_whole(
    transport: Transport, server: ServiceBusServer, queue: Entity, payload: bytes
) -> None:
    assert write(server, queue, [payload]) == 1
    await transport.sender(queue).send(Message(b"good", message_id="m"))
    found = await take_all(transport, Source(queue))
    assert [(delivery.message.body, delivery.delivery_count) for delivery in found] == [(b"good", 1)]
    assert (await transport.admin.counts(Source(queue))).dead_letter == 1


async def test_an_only_consumer_puts_away_what_it_can_not_decode_and_goes_on(
    transport: Transport, server: ServiceBusServer
) -> None:
    queue = Entity(f"ordered/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(queue, QueueProperties(single_consumer=True))
    ours = property_section(10, string(b"x-pairmq-single-consumer"))
    assert write(server, queue, [ours + payload for payload in UNDECODABLE[:2]]) == 2
    await transport.sender(queue).send(Message(b"good", message_id="m"))
    assert (await transport.admin.positions(queue)).oldest is not None
    assert [delivery.message.body for delivery in await take_all(transport, Source(queue))] == [b"good"]
    assert (await transport.admin.positions(queue)).oldest is None
    assert (await transport.admin.counts(Source(queue))).dead_letter == 2


async def test_a_message_of_several_frames_that_can_not_be_decoded_spoils_no_other(
    transport: Transport, server: ServiceBusServer, queue: Entity
) -> None:
    long = section(0x74, mapping(string(b"a"), b"\x73\x00\x00\x00A")) + section(0x75, binary(b"x" * 200_000))
    with closing(Writer(server, queue)) as writer:
        assert writer.write_in_parts(long, 60_000)
    await transport.sender(queue).send(Message(b"y" * 200_000, message_id="m"))
    found = await take_all(transport, Source(queue))
    assert [delivery.message.body for delivery in found] == [b"y" * 200_000]
    assert (await transport.admin.counts(Source(queue))).dead_letter == 1


async def test_those_who_look_see_all_and_the_bytes_of_what_the_client_can_not_decode(
    transport: Transport, server: ServiceBusServer, queue: Entity
) -> None:
    payloads = [BODY, *UNDECODABLE, BODY]
    taken = write(server, queue, payloads)
    assert taken == len(payloads)
    shown = await transport.admin.peek(Source(queue), 100)
    numbers = [int(delivery.sequence_number) for delivery in shown if delivery.sequence_number]
    assert numbers == sorted(set(numbers))
    assert shown[1].sequence_number
    assert [delivery.message.body for delivery in (shown[0], shown[-1])] == [b"forged", b"forged"]
    assert len(shown) == taken
    assert b"\x73\x00\x00\x00A" in shown[1].message.body


async def test_forged_messages_can_be_looked_at(transport: Transport, server: ServiceBusServer, queue: Entity) -> None:
    taken = write(server, queue, FORGED)
    assert len(await transport.admin.peek(Source(queue), 2000)) == taken


async def test_a_queue_of_forged_messages_can_be_purged(
    transport: Transport, server: ServiceBusServer, queue: Entity
) -> None:
    taken = write(server, queue, [*UNDECODABLE, *FORGED[:50]])
    assert await transport.admin.purge(Source(queue)) == taken
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_a_dead_letter_queue_of_undecodable_messages_blocks_nothing(
    transport: Transport, server: ServiceBusServer, queue: Entity
) -> None:
    write(server, queue, UNDECODABLE)
    assert await take_all(transport, Source(queue)) == []
    await transport.sender(queue).send(Message(b"good", message_id="m"))
    receiver = transport.receiver(Source(queue))
    [delivery] = await take(receiver, 1)
    await receiver.dead_letter(delivery, "why", "because")
    [dead] = await transport.receiver(Source(queue, dead_letter=True)).receive(10, 30)
    assert (dead.message.body, dead.dead_letter_reason) == (b"good", "why")


async def test_a_property_named_like_the_mark_comes_back(transport: Transport, queue: Entity) -> None:
    message = Message(b"x", message_id="m", application_properties={"x-pairmq-unreadable": "mine"})
    await transport.sender(queue).send(message)
    assert [delivery.message for delivery in await take_all(transport, Source(queue))] == [message]

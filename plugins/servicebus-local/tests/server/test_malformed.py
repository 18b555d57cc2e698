"""Clients that do not speak AMQP, or badly: each is told so and cut off, and nobody else notices."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from servicebus_local import LocalServer, ServerSettings, amqp
from servicebus_local.amqp import frames
from servicebus_local.amqp import performatives as p
from servicebus_local.front import _endpoint
from servicebus_local.testing import ServerProcess

pytestmark = pytest.mark.real_server

Dial = Callable[..., Any]
PATIENCE = 30.0  # s


@pytest.fixture(autouse=True)
def bystander(server: ServerProcess, dial: Dial, make_queue: Callable[..., str]) -> Iterator[None]:
    """Somebody who is connected all the while, and is served afterwards as before."""
    peer = dial(server)
    peer.login()
    queue = make_queue()
    sender = peer.attach(queue, sends=True)
    receiver = peer.attach(queue, sends=False)
    assert isinstance(peer.send(sender, b"before"), amqp.Accepted)
    yield
    assert isinstance(peer.send(sender, b"after"), amqp.Accepted)
    peer.credit(receiver, 2)
    for text in (b"before", b"after"):
        peer.expect(p.TransferFrame)
        assert amqp.split_message(peer.payload).data == [text]


# --------------------------------------------------------------------------- what is no AMQP at all


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"AMQP\x00\x00\x09\x01", frames.SASL_HEADER),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", frames.SASL_HEADER),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", frames.SASL_HEADER),
        (b"AMQP\x02\x01\x00\x00", frames.SASL_HEADER),
    ],
    ids=["AMQP 0.9.1", "HTTP", "TLS", "AMQP over TLS"],
)
def test_another_protocol_is_answered_with_ours(server: ServerProcess, dial: Dial, said: bytes, answer: bytes) -> None:
    peer = dial(server, opened=False)
    peer.say(said)
    assert peer.take(8) == answer
    assert peer.hung_up()


def test_plain_amqp_at_the_tls_port_is_cut_off(server: ServerProcess, dial: Dial) -> None:
    peer = dial(server.tls_port, opened=False)
    peer.say(frames.AMQP_HEADER)
    assert peer.hung_up()


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_are_cut_off(server: ServerProcess, dial: Dial, seed: int) -> None:
    chance = random.Random(seed)
    for start in (b"", frames.SASL_HEADER, frames.AMQP_HEADER):
        peer = dial(server, opened=False)
        peer.say(start + chance.randbytes(2000))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.hung_up()


def test_a_client_that_hangs_up_in_the_middle_of_anything_is_forgotten(server: ServerProcess, dial: Dial) -> None:
    whole = frames.AMQP_HEADER + frames.write_frame(p.write_performative(p.Open(container_id="x")))
    for end in range(0, len(whole), 7):
        peer = dial(server, opened=False)
        peer.say(whole[:end])
        peer.socket.close()


# --------------------------------------------------------------------------- frames that can't be


def close_of(peer: Any) -> tuple[str, str]:
    error = peer.expect(p.Close).error
    assert peer.hung_up()
    return error.condition, error.description


def head(size: int, *, offset: int = 2, kind: int = 0, channel: int = 0) -> bytes:
    return struct.pack(">IBBH", size, offset, kind, channel)


FRAMING, DECODE, NOT_ALLOWED = "amqp:connection:framing-error", "amqp:decode-error", "amqp:not-allowed"


@pytest.mark.parametrize(
    ("said", "condition", "word"),
    [
        (head(2**32 - 1), FRAMING, "4294967295"),
        (head(70_000), FRAMING, "70000"),
        (head(4), FRAMING, "4 bytes"),
        (head(16, offset=1) + bytes(8), FRAMING, "body begins"),
        (head(16, offset=200) + bytes(8), FRAMING, "body begins"),
        (head(16, kind=1) + bytes(8), FRAMING, "type 1"),
        (head(11) + b"\x00\x53\x99", DECODE, "performative"),
        (head(12) + b"\x00\x53\x10\xff", DECODE, ""),
        (head(15) + b"\x00\x53\x11\xc0\x03\x09\x40", DECODE, ""),
        (head(21) + b"\x00\x53\x11\xd0\xff\xff\xff\xff\x00\x00\x00\x01\x40", DECODE, ""),
        (head(9) + b"\x00", DECODE, ""),
        (head(8 + 4000) + b"\x00" * 4000, DECODE, ""),
        (head(8 + 3 + 9000) + b"\x00\x53\x10" + b"\xc0\xff\x01" * 3000, DECODE, ""),
        (head(12) + b"\x00\x53\x13\x45", DECODE, ""),
    ],
    ids=[
        "4 GiB", "larger than agreed", "smaller than its header", "body in the header", "body behind the end", "SASL",
        "unknown performative", "unknown type", "list too short", "list of 4 GiB", "nothing", "nested descriptors",
        "nested lists", "fields missing",
    ],
)  # fmt: skip
def test_a_frame_that_can_not_be_closes_the_connection(
    server: ServerProcess, dial: Dial, said: bytes, condition: str, word: str
) -> None:
    peer = dial(server)
    peer.say(said)
    found, text = close_of(peer)
    assert found == condition
    assert word in text
    assert len(text) < 200


def nested(depth: int) -> bytes:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return amqp.encode_value(value)


@pytest.mark.parametrize(
    ("performative", "condition"),
    [
        (p.Open(container_id="again"), NOT_ALLOWED),
        (p.Begin(None, 0, 1, 1), NOT_ALLOWED),
        (p.Begin(3, 0, 1, 1), NOT_ALLOWED),
    ],
    ids=["second open", "second begin", "answer to no begin"],
)
def test_what_may_not_be_said_twice_closes_the_connection(
    server: ServerProcess, dial: Dial, performative: Any, condition: str
) -> None:
    peer = dial(server)
    peer.frame(performative)
    assert close_of(peer)[0] == condition


@pytest.mark.parametrize("performative", [p.Begin(None, 0, 1, 1), p.End(), p.Flow(None, 1, 1, 1), p.Detach(0)])
def test_frames_before_the_open_close_the_connection(server: ServerProcess, dial: Dial, performative: Any) -> None:
    peer = dial(server, opened=False)
    peer.say(frames.AMQP_HEADER)
    peer.frame(performative)
    assert peer.take(8) == frames.AMQP_HEADER
    assert close_of(peer)[0] == NOT_ALLOWED


def test_frames_on_a_channel_without_a_session_close_the_connection(server: ServerProcess, dial: Dial) -> None:
    peer = dial(server)
    peer.frame(p.End(), channel=77)
    assert close_of(peer) == (NOT_ALLOWED, "There is no session on the channel 77.")


@pytest.mark.parametrize(
    ("performative", "condition"),
    [
        (p.TransferFrame(handle=5, delivery_id=0, delivery_tag=b"x"), "amqp:session:unattached-handle"),
        (p.Detach(handle=5), "amqp:session:unattached-handle"),
        (p.Flow(None, 1, 1, 1, handle=5), "amqp:session:unattached-handle"),
        (p.Attach(name="x", handle=5000, role=p.SENDER), NOT_ALLOWED),
        (p.Attach(name="x", handle=0, role=p.SENDER), "amqp:session:handle-in-use"),
        (p.Attach(name="x", handle=9, role=p.SENDER, snd_settle_mode=7), "amqp:invalid-field"),
        (p.DispositionFrame(role=p.RECEIVER, first=9, last=3), "amqp:invalid-field"),
        (p.TransferFrame(handle=0), "amqp:invalid-field"),
        (p.TransferFrame(handle=0, delivery_id=0, delivery_tag=b"x" * 33), "amqp:invalid-field"),
        (p.TransferFrame(handle=1, delivery_id=0, delivery_tag=b"x"), NOT_ALLOWED),
    ],
)
def test_what_breaks_the_rules_of_a_session_ends_the_session_only(
    server: ServerProcess, dial: Dial, performative: Any, condition: str
) -> None:
    peer = dial(server)
    peer.attach("$cbs", sends=True)
    peer.attach("$cbs", sends=False)
    peer.frame(performative, b"payload" if isinstance(performative, p.TransferFrame) else b"")
    assert peer.expect(p.End).error.condition == condition
    peer.begin(channel=1)


# --------------------------------------------------------------------------- messages that can't be


@pytest.mark.parametrize(
    ("payload", "fields"),
    [
        (b"", {"message_format": 0x80013700}),
        (b"\x00", {}),
        (b"no message", {}),
        (b"\x00\x53\x75\xa0\xff", {}),
        (b"\x00\x53\x75\x40", {}),
        (b"\x00\x53\x73" + nested(40), {}),
        (b"\x00\x53\x99\x40", {}),
        (amqp.encode_message(body=b"x"), {"message_format": 77}),
        (amqp.encode_message(body=b"no message"), {"message_format": 0x80013700}),
        (b"\x00\x53\x75\xa0\x01x\x00\x53\x73\x45", {}),
        (b"\x00\x53\x74\xc1\x03\x01\xa1\x00\x00\x53\x75\xa0\x00", {}),
        (b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff\x00\x53\x75\xa0\x00", {}),
    ],
    ids=[
        "empty batch", "half a section", "no section", "cut off", "data of null", "nested too deep", "unknown section",
        "unknown format", "batch of no messages", "sections out of order", "map with an odd end", "no UTF-8",
    ],
)  # fmt: skip
def test_a_message_that_can_not_be_read_is_refused_and_the_link_goes_on(
    server: ServerProcess, dial: Dial, make_queue: Callable[..., str], payload: bytes, fields: dict[str, Any]
) -> None:
    queue = make_queue()
    peer = dial(server)
    peer.login()
    sender = peer.attach(queue, sends=True)
    peer.transfer(sender, payload, **fields)
    outcome = peer.outcome()
    assert outcome.error.condition == DECODE
    assert queue in outcome.error.description
    assert isinstance(peer.send(sender), amqp.Accepted)


ODD: list[Any] = [None, True, -1, 2**40, 1e300, float("nan"), b"\xff", "text", [], {}, {1: 2}, amqp.Described(1, 2)]


def test_odd_values_in_messages_do_no_harm(server: ServerProcess, dial: Dial, make_queue: Callable[..., str]) -> None:
    queue = make_queue()
    peer = dial(server)
    peer.login()
    sender = peer.attach(queue, sends=True)
    receiver = peer.attach(queue, sends=False)
    sent = 0
    for name in ("x-opt-scheduled-enqueue-time", "x-opt-partition-key", "x-opt-via-partition-key", "anything"):
        for value in ODD:
            outcome = peer.send(sender, message_annotations={amqp.Symbol(name): value})
            assert isinstance(outcome, amqp.Accepted | amqp.Rejected)
            sent += isinstance(outcome, amqp.Accepted)
    for value in ODD:
        assert isinstance(peer.send(sender, application_properties={"odd": value}), amqp.Accepted)
    assert sent > 40
    peer.credit(receiver, sent)
    for delivery_id in [peer.expect(p.TransferFrame).delivery_id for _ in range(sent)]:
        peer.settle(delivery_id, amqp.Accepted())
        assert isinstance(peer.outcome(), amqp.Accepted)


OPERATIONS = [
    "schedule-message", "cancel-scheduled-message", "peek-message", "renew-lock", "receive-by-sequence-number",
    "update-disposition", "renew-session-lock", "get-session-state", "set-session-state", "get-message-sessions",
    "no-such-operation",
]  # fmt: skip
FIELDS = [
    "messages", "sequence-numbers", "message-count", "from-sequence-number", "session-id", "lock-tokens",
    "receiver-settle-mode", "disposition-status", "session-state", "last-updated-time", "skip", "top",
    "properties-to-modify",
]  # fmt: skip


@pytest.mark.parametrize("entity", ["queue", "subscription"])
def test_odd_requests_are_answered_with_an_error(
    server: ServerProcess,
    dial: Dial,
    make_queue: Callable[..., str],
    make_topic: Callable[..., str],
    entity: str,
) -> None:
    path = make_queue() if entity == "queue" else f"{make_topic('sub')}/Subscriptions/sub"
    peer = dial(server)
    peer.login()
    node = peer.node(f"{path}/$management")
    chance = random.Random(7)
    deep = {"message": b"\x00\x53\x77" + nested(40)}
    values = [*ODD, [deep], [{"message": 1}], [1, "x"], "completed", [None]]
    for number in range(300):
        operation = OPERATIONS[number % len(OPERATIONS)]
        body: Any = {field: chance.choice(values) for field in FIELDS if chance.random() < 0.7}
        if number % 10 == 0:
            body = chance.choice(values)
        arguments, _ = node.ask(body, operation=f"com.microsoft:{operation}")
        assert arguments["statusCode"] in (200, 204, 400, 401, 403, 404, 408, 409, 410, 412, 501), (operation, body)
        assert arguments["statusDescription"]


def test_requests_without_a_link_for_the_answer_are_refused(server: ServerProcess, dial: Dial) -> None:
    peer = dial(server)
    node = peer.attach("$cbs", sends=True)
    assert peer.send(node).error.condition == "amqp:precondition-failed"


def test_a_client_that_reads_no_answers_is_disconnected(server: ServerProcess, dial: Dial) -> None:
    peer = dial(server)
    peer.attach("$cbs", sends=False)
    node = peer.attach("$cbs", sends=True)
    request = amqp.encode_message(application_properties={"operation": "put-token", "name": "x"}, body="token")
    for _ in range(50):
        for _ in range(50):
            peer.transfer(node, request)
        found: Any = None
        seen = 0
        while seen < 50:
            frame = peer.expect(p.DispositionFrame)
            seen += (frame.last or frame.first) - frame.first + 1
            found = frame.state
        if isinstance(found, amqp.Rejected):
            assert found.error.condition == "amqp:resource-limit-exceeded"
            return
    pytest.fail("2500 answers wait, and more may be asked for")


# --------------------------------------------------------------------------- slow ones


@pytest.fixture
async def hasty(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalServer]:
    """A server in this process that has little patience."""
    monkeypatch.setattr(_endpoint, "HANDSHAKE", 0.3)
    monkeypatch.setattr(_endpoint, "LINGER", 0.3)
    server = LocalServer(ServerSettings(port=0, admin_port=0))
    await server.start()
    server.broker.create_queue("orders")
    yield server
    await server.stop()


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> list[_endpoint.Client]:
    """All clients that have come to servers in this process, whether they are still there or not."""
    found: list[_endpoint.Client] = []
    connection_made = _endpoint.Client.connection_made

    def noted(client: _endpoint.Client, transport: asyncio.BaseTransport) -> None:
        found.append(client)
        connection_made(client, transport)

    monkeypatch.setattr(_endpoint.Client, "connection_made", noted)
    return found


def clients_of(server: LocalServer) -> int:
    return len(server._shared.clients)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("said", [b"", b"AMQP", frames.SASL_HEADER, frames.AMQP_HEADER, frames.AMQP_HEADER + head(100)])
async def test_who_does_not_open_is_cut_off(hasty: LocalServer, came: list[_endpoint.Client], said: bytes) -> None:
    assert hasty.addresses is not None
    writers = [(await asyncio.open_connection("127.0.0.1", hasty.addresses.port))[1] for _ in range(20)]
    for writer in writers:
        writer.write(said)
    # Not all of them need be there at the same time: the first may be cut off before the last has come.
    await until(lambda: len(came) == 20)
    await until(lambda: not clients_of(hasty))
    for writer in writers:
        writer.close()


async def test_saying_a_byte_now_and_then_does_not_help(hasty: LocalServer, came: list[_endpoint.Client]) -> None:
    assert hasty.addresses is not None
    _, writer = await asyncio.open_connection("127.0.0.1", hasty.addresses.port)
    await until(lambda: len(came) == 1)
    # The frame that it begins never ends, and its bytes come for longer than anybody waits here.
    bytes_said = itertools.chain(frames.AMQP_HEADER + head(60_000), itertools.repeat(0))
    async with asyncio.timeout(PATIENCE):
        while clients_of(hasty):
            writer.write(bytes((next(bytes_said),)))
            await asyncio.sleep(0.02)
    writer.close()


async def test_who_does_not_read_is_sent_no_more_and_cut_off_at_the_end(
    hasty: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks for everything in a queue of 64 MB, and never reads."""
    from servicebus_local.broker import Incoming

    # It opens in good time, however late it is held up here.
    monkeypatch.setattr(_endpoint, "HANDSHAKE", PATIENCE)
    assert hasty.addresses is not None
    content = amqp.encode_message(body=bytes(200_000))
    for _ in range(320):
        hasty.broker.send("orders", [Incoming(content=content, size=len(content))])
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.addresses.port, limit=1)
    source = p.Source(address="orders")
    for performative in (
        p.Open(container_id="greedy"),
        p.Begin(None, 0, 2**31 - 1, 2**31 - 1),
        p.Attach(name="all", handle=0, role=p.RECEIVER, source=source, target=p.Target(address="here")),
        p.Flow(None, 2**31 - 1, 0, 2**31 - 1, handle=0, delivery_count=0, link_credit=10_000),
    ):
        head_of = frames.AMQP_HEADER if isinstance(performative, p.Open) else b""
        writer.write(head_of + frames.write_frame(p.write_performative(performative)))
    await until(lambda: any(client.congested for client in hasty._shared.clients))
    # What the system still takes on its way is not much.
    await asyncio.sleep(0.2)
    locked = hasty.broker.resolve_receive("orders")
    (client,) = hasty._shared.clients
    assert client.congested
    assert 0 < len(locked._locks) < 200
    client.close()
    await until(lambda: not clients_of(hasty))
    writer.close()
    del reader

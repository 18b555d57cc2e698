"""Messages and confirms past the driver: nothing is lost, changed or reordered."""

from __future__ import annotations

import asyncio
import struct
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pamqp.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from pairmq.transport import AT_ONCE
from pairmq_rabbitmq import _header
from pairmq_rabbitmq._publish import Batch, Lost, Nacked, Parcel, Pending, PublishChannel, Returned, publish_method
from pairmq_rabbitmq._wire import Wire

TAKEN, DRIVERS = 1, 2  # channels


class Listener:
    """Records its calls."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def delivered(self, tag: int, redelivered: bool, header: bytes, body: bytes) -> None:
        self.heard.append(("delivered", tag, redelivered, header, body))

    def returned(self, header: bytes) -> None:
        self.heard.append(("returned", header))

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        self.heard.append(("confirmed", tag, multiple, taken))


def frame(value: Any, channel: int) -> bytes:
    return pamqp.frame.marshal(value, channel)


def header(body: bytes) -> bytes:
    return ContentHeader(body_size=len(body), properties=Basic.Properties(message_id="m")).marshal()


def message(method: Any, body: bytes, channel: int, piece: int) -> bytes:
    parts = [body[start : start + piece] for start in range(0, len(body), piece)]
    content = ContentHeader(body_size=len(body), properties=Basic.Properties(message_id="m"))
    return b"".join(frame(one, channel) for one in (method, content, *map(ContentBody, parts)))


bodies = st.binary(max_size=40)


@st.composite
def events(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...] | None]:
    """Bytes on the wire, and the taker's calls for them; None where they are for the driver."""
    kind = draw(st.sampled_from(["delivered", "returned", "confirmed", "answer", "heartbeat", "other channel"]))
    body, piece, tag = draw(bodies), draw(st.integers(1, 50)), draw(st.integers(1, 2**63 - 1))
    yes = draw(st.booleans())
    if kind == "delivered":
        method = Basic.Deliver("tag", tag, yes, "exchange", "key")
        return message(method, body, TAKEN, piece), ("delivered", tag, yes, header(body), body)
    if kind == "returned":
        return message(Basic.Return(312, "NO_ROUTE", "", "key"), body, TAKEN, piece), ("returned", header(body))
    if kind == "confirmed":
        taken = draw(st.booleans())
        confirm = Basic.Ack(tag, yes) if taken else Basic.Nack(tag, yes, False)
        return frame(confirm, TAKEN), ("confirmed", tag, yes, taken)
    if kind == "answer":
        return frame(commands.Queue.DeclareOk("orders", 3, 1), TAKEN), None
    if kind == "heartbeat":
        return Heartbeat().marshal(), None
    return message(Basic.Deliver("tag", tag, yes, "exchange", "key"), body, DRIVERS, piece), None


@settings(deadline=None)
@given(st.lists(events(), max_size=20), st.lists(st.integers(1, 100), min_size=1, max_size=20))
def test_every_frame_goes_where_it_belongs_however_the_stream_is_cut(
    sent: list[tuple[bytes, tuple[Any, ...] | None]], cuts: list[int]
) -> None:
    wire, taker = Wire(pytest.fail, lambda: 0.0), Listener()
    wire.take(TAKEN, taker)
    stream = b"".join(raw for raw, _ in sent)
    for_driver, at, turn = b"", 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        for_driver += wire.part(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert taker.heard == [heard for _, heard in sent if heard is not None]
    assert for_driver == b"".join(raw for raw, heard in sent if heard is None)


def test_driver_gets_heartbeats_when_it_sees_only_messages_pass() -> None:
    now = 0.0
    wire = Wire(pytest.fail, lambda: now)
    wire.take(TAKEN, Listener())
    shown = []
    for _ in range(100):
        now += 0.1
        shown.append(wire.part(frame(Basic.Ack(1, False), TAKEN)))
    assert 8 <= shown.count(Heartbeat().marshal()) <= 10
    assert set(shown) == {b"", Heartbeat().marshal()}


@pytest.mark.parametrize("start", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n"])
def test_invalid_frame_is_passed_to_the_driver_with_all_that_follows(start: bytes) -> None:
    wire = Wire(pytest.fail, lambda: 0.0)
    wire.take(TAKEN, Listener())
    more = frame(Basic.Ack(1, False), TAKEN)
    assert wire.part(start + b"\x00" * 16) + wire.part(more) == start + b"\x00" * 16 + more


def test_ended_channel_leaves_the_next_owner_of_its_number_alone() -> None:
    wire, old, new = Wire(pytest.fail, lambda: 0.0), Listener(), Listener()
    wire.take(TAKEN, old)
    wire.take(TAKEN, new)
    wire.leave(TAKEN, old)
    wire.part(frame(Basic.Ack(1, False), TAKEN))
    assert (old.heard, new.heard) == ([], [("confirmed", 1, False, True)])


# --------------------------------------------------------------------------- properties


def by_the_driver(payload: bytes) -> Basic.Properties | None:
    try:
        found = ContentHeader()
        found.unmarshal(payload)
    except Exception:
        return None
    return found.properties


def shown(properties: Basic.Properties) -> list[str]:
    """Distinguishes what == does not, such as 1 and True."""
    return [f"{name}: {getattr(properties, name)!r}" for name in Basic.Properties.__slots__]


instants = st.integers(0, 2**32 - 1).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))
texts = st.none() | st.text(max_size=20)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.floats(allow_nan=False, width=32)
)
rich = plain | st.binary(max_size=5).map(bytearray) | st.lists(plain, max_size=3) | instants
tables = st.dictionaries(st.text(min_size=1, max_size=20).filter(str.isascii), plain | rich, max_size=5)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    properties = Basic.Properties(
        content_type=draw(texts),
        content_encoding=draw(texts),
        headers=draw(st.none() | tables),
        delivery_mode=draw(st.sampled_from([None, 1, 2])),
        priority=draw(st.none() | st.integers(0, 255)),
        correlation_id=draw(texts),
        reply_to=draw(texts),
        expiration=draw(texts),
        message_id=draw(texts),
        timestamp=draw(st.none() | instants),
        message_type=draw(texts),
        user_id=draw(texts),
        app_id=draw(texts),
    )
    return ContentHeader(body_size=draw(st.integers(0, 10)), properties=properties).marshal()


@given(headers())
def test_properties_are_read_as_the_driver_reads_them(payload: bytes) -> None:
    expected = by_the_driver(payload)
    assert expected is not None
    assert shown(_header.read(payload)) == shown(expected)


@given(headers(), st.lists(st.tuples(st.integers(12, 200), st.integers(0, 255)), max_size=3), st.integers(0, 300))
def test_damaged_properties_are_read_as_the_driver_reads_them_or_marked(
    payload: bytes, changes: list[tuple[int, int]], length: int
) -> None:
    damaged = bytearray(payload)
    for at, value in changes:
        if at < len(damaged):
            damaged[at] = value
    found = _header.read(bytes(damaged[:length]))
    expected = by_the_driver(bytes(damaged[:length]))
    if expected is None:
        assert set(found.headers or {}) == {_header.UNREADABLE}
    else:
        assert shown(found) == shown(expected)


# --------------------------------------------------------------------------- confirms


class Model:
    """A channel with a fake connection, and beside it the answers to each publish, one by one."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        wire = Wire(pytest.fail, lambda: 0.0)
        self.session: Any = SimpleNamespace(
            wire=wire, usable=True, max_payload=4088, forsaken=0, on_end=lambda _: None, remove_on_end=lambda _: None
        )
        self.raw: Any = SimpleNamespace(
            number=TAKEN, closing=loop.create_future(), write_queue=asyncio.Queue(), is_closed=False
        )
        self.unused = 0  # times that the channel was called so
        self.channel = PublishChannel(self.session, self.raw, self.on_unused)
        self.batches: list[Batch] = []
        self.expected: dict[int, object] = {}
        self.places: dict[int, tuple[int, int]] = {}

    def on_unused(self, _: PublishChannel) -> None:
        self.unused += 1

    async def publish(self, count: int) -> None:
        first = len(self.expected) + 1
        parcels = [Parcel(publish_method("", "q"), f"m{number}", b"", b"") for number in range(first, first + count)]
        self.batches.append(Batch(self.channel, parcels))
        await self.channel.write(self.batches[-1])
        for index in range(count):
            self.expected[first + index] = Pending
            self.places[first + index] = (len(self.batches) - 1, index)

    def told(self, numbers: list[int], answer: object) -> None:
        for number in numbers:
            if self.expected.get(number) is Pending:
                self.expected[number] = answer

    def answers(self) -> dict[int, object]:
        found = {}
        for number, (batch, index) in self.places.items():
            answer = self.batches[batch].answers[index]
            found[number] = None if answer is None else type(answer)
        return found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6), st.booleans()),
        st.tuples(st.sampled_from(["ack", "nack", "return"]), st.integers(1, 30), st.booleans()),
    ),
    max_size=30,
)


@given(steps)
def test_confirms_of_ranges_answer_every_publish_once(sequence: list[tuple[str, int, bool]]) -> None:
    async def play() -> None:
        model = Model()
        for what, number, multiple in sequence:
            last = len(model.expected)
            if what == "publish":
                await model.publish(number)
            elif number > last:
                continue  # the broker confirms nothing that was not published
            elif what == "return":
                model.channel.returned(ContentHeader(0, 0, Basic.Properties(message_id=f"m{number}")).marshal())
                model.told([number], Returned)
            else:
                model.channel.confirmed(number, multiple, what == "ack")
                numbers = list(range(1, number + 1)) if multiple else [number]
                model.told(numbers, None if what == "ack" else Nacked)
            assert model.answers() == model.expected
            open_ones = [f"m{one}" for one, answer in model.expected.items() if answer is Pending]
            assert model.channel.idle is (not open_ones)
            assert all(model.channel.has_in_flight([one]) for one in open_ones)

    asyncio.run(play())


async def test_a_lost_channel_answers_all_that_has_no_answer() -> None:
    model = Model()
    await model.publish(4)
    model.channel.confirmed(2, False, True)
    model.channel.retire()
    assert model.session.forsaken == 1
    model.raw.closing.set_exception(ConnectionResetError("gone"))
    await asyncio.wait_for(model.batches[0].wait(), 30)
    assert [type(answer).__name__ for answer in model.batches[0].answers] == ["Lost", "NoneType", "Lost", "Lost"]
    assert model.session.forsaken == 0


async def test_unidentified_return_leaves_no_publish_confirmed() -> None:
    model = Model()
    await model.publish(3)
    model.channel.confirmed(1, False, True)
    model.channel.returned(b"no header")
    model.channel.confirmed(3, True, True)  # of what was returned, too
    await asyncio.wait_for(model.batches[0].wait(), 30)
    first, *others = model.batches[0].answers
    assert first is None
    assert [isinstance(answer, Lost) and not answer.alone for answer in others] == [True, True]
    assert (model.channel.usable, model.channel.idle, model.session.forsaken, model.unused) == (False, True, 0, 1)


async def test_unidentified_return_ends_the_waits_of_a_retired_channel() -> None:
    model = Model()
    await model.publish(2)
    model.channel.retire()
    assert (model.session.forsaken, model.unused) == (1, 0)
    model.channel.returned(b"no header")
    assert (model.session.forsaken, model.unused) == (0, 1)


async def test_publishes_of_a_lost_channel_end_over_many_turns_of_the_loop() -> None:
    """Each of their sends goes on with its next attempt in that turn."""
    model, most = Model(), 1000
    for _ in range(most):
        await model.publish(1)
    ended = [0]
    model.channel._lost(ConnectionResetError())
    while ended[-1] < most:
        ended.append(sum(found is Lost for found in model.answers().values()))
        await asyncio.sleep(0)
    assert max(later - before for before, later in pairwise(ended)) <= AT_ONCE
    assert (model.channel.usable, model.channel.idle) == (False, True)


def test_the_size_of_a_frame_of_another_protocol_is_not_waited_for() -> None:
    wire = Wire(pytest.fail, lambda: 0.0)
    huge = struct.pack(">BHI", 1, TAKEN, 2**31) + b"x" * 100
    assert wire.part(huge) == huge

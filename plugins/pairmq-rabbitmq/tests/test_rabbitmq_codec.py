"""Messages as AMQP properties: round trips are exact, and foreign messages are decoded or refused with a reason."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import struct
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pamqp.frame
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from pairmq.model import MAX_TIME_TO_LIVE, Message
from pairmq_rabbitmq import _codec, _layout
from pairmq_rabbitmq._header import Properties
from pairmq_rabbitmq._layout import MalformedMessage
from pairmq_rabbitmq._receiving._receiver import read
from pairmq_rabbitmq._receiving._settling import Locked
from patient_examples import examples

# --------------------------------------------------------------------------- messages

letters = st.characters(exclude_categories=["Cs"])
texts = st.one_of(
    st.text(letters, max_size=40),
    st.text(st.sampled_from("aä€😀"), max_size=300),
    st.just(_layout.DIRECT_REPLY_TO),
    st.sampled_from(["x" * 255, "x" * 256, "é" * 127 + "x", "é" * 128, "\x00"]),
)
ids = st.text(letters, min_size=1, max_size=40) | st.text(st.sampled_from("aä€😀"), min_size=60, max_size=128)
MAPPING = sorted(_layout.MAPPING)
names = st.one_of(
    ids,
    st.text("abc", min_size=1, max_size=3),
    st.sampled_from(MAPPING),
    st.sampled_from(["CC", "BCC", "cc", "x-death", "x-first-death-queue", "x-last-death-reason", "x-delivery-count"]),
    st.sampled_from(["x-acquired-count", "x-dead-letter-reason", "x-dead-letter-description", "x-pairmq-x", "x-ms-a"]),
    st.sampled_from(["amqp.timestamp", "amqp.app_id", "amqp.user_id", "amqp.cluster_id", "amqp.other"]),
    st.sampled_from(["😀" * 63 + "aaa", "😀" * 64, "é" * 128, "x" * 128, "0", "1"]),
)
instants = st.one_of(
    st.datetimes(
        min_value=datetime(1, 1, 3),  # noqa: DTZ001  # hypothesis adds the zone
        max_value=datetime(9999, 12, 29),  # noqa: DTZ001
        timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))]),
    ),
    st.integers(-5, 2**32 + 5).map(lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s)),
)


def decimal(number: int, places: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -places))


decimals = st.builds(decimal, st.integers(-(2**31), 2**31 - 1), st.integers(0, 255))
scalars = st.one_of(
    st.none(),
    texts,
    st.binary(max_size=40),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**31, 2**31 - 1, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), 2**32, 0]),
    st.floats(allow_nan=False, allow_infinity=False),
    instants,
    st.uuids(),
    decimals,
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)
lifetimes = st.one_of(
    st.floats(1e-6, MAX_TIME_TO_LIVE),
    st.integers(1, 10**7).map(lambda ms: ms / 1000),
    st.integers(2**32 - 3, 2**32 + 3).map(lambda ms: ms / 1000),
    st.integers(1, 10**4).map(lambda us: us / 10**6),
    st.integers(2**32 * 1000 - 3000, 2**32 * 1000 + 3000).map(lambda us: us / 10**6),
)
logins = st.sampled_from(["guest", "", "é", "x" * 255])


# Made once: to make a strategy takes longer than to draw from it.
optional_texts, optional_ids, optional_instants = st.none() | texts, st.none() | ids, st.none() | instants
optional_lifetimes, priorities = st.none() | lifetimes, st.none() | st.integers(0, 255)
bodies, properties_of_messages = st.binary(max_size=100), st.dictionaries(names, values | logins, max_size=6)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    session = draw(optional_ids)
    return Message(
        draw(bodies),
        message_id=draw(optional_ids),
        session_id=session,
        time_to_live=draw(optional_lifetimes),
        scheduled_enqueue_at=draw(optional_instants),
        content_type=draw(optional_texts),
        content_encoding=draw(optional_texts),
        correlation_id=draw(optional_texts),
        subject=draw(optional_texts),
        to=draw(optional_texts),
        reply_to=draw(optional_texts),
        reply_to_session_id=draw(optional_ids),
        partition_key=draw(optional_ids if session is None else st.sampled_from((None, session))),
        priority=draw(priorities),
        application_properties=draw(properties_of_messages),
    )


def over_the_wire(properties: Basic.Properties, body: bytes = b"") -> Basic.Properties:
    """Through the bytes of a content header frame, as pamqp writes and reads it."""
    raw = pamqp.frame.marshal(ContentHeader(body_size=len(body), properties=properties), 1)
    consumed, _, header = pamqp.frame.unmarshal(raw)
    assert consumed == len(raw)
    assert isinstance(header, ContentHeader)
    assert type(header.properties) is Basic.Properties
    return header.properties


def exactly(value: object) -> object:
    """Distinguishes what == does not: 1 from True and 1.0, 0.0 from -0.0, 1.50 from 1.5, an order from a set."""
    if isinstance(value, dict):
        return {key: exactly(entry) for key, entry in value.items()}
    if isinstance(value, tuple):
        return tuple(exactly(entry) for entry in value)
    return type(value), value.isoformat() if isinstance(value, datetime) else repr(value)  # a fold means nothing in UTC


def assert_same(back: Message, message: Message) -> None:
    assert back == message
    assert exactly(dict(back.application_properties)) == exactly(dict(message.application_properties))


@given(messages(), logins)
def test_message_survives_the_amqp_codec_unchanged(message: Message, login: str) -> None:
    properties = over_the_wire(_codec.encode(message, login=login), message.body)
    assert_same(_codec.decode(properties, message.body), message)
    assert_same(_codec.decode_leniently(properties, message.body), message)


@settings(max_examples=examples(50))
@given(messages(), logins)
def test_nothing_that_the_broker_acts_on_is_sent(message: Message, login: str) -> None:
    properties = over_the_wire(_codec.encode(message, login=login))
    headers = properties.headers or {}
    acted_on = {"CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count", *_layout.BROKER_MADE}
    assert not acted_on & headers.keys()
    assert not [name for name in headers if name.startswith(("x-first-death-", "x-last-death-"))]
    ours = {name for name in headers if name.startswith(("x-pairmq-", "x-ms-"))}
    assert ours <= message.application_properties.keys()
    assert properties.reply_to != _layout.DIRECT_REPLY_TO
    assert properties.user_id in (None, login)
    assert properties.user_id != ""
    assert properties.expiration is None or 1 <= int(properties.expiration) <= 2**32 - 1
    assert properties.delivery_mode == 2


@settings(max_examples=examples(50))
@given(messages())
def test_the_size_is_what_is_sent(message: Message) -> None:
    properties = _codec.encode(message, login="")
    raw = pamqp.frame.marshal(ContentHeader(body_size=len(message.body), properties=properties), 1)
    assert _codec.size(message) == len(message.body) + len(raw)


# --------------------------------------------------------------------------- what it looks like to others


def test_plain_message_has_no_header_of_pairmq() -> None:
    message = Message(
        b"1",
        message_id="id",
        time_to_live=1.5,
        content_type="text/plain",
        content_encoding="gzip",
        correlation_id="c",
        subject="s",
        reply_to="r",
        priority=3,
    )
    properties = _codec.encode(message, login="guest")
    assert properties == Basic.Properties(
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=3,
        correlation_id="c",
        reply_to="r",
        expiration="1500",
        message_id="id",
        message_type="s",
    )
    mine = _codec.encode(dataclasses.replace(message, application_properties={"a": 1}), login="guest")
    assert mine.headers == {"a": 1}


@pytest.mark.parametrize("priority", [None, 0, 9, 255])
def test_priority_is_restored_when_sent_in_a_header(priority: int | None) -> None:
    """Where queues have lanes for priorities, a delay queue's messages would overtake each other."""
    message = Message(b"x", message_id="1", priority=priority, application_properties={"x-opt-priority": 3})
    properties = over_the_wire(_codec.encode(message, login="guest", priority_aside=True))
    assert properties.priority is None
    assert_same(_codec.decode(properties, b"x"), message)


@pytest.mark.parametrize("priority", [-1, 256, "9", True])
def test_a_priority_aside_that_is_not_ours_is_an_application_property(priority: object) -> None:
    message = _codec.decode(Basic.Properties(headers={"x-opt-priority": priority}), b"")
    assert (message.priority, message.application_properties) == (None, {"x-opt-priority": priority})


def test_headers_are_named_after_amqp_1() -> None:
    message = Message(
        session_id="s",
        reply_to_session_id="r",
        to="t",
        partition_key="s",
        time_to_live=1.0,
        scheduled_enqueue_at=datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    )
    properties = _codec.encode(message, login="guest", delayed=True)
    assert properties.expiration is None
    assert properties.headers == {
        "group-id": "s",
        "reply-to-group-id": "r",
        "to": "t",
        "x-opt-partition-key": "s",
        "ttl": "1",
        "x-opt-scheduled-enqueue-time": "2030-01-01T00:00:00.000000+00:00",
    }


@pytest.mark.parametrize("days", [1, 36_500])
def test_a_message_that_was_due_when_it_was_sent_lives_from_then_on(days: int) -> None:
    """One that had waited in a backlog for longer than its time-to-live was dead-lettered as expired."""
    message = Message(time_to_live=60.0 * days, scheduled_enqueue_at=datetime.now(UTC) - timedelta(days=days))
    properties = over_the_wire(_codec.encode(message, login="guest"))
    assert properties.expiration == ("60000" if days == 1 else "2190000000")
    frame = pamqp.frame.marshal(ContentHeader(body_size=0, properties=properties), 1)
    locked = Locked(1, False, frame[7:-1], b"", 0.0, 60.0)
    assert read(locked, dead=False) is None
    assert locked.message == message


def test_properties_are_native_where_amqp_has_the_type() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = Message(
        application_properties={
            "s": "x",
            "i": 1,
            "l": 2**40,
            "t": True,
            "d": 0.1,
            "V": None,
            "D": Decimal("1.50"),
            "x": b"\xff",
            "T": at,
            "A": (1, ("a",), {}),
            "F": {"k": {"l": ()}},
        }
    )
    headers = over_the_wire(_codec.encode(message, login="")).headers
    assert headers == {
        "s": "x",
        "i": 1,
        "l": 2**40,
        "t": True,
        "d": 0.1,
        "V": None,
        "D": Decimal("1.50"),
        "x": bytearray(b"\xff"),
        "T": at,
        "A": [1, ["a"], {}],
        "F": {"k": {"l": []}},
    }


def test_what_amqp_has_no_type_for_is_readable_text() -> None:
    late = datetime(2106, 2, 7, 6, 28, 16, tzinfo=UTC)
    fine = datetime(2030, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
    message = Message(application_properties={"u": UUID(int=1), "n": {"a": (0, late, {"f": fine})}, "CC": UUID(int=2)})
    assert _codec.encode(message, login="").headers == {
        "u": "00000000-0000-0000-0000-000000000001",
        "n": {"a": [0, "2106-02-07T06:28:16+00:00", {"f": "2030-01-01T00:00:00.000005+00:00"}]},
        "application-properties": {"CC": "00000000-0000-0000-0000-000000000002"},
        "application-property-types": {
            "u": "uuid",
            "n": {"a": {"1": "datetime", "2": {"f": "datetime"}}},
            "application-properties": {"CC": "uuid"},
        },
    }


def test_names_are_in_an_array_when_too_long_for_a_table() -> None:
    long = "😀" * 64
    message = Message(application_properties={long: UUID(int=1), "CC": 2, "n": {long: UUID(int=3)}})
    assert _codec.encode(message, login="").headers == {
        "application-properties": [long, str(UUID(int=1)), "CC", 2],
        "n": [long, str(UUID(int=3))],
        "application-property-types": {"application-properties": {"1": "uuid"}, "n": {"": "map", "1": "uuid"}},
    }


@pytest.mark.parametrize(
    ("seconds", "expiration", "header"),
    [
        (0.000001, "1", "0.000001"),
        (0.001, "1", None),
        (0.0015, "2", "0.0015"),
        (4.001, "4001", None),
        (60, "60000", None),
        (4294967.295, "4294967295", None),
        (4294967.294001, "4294967295", "4294967.294001"),
        (4294967.295001, None, "4294967.295001"),
        (4294967.296, None, "4294967.296"),
        (MAX_TIME_TO_LIVE, None, "922337193600"),
    ],
)
def test_the_time_to_live_is_whole_milliseconds_and_exact_beside_it(
    seconds: float, expiration: str | None, header: str | None
) -> None:
    properties = _codec.encode(Message(time_to_live=seconds), login="")
    assert properties.expiration == expiration
    assert (properties.headers or {}).get("ttl") == header


def test_long_text_is_in_a_header_and_a_returned_message_still_has_an_id() -> None:
    long = "é" * 128
    properties = _codec.encode(Message(message_id=long, subject=long, reply_to=_layout.DIRECT_REPLY_TO), login="")
    assert properties.headers == {"message-id": long, "subject": long, "reply-to": "amq.rabbitmq.reply-to"}
    assert (properties.message_type, properties.reply_to) == (None, None)
    assert properties.message_id == _layout.digest(long)


def test_unset_and_empty_stay_different() -> None:
    empty = Message(subject="", content_type="", to="", correlation_id="", reply_to="")
    assert _codec.decode(over_the_wire(_codec.encode(empty, login="")), b"") == empty
    assert _codec.decode(over_the_wire(_codec.encode(Message(), login="")), b"") == Message()


def test_amqp_properties_without_a_field_are_application_properties() -> None:
    at = datetime(2020, 1, 1, tzinfo=UTC)
    foreign = Basic.Properties(timestamp=at, app_id="app", user_id="u")
    foreign.cluster_id = "c"
    message = _codec.decode(over_the_wire(foreign), b"")
    assert message.application_properties == {
        "amqp.timestamp": at,
        "amqp.app_id": "app",
        "amqp.user_id": "u",
        "amqp.cluster_id": "c",
    }
    again = _codec.encode(message, login="u")
    assert (again.timestamp, again.app_id, again.user_id, again.cluster_id) == (at, "app", "u", "")
    assert again.headers == {"amqp.cluster_id": "c"}
    assert _codec.encode(message, login="me").headers == {"amqp.cluster_id": "c", "amqp.user_id": "u"}
    odd = Message(application_properties={"amqp.app_id": 1, "amqp.timestamp": "x", "amqp.user_id": None})
    assert _codec.encode(odd, login="u").headers == dict(odd.application_properties)


# --------------------------------------------------------------------------- foreigners


def wire(kind: bytes, fmt: str, numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return numbers.map(lambda number: kind + struct.pack(f">{fmt}", number))


def _block(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def _name(name: str | bytes) -> bytes:
    raw = name.encode() if isinstance(name, str) else name
    return bytes((len(raw),)) + raw


def _table(pairs: list[tuple[str, bytes]]) -> bytes:
    return _block(b"".join(_name(name) + value for name, value in dict(pairs).items()))


floats32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
wire_scalars = st.one_of(
    st.booleans().map(lambda b: b"t\x01" if b else b"t\x00"),
    wire(b"b", "b", st.integers(-(2**7), 2**7 - 1)),
    wire(b"B", "B", st.integers(0, 2**8 - 1)),
    wire(b"s", "h", st.integers(-(2**15), 2**15 - 1)),
    wire(b"u", "H", st.integers(0, 2**16 - 1)),
    wire(b"I", "i", st.integers(-(2**31), 2**31 - 1)),
    wire(b"i", "I", st.integers(0, 2**32 - 1)),
    wire(b"l", "q", st.integers(-(2**63), 2**63 - 1)),
    wire(b"f", "f", floats32),
    wire(b"d", "d", st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(lambda s, m: b"D" + struct.pack(">Bi", s, m), st.integers(0, 255), st.integers(-(2**31), 2**31 - 1)),
    st.text(letters, max_size=20).map(lambda t: b"S" + _block(t.encode())),
    st.binary(max_size=20).map(lambda t: b"S" + _block(t)),
    st.binary(max_size=20).map(lambda t: b"x" + _block(t)),
    wire(b"T", "Q", st.integers(0, 2**32 - 1) | st.integers(2**32, 253402300799999)),
    st.just(b"V"),
)
wire_names = st.one_of(
    st.text(letters, min_size=1, max_size=20),
    names.filter(lambda name: len(name.encode()) <= 255),
)


def wire_values(scalars: st.SearchStrategy[bytes], names: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4).map(lambda parts: b"A" + _block(b"".join(parts))),
            st.lists(st.tuples(names, inner), max_size=4).map(lambda pairs: b"F" + _table(pairs)),
        ),
        max_leaves=8,
    )


# These mean something to PairMQ, so that not every value of them is a message of PairMQ's.
MEANT = {"application-property-types", "x-opt-scheduled-enqueue-time"}
OUR_NAMES = _layout.MAPPING - {"application-properties"}


foreign_entries = st.tuples(wire_names.filter(lambda n: n not in MEANT), wire_values(wire_scalars, wire_names))
foreign_headers = st.none() | st.lists(foreign_entries, max_size=6).map(_table)
short = st.none() | st.text(letters, max_size=40).filter(lambda t: len(t.encode()) <= 255)
expirations = st.none() | st.sampled_from(["0", "1", "0100", "4294967295"]) | st.integers(0, 9999).map(str)
delivery_modes = st.sampled_from([None, 1, 2])


@st.composite
def foreign(draw: st.DrawFn) -> Basic.Properties:
    headers = draw(foreign_headers)
    properties = Basic.Properties(
        content_type=draw(short),
        content_encoding=draw(short),
        delivery_mode=draw(delivery_modes),
        priority=draw(priorities),
        correlation_id=draw(short),
        reply_to=draw(short),
        expiration=draw(expirations),
        message_id=draw(short),
        timestamp=None,
        message_type=draw(short),
        user_id=draw(short),
        app_id=draw(short),
    )
    properties.cluster_id = draw(short) or ""
    payload = properties.marshal()
    (flags,) = struct.unpack_from(">H", payload)
    before = sum(len(_name(text)) for text in (properties.content_type, properties.content_encoding) if text)
    if headers is not None:
        payload = struct.pack(">H", flags | 0x2000) + payload[2 : 2 + before] + headers + payload[2 + before :]
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQ", 60, 0, 0) + payload)
    return header.properties


def normal(value: object) -> object:
    """A received value as an application property."""
    if isinstance(value, dict):
        return {key: normal(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return tuple(normal(entry) for entry in value)
    return bytes(value) if isinstance(value, bytearray) else value


@given(foreign(), logins)
def test_a_foreign_message_keeps_every_header_when_it_is_sent_on(properties: Basic.Properties, login: str) -> None:
    message = _codec.decode(properties, b"body")
    for name, value in (properties.headers or {}).items():
        if _layout.place(name) == _layout.PLAIN:
            if name != "amqp.cluster_id" or not properties.cluster_id:
                assert exactly(message.application_properties[name]) == exactly(normal(value))
        elif name == _layout.PRIORITY and name not in message.application_properties:
            assert message.priority == value
        elif name in ("CC", "BCC") or (name in OUR_NAMES and type(value) is not str):
            assert exactly(message.application_properties[name]) == exactly(normal(value))
    again = over_the_wire(_codec.encode(message, login=login))
    assert_same(_codec.decode(again, b"body"), message)


@given(foreign(), logins, st.text(max_size=2000), st.text(max_size=20))
def test_a_dead_lettered_message_reads_as_before(
    properties: Basic.Properties, login: str, reason: str, description: str
) -> None:
    before = pamqp.frame.marshal(ContentHeader(properties=_same(properties)), 1)
    copy = _codec.with_dead_letter(properties, reason, description, login=login)
    assert pamqp.frame.marshal(ContentHeader(properties=_same(properties)), 1) == before
    copy = over_the_wire(copy)
    assert_same(_codec.decode(copy, b"1"), _codec.decode(properties, b"1"))
    headers = copy.headers
    assert headers is not None
    assert not {"CC", "BCC", "x-delivery-count", "x-acquired-count"} & headers.keys()
    assert copy.expiration is None
    assert copy.user_id in (None, login)
    assert copy.delivery_mode == 2
    told = _codec.dead_letter_reason(copy)
    assert told == (_codec._cut(reason), _codec._cut(description))
    assert len(str(told[0])) <= 1024


def _same(properties: Basic.Properties) -> Basic.Properties:
    """These properties, serializable by PairMQ; pamqp can't write all that it reads."""
    copy = Properties.blank()
    for name in Basic.Properties.__slots__:
        setattr(copy, name, getattr(properties, name))
    return copy


@settings(max_examples=examples(50))
@given(messages(), st.text(max_size=20))
def test_dead_lettered_message_of_pairmq_decodes_to_the_original(message: Message, login: str) -> None:
    properties = over_the_wire(_codec.encode(message, login=login))
    copy = over_the_wire(_codec.with_dead_letter(properties, "r", "d", login=login))
    assert_same(_codec.decode(copy, message.body), message)


def test_foreign_header_is_an_application_property() -> None:
    headers: dict[str, Any] = {
        "to": 5,
        "group-id": "",
        "reply-to-group-id": None,
        "ttl": "5m",
        "subject": "short",
        "message-id": "short",
        "x-opt-scheduled-enqueue-time": 7,
        "application-properties": {"plain": 1},
        "application-property-types": "x",
        "CC": ["a", "b"],
    }
    message = _codec.decode(Basic.Properties(headers=headers), b"")
    assert message == Message(application_properties=headers)
    assert_same(_codec.decode(over_the_wire(_codec.encode(message, login="")), b""), message)


def test_a_header_beside_its_property_is_an_application_property() -> None:
    long = "x" * 300
    properties = Basic.Properties(
        message_type="label",
        message_id="id",
        expiration="1000",
        headers={"subject": long, "message-id": long, "ttl": "5"},
    )
    message = _codec.decode(properties, b"")
    assert (message.subject, message.message_id, message.time_to_live) == ("label", "id", 1.0)
    assert message.application_properties == {"subject": long, "message-id": long, "ttl": "5"}


def test_notes_of_the_broker_are_not_application_properties() -> None:
    headers: dict[str, Any] = {
        "x-death": [{"reason": "expired"}],
        "x-first-death-queue": "q",
        "x-last-death-reason": "expired",
        "x-delivery-count": 3,
        "x-acquired-count": 3,
        "x-dead-letter-reason": "r",
        "x-dead-letter-description": "d",
        "mine": 1,
    }
    assert _codec.decode(Basic.Properties(headers=headers), b"").application_properties == {"mine": 1}


def test_a_foreign_schedule_may_be_a_timestamp() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    message = _codec.decode(Basic.Properties(headers={"x-opt-scheduled-enqueue-time": at}), b"")
    assert message.scheduled_enqueue_at == at


def test_an_expiration_of_zero_is_a_millisecond() -> None:
    assert _codec.decode(Basic.Properties(expiration="0"), b"").time_to_live == 0.001


# --------------------------------------------------------------------------- malformed


def nested(depth: int, inner: Any = 1) -> Any:
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("properties", "word"),
    [
        ({"message_id": "x" * 129}, "message_id"),
        ({"expiration": "soon"}, "expiration"),
        ({"expiration": ""}, "expiration"),
        ({"expiration": "-1"}, "expiration"),
        ({"expiration": "1_0"}, "expiration"),
        ({"expiration": "٣"}, "expiration"),
        ({"expiration": "9" * 20}, "expiration"),
        ({"headers": {"": 1}}, "name"),
        ({"headers": {"x" * 129: 1}}, "name"),
        ({"headers": {"f": math.nan}}, "'f' is nan"),
        ({"headers": {"f": [{"a": math.inf}]}}, "'f' is inf"),
        ({"headers": {"f": {"": 1}}}, "'f'"),
        ({"headers": {"i": 2**63}}, "'i' does not fit 64"),
        ({"headers": {"deep": nested(17)}}, "'deep' is nested"),
        ({"headers": {"deep": nested(5000)}}, "'deep' is nested"),
        ({"headers": {"d": Decimal("NaN")}}, "'d' is not finite"),
        ({"headers": {"t": datetime(2030, 1, 1)}}, "time zone"),  # noqa: DTZ001
        ({"timestamp": datetime(2030, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"headers": {"group-id": "x" * 129}}, "group-id"),
        ({"headers": {"x-opt-partition-key": "x" * 129}}, "x-opt-partition-key"),
        ({"headers": {"group-id": "a", "x-opt-partition-key": "b"}}, "partition_key"),
        ({"headers": {"x-opt-scheduled-enqueue-time": "tomorrow"}}, "x-opt-scheduled-enqueue-time"),
        ({"headers": {"x-opt-scheduled-enqueue-time": "2030-01-01T00:00:00"}}, "time zone"),
        ({"headers": {"x-opt-scheduled-enqueue-time": "0001-01-01T00:00:00+23:00"}}, "instant"),
        ({"headers": {"message-id": "x" * 300}}, "message_id"),
        ({"headers": {"application-property-types": {"a": "uuid"}}}, "'a'"),
        ({"headers": {"a": "x", "application-property-types": {"a": "uuid"}}}, "'a'"),
        ({"headers": {"a": "x", "application-property-types": {"a": "datetime"}}}, "'a'"),
        ({"headers": {"a": "x", "application-property-types": {"a": "date"}}}, "'a'"),
        ({"headers": {"a": "x", "application-property-types": {"a": 1}}}, "'a'"),
        ({"headers": {"a": "x", "application-property-types": {"a": {"b": "uuid"}}}}, "'a'"),
        ({"headers": {"a": 1, "application-property-types": {"a": "uuid"}}}, "'a'"),
        ({"headers": {"a": [1], "application-property-types": {"a": "uuid"}}}, "'a'"),
        ({"headers": {"a": [1], "application-property-types": {"a": {"1": "uuid"}}}}, "'a'"),
        ({"headers": {"a": ["x"], "application-property-types": {"a": {"00": "uuid"}}}}, "'a'"),
        ({"headers": {"a": ["x"], "application-property-types": {"a": {"": "map"}}}}, "'a'"),
        ({"headers": {"a": ["x", 1, "x", 2], "application-property-types": {"a": {"": "map"}}}}, "'a'"),
        ({"headers": {"a": [1, 2], "application-property-types": {"a": {"": "map"}}}}, "'a'"),
        ({"headers": {"a": [1, 2], "application-property-types": {"a": {"": ["map"]}}}}, "'a'"),
        ({"headers": {"a": {"b": 1}, "application-property-types": {"a": {"c": "uuid"}}}}, "'a'"),
        ({"headers": {"to": "x", "application-property-types": {"to": "uuid"}}}, "'to'"),
        (
            {"headers": {"application-properties": {"CC": 1}, "application-property-types": {"CC": "uuid"}}},
            "'CC'",
        ),
        (
            {"headers": {"application-properties": {"CC": 1}, "application-property-types": {_layout.SHELTER: "x"}}},
            "'application-properties'",
        ),
        (
            {
                "headers": {
                    "application-properties": ["é" * 128, "x"],
                    "application-property-types": {_layout.SHELTER: {"0": "uuid"}},
                }
            },
            "'application-properties'",
        ),
        ({"headers": [1]}, "items"),
    ],
)
def test_what_a_message_cannot_hold_is_named(properties: dict[str, Any], word: str) -> None:
    received = Basic.Properties(**properties)
    with pytest.raises(MalformedMessage, match=word) as caught:
        _codec.decode(received, b"body")
    assert len(str(caught.value)) <= 300
    assert "\n" not in str(caught.value)
    assert _codec.decode_leniently(received, b"body").body == b"body"


def test_lenient_decoding_leaves_out_invalid_values() -> None:
    properties = Basic.Properties(
        message_id="x" * 129,
        content_type="text/plain",
        expiration="x",
        headers={
            "good": [b"\xff", {"a": 1}],
            "nan": math.nan,
            "text": "plain",
            "deep": nested(3000),
            "group-id": "s",
            "x-opt-partition-key": "p",
            "application-property-types": {"text": "uuid", "missing": "uuid"},
        },
    )
    assert _codec.decode_leniently(properties, b"body") == Message(
        b"body",
        content_type="text/plain",
        session_id="s",
        application_properties={"good": (b"\xff", {"a": 1}), "text": "plain"},
    )


tree = st.recursive(
    st.sampled_from(["uuid", "datetime", "map", "x", ""]) | scalars,
    lambda inner: (
        st.dictionaries(st.sampled_from(["", "0", "1", "a", "CC", "é" * 128]), inner, max_size=3)
        | st.lists(inner, max_size=4)
    ),
    max_leaves=6,
)
wild = st.recursive(
    st.one_of(
        scalars,
        st.floats(),
        st.integers(),
        st.decimals(),
        st.datetimes(),
        st.binary(max_size=5).map(bytearray),
        st.just(str(UUID(int=5))),
    ),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["", "a", "CC", "to"]) | names, inner, max_size=4)
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(["content_type", "message_id", "reply_to", "message_type", "user_id", "app_id"], texts),
            "expiration": texts | st.from_regex(r"\A[0-9+ -]{0,5}\Z"),
            "priority": st.integers(-1, 300),
            "timestamp": instants | st.datetimes(),
            "headers": st.dictionaries(st.sampled_from(["", *MAPPING]) | names, wild | tree, max_size=5),
        },
    ),
    st.none() | tree,
    st.none() | wild,
)
def test_arbitrary_properties_raise_nothing_but_malformed(fields: dict[str, Any], types: Any, shelter: Any) -> None:
    properties = Basic.Properties(**fields)
    if types is not None:
        properties.headers = {**(properties.headers or {}), "application-property-types": types}
    if shelter is not None:
        properties.headers = {**(properties.headers or {}), "application-properties": shelter}
    with contextlib.suppress(MalformedMessage):
        message = _codec.decode(properties, b"1")
        assert _codec.decode_leniently(properties, b"1") == message
        assert_same(_codec.decode(over_the_wire(_codec.encode(message, login="")), b"1"), message)
    assert _codec.decode_leniently(properties, b"1").body == b"1"
    _codec.death_reason(properties)
    assert _codec.delivery_count(properties, False) >= 1
    _codec.dead_letter_reason(properties)


@given(st.binary(max_size=200))
@example(b"F" + _block(b"\x01a" + b"A" * 5))
def test_arbitrary_bytes_raise_nothing_but_malformed(raw: bytes) -> None:
    header = ContentHeader()
    with contextlib.suppress(Exception):  # the driver's business
        header.unmarshal(struct.pack(">HHQ", 60, 0, 0) + raw)
    with contextlib.suppress(MalformedMessage):
        assert isinstance(_codec.decode(header.properties, raw), Message)
    assert _codec.decode_leniently(header.properties, raw).body == raw


def test_properties_of_wrong_types_are_malformed() -> None:
    properties = Basic.Properties()
    for name in Basic.Properties.__slots__:
        for value in (5, 1.5, b"x", object(), ["x"], {1: 2}, {"x": object()}):
            setattr(properties, name, value)
            with contextlib.suppress(MalformedMessage):
                _codec.decode(properties, b"")
            assert isinstance(_codec.decode_leniently(properties, b""), Message)
        setattr(properties, name, None)


def test_deep_nesting_on_the_wire_is_malformed() -> None:
    raw = b"V"
    for _ in range(200):
        raw = b"F" + _table([("a", raw)])
    header = ContentHeader()
    header.unmarshal(struct.pack(">HHQH", 60, 0, 0, 0x2000) + _table([("deep", raw)]))
    with pytest.raises(MalformedMessage, match="nested"):
        _codec.decode(header.properties, b"")
    copy = _codec.with_dead_letter(header.properties, "malformed", "nested")
    assert over_the_wire(copy).headers == copy.headers


def test_text_decodes_to_bytes_when_not_utf8() -> None:
    header = ContentHeader()
    header.unmarshal(
        struct.pack(">HHQH", 60, 0, 0, 0x2000)
        + _table([("latin", b"S" + _block(b"\xe9")), ("to", b"S" + _block(b"\xe9"))])
    )
    message = _codec.decode(header.properties, b"")
    assert message == Message(application_properties={"latin": b"\xe9", "to": b"\xe9"})
    assert over_the_wire(_codec.with_dead_letter(header.properties, "", "")).headers["latin"] == b"\xe9"  # type: ignore[index]


def test_oversized_value_raises_and_is_not_cut() -> None:
    for properties in (
        Basic.Properties(app_id="x" * 256),
        Basic.Properties(headers={"x" * 256: 1}),
        Basic.Properties(headers={"i": 2**63}),
        Basic.Properties(headers={"o": object()}),  # type: ignore[dict-item]
        Basic.Properties(priority=256),
        Basic.Properties(headers={"d": Decimal(2**31)}),
    ):
        with pytest.raises(ValueError, match="AMQP 0-9-1"):
            _same(properties).marshal()


# --------------------------------------------------------------------------- what the broker says

EXPIRED: dict[str, Any] = {
    "count": 1,
    "reason": "expired",
    "queue": "delay",
    "time": datetime(2030, 1, 1, tzinfo=UTC),
    "exchange": "",
    "routing-keys": ["delay"],
    "original-expiration": "1500",
}
LIMIT: dict[str, Any] = {"count": 1, "reason": "delivery_limit", "queue": "orders"}


def test_the_newest_death_counts() -> None:
    assert _codec.death_reason(Basic.Properties(headers={"x-death": [LIMIT, EXPIRED]})) == "delivery_limit"
    assert _codec.death_reason(Basic.Properties(headers={"x-death": [EXPIRED, LIMIT]})) == "expired"


def test_the_death_that_the_broker_names_last_counts_before_the_order() -> None:
    headers: dict[str, Any] = {
        "x-death": [EXPIRED, LIMIT],
        "x-last-death-reason": "delivery_limit",
        "x-last-death-queue": "orders",
    }
    assert _codec.death_reason(Basic.Properties(headers=headers)) == "delivery_limit"
    del headers["x-death"]
    assert _codec.death_reason(Basic.Properties(headers=headers)) == "delivery_limit"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"x-death": "x"},
        {"x-death": []},
        {"x-death": ["x"]},
        {"x-death": [{}]},
        {"x-death": [{"reason": 1, "queue": "q"}]},
        {"x-death": [{"reason": "expired"}]},
    ],
)
def test_unreadable_death_is_ignored(headers: Any) -> None:
    assert _codec.death_reason(Basic.Properties(headers=headers)) is None
    assert _codec.dead_letter_reason(Basic.Properties(headers=headers)) == (None, None)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("expired", "expired"),
        ("delivery_limit", "max-delivery-count"),
        ("rejected", "rejected"),
        ("maxlen", "max-length"),
        ("new", "new"),
    ],
)
def test_reasons_of_the_broker_are_translated(reason: str, told: str) -> None:
    properties = Basic.Properties(headers={"x-death": [{"reason": reason, "queue": "q"}]})
    assert _codec.dead_letter_reason(properties) == (told, None)
    ours = _codec.with_dead_letter(properties, "mine", "why")
    assert _codec.dead_letter_reason(ours) == ("mine", "why")


@pytest.mark.parametrize(
    ("headers", "redelivered", "count"),
    [
        (None, False, 1),
        (None, True, 2),
        ({"x-delivery-count": 0}, True, 1),
        ({"x-delivery-count": 4}, False, 5),
        ({"x-delivery-count": -4}, False, 1),
        ({"x-delivery-count": True}, False, 1),
        ({"x-delivery-count": "4"}, True, 2),
    ],
)
def test_delivery_counts(headers: Any, redelivered: bool, count: int) -> None:
    assert _codec.delivery_count(Basic.Properties(headers=headers), redelivered) == count


def test_a_reason_is_cut_and_always_text() -> None:
    copy = _codec.with_dead_letter(Basic.Properties(), "x" * 2000, "\ud800" * 2000)
    assert _codec.dead_letter_reason(over_the_wire(copy)) == ("x" * 1024, "?" * 1024)


def test_a_dead_letter_goes_nowhere_else_and_stays() -> None:
    properties = Basic.Properties(
        expiration="1500", user_id="other", delivery_mode=1, headers={"CC": ["elsewhere"], "x-delivery-count": 9}
    )
    copy = _codec.with_dead_letter(properties, "r", "d", login="me")
    assert copy.headers == {
        "application-properties": {"CC": ["elsewhere"]},
        "amqp.user_id": "other",
        "ttl": "1.5",
        "x-dead-letter-reason": "r",
        "x-dead-letter-description": "d",
    }
    assert (copy.expiration, copy.user_id, copy.delivery_mode) == (None, None, 2)

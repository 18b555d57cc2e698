"""The fast path between messages and headers: it reads and writes the same as the general path."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairmq.core import Diversion, divert, restore
from pairmq.model import Entity, Message
from pairmq_rabbitmq import _codec, _header, _layout, _plain
from pairmq_rabbitmq._publish import Parcel

SOME_TEXTS = ["", "a", "é" * 5, "x" * 63, "x" * 64, "€" * 63, "y" * 256, _layout.DIRECT_REPLY_TO]
SOME_NAMES = [
    *("a", "é", "x-ms-path", "\x00", "n" * 128, "€" * 63, "€" * 64),
    *("to", "group-id", "CC", "ttl", "x-delivery-count", "x-acquired-count", "x-death", _header.UNREADABLE),
    *("x-first-death-queue", "application-properties", "application-property-types", "amqp.app_id", "amqp.user_id"),
]
SOME_VALUES = ["", "v", "€" * 9, "z" * 9000, 0, -1, 2**31, 2**63 - 1, -(2**63), True, False, None, 1.5, b"x", ("t",)]

texts = st.none() | st.sampled_from(SOME_TEXTS)
messages = st.builds(
    Message,
    st.binary(max_size=3),
    st.none() | st.sampled_from(["id", "i" * 64, "i" * 128, "€" * 60]),
    content_type=texts,
    content_encoding=texts,
    correlation_id=texts,
    subject=texts,
    to=texts,
    reply_to=texts,
    session_id=st.none() | st.just("s"),
    priority=st.none() | st.integers(0, 255),
    time_to_live=st.none() | st.just(1.5),
    application_properties=st.dictionaries(st.sampled_from(SOME_NAMES), st.sampled_from(SOME_VALUES), max_size=4),
)
plain_messages = st.builds(
    Message,
    st.binary(max_size=3),
    st.sampled_from(["id", "€" * 60]),
    subject=st.none() | st.just("s"),
    application_properties=st.dictionaries(st.sampled_from(["a", "é", "x-ms-path"]), st.sampled_from(SOME_VALUES[:3])),
)


def header(message: Message) -> bytes:
    """By the general path."""
    return Parcel.of(b"", _codec.encode(message, login=""), message.body).header


def exactly(message: Message) -> tuple[object, ...]:
    """Distinguishes what == does not: 1 from True."""
    fields = [repr(getattr(message, name)) for name in Message.__slots__[:-1]]
    return (*fields, sorted(map(repr, message.application_properties.items())))


@given(messages | plain_messages)
def test_fast_path_writes_the_same_as_the_general_path(message: Message) -> None:
    parcel = _plain.pack(b"method", message)
    if parcel is not None:
        assert parcel == Parcel.of(b"method", _codec.encode(message, login=""), message.body)


@given(messages | plain_messages, st.lists(st.tuples(st.integers(12, 400), st.integers(0, 255)), max_size=3))
@example(Message(b"", "i", application_properties={"a": "b"}), [(12, 0x20)])
def test_fast_path_reads_the_same_as_the_general_path(message: Message, damage: list[tuple[int, int]]) -> None:
    damaged = bytearray(header(message))
    for place, octet in damage:
        damaged[12 + (place - 12) % (len(damaged) - 12)] = octet
    found = _plain.read(bytes(damaged), b"body")
    if found is not None:
        properties = _header.read(bytes(damaged))
        assert exactly(found[0]) == exactly(_codec.decode(properties, b"body"))
        assert _codec.count_of(found[1], True) == _codec.delivery_count(properties, True)


@pytest.mark.parametrize("cut", range(1, 40))
def test_truncated_header_is_left_to_the_general_path(cut: int) -> None:
    whole = header(Message(b"", "some-id", application_properties={"a": "b", "c": 1}))
    assert _plain.read(whole, b"") is not None
    assert _plain.read(whole[:-cut], b"") is None


def test_diverted_message_takes_the_fast_path() -> None:
    message = Message(b"1", "m", content_type="text/plain", application_properties={"tenant": "acme"})
    diverted = divert(message, Diversion(Entity("orders"), datetime.now(UTC), "sender", 1))
    sent = _plain.pack(b"method", diverted)
    assert sent is not None
    found = _plain.read(sent.header, sent.body)
    assert found is not None
    assert exactly(restore(found[0])[0]) == exactly(message)
    assert _plain.pack(b"method", restore(found[0])[0]) is not None


def test_the_brokers_count_of_deliveries_is_read() -> None:
    properties = _codec.encode(Message(b"", "m"), login="")
    properties.headers = {"x-delivery-count": 2}
    found = _plain.read(Parcel.of(b"", properties, b"").header, b"")
    assert found is not None
    assert (found[1], dict(found[0].application_properties)) == (2, {})

"""Messages to AMQP and back, through the client's own encoder and decoder."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import MAX_TIME_TO_LIVE, Message
from pairmq_servicebus._codec import Decoded, decode, decode_leniently, encode, measure, take_apart
from pairmq_servicebus._direct import is_plain, outgoing
from pairmq_servicebus._entities import SESSION
from pairmq_servicebus._values import FIELDS, Malformed

_letters = st.characters(exclude_categories=("Cs",))
texts = st.text(_letters, max_size=40)
ids = st.text(_letters, min_size=1, max_size=128)
instants = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001
decimals = st.builds(
    lambda number, places: Decimal((int(number < 0), tuple(int(d) for d in str(abs(number))), -places)),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 255),
).filter(lambda value: not (value.is_signed() and not value))
simple = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary(max_size=40)
    | instants
    | decimals
    | st.uuids()
)
values: st.SearchStrategy[Any] = st.recursive(
    simple,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(ids | st.sampled_from(("$bytes", "$map", "$uuid")), inner, max_size=3)
    ),
    max_leaves=6,
)
names = ids | st.sampled_from(("x-pairmq-fields", "DeadLetterReason", "DeadLetterErrorDescription", "x-ms-path"))


# Made once: to make a strategy takes longer than to draw from it.
maybe = st.none()
optional_texts, optional_ids, optional_instants = maybe | texts, maybe | ids, maybe | instants
longest = st.floats(1e-6, MAX_TIME_TO_LIVE).filter(lambda value: round(value, 6) > 0 and math.isfinite(value))
optional_lifetimes = maybe | longest | st.integers(1, 10**6).map(float) | st.floats(0.001, 100)
bodies, priorities = st.binary(max_size=300), maybe | st.integers(0, 255)
properties_of_messages = st.dictionaries(names, values, max_size=5)


@st.composite
def messages(draw: st.DrawFn, scheduled: bool = True) -> Message:
    """Any message that can be sent."""
    session = draw(optional_ids)
    return Message(
        draw(bodies),
        message_id=draw(ids),
        session_id=session,
        partition_key=draw(optional_ids if session is None else st.sampled_from((None, session))),
        time_to_live=draw(optional_lifetimes),
        scheduled_enqueue_at=draw(optional_instants) if scheduled else None,
        content_type=draw(optional_texts),
        content_encoding=draw(optional_texts),
        correlation_id=draw(optional_texts),
        subject=draw(optional_texts),
        to=draw(optional_texts),
        reply_to=draw(optional_texts),
        reply_to_session_id=draw(optional_ids),
        priority=draw(priorities),
        application_properties=draw(properties_of_messages),
    )


def on_the_wire(annotated: AmqpAnnotatedMessage) -> bytes:
    return bytes(encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(annotated)))


def there_and_back(annotated: AmqpAnnotatedMessage, *, dead_letter: bool = False) -> Decoded:
    received = ServiceBusReceivedMessage.from_bytes(on_the_wire(annotated))
    return decode(received.raw_amqp_message, dead_letter=dead_letter)


def foreign(body: Any = b"", **sections: Any) -> Message:
    kind = sections.pop("kind", "data_body")
    properties = sections.pop("properties", None)
    if properties is not None:
        sections["properties"] = AmqpMessageProperties(**properties)
    if "header" in sections:
        sections["header"] = AmqpMessageHeader(**sections["header"])
    return there_and_back(AmqpAnnotatedMessage(**{kind: body}, **sections)).message


@given(messages(), st.booleans())
def test_every_field_and_property_comes_back_as_it_was(message: Message, single_consumer: bool) -> None:
    back = there_and_back(encode(take_apart(message, single_consumer=single_consumer))).message
    assert back == message
    for name, value in message.application_properties.items():
        assert type(back.application_properties[name]) is type(value)


@given(messages(), st.booleans())
def test_a_message_measures_what_the_client_encodes_and_never_less(message: Message, single_consumer: bool) -> None:
    parts = take_apart(message, single_consumer=single_consumer)
    encoded = len(on_the_wire(encode(parts)))
    assert encoded <= measure(parts) <= encoded + 8


@given(messages(scheduled=False))
def test_a_plain_message_is_written_as_the_public_sender_writes_it(message: Message) -> None:
    parts = take_apart(message)
    if is_plain(parts):
        assert bytes(encode_payload(bytearray(), outgoing(parts))) == on_the_wire(encode(parts))
    else:
        assert parts.header or parts.annotations


@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 140])
@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 70_000])
def test_measures_hold_where_amqp_changes_to_longer_forms(count: int, size: int) -> None:
    properties: dict[str, Any] = {f"p{number}": number for number in range(count)}
    parts = take_apart(
        Message(b"x" * size, message_id="m", subject="s" * min(size, 300), application_properties=properties)
    )
    encoded = len(on_the_wire(encode(parts)))
    assert encoded <= measure(parts) <= encoded + 8


def test_a_plain_message_carries_nothing_of_ours() -> None:
    message = Message(
        b"{}",
        message_id="m",
        session_id="s",
        time_to_live=2.5,
        scheduled_enqueue_at=datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC),
        application_properties={"a": 1, "b": "two", "c": None, "d": 1.5, "e": True, "f": uuid.UUID(int=7)},
    )
    assert FIELDS not in take_apart(message).application


@pytest.mark.parametrize("seconds", [1e-6, 0.0015, 1.000001, 4294967.295, 4294967.296, 86400.0 * 365 * 100, 5e11])
def test_a_time_to_live_loses_nothing(seconds: float) -> None:
    message = Message(message_id="m", time_to_live=seconds)
    assert there_and_back(encode(take_apart(message))).message.time_to_live == message.time_to_live


def test_the_broker_never_ends_a_message_early() -> None:
    assert take_apart(Message(message_id="m", time_to_live=0.0015)).header["time_to_live"] == 2
    assert take_apart(Message(message_id="m", time_to_live=1e-6)).header["time_to_live"] == 1


def test_a_schedule_with_microseconds_is_rounded_up_for_the_broker_and_exact_for_us() -> None:
    at = datetime(2031, 1, 1, 0, 0, 0, 1, UTC)
    parts = take_apart(Message(message_id="m", scheduled_enqueue_at=at))
    assert parts.annotations[b"x-opt-scheduled-enqueue-time"]["VALUE"] % 1000 == 1
    assert there_and_back(encode(parts)).message.scheduled_enqueue_at == at


def test_an_unlimited_life_is_none() -> None:
    endless = {"creation_time": 1_700_000_000_000, "absolute_expiry_time": 253_402_243_199_000}
    assert foreign(properties=endless).time_to_live is None
    assert foreign(header={"time_to_live": 5000}).time_to_live == 5.0


@pytest.mark.parametrize(
    ("given_id", "read"),
    [("text", "text"), (7, "7"), (uuid.UUID(int=1), str(uuid.UUID(int=1))), (b"bytes", "bytes")],
)
def test_a_foreign_message_id_of_any_type_is_text(given_id: Any, read: str) -> None:
    assert foreign(properties={"message_id": given_id}).message_id == read


@pytest.mark.parametrize(
    ("kind", "body", "read"),
    [
        ("data_body", [b"one", b"two"], b"onetwo"),
        ("value_body", None, b""),
        ("value_body", "text", b"text"),
        ("value_body", b"\xff\x00", b"\xff\x00"),
        ("value_body", 42, b"42"),
        ("value_body", {"a": [1, "b"]}, b'{"a":[1,"b"]}'),
        ("sequence_body", [1, "two", None], b'[1,"two",null]'),
    ],
)
def test_a_foreign_body_is_read_as_far_as_possible(kind: str, body: Any, read: bytes) -> None:
    assert foreign(body, kind=kind, properties={"message_id": "m"}).body == read


def test_foreign_properties_are_read_without_notes() -> None:
    given_properties = {
        "text": "é",
        "binary": {"TYPE": "BINARY", "VALUE": b"\xff"},
        "symbol": {"TYPE": "SYMBOL", "VALUE": b"sym"},
        "at": datetime(2020, 1, 1, tzinfo=UTC),
        "big": {"TYPE": "ULONG", "VALUE": 2**64 - 1},
        "nan": float("nan"),
        "list": [1, "two"],
    }
    assert foreign(application_properties=given_properties).application_properties == {
        "text": "é",
        "binary": b"\xff",
        "symbol": "sym",
        "at": 1577836800000,
        "big": str(2**64 - 1),
        "nan": "nan",
        "list": (1, "two"),
    }


@pytest.mark.parametrize(
    "fields",
    [
        "no json",
        "[]",
        '{"types":{"a":1}}',
        '{"types":{"a":"decimal"}}',
        '{"types":{"a":"no such type"}}',
        '{"hidden":{"b":"{"}}',
        '{"hidden":{"b":"NaN"}}',
        '{"hidden":{"b":"{\\"$bytes\\":\\"*\\"}"}}',
        '{"ttl":"-1"}',
        '{"ttl":"nan"}',
        '{"priority":300}',
        '{"scheduled":"2020-01-01"}',
        '{"session":1}',
        '{"partition":[]}',
        "[" * 5000,
    ],
)
def test_damaged_fields_of_ours_make_a_message_malformed(fields: str) -> None:
    with pytest.raises(Malformed):
        foreign(properties={"group_id": SESSION}, application_properties={"a": "not a number", FIELDS: fields})


def test_ids_that_no_message_can_have_make_it_malformed() -> None:
    with pytest.raises(Malformed):
        foreign(properties={"message_id": "x" * 129})
    with pytest.raises(Malformed):
        foreign(properties={"group_id": b"\xff\xfe"})


def test_the_reason_of_a_dead_letter_is_no_property_of_the_message() -> None:
    annotated = AmqpAnnotatedMessage(
        data_body=b"x", application_properties={"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
    )
    dead = there_and_back(annotated, dead_letter=True)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("why", "because")
    assert not dead.message.application_properties
    # Outside of a dead-letter queue it is what some sender wrote.
    assert there_and_back(annotated).message.application_properties["DeadLetterReason"] == "why"


def test_a_session_named_like_ours_comes_back() -> None:
    message = Message(message_id="m", session_id=SESSION, partition_key=SESSION)
    assert there_and_back(encode(take_apart(message))).message == message


def test_everything_for_one_consumer_is_of_one_session_and_has_no_other_key() -> None:
    parts = take_apart(Message(message_id="m", session_id="s", partition_key="s"), single_consumer=True)
    assert (parts.properties["group_id"], parts.annotations) == (SESSION, {})


def test_a_property_named_like_ours_comes_back() -> None:
    message = Message(message_id="m", application_properties={FIELDS: Decimal("1.50")})
    assert there_and_back(encode(take_apart(message))).message == message


REASONS = {"DeadLetterReason": "mine", "DeadLetterErrorDescription": "of an earlier time"}


def test_the_reason_of_a_message_that_is_sent_again_is_carried_as_it_is() -> None:
    assert take_apart(Message(application_properties=REASONS)).application == REASONS


def test_the_reason_of_a_diverted_message_outlives_that_of_the_backlog() -> None:
    message = Message(message_id="m", application_properties={"x-ms-path": "orders", **REASONS})
    parts = take_apart(message)
    parts.application["DeadLetterReason"] = "the service's"
    back = there_and_back(encode(parts), dead_letter=True)
    assert back.message == message
    assert back.dead_letter_reason == "the service's"


def test_looking_at_a_malformed_message_shows_its_body() -> None:
    wire = on_the_wire(AmqpAnnotatedMessage(data_body=b"content", application_properties={FIELDS: "damaged"}))
    raw = ServiceBusReceivedMessage.from_bytes(wire).raw_amqp_message
    assert decode_leniently(raw).message.body == b"content"

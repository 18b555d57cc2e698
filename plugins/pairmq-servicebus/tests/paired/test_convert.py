"""Messages of azure-servicebus on their way into a pair: what is carried, and what is refused."""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage
from hypothesis import given
from hypothesis import strategies as st

from pairmq import Message
from pairmq_servicebus import _codec
from pairmq_servicebus._values import FIELDS
from pairmq_servicebus.paired._convert import convert, convert_all, is_one

NOON = datetime(2026, 11, 21, 12, 0, 0, 123_456, tzinfo=UTC)


class Colour(enum.IntEnum):
    RED = 3


class Size(enum.StrEnum):
    LARGE = "large"


def received(raw: AmqpAnnotatedMessage) -> ServiceBusReceivedMessage:
    """As a consumer gets it."""
    payload = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
    return ServiceBusReceivedMessage.from_bytes(bytes(payload))


def by_the_client(message: ServiceBusMessage) -> dict[str, Any]:
    return view(received(message.raw_amqp_message))


def by_the_pair(message: ServiceBusMessage) -> dict[str, Any]:
    return view(received(_codec.encode(_codec.take_apart(convert(message)))))


def view(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    return {
        "body": b"".join(message.body),
        "application_properties": {
            name: value for name, value in (message.application_properties or {}).items() if name != FIELDS.encode()
        },
        **{
            name: getattr(message, name)
            for name in (
                "body_type",
                "content_type",
                "correlation_id",
                "message_id",
                "partition_key",
                "reply_to",
                "reply_to_session_id",
                "scheduled_enqueue_time_utc",
                "session_id",
                "subject",
                "time_to_live",
                "to",
            )
        },
    }


_letters = st.characters(exclude_categories=("Cs",))
_texts = st.text(_letters, min_size=1, max_size=30)
_ids = st.text(_letters, min_size=1, max_size=128)
_instants = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.none() | st.just(UTC))  # noqa: DTZ001
_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31), 2**31 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts
    | _texts.map(str.encode)
    | st.uuids()
    | _instants
)


@st.composite
def client_messages(draw: st.DrawFn) -> ServiceBusMessage:
    maybe = st.none()
    session = draw(maybe | _ids)
    return ServiceBusMessage(
        draw(st.binary(max_size=50) | _texts),
        application_properties=draw(maybe | st.dictionaries(_texts | _texts.map(str.encode), _values, max_size=4)),
        session_id=session,
        message_id=draw(maybe | _ids),
        scheduled_enqueue_time_utc=draw(maybe | _instants),
        time_to_live=draw(maybe | st.timedeltas(timedelta(seconds=1), timedelta(days=49))),
        content_type=draw(maybe | st.text(st.characters(codec="ascii"), min_size=1, max_size=20)),
        correlation_id=draw(maybe | _texts),
        subject=draw(maybe | _texts),
        partition_key=draw(maybe | st.just(session) if session else maybe | _ids),
        to=draw(maybe | _texts),
        reply_to=draw(maybe | _texts),
        reply_to_session_id=draw(maybe | _ids),
    )


def _unambiguous(message: ServiceBusMessage) -> bool:
    names = [key.decode() if isinstance(key, bytes) else key for key in message.application_properties or {}]
    return len(names) == len(set(names))


@given(client_messages().filter(_unambiguous))
def test_a_consumer_gets_what_the_client_itself_would_have_sent(message: ServiceBusMessage) -> None:
    by_pair = by_the_pair(message)  # first: the client changes the message when it encodes it
    assert by_pair == by_the_client(message)


def test_an_ordinary_message_gets_no_property_of_ours() -> None:
    message = ServiceBusMessage(
        "text",
        application_properties={"a": 1, "b": b"x", "c": uuid.uuid4(), "d": 0.5},
        scheduled_enqueue_time_utc=NOON,
        time_to_live=timedelta(minutes=5),
        session_id="s",
    )
    assert set(_codec.take_apart(convert(message)).application) == {"a", "b", "c", "d"}


def test_an_id_is_given_by_the_clients_rules() -> None:
    assert uuid.UUID(convert(ServiceBusMessage("x")).message_id)
    assert convert(AmqpAnnotatedMessage(data_body="x")).message_id is None


def test_mappings_and_annotated_messages_are_taken() -> None:
    assert convert({"body": "x", "message_id": "1"}) == Message(b"x", message_id="1")
    raw = AmqpAnnotatedMessage(
        data_body=b"x",
        header={"priority": 7, "time_to_live": 1500, "durable": True},
        properties={"message_id": b"1", "group_id": "s", "content_encoding": "gzip"},
        annotations={"x-opt-scheduled-enqueue-time": 1_800_000_000_000, b"x-opt-partition-key": b"s"},
        application_properties={b"k": 2**40},
    )
    assert convert(raw) == Message(
        b"x",
        message_id="1",
        session_id="s",
        partition_key="s",
        priority=7,
        time_to_live=1.5,
        content_encoding="gzip",
        scheduled_enqueue_at=datetime.fromtimestamp(1_800_000_000, UTC),
        application_properties={"k": 2**40},
    )


def test_instants_are_cut_to_milliseconds_and_taken_for_utc_as_the_client_does() -> None:
    naive = convert(ServiceBusMessage("x", scheduled_enqueue_time_utc=NOON.replace(tzinfo=None)))
    elsewhere = NOON.astimezone(timezone(timedelta(hours=2)))
    assert naive.scheduled_enqueue_at == NOON.replace(microsecond=123_000)
    assert convert(ServiceBusMessage("x", scheduled_enqueue_time_utc=elsewhere)).scheduled_enqueue_at == (
        NOON.replace(microsecond=123_000)
    )


def test_subclasses_are_carried_as_what_they_are_made_of() -> None:
    properties = convert(
        ServiceBusMessage("x", application_properties={"c": Colour.RED, Size.LARGE: Size.LARGE})
    ).application_properties
    assert properties == {"c": 3, "large": "large"}
    assert [type(value) for value in properties.values()] == [int, str]


def test_an_endless_time_to_live_is_none() -> None:
    raw = AmqpAnnotatedMessage(data_body=b"", header={"time_to_live": 922_337_203_685_477})
    assert convert(raw).time_to_live is None


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: ServiceBusMessage(None), TypeError, "None is one too"),
        (lambda: AmqpAnnotatedMessage(value_body={"a": 1}), TypeError, "AMQP value"),
        (lambda: AmqpAnnotatedMessage(sequence_body=[1, 2]), TypeError, "sequence"),
        (lambda: AmqpAnnotatedMessage(data_body=[b"a", b"b"]), ValueError, "2 data sections"),
        (lambda: AmqpAnnotatedMessage(data_body=[3]), TypeError, "body is a int"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", footer={"a": 1}), ValueError, "footer"),
        (
            lambda: AmqpAnnotatedMessage(data_body=b"", delivery_annotations={"a": 1}),
            ValueError,
            "delivery annotations",
        ),
        (lambda: AmqpAnnotatedMessage(data_body=b"", annotations={"x-mine": 1}), ValueError, "x-mine"),
        (
            lambda: AmqpAnnotatedMessage(data_body=b"", annotations={b"x-opt-via-partition-key": "k"}),
            ValueError,
            "x-opt-via-partition-key",
        ),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"user_id": b"me"}), ValueError, "user_id"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"group_sequence": 1}), ValueError, "group_sequence"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"creation_time": 5}), ValueError, "creation_time"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", header={"delivery_count": 2}), ValueError, "delivery_count"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", header={"first_acquirer": True}), ValueError, "first_acquirer"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", header={"durable": False}), ValueError, "durable"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"message_id": uuid.uuid4()}), TypeError, "message_id"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"message_id": b"\xff"}), ValueError, "message_id"),
        (lambda: AmqpAnnotatedMessage(data_body=b"", properties={"correlation_id": 5}), TypeError, "correlation_id"),
        (lambda: ServiceBusMessage("", time_to_live=timedelta(milliseconds=5)), ValueError, "time_to_live"),
        (lambda: ServiceBusMessage("", application_properties={"a": [1]}), TypeError, "'a' is a list"),  # type: ignore[dict-item]
        (lambda: ServiceBusMessage("", application_properties={"a": {"b": 1}}), TypeError, "'a' is a dict"),  # type: ignore[dict-item]
        (lambda: ServiceBusMessage("", application_properties={"a": Decimal(1)}), TypeError, "'a' is a Decimal"),  # type: ignore[dict-item]
        (lambda: ServiceBusMessage("", application_properties={"a": math.nan}), ValueError, "'a' is nan"),
        (lambda: ServiceBusMessage("", application_properties={"a": 2**63}), ValueError, "64 bits"),
        (lambda: ServiceBusMessage("", application_properties={"a": b"\xff"}), ValueError, "'a' is bytes"),
        (lambda: ServiceBusMessage("", application_properties={5: 1}), TypeError, "name is a int"),  # type: ignore[dict-item]
        (lambda: ServiceBusMessage("", session_id=""), ValueError, "session_id"),
        (lambda: {"session_id": "a"}, TypeError, "body"),
        (lambda: "text", TypeError, "a str can't be sent"),
        (lambda: 5, TypeError, "a int can't be sent"),
    ],
)
def test_what_a_pair_cannot_carry_is_refused_by_name(
    make: Callable[[], Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        convert(make())


def test_a_received_message_is_sent_on_without_what_the_service_wrote_into_it() -> None:
    raw = AmqpAnnotatedMessage(
        data_body=b"x",
        header={"delivery_count": 3, "priority": 4, "time_to_live": 5000},
        properties={"message_id": "1", "creation_time": 1, "absolute_expiry_time": 5001},
        annotations={b"x-opt-sequence-number": 9, b"x-opt-enqueued-time": 1, b"x-opt-partition-key": "k"},
        delivery_annotations={b"x-opt-lock-token": uuid.uuid4()},
        application_properties={"a": "b"},
    )
    wanted = Message(b"x", message_id="1", time_to_live=5.0, partition_key="k", application_properties={"a": "b"})
    assert convert(received(raw)) == wanted
    assert convert(raw) == wanted


def test_a_received_message_of_a_pair_keeps_what_only_our_property_holds() -> None:
    original = Message(b"x", message_id="1", priority=9, application_properties={"d": NOON, "m": (1, {"a": b"b"})})
    raw = _codec.encode(_codec.take_apart(original))
    assert convert(received(raw)) == original


def test_of_several_none_is_converted_if_one_is_wrong() -> None:
    with pytest.raises(TypeError, match=r"^message 1: .*None"):
        convert_all([ServiceBusMessage("a"), ServiceBusMessage(None)])
    with pytest.raises(ValueError, match=r"^message 0: .*session_id"):
        convert_all([ServiceBusMessage("a", session_id="")])


def test_one_message_is_distinguished_from_several() -> None:
    assert is_one(ServiceBusMessage("a"))
    assert is_one(AmqpAnnotatedMessage(data_body=b""))
    assert is_one({"body": "a"})
    assert not is_one([ServiceBusMessage("a")])
    assert not is_one(message for message in ())

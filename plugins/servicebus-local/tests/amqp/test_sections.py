"""Messages taken apart and put together."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebus_local import amqp

HEADER = amqp.encode_header(amqp.Header(durable=True))
ANNOTATIONS = amqp.encode_annotations({"x-opt-a": 1})
PROPERTIES = amqp.encode_properties(amqp.Properties(message_id="id"))
APPLICATION = amqp.encode_application_properties({"a": 1})
DATA = b"\x00\x53\x75\xa0\x01x"
SEQUENCE = b"\x00\x53\x76\x45"
VALUE = b"\x00\x53\x77\xa1\x01x"
FOOTER = b"\x00\x53\x78\xc1\x01\x00"
DELIVERY = b"\x00\x53\x71\xc1\x01\x00"
MESSAGE = HEADER + DELIVERY + ANNOTATIONS + PROPERTIES + APPLICATION + DATA + DATA + FOOTER


def test_a_message_falls_into_its_sections() -> None:
    sections = amqp.split_message(MESSAGE)
    assert sections.header == amqp.Header(durable=True)
    assert sections.delivery_annotations == {}
    assert sections.message_annotations == {"x-opt-a": 1}
    assert all(type(key) is amqp.Symbol for key in sections.message_annotations)
    assert sections.properties == amqp.Properties(message_id="id")
    assert sections.application_properties == {"a": 1}
    assert sections.raw_properties == PROPERTIES
    assert sections.raw_application_properties == APPLICATION
    assert sections.raw_body == DATA + DATA
    assert sections.data == [b"x", b"x"]
    assert sections.raw_footer == FOOTER


def test_what_is_absent_is_none_or_empty() -> None:
    sections = amqp.split_message(b"")
    assert (sections.header, sections.properties, sections.application_properties) == (None, None, None)
    assert (sections.raw_body, sections.data, sections.raw_footer) == (b"", [], b"")


@pytest.mark.parametrize("body", [DATA, SEQUENCE + SEQUENCE, VALUE])
def test_a_body_of_any_kind_stays_as_it_came(body: bytes) -> None:
    assert amqp.split_message(PROPERTIES + body).raw_body == body


def test_sections_may_be_described_by_name_or_at_full_length() -> None:
    name = b"amqp:data:binary"
    for descriptor in (b"\x00\xa3" + bytes((len(name),)) + name, b"\x00\x80" + (0x75).to_bytes(8, "big")):
        assert amqp.split_message(descriptor + b"\xa0\x01x").data == [b"x"]


def test_short_lists_of_fields_are_filled_up() -> None:
    assert amqp.split_message(b"\x00\x53\x70\x45" + DATA).header == amqp.Header()
    assert amqp.split_message(b"\x00\x53\x73\xc0\x04\x01\xa1\x01i" + DATA).properties == amqp.Properties("i")


@pytest.mark.parametrize(
    "payload",
    [
        PROPERTIES + HEADER,
        HEADER + HEADER,
        DATA + PROPERTIES,
        DATA + VALUE,
        DATA + SEQUENCE,
        VALUE + VALUE,
        FOOTER + DATA,
        DATA + FOOTER + FOOTER,
        DELIVERY + DATA + DELIVERY,
        b"\x00\x53\x79\x45",
        b"\x00\x53",
        b"\x53\x75\xa0\x01x",
        b"\x00\x53\x75\xa1\x01x",
        b"\x00\x53\x75\xa0\x05x",
        b"\x00\x53\x76\xa0\x01x",
        b"\x00\x53\x77\xb0\xff\xff\xff\xff",
        b"\x00\x53\x77" + b"\x00" * 1000,
        b"\x00\x53\x74\x45",
        b"\x00\x53\x70\xc1\x01\x00",
        b"\x00\x53\x73\xc0\x03\x01\x50\x01\x40",
        b"\x00\x53\x70\xc0\x03\x01\xa0\x00",
    ],
)
def test_what_is_no_message_is_refused(payload: bytes) -> None:
    with pytest.raises(amqp.AmqpDecodeError):
        amqp.split_message(payload)


@given(st.binary(max_size=80), st.integers(0, len(MESSAGE)))
def test_any_bytes_are_a_message_or_refused(data: bytes, position: int) -> None:
    for payload in (data, MESSAGE[:position] + data, MESSAGE[:position] + data + MESSAGE[position:]):
        with contextlib.suppress(amqp.AmqpDecodeError):
            amqp.split_message(payload)


@pytest.mark.parametrize("body", [b"data", "text", 5, {"a": amqp.Int(1)}, ["x"], None])
def test_a_message_that_was_put_together_falls_apart_again(body: Any) -> None:
    header = amqp.Header(priority=3, ttl=5, delivery_count=2)
    properties = amqp.Properties(
        message_id=5,
        user_id=b"u",
        to="t",
        subject="s",
        reply_to="r",
        correlation_id=b"c",
        content_type="text/plain",
        content_encoding="gzip",
        absolute_expiry_time=amqp.Timestamp(1),
        creation_time=amqp.Timestamp(2),
        group_id="g",
        group_sequence=3,
        reply_to_group_id="rg",
    )
    payload = amqp.encode_message(
        header=header, message_annotations={}, properties=properties, application_properties={"a": 1.5}, body=body
    )
    sections = amqp.split_message(payload)
    assert sections.header == header
    assert sections.properties == properties
    assert (sections.message_annotations, sections.application_properties) == ({}, {"a": 1.5})
    assert sections.data == ([body] if isinstance(body, bytes) else [])
    assert amqp.decode_value(sections.raw_body, 3)[0] == body


def test_all_fields_are_written_since_clients_take_them_by_index() -> None:
    _, count = amqp.encode_properties(amqp.Properties())[4:6]
    assert count == 13
    assert amqp.encode_header(amqp.Header())[5] == 5


def test_a_batch_gives_its_messages_as_they_are() -> None:
    inner = [amqp.encode_message(body=b"1"), amqp.encode_message(body=b"2")]
    outer = b"".join(b"\x00\x53\x75" + amqp.encode_value(message) for message in inner)
    assert amqp.split_batch(ANNOTATIONS + outer) == inner
    with pytest.raises(amqp.AmqpDecodeError):
        amqp.split_batch(VALUE)

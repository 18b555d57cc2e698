"""A message as a row and back: nothing is lost on the way, and a row that no message can be made of is refused."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from pairmq.core import Diversion, divert
from pairmq.model import ConfigurationError, Delivery, Entity, Message, property_json
from pairmq.pipeline.datasource._rows import SCHEMA, Place, RowReader, RowRefused, to_batch

PLACE = Place("primary", "orders", "orders")
BACKLOG = Place("secondary", "east/x-servicebus-transfer/0", "east/x-servicebus-transfer/0", backlog=True)

_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
_plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    _text,
    st.binary(max_size=20),
    st.uuids(),
    st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(fold=0)),  # as a message keeps it
    st.decimals(-1000, 1000, places=3).filter(lambda d: not (d.is_zero() and d.is_signed())),
)
_keys = st.one_of(st.sampled_from(["base64", "datetime", "mapping", "uuid", "decimal"]), _text.filter(bool))
_values = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=6,
)

FULL = Message(
    b"\x00body\xff",
    message_id="m1",
    session_id="s",
    time_to_live=12.345678,
    scheduled_enqueue_at=datetime(2027, 3, 1, 12, 0, 0, 123456, UTC),
    content_type="application/json",
    content_encoding="gzip",
    correlation_id="c",
    subject="label",
    to="there",
    reply_to="here",
    reply_to_session_id="r",
    partition_key="s",
    priority=7,
    application_properties={
        "text": "1",
        "whole": 1,
        "real": 1.0,
        "yes": True,
        "bytes": b"\x00\xff",
        "nothing": None,
        "when": datetime(2026, 5, 1, tzinfo=UTC),
        "price": Decimal("1.10"),
        "who": UUID(int=5),
        "list": (1, "a", (2.5,)),
        "map": {"base64": "no bytes"},
    },
)


def reader() -> RowReader:
    return RowReader.of(SCHEMA)


def there_and_back(message: Message) -> Message:
    [again] = reader().messages(to_batch([Delivery(message, None)], PLACE))
    return again


def test_a_message_comes_back_from_a_row_with_every_field_and_type():
    again = there_and_back(FULL)
    assert again == FULL
    assert [type(value) for value in again.application_properties.values()] == [
        type(value) for value in FULL.application_properties.values()
    ]


def test_an_empty_message_comes_back_from_a_row():
    assert there_and_back(Message(message_id="m")) == Message(message_id="m")


@given(_values)
def test_every_property_comes_back_from_its_text_as_it_was(value):
    again = property_json.decode(property_json.encode(value))
    assert again == value
    assert repr(again) == repr(value)  # 1, 1.0 and True are equal


@given(st.one_of(st.text(max_size=40), st.recursive(st.none() | st.text(max_size=5), st.lists).map(json.dumps)))
def test_any_text_is_read_as_a_property_or_refused_with_a_value_error(text):
    with contextlib.suppress(ValueError):
        property_json.decode(text)


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "NaN",
        "[" * 100_000,
        '{"base64": "?"}',
        '{"datetime": "soon"}',
        '{"uuid": 5}',
        '{"decimal": "x"}',
        '{"mapping": 1}',
        "9" * 5000,
    ],
)
def test_what_no_property_is_written_as_is_refused(text):
    with pytest.raises(ValueError, match=r".") as caught:
        property_json.decode(text)
    assert len(str(caught.value)) < 200


def test_a_message_of_a_backlog_queue_is_shown_as_it_was_sent():
    diversion = Diversion(Entity("prices"), datetime(2026, 5, 1, tzinfo=UTC), "sender", 3, maybe_duplicate=True)
    [row] = to_batch([Delivery(divert(FULL, diversion), None)], BACKLOG).to_pylist()
    assert (row["entity"], row["maybe_duplicate"], row["envelope_error"]) == ("prices", True, None)
    assert (row["session_id"], row["time_to_live"], row["priority"]) == ("s", FULL.time_to_live, 7)
    assert dict(row["application_properties"]).keys() == FULL.application_properties.keys()


def test_a_message_of_a_backlog_queue_that_no_pair_diverted_is_shown_with_the_reason():
    [row] = to_batch([Delivery(Message(b"x", message_id="m"), None)], BACKLOG).to_pylist()
    assert row["entity"] is None
    assert "x-ms-path is missing" in row["envelope_error"]


# What a writer takes.


def frame(schema: str | t.StructType, *rows: tuple):
    if isinstance(schema, str):
        schema = t.StructType([t.StructField(*_field(part)) for part in schema.split(", ")])
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    return list(RowReader.of(schema).messages(pa.RecordBatch.from_arrays(columns, schema.fieldNames())))


def _field(part: str) -> tuple[str, t.DataType]:
    name, kind = part.split(" ")
    return name, {"string": t.StringType(), "int": t.IntegerType(), "double": t.DoubleType()}[kind]


def test_a_body_of_text_is_sent_as_utf_8():
    assert frame("message_id string, body string", ("m", "ü")) == [Message("ü".encode(), message_id="m")]


def test_a_time_to_live_may_be_an_interval():
    schema = (
        t.StructType().add("message_id", "string").add("body", "string").add("time_to_live", t.DayTimeIntervalType())
    )
    [message] = frame(schema, ("m", "x", timedelta(seconds=90)))
    assert message.time_to_live == 90.0


def test_a_schedule_in_another_time_zone_is_the_same_instant():
    schema = t.StructType().add("message_id", "string").add("body", "string").add("scheduled_enqueue_at", "timestamp")
    at = datetime(2027, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    [message] = frame(schema, ("m", "x", at))
    assert message.scheduled_enqueue_at == at


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ((None, "x"), "no message_id"),
        (("", "x"), "message_id has 0 characters"),
        (("m" * 129, "x"), "message_id has 129 characters"),
        (("m", None), "body is null"),
    ],
)
def test_a_row_that_no_message_can_be_made_of_is_refused(row, problem):
    with pytest.raises(RowRefused, match=problem):
        frame("message_id string, body string", ("a", "b"), row)


def test_a_property_that_is_not_json_is_refused_with_its_name_and_without_its_value():
    schema = (
        t.StructType()
        .add("message_id", "string")
        .add("body", "string")
        .add("application_properties", SCHEMA["application_properties"].dataType)
    )
    columns = [["m"], ["x"], pa.array([[("tenant", "secret-name")]], pa.map_(pa.string(), pa.string()))]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c) if isinstance(c, list) else c for c in columns], schema.fieldNames()
    )
    with pytest.raises(RowRefused, match="application property 'tenant' is not JSON") as caught:
        list(RowReader.of(schema).messages(batch))
    assert "secret-name" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("message_id string", "no column body"),
        ("body string", "no column message_id"),
        ("message_id string, body string, colour string", "unknown column colour"),
        ("message_id string, body int", "column body is int: it must be binary or string"),
        ("message_id int, body string", "column message_id is int: it must be string"),
        ("message_id string, body string, priority string", "column priority is string"),
        ("message_id string, body string, application_properties string", "must be map<string,string>"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(schema, problem):
    with pytest.raises(ConfigurationError, match=problem):
        frame(schema)


def test_columns_that_reading_adds_are_left_alone_by_a_writer():
    assert set(reader().columns) == set(Message.__slots__)

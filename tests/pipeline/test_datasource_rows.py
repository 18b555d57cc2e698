"""A message as a row and back: nothing is lost on the way, and a row that no message can be made of is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from pairmq.core import Diversion, divert
from pairmq.model import ConfigurationError, Entity, Message, PairMQError, Receipt, Route, property_json
from pairmq.pair import PairSender
from pairmq.plugins import registry
from spark_brokers import SCHEMA, SOURCE, Brokers

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
    time_to_live=123456.345678,
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


@pytest.fixture
def brokers(tmp_path) -> Brokers:
    name = uuid.uuid4().hex
    made = Brokers(f"memory://{name}-east", f"memory://{name}-west", tmp_path)
    made.make()
    return made


def shown(brokers: Brokers, **options: str) -> list[pa.RecordBatch]:
    """What is read of a queue."""
    reader = SOURCE({"config": str(brokers.config), **options}).reader(SCHEMA)
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def writer(brokers: Brokers, schema: t.StructType):
    return SOURCE({"config": str(brokers.config), "entity": "orders"}).writer(schema, False)


@pytest.fixture
def sent(brokers, monkeypatch):
    """Writes batches; gives the messages that are sent of their rows."""
    taken: list[Message] = []

    async def send_batch(sender, messages):
        taken.extend(messages)
        return [Receipt(Route.PRIMARY, Entity("orders"), message.message_id) for message in messages]

    def write(schema: t.StructType, *batches: pa.RecordBatch) -> list[Message]:
        writer(brokers, schema).write(iter(batches))
        return taken

    monkeypatch.setattr(PairSender, "send_batch", send_batch)
    return write


def test_a_message_comes_back_from_a_row_with_every_field_and_type(brokers, sent):
    brokers.send([FULL])
    [again] = sent(SCHEMA, *shown(brokers, entity="orders"))
    assert again == FULL
    assert [type(value) for value in again.application_properties.values()] == [
        type(value) for value in FULL.application_properties.values()
    ]
    assert [
        field.name for field in fields(Message) if getattr(FULL, field.name) == getattr(Message(), field.name)
    ] == []


def test_an_empty_message_comes_back_from_a_row(brokers, sent):
    brokers.send([Message(message_id="m")])
    assert sent(SCHEMA, *shown(brokers, entity="orders")) == [Message(message_id="m")]


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


def shown_of_backlog(brokers: Brokers, message: Message) -> dict:
    """The row of what a backlog queue holds."""

    async def leave() -> None:
        async with registry.transport(brokers.secondary) as transport:
            await transport.admin.create(queue)
            await transport.sender(queue).send(message)

    queue = Entity(brokers.backlog()[0])
    asyncio.run(leave())
    [row] = (row for batch in shown(brokers, backlog="true") for row in batch.to_pylist())
    return row


def test_a_message_of_a_backlog_queue_is_shown_as_it_was_sent(brokers):
    diversion = Diversion(Entity("prices"), datetime(2026, 5, 1, tzinfo=UTC), "sender", 3, maybe_duplicate=True)
    row = shown_of_backlog(brokers, divert(FULL, diversion))
    assert (row["entity"], row["maybe_duplicate"], row["envelope_error"]) == ("prices", True, None)
    assert (row["session_id"], row["time_to_live"], row["priority"]) == ("s", FULL.time_to_live, 7)
    assert dict(row["application_properties"]).keys() == FULL.application_properties.keys()


def test_a_message_of_a_backlog_queue_that_no_pair_diverted_is_shown_with_the_reason(brokers):
    row = shown_of_backlog(brokers, Message(b"x", message_id="m"))
    assert row["entity"] is None
    assert "x-ms-path is missing" in row["envelope_error"]


# What a writer takes.


def of_columns(text: str) -> t.StructType:
    return t.StructType([t.StructField(*_field(part)) for part in text.split(", ")])


def frame(schema: t.StructType, *rows: tuple) -> pa.RecordBatch:
    columns = [pa.array(values) for values in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema.fieldNames())


def _field(part: str) -> tuple[str, t.DataType]:
    name, kind = part.split(" ")
    return name, {"string": t.StringType(), "int": t.IntegerType(), "double": t.DoubleType()}[kind]


PLAIN = of_columns("message_id string, body string")


def test_a_body_of_text_is_sent_as_utf_8(sent):
    assert sent(PLAIN, frame(PLAIN, ("m", "ü"))) == [Message("ü".encode(), message_id="m")]


def test_a_time_to_live_may_be_an_interval(sent):
    schema = t.StructType([*PLAIN.fields, t.StructField("time_to_live", t.DayTimeIntervalType())])
    [message] = sent(schema, frame(schema, ("m", "x", timedelta(seconds=90))))
    assert message.time_to_live == 90.0


def test_a_schedule_in_another_time_zone_is_the_same_instant(sent):
    schema = t.StructType([*PLAIN.fields, t.StructField("scheduled_enqueue_at", t.TimestampType())])
    at = datetime(2027, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    [message] = sent(schema, frame(schema, ("m", "x", at)))
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
def test_a_row_that_no_message_can_be_made_of_is_refused(sent, row, problem):
    with pytest.raises(PairMQError, match=problem):
        sent(PLAIN, frame(PLAIN, ("a", "b"), row))


def test_a_property_that_is_not_json_is_refused_with_its_name_and_without_its_value(sent):
    schema = t.StructType([*PLAIN.fields, SCHEMA["application_properties"]])
    properties = pa.array([[("tenant", "secret-name")]], pa.map_(pa.string(), pa.string()))
    rows = pa.RecordBatch.from_arrays([pa.array(["m"]), pa.array(["x"]), properties], schema.fieldNames())
    with pytest.raises(PairMQError, match="application property 'tenant' is not JSON") as caught:
        sent(schema, rows)
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
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(brokers, schema, problem):
    with pytest.raises(ConfigurationError, match=problem):
        writer(brokers, of_columns(schema))

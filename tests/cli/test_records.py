"""Messages as JSON: every field, every type of property, and no two values that look alike."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pairmq.cli._output import delivery_record
from pairmq.model import Delivery, Message

AT = datetime(2025, 3, 4, 5, 6, 7, 890123, UTC)
FULL = Message(
    body=b"\x00\xff",
    message_id="m",
    session_id="s",
    time_to_live=1.5,
    scheduled_enqueue_at=AT,
    content_type="a/b",
    content_encoding="gzip",
    correlation_id="c",
    subject="sub",
    to="to",
    reply_to="r",
    reply_to_session_id="rs",
    partition_key="s",
    priority=0,
    application_properties={"a": 1},
)


def written(value: Any) -> Any:
    """A property as it stands in the output."""
    message = Message(application_properties={"p": value})
    return json.loads(json.dumps(delivery_record(Delivery(message, lock_token=None))))["application_properties"]["p"]


def test_every_field_of_a_message_is_in_its_record() -> None:
    record = delivery_record(Delivery(FULL, lock_token=None))
    assert [f.name for f in fields(Message) if f.name not in record] == []
    assert (record["content_encoding"], record["priority"]) == ("gzip", 0)


def test_what_is_not_set_is_left_out() -> None:
    record = delivery_record(Delivery(Message(), lock_token=None))
    assert set(record) == {"body", "delivery_count"}


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        ("x", "x"),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        (None, None),
        (b"\x00", {"base64": "AA=="}),
        (AT, {"datetime": "2025-03-04T05:06:07.890123+00:00"}),
        (UUID(int=1), {"uuid": "00000000-0000-0000-0000-000000000001"}),
        (Decimal("1.10"), {"decimal": "1.10"}),
        ((), []),
        ((1, (None, b"\x00")), [1, [None, {"base64": "AA=="}]]),
        ({}, {}),
        ({"a": {"b": (Decimal("0.0"),)}}, {"a": {"b": [{"decimal": "0.0"}]}}),
        ({"base64": "AA==", "uuid": 1}, {"base64": "AA==", "uuid": 1}),
    ],
    ids=str,
)
def test_a_property_is_written_as_json(value: Any, json_value: Any) -> None:
    assert written(value) == json_value


@pytest.mark.parametrize("name", ["base64", "datetime", "uuid", "decimal", "mapping"])
def test_a_mapping_is_never_taken_for_a_named_type(name: str) -> None:
    assert written({name: "x"}) == {"mapping": {name: "x"}}
    assert written(({name: {name: 1}},)) == [{"mapping": {name: {"mapping": {name: 1}}}}]

"""Messages as `pairmq receive --json` writes them: every field, every type of property, and no two that look alike."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pairmq.model import Entity, Message
from pairmq.plugins import registry

Records = Callable[[Message], dict[str, Any]]
AT = datetime(2025, 3, 4, 5, 6, 7, 890123, UTC)
FULL = Message(
    body=b"\x00\xff",
    message_id="m",
    session_id="s",
    time_to_live=1e6,
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


@pytest.fixture
def record(cli, primary) -> Records:
    """What is written of a message."""
    url = primary[1]

    async def send(message: Message) -> None:
        async with registry.transport(url) as transport:
            await transport.admin.create(Entity("orders"))
            await transport.sender(Entity("orders")).send(message)

    def received(message: Message) -> dict[str, Any]:
        asyncio.run(send(message))
        return json.loads(cli("receive", "-e", "orders", "--max", "1", "--json", *primary).out)

    return received


def test_every_field_of_a_message_is_in_its_record(record: Records) -> None:
    found = record(FULL)
    assert [f.name for f in fields(Message) if f.name not in found] == []
    assert (found["content_encoding"], found["priority"]) == ("gzip", 0)


def test_what_is_not_set_is_left_out(record: Records) -> None:
    assert set(record(Message())) == {"body", "delivery_count", "sequence_number", "enqueued_at"}


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
def test_a_property_is_written_as_json(record: Records, value: Any, json_value: Any) -> None:
    assert record(Message(application_properties={"p": value}))["application_properties"]["p"] == json_value


def test_a_mapping_is_never_taken_for_a_named_type(record: Records) -> None:
    names = ("base64", "datetime", "uuid", "decimal", "mapping")
    given = {name: {name: "x"} for name in names} | {f"{name}s": ({name: {name: 1}},) for name in names}
    written = record(Message(application_properties=given))["application_properties"]
    for name in names:
        assert written[name] == {"mapping": {name: "x"}}
        assert written[f"{name}s"] == [{"mapping": {name: {"mapping": {name: 1}}}}]

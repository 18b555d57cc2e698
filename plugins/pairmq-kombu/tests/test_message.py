"""What Kombu has prepared for py-amqp becomes a message of PairMQ's, or is said not to be carried."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

import amqp
import pytest

from pairmq import Message
from pairmq_kombu._message import NotCarried, to_amqp, to_pairmq
from pairmq_rabbitmq._codec import _layout


def prepared(body: Any = b"{}", **properties: Any) -> amqp.Message:
    return amqp.Message(body, **{"delivery_mode": 2, **properties})


def test_properties_become_the_fields_of_the_same_meaning() -> None:
    message = to_pairmq(
        prepared(
            b"[]",
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id="c",
            reply_to="r",
            message_id="m",
            type="t",
            priority=9,
            expiration="1500",
            app_id="a",
        )
    )
    assert (message.body, message.content_type, message.content_encoding) == (b"[]", "application/json", "utf-8")
    assert (message.correlation_id, message.reply_to, message.message_id, message.subject) == ("c", "r", "m", "t")
    assert (message.priority, message.time_to_live) == (9, 1.5)
    assert message.application_properties == {"amqp.app_id": "a"}


def test_a_message_that_is_read_is_what_was_published() -> None:
    properties = {
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "type": "t",
        "priority": 9,
        "expiration": "1500",
        "app_id": "a",
        "timestamp": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  # py-amqp's have no zone
        "application_headers": {"retries": 0, "timelimit": [None, 1.5], "stamps": {"by": ["a", {"x": None}]}},
    }
    read = to_amqp(to_pairmq(prepared(b"[]", **properties)), None)
    assert (read.body, read.properties) == (b"[]", {"delivery_mode": 2, **properties})
    foreign = Message(b"", to="Ada", session_id="s", application_properties={"amqp.user_id": "guest"})
    assert to_amqp(foreign, None).properties == {
        "delivery_mode": 2,
        "user_id": "guest",
        "application_headers": {"to": "Ada", "group-id": "s"},
    }


def test_what_is_no_property_of_amqp_is_left_out_as_py_amqp_does() -> None:
    assert to_pairmq(prepared(origin="gen1@host", correlation_id="c")) == to_pairmq(prepared(correlation_id="c"))


def test_a_body_of_text_is_encoded_as_the_message_says() -> None:
    message = to_pairmq(prepared("ü", content_encoding="latin-1"))
    assert (message.body, message.content_encoding) == (b"\xfc", "latin-1")


def test_a_body_of_text_that_says_nothing_is_utf_8() -> None:
    message = to_pairmq(prepared("ü"))
    assert (message.body, message.content_encoding) == ("ü".encode(), "utf-8")


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ("text", "text"),
        (b"bytes", "bytes"),
        (True, True),
        (2**40, 2**40),
        (0.5, 0.5),
        (None, None),
        (Decimal("1.50"), Decimal("1.50")),
        ([None, 1, {"a": ["b"]}], (None, 1, {"a": ("b",)})),
        (datetime(2026, 1, 2, 3, 4, 5, 600), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),  # noqa: DTZ001
        (
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1))),
            datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC),
        ),
    ],
)
def test_a_header_is_what_the_reader_of_py_amqp_would_give(value: Any, read: Any) -> None:
    message = to_pairmq(prepared(application_headers={"h": value}))
    assert message.application_properties["h"] == read


def test_a_string_of_a_class_of_its_own_is_a_string() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "another text"

    assert to_pairmq(prepared(application_headers={"h": Name("it")})).application_properties["h"] == "it"


@pytest.mark.parametrize(
    "properties",
    [
        {"delivery_mode": 1},
        {"delivery_mode": None},
        {"expiration": "0"},
        {"expiration": "soon"},
        {"expiration": str(2**32)},
        {"user_id": "guest"},
        {"cluster_id": "c"},
        {"message_id": "m" * 129},
        {"application_headers": {"h": uuid4()}},
        {"application_headers": {"h": b"\xff"}},
        {"application_headers": {"h": float("nan")}},
        {"application_headers": {"h": 2**63}},
        {"application_headers": {"h" * 129: 1}},
        {"application_headers": {"x-ms-path": "elsewhere"}},
        {"application_headers": {"x-pairmq-sender": "me"}},
        {"application_headers": {"amqp.app_id": "a"}},
    ],
)
def test_what_could_not_be_moved_back_unchanged_is_not_carried(properties: dict[str, Any]) -> None:
    with pytest.raises(NotCarried):
        to_pairmq(prepared(**properties))


@pytest.mark.parametrize("name", sorted(_layout.MAPPING | _layout.ROUTING | _layout.BROKER_MADE))
def test_no_header_passes_that_the_transport_would_write_in_another_place(name: str) -> None:
    with pytest.raises(NotCarried):
        to_pairmq(prepared(application_headers={name: "v"}))


def test_a_body_that_is_no_text_of_its_encoding_is_not_carried() -> None:
    with pytest.raises(NotCarried):
        to_pairmq(prepared("ü", content_encoding="ascii"))


def test_a_routing_key_travels_as_the_subject() -> None:
    assert to_pairmq(prepared(), "feed.news").subject == "feed.news"


def test_a_type_of_its_own_leaves_no_room_for_a_routing_key() -> None:
    with pytest.raises(NotCarried):
        to_pairmq(prepared(type="invoice"), "feed.news")

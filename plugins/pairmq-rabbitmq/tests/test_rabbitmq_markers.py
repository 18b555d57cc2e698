"""What counts as a marker, and what never does."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

import pytest
from pamqp.commands import Basic

from pairmq.core import Diversion, divert
from pairmq.model import Entity, Message
from pairmq_rabbitmq import _codec
from pairmq_rabbitmq._markers import REPLY_TO, Marker, marker_of, marker_properties

ID = "0123456789abcdef" * 2
ADDRESS = REPLY_TO + ".g1h2AA5yZXBseUA1Mzc="


def header_of(properties: Basic.Properties, size: int = 0) -> bytes:
    return struct.pack(">HxxQ", 60, size) + properties.marshal()


def as_delivered(**changes: object) -> Basic.Properties:
    properties = marker_properties(ID)
    properties.reply_to = ADDRESS  # the broker's doing
    for name, value in changes.items():
        setattr(properties, name, value)
    return properties


@pytest.mark.parametrize("headers", [None, {"x-delivery-count": 3}])
def test_a_marker_is_recognised_also_when_it_was_delivered_before(headers: dict[str, object] | None) -> None:
    assert marker_of(header_of(as_delivered(headers=headers)), b"") == Marker(ID, ADDRESS)


@pytest.mark.parametrize(
    "changes",
    [
        {"reply_to": "orders"},
        {"reply_to": REPLY_TO},
        {"reply_to": None},
        {"message_type": "pairmq.markers"},
        {"message_id": "1" * 32},
        {"message_id": "of-the-day", "correlation_id": "of-the-day"},
        {"headers": {"x-ms-path": "orders"}},
        {"headers": {"size": 3}},
    ],
)
def test_what_lacks_a_mark_of_a_marker_is_a_message(changes: dict[str, object]) -> None:
    assert marker_of(header_of(as_delivered(**changes)), b"") is None


def test_what_has_a_body_is_a_message() -> None:
    assert marker_of(header_of(as_delivered(), 1), b"x") is None


def test_unreadable_header_is_not_a_marker() -> None:
    assert marker_of(header_of(as_delivered())[:-3] + b"\xff\xff\xff", b"") is None


def test_a_diverted_message_is_never_taken_for_a_marker_whatever_its_sender_writes() -> None:
    looks_like_one = Message(b"", message_id=ID, correlation_id=ID, reply_to=ADDRESS, subject="pairmq.marker")
    diverted = divert(
        looks_like_one, Diversion(Entity("orders"), datetime.now(UTC), "sender", 1, maybe_duplicate=False)
    )
    assert marker_of(header_of(_codec.encode(diverted, login="guest")), b"") is None

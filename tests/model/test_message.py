"""A message checks itself, and is carried about unchanged."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pairmq.model import MAX_ID_LENGTH, MAX_TIME_TO_LIVE, Message

AT = datetime(2025, 3, 4, 5, 6, 7, 890123, UTC)
IDS = ("message_id", "session_id", "reply_to_session_id", "partition_key")
TEXTS = ("content_type", "correlation_id", "subject", "to", "reply_to")
FULL = Message(
    body=b"\x00\xff",
    message_id="m",
    session_id="s",
    time_to_live=1.5,
    scheduled_enqueue_at=AT,
    content_type="a/b",
    correlation_id="c",
    subject="sub",
    to="to",
    reply_to="r",
    reply_to_session_id="rs",
    partition_key="s",
    application_properties={"t": "x", "y": b"x", "b": True, "i": 1, "f": 1.0, "d": AT, "u": UUID(int=7)},
)
MESSAGES = pytest.mark.parametrize("message", [FULL, Message()], ids=["full", "empty"])


def with_field(name: str, value: Any) -> Any:
    return getattr(Message(**{name: value}), name)


def test_every_field_is_set_in_the_full_message():
    assert [f.name for f in fields(Message) if getattr(FULL, f.name) in (None, b"", {})] == []


def test_an_empty_message_is_a_message():
    message = Message()
    assert (message.body, message.message_id, dict(message.application_properties)) == (b"", None, {})


# ------------------------------------------------------------------------------------------------------------- body


class Bytes(bytes):
    """Somebody's own kind of bytes."""


@pytest.mark.parametrize("body", [bytearray(b"ab"), memoryview(b"ab"), Bytes(b"ab"), memoryview(b"a-b-")[::2]])
def test_a_body_of_any_bytes_is_kept_as_bytes(body: Any):
    kept = with_field("body", body)
    assert (kept, type(kept)) == (b"ab", bytes)


def test_a_body_does_not_change_with_the_buffer_it_was_made_of():
    buffer = bytearray(b"ab")
    message = Message(buffer)  # type: ignore[arg-type]
    buffer[0] = 0
    assert message.body == b"ab"


@pytest.mark.parametrize("body", ["text", None, 7, [1, 2], object()], ids=lambda value: type(value).__name__)
def test_a_body_of_anything_else_is_refused(body: Any):
    with pytest.raises(TypeError, match=f"body is a {type(body).__name__}: give bytes"):
        Message(body)


# -------------------------------------------------------------------------------------------------------- ids, texts


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("value", ["a", "a" * MAX_ID_LENGTH, "\U0001f600" * MAX_ID_LENGTH, " ", "\x00"], ids=ascii)
def test_an_id_has_1_to_128_characters(name: str, value: str):
    assert with_field(name, value) == value


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("length", [0, MAX_ID_LENGTH + 1, 10_000])
def test_an_id_of_another_length_is_refused(name: str, length: int):
    with pytest.raises(ValueError, match=f"^{name} has {length} characters: 1 to 128 are allowed"):
        with_field(name, "a" * length)


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "a" * 5000, "\x00é\U0001f600"], ids=ascii)
def test_a_text_is_any_text(name: str, value: str):
    assert with_field(name, value) == value


@pytest.mark.parametrize("name", [*IDS, *TEXTS])
@pytest.mark.parametrize("value", [b"a", 7, True, UUID(int=0), ["a"]], ids=lambda value: type(value).__name__)
def test_what_is_no_text_is_refused_by_name(name: str, value: Any):
    with pytest.raises(TypeError, match=f"^{name} is a {type(value).__name__}: give a string"):
        with_field(name, value)


@pytest.mark.parametrize("name", [*IDS, *TEXTS])
def test_a_lone_surrogate_is_refused_by_name(name: str):
    with pytest.raises(ValueError, match=f"^{name} holds a lone surrogate"):
        with_field(name, "a\ud800")


def test_a_partition_key_equals_the_session_id():
    with pytest.raises(ValueError, match="partition_key differs from session_id"):
        Message(session_id="a", partition_key="b")


@pytest.mark.parametrize("given_alone", [{"session_id": "a"}, {"partition_key": "a"}])
def test_a_partition_key_or_a_session_id_may_stand_alone(given_alone: dict[str, Any]):
    assert "a" in (Message(**given_alone).session_id, Message(**given_alone).partition_key)


# ----------------------------------------------------------------------------------------------------- time-to-live


@pytest.mark.parametrize(
    ("given_as", "kept"),
    [
        (1, 1.0),
        (0.000001, 0.000001),
        (0.0000006, 0.000001),
        (1.23456789, 1.234568),
        (timedelta(microseconds=1), 0.000001),
        (timedelta(days=1), 86_400.0),
        (MAX_TIME_TO_LIVE, MAX_TIME_TO_LIVE),
        (timedelta(days=10_675_199), MAX_TIME_TO_LIVE),
    ],
)
def test_a_time_to_live_is_kept_as_seconds_exact_to_the_microsecond(given_as: Any, kept: float):
    value = with_field("time_to_live", given_as)
    assert (value, type(value)) == (kept, float)


@pytest.mark.parametrize(
    "value",
    [
        0,
        0.0,
        -0.0,
        -1,
        0.0000001,
        float("nan"),
        float("inf"),
        float("-inf"),
        MAX_TIME_TO_LIVE + 1,
        10**400,
        timedelta(0),
        timedelta(seconds=-1),
        timedelta.max,
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_time_to_live_out_of_its_range_is_refused(value: Any):
    with pytest.raises(ValueError, match=r"^time_to_live is .* above 0"):
        with_field("time_to_live", value)


@pytest.mark.parametrize("value", ["60", True, b"1", 1j, [1]], ids=repr)
def test_a_time_to_live_that_is_no_time_is_refused(value: Any):
    with pytest.raises(TypeError, match=f"^time_to_live is a {type(value).__name__}: give seconds or a timedelta"):
        with_field("time_to_live", value)


@given(st.floats(0.000001, MAX_TIME_TO_LIVE))
def test_a_kept_time_to_live_is_kept_as_it_is(seconds: float):
    kept = with_field("time_to_live", seconds)
    assert with_field("time_to_live", kept) == kept


# --------------------------------------------------------------------------------------------------------- instants


def scheduled(at: Any) -> Any:
    return with_field("scheduled_enqueue_at", at)


def in_property(at: Any) -> Any:
    return Message(application_properties={"at": at}).application_properties["at"]


class Nowhere(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


instants = pytest.mark.parametrize("keep", [scheduled, in_property], ids=["schedule", "property"])


@instants
def test_an_instant_is_kept_in_utc(keep: Callable[[Any], Any]):
    kept = keep(datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))))
    assert (kept.isoformat(), kept.tzinfo) == ("2024-12-31T23:00:00+00:00", UTC)


@instants
@pytest.mark.parametrize("zone", [None, Nowhere()], ids=["none", "nowhere"])
def test_an_instant_without_a_time_zone_is_refused(keep: Callable[[Any], Any], zone: tzinfo | None):
    with pytest.raises(ValueError, match="has no time zone"):
        keep(AT.replace(tzinfo=zone))


@instants
@pytest.mark.parametrize(("at", "hours"), [("0001-01-01", 1), ("9999-12-31T23:30:00", -1)])
def test_an_instant_outside_of_the_years_in_utc_is_refused(keep: Callable[[Any], Any], at: str, hours: int):
    with pytest.raises(ValueError, match="lies outside the years 1 to 9999"):
        keep(datetime.fromisoformat(at).replace(tzinfo=timezone(timedelta(hours=hours))))


@pytest.mark.parametrize("value", ["2025-01-01", 0, AT.date(), timedelta(1)], ids=repr)
def test_a_schedule_that_is_no_instant_is_refused(value: Any):
    with pytest.raises(TypeError, match=r"^scheduled_enqueue_at is a .*: give a datetime"):
        scheduled(value)


# ------------------------------------------------------------------------------------------- application properties


@pytest.mark.parametrize(
    "value",
    ["", "x", b"", b"\xff", True, False, 0, 1, 2**63 - 1, -(2**63), 0.0, 1.5, -1e308, AT, UUID(int=1)],
    ids=repr,
)
def test_a_property_keeps_its_value_and_its_type(value: Any):
    kept = Message(application_properties={"p": value}).application_properties["p"]
    assert (kept, type(kept)) == (value, type(value))


class Color(StrEnum):
    """A string, but not quite: no broker would bring it back."""

    RED = "red"


class Named(str):
    """A string with more to it."""

    __slots__ = ()


@pytest.mark.parametrize(
    "value",
    [None, [1], {"a": 1}, (1,), 1j, AT.date(), timedelta(1), bytearray(b"x"), object(), Color.RED, Named("x")],
    ids=lambda value: type(value).__name__,
)
def test_a_property_that_no_broker_brings_back_unchanged_is_refused(value: Any):
    with pytest.raises(TypeError, match=f"application property 'p' is a {type(value).__name__}"):
        Message(application_properties={"p": value})


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400], ids=["above", "below", "far above"])
def test_a_property_of_more_than_64_bits_is_refused(value: int):
    with pytest.raises(ValueError, match="application property 'p' does not fit 64 bits"):
        Message(application_properties={"p": value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=repr)
def test_a_property_that_is_not_finite_is_refused(value: float):
    with pytest.raises(ValueError, match=r"application property 'p' is .*finite"):
        Message(application_properties={"p": value})


def test_a_lone_surrogate_in_a_property_is_refused():
    with pytest.raises(ValueError, match="application property 'p' holds a lone surrogate"):
        Message(application_properties={"p": "\udfff"})


@pytest.mark.parametrize("length", [1, 128])
def test_a_property_name_has_1_to_128_characters(length: int):
    assert Message(application_properties={"a" * length: 1}).application_properties == {"a" * length: 1}


@pytest.mark.parametrize("length", [0, 129])
def test_a_property_name_of_another_length_is_refused(length: int):
    with pytest.raises(ValueError, match=f"name of {length} characters: 1 to 128"):
        Message(application_properties={"a" * length: 1})


def test_a_lone_surrogate_in_a_property_name_is_refused():
    with pytest.raises(ValueError, match="application property name holds a lone surrogate"):
        Message(application_properties={"\ud800": 1})


@pytest.mark.parametrize("name", [1, b"a", None, ("a",)], ids=repr)
def test_a_property_name_that_is_no_text_is_refused(name: Any):
    with pytest.raises(TypeError, match=r"application property name .*: give a string"):
        Message(application_properties={name: 1})


@pytest.mark.parametrize("properties", [None, [("a", 1)], "a", 7, {"a"}], ids=repr)
def test_properties_that_are_no_mapping_are_refused(properties: Any):
    with pytest.raises(TypeError, match=r"^application_properties is a .*: give a mapping"):
        Message(application_properties=properties)


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType])
def test_properties_of_any_mapping_are_taken(kind: Any):
    assert Message(application_properties=kind({"a": 1})).application_properties == {"a": 1}


def test_a_message_does_not_change_with_the_mapping_it_was_made_of():
    properties: dict[str, Any] = {"a": 1}
    message = Message(application_properties=properties)
    properties["b"] = 2
    assert message.application_properties == {"a": 1}


def test_the_properties_shared_by_all_messages_without_any_can_not_be_changed():
    with pytest.raises(TypeError):
        Message().application_properties["a"] = 1  # type: ignore[index]


# ------------------------------------------------------------------------------------------------------- as a value


@MESSAGES
def test_with_id_is_a_replace_of_the_id(message: Message):
    named = message.with_id("other")
    expected = replace(message, message_id="other")
    assert named == expected
    assert [type(getattr(named, f.name)) for f in fields(named)] == [
        type(getattr(expected, f.name)) for f in fields(expected)
    ]


@MESSAGES
def test_with_id_leaves_the_message_as_it_was(message: Message):
    before = message.message_id
    message.with_id("other")
    assert message.message_id == before


@MESSAGES
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_message_survives_pickling(message: Message, protocol: int):
    assert pickle.loads(pickle.dumps(message, protocol)) == message


@MESSAGES
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_message_survives_copying(message: Message, copied: Callable[[Message], Message]):
    assert copied(message) == message


@MESSAGES
def test_a_message_that_was_pickled_can_be_changed_like_any_other(message: Message):
    travelled = pickle.loads(pickle.dumps(message))
    assert replace(travelled, body=b"new") == replace(message, body=b"new")
    assert travelled.with_id("n") == message.with_id("n")


@MESSAGES
def test_equal_messages_hash_alike(message: Message):
    assert hash(pickle.loads(pickle.dumps(message))) == hash(message)


@pytest.mark.parametrize("name", [f.name for f in fields(Message)])
def test_messages_that_differ_in_one_field_differ(name: str):
    other: Any = {"body": b"other", "time_to_live": 99.0, "scheduled_enqueue_at": AT + timedelta(1)}.get(name, "other")
    if name == "application_properties":
        other = {"other": 1}
    alone = Message(**{name: getattr(FULL, name)})
    assert alone != Message(**{name: other})


@pytest.mark.parametrize("name", [f.name for f in fields(Message)])
def test_a_message_can_not_be_changed(name: str):
    with pytest.raises(FrozenInstanceError):
        setattr(FULL, name, None)


def test_a_message_takes_no_other_field():
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        FULL.other = 1  # type: ignore[attr-defined]

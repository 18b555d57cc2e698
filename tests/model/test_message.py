"""A message checks itself, and is carried about unchanged."""

from __future__ import annotations

import copy
import datetime as datetime_module
import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pairmq.model import MAX_ID_LENGTH, MAX_NESTING, MAX_TIME_TO_LIVE, Delivery, Message

AT = datetime(2025, 3, 4, 5, 6, 7, 890123, UTC)
IDS = ("message_id", "session_id", "reply_to_session_id", "partition_key")
TEXTS = ("content_type", "content_encoding", "correlation_id", "subject", "to", "reply_to")
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
    priority=7,
    application_properties={
        "t": "x",
        "y": b"x",
        "b": True,
        "i": 1,
        "f": 1.0,
        "d": AT,
        "u": UUID(int=7),
        "n": None,
        "m": Decimal("1.10"),
        "s": (1, "a", (), {}),
        "o": {"a": None, "b": (Decimal(0), {"c": AT})},
    },
)
MESSAGES = pytest.mark.parametrize("message", [FULL, Message()], ids=["full", "empty"])


def with_field(name: str, value: Any) -> Any:
    return getattr(Message(**{name: value}), name)


def nest(levels: int, innermost: Any = (), *, of: str = "list") -> Any:
    """So many sequences or mappings in one another around something."""
    value = innermost
    for _ in range(levels):
        value = {"k": value} if of == "dict" else [value]
    return value


def test_every_field_is_set_in_the_full_message():
    assert [f.name for f in fields(Message) if getattr(FULL, f.name) in (None, b"", {})] == []


def test_an_empty_message_is_a_message():
    message = Message()
    assert (message.body, message.message_id, dict(message.application_properties)) == (b"", None, {})


class Plain(Message):
    """Somebody's own kind of message."""


@dataclass(frozen=True)
class Annotated(Message):
    """Another one, with a field of its own."""

    note: str = ""


@pytest.mark.parametrize("kind", [Message, Plain, Annotated])
def test_a_message_of_any_class_has_what_it_was_made_of_and_checks_it(kind: type[Message]):
    values = {each.name: getattr(FULL, each.name) for each in fields(Message)}
    message = kind(**values)
    assert type(message) is kind
    assert {each: getattr(message, each) for each in values} == values
    assert replace(message, subject="other").subject == "other"
    with pytest.raises(FrozenInstanceError):
        message.subject = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="priority is out of its range"):
        kind(b"", priority=256)


# ------------------------------------------------------------------------------------------------------------- repr


@MESSAGES
def test_the_repr_of_a_short_message_shows_every_field_whole(message: Message):
    assert eval(repr(message), {**globals(), "datetime": datetime_module}) == message


def test_a_repr_cuts_a_long_body_and_long_texts_and_gives_their_length():
    text = repr(Message(bytes(500_000), subject="s" * 100_000, correlation_id="short"))
    assert len(text) < 2000
    assert "(500000 bytes)" in text
    assert "'... (100000 characters)" in text
    assert "correlation_id='short'" in text


@pytest.mark.parametrize(
    "properties",
    [
        {"long": "x" * 1_000_000},
        {f"p{n}": n for n in range(100_000)},
        {"many": list(range(100_000))},
        {"many": {f"n{n}": "x" * 100 for n in range(10_000)}},
        {"deep": nest(MAX_NESTING - 1, ["x" * 10_000] * 1000, of="dict")},
    ],
    ids=["text", "properties", "list", "mapping", "nested"],
)
def test_a_repr_cuts_large_properties(properties: dict[str, Any]):
    assert len(repr(Message(application_properties=properties))) < 4000


def test_the_repr_of_a_delivery_cuts_its_message_and_its_description():
    delivery = Delivery(Message(bytes(500_000)), "token", dead_letter_description="why " * 10_000)
    text = repr(delivery)
    assert len(text) < 2000
    assert text.startswith("Delivery(message=Message(body=b'")
    assert "token" not in text


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


# --------------------------------------------------------------------------------------------------------- priority


@pytest.mark.parametrize("value", [0, 1, 255])
def test_a_priority_is_a_whole_number_from_0_to_255(value: int):
    assert with_field("priority", value) == value


@pytest.mark.parametrize("value", [-1, 256, 10**5000, -(10**5000)], ids=["below", "above", "far above", "far below"])
def test_a_priority_out_of_its_range_is_refused(value: int):
    with pytest.raises(ValueError, match=r"^priority is out of its range: 0 to 255 are allowed"):
        with_field("priority", value)


class Urgency(IntEnum):
    """A number, but not quite."""

    HIGH = 9


@pytest.mark.parametrize("value", [True, False, 1.0, "1", b"1", Decimal(1), Urgency.HIGH], ids=repr)
def test_a_priority_that_is_no_whole_number_is_refused(value: Any):
    with pytest.raises(TypeError, match=f"^priority is a {type(value).__name__}: give a whole number"):
        with_field("priority", value)


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
    with pytest.raises(ValueError, match="is outside the years 1 to 9999"):
        keep(datetime.fromisoformat(at).replace(tzinfo=timezone(timedelta(hours=hours))))


@pytest.mark.parametrize("value", ["2025-01-01", 0, AT.date(), timedelta(1)], ids=repr)
def test_a_schedule_that_is_no_instant_is_refused(value: Any):
    with pytest.raises(TypeError, match=r"^scheduled_enqueue_at is a .*: give a datetime"):
        scheduled(value)


# ------------------------------------------------------------------------------------------- application properties


@pytest.mark.parametrize(
    "value",
    ["", "x", b"", b"\xff", True, False, 0, 1, 2**63 - 1, -(2**63), 0.0, 1.5, -1e308, AT, UUID(int=1), None],
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


class Point(NamedTuple):
    """A tuple with more to it."""

    x: int


class Amount(Decimal):
    """A decimal with more to it."""


REFUSED = (
    1j,
    AT.date(),
    timedelta(1),
    bytearray(b"x"),
    object(),
    Color.RED,
    Named("x"),
    {1},
    Point(1),
    Amount(1),
    iter(()),
)


@pytest.mark.parametrize(
    "value",
    REFUSED,
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


# A scale of 0 to 255 and a mantissa of 32 bits are all that AMQP 0-9-1 has for a decimal.
DECIMALS = (
    "0",
    "0.00",
    "0E-255",
    "1",
    "-1",
    "1.10",
    "100",
    "2147483647",
    "-2147483648",
    "-21474836.48",
    "2147483647E-255",
    "-2147483648E-255",
    "1E-255",
)


@pytest.mark.parametrize("text", DECIMALS)
def test_a_decimal_is_kept_to_the_last_zero(text: str):
    [kept] = in_property((Decimal(text),))
    assert (kept.as_tuple(), type(kept)) == (Decimal(text).as_tuple(), Decimal)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 255))
def test_a_decimal_comes_back_from_its_scale_and_mantissa(mantissa: int, scale: int):
    kept = in_property(Decimal(f"{mantissa}E-{scale}"))
    sign, digits, exponent = kept.as_tuple()
    assert exponent == -scale
    assert int("".join(map(str, digits))) * (-1 if sign else 1) == mantissa


@given(st.decimals())
def test_a_decimal_that_is_accepted_comes_back_from_its_scale_and_mantissa(value: Decimal):
    try:
        kept = in_property(value)
    except ValueError:
        return
    sign, digits, exponent = kept.as_tuple()
    mantissa = int("".join(map(str, digits))) * (-1 if sign else 1)
    assert 0 <= -exponent <= 255
    assert -(2**31) <= mantissa < 2**31
    # An int has no negative zero: what is rebuilt from the two numbers must be the same, sign included.
    assert Decimal((int(mantissa < 0), tuple(map(int, str(abs(mantissa)))), exponent)).as_tuple() == value.as_tuple()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1E+1", "has an exponent above 0"),
        ("0E+1", "has an exponent above 0"),
        ("1E+999999", "has an exponent above 0"),
        ("1E-256", "has more than 255 decimal places"),
        ("0E-256", "has more than 255 decimal places"),
        ("-0", "is a negative zero"),
        ("-0.00", "is a negative zero"),
        ("2147483648", "has digits that do not fit 32 bits"),
        ("-2147483649", "has digits that do not fit 32 bits"),
        ("21474836.48", "has digits that do not fit 32 bits"),
        ("9" * 10_000, "has digits that do not fit 32 bits"),
    ],
    ids=lambda value: value[:20],
)
@pytest.mark.parametrize(
    ("wrap", "named"), [(0, "application property 'p'"), (1, "a value in application property 'p'")]
)
def test_a_decimal_that_would_not_come_back_is_refused(text: str, problem: str, wrap: int, named: str):
    with pytest.raises(ValueError, match=f"^{named} {problem}, .*: give it as a string"):
        Message(application_properties={"p": nest(wrap, Decimal(text))})


@pytest.mark.parametrize("text", ["NaN", "sNaN", "-NaN123", "Infinity", "-Infinity"])
def test_a_decimal_that_is_not_finite_is_refused(text: str):
    with pytest.raises(ValueError, match=r"^application property 'p' is not finite"):
        Message(application_properties={"p": Decimal(text)})


# --------------------------------------------------------------------------------------------------- nested values


@pytest.mark.parametrize(
    ("given_as", "kept"),
    [
        ([], ()),
        ((), ()),
        ({}, {}),
        ([1, [2, (3,)]], (1, (2, (3,)))),
        (OrderedDict(a=[1]), {"a": (1,)}),
        (MappingProxyType({"a": MappingProxyType({"b": None})}), {"a": {"b": None}}),
        ({"b": 1, "a": True, "c": 1.0}, {"b": 1, "a": True, "c": 1.0}),
        ([True, 1, 1.0, None, "", b"", AT, UUID(int=1)], (True, 1, 1.0, None, "", b"", AT, UUID(int=1))),
    ],
    ids=str,
)
def test_nested_values_are_kept_as_tuples_and_dicts(given_as: Any, kept: Any):
    assert typed(in_property(given_as)) == typed(kept)


def typed(value: Any) -> Any:
    """A value with its types, which `==` does not compare: True == 1 == 1.0."""
    if isinstance(value, dict):
        return dict, [(name, typed(entry)) for name, entry in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [typed(entry) for entry in value]
    return type(value), value


def test_a_message_does_not_change_with_the_containers_it_was_made_of():
    inner: list[Any] = [1]
    middle: dict[str, Any] = {"inner": inner}
    outer: list[Any] = [middle]
    message = Message(application_properties={"p": outer, "q": middle})
    inner.append(2)
    middle["new"] = inner
    outer.append(middle)
    assert message.application_properties == {"p": ({"inner": (1,)},), "q": {"inner": (1,)}}


def test_an_instant_in_a_nested_value_is_kept_in_utc():
    [kept] = in_property([datetime(2025, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))])
    assert (kept.isoformat(), kept.tzinfo) == ("2024-12-31T23:00:00+00:00", UTC)


@pytest.mark.parametrize("of", ["list", "dict"])
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**63, "a value in application property 'p' does not fit 64 bits"),
        (float("nan"), "a value in application property 'p' is nan: only finite"),
        ("\udfff", "a value in application property 'p' holds a lone surrogate"),
        (AT.replace(tzinfo=None), "a value in application property 'p' .* has no time zone"),
        ({"": 1}, "name in application property 'p' of 0 characters: 1 to 128 are allowed"),
        ({"a" * 129: 1}, "name in application property 'p' of 129 characters: 1 to 128 are allowed"),
        ({"\ud800": 1}, "name in application property 'p' holds a lone surrogate"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_nested_values_obey_the_same_rules(value: Any, text: str, of: str):
    for levels in (1, MAX_NESTING - 1):
        with pytest.raises(ValueError, match=f"^{text}"):
            Message(application_properties={"p": nest(levels, value, of=of)})


@pytest.mark.parametrize("of", ["list", "dict"])
@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_a_nested_value_that_no_broker_brings_back_unchanged_is_refused(value: Any, of: str):
    with pytest.raises(TypeError, match=f"^a value in application property 'p' is a {type(value).__name__}: give str"):
        Message(application_properties={"p": nest(1, value, of=of)})


@pytest.mark.parametrize("name", [1, b"a", None, ("a",)], ids=repr)
def test_a_nested_name_that_is_no_text_is_refused(name: Any):
    with pytest.raises(TypeError, match=r"^name in application property 'p' .*: give a string"):
        Message(application_properties={"p": [{name: 1}]})


@pytest.mark.parametrize("of", ["list", "dict"])
def test_values_nest_16_deep(of: str):
    assert MAX_NESTING == 16
    value = in_property(nest(16, "leaf", of=of))
    for _ in range(16):
        value = value["k"] if of == "dict" else value[0]
    assert value == "leaf"


@pytest.mark.parametrize("of", ["list", "dict"])
@pytest.mark.parametrize("levels", [17, 100_000])
def test_values_that_nest_deeper_are_refused(levels: int, of: str):
    with pytest.raises(ValueError, match=r"^application property 'p' is nested more than 16 deep"):
        Message(application_properties={"p": nest(levels, "leaf", of=of)})


def test_a_value_that_holds_itself_is_refused():
    sequence: list[Any] = []
    sequence.append([sequence])
    mapping: dict[str, Any] = {}
    mapping["k"] = [mapping]
    for value in (sequence, mapping):
        with pytest.raises(ValueError, match="is nested more than 16 deep"):
            Message(application_properties={"p": value})


def test_the_type_of_a_property_can_be_read_at_run_time():
    assert "application_properties" in get_type_hints(Message)


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


def test_nested_values_survive_pickling_with_their_types():
    travelled = pickle.loads(pickle.dumps(FULL))
    before, after = dict(FULL.application_properties), dict(travelled.application_properties)
    assert typed(after) == typed(before)
    assert after["m"].as_tuple() == Decimal("1.10").as_tuple()


def test_a_message_with_nested_values_has_the_hash_of_its_id_and_body():
    assert hash(FULL) == hash(Message(FULL.body, message_id=FULL.message_id))


@MESSAGES
def test_equal_messages_hash_alike(message: Message):
    assert hash(pickle.loads(pickle.dumps(message))) == hash(message)


@pytest.mark.parametrize("name", [f.name for f in fields(Message)])
def test_messages_that_differ_in_one_field_differ(name: str):
    other: Any = {"body": b"other", "time_to_live": 99.0, "scheduled_enqueue_at": AT + timedelta(1), "priority": 8}.get(
        name, "other"
    )
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


def test_a_copy_under_another_id_or_with_other_properties_differs_in_nothing_else():
    assert FULL.with_id("other") == replace(FULL, message_id="other")
    assert FULL.with_properties({"a": 1}) == replace(FULL, application_properties={"a": 1})


def test_a_copy_without_properties_is_like_a_message_that_never_had_any():
    copy = Message(application_properties={"a": 1}).with_properties({})
    assert copy.application_properties is Message().application_properties


def test_a_message_of_checked_fields_is_like_any_other():
    given = {
        "body": b"1",
        "message_id": "m",
        "content_type": "t",
        "content_encoding": "e",
        "correlation_id": "c",
        "subject": "s",
        "reply_to": "r",
        "priority": 3,
        "application_properties": {"a": 1},
    }
    made = Message.of_checked(**given)
    assert (made, type(made), pickle.loads(pickle.dumps(made))) == (Message(**given), Message, made)
    with pytest.raises(FrozenInstanceError):
        made.body = b"2"

"""Messages as stream fields: every field and type comes back as it was, and nothing else gets through."""

from __future__ import annotations

import contextlib
import json
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal, localcontext
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import MAX_NESTING, MAX_PRIORITY, MAX_TIME_TO_LIVE, Message
from pairmq_redis import _codec

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=128)
instants = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001  # hypothesis adds the zone
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))]),
)
decimals = st.builds(
    lambda mantissa, scale: Decimal(f"{mantissa}E-{scale}"), st.integers(-(2**31), 2**31 - 1), st.integers(0, 255)
)
flat_values = st.one_of(
    st.none(),
    decimals,
    texts,
    st.binary(max_size=40),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    instants,
    st.uuids(),
)
# Names that look like the codec's tags are the ones that could be mistaken for them.
names = ids | st.sampled_from("bdunmx")
values = st.recursive(
    flat_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    session = draw(st.none() | ids)
    return Message(
        draw(st.binary(max_size=100)),
        message_id=draw(st.none() | ids),
        session_id=session,
        time_to_live=draw(st.none() | st.floats(1e-6, MAX_TIME_TO_LIVE)),
        scheduled_enqueue_at=draw(st.none() | instants),
        content_type=draw(st.none() | texts),
        content_encoding=draw(st.none() | texts),
        correlation_id=draw(st.none() | texts),
        subject=draw(st.none() | texts),
        to=draw(st.none() | texts),
        reply_to=draw(st.none() | texts),
        reply_to_session_id=draw(st.none() | ids),
        partition_key=draw(st.none() | st.just(session) if session else st.none() | ids),
        priority=draw(st.none() | st.integers(0, MAX_PRIORITY)),
        application_properties=draw(st.dictionaries(names, values, max_size=5)),
    )


@given(messages())
def test_every_message_comes_back_as_it_was(message: Message) -> None:
    back = _codec.decode(_codec.encode(message))
    assert back == message
    assert typed(dict(back.application_properties)) == typed(dict(message.application_properties))


def typed(value: Any) -> Any:
    """A value with its types, which `==` does not compare; tells -0.0 from 0.0 and 1.0 from 1.00 too."""
    if isinstance(value, dict):
        return dict, [(name, typed(entry)) for name, entry in value.items()]
    if isinstance(value, tuple):
        return tuple, [typed(entry) for entry in value]
    return type(value), repr(value) if isinstance(value, float | Decimal) else value


@given(st.lists(st.binary(max_size=30), max_size=12))
def test_arbitrary_fields_raise_nothing_but_malformed(fields: list[bytes]) -> None:
    with contextlib.suppress(_codec.MalformedEntry):
        assert isinstance(_codec.decode(fields), Message)
    assert isinstance(_codec.decode_leniently(fields), Message)


NAMES = [
    b"t",
    b"b",
    b"e",
    b"a",
    b"i",
    b"s",
    b"c",
    b"n",
    b"y",
    b"r",
    b"l",
    b"o",
    b"p",
    b"q",
    b"k",
    b"!reason",
    b"unknown",
]
JSONISH = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("bdunmx") | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.binary(max_size=30) | JSONISH.map(lambda j: json.dumps(j).encode())),
        max_size=8,
    )
)
def test_known_fields_with_arbitrary_values_raise_nothing_but_malformed(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = [part for pair in pairs for part in pair]
    with contextlib.suppress(_codec.MalformedEntry):
        assert isinstance(_codec.decode(fields), Message)
    assert isinstance(_codec.decode_leniently(fields), Message)


PLAIN_VALUES = st.text(max_size=5).map(str.encode) | st.dictionaries(
    st.text(max_size=3), st.text(max_size=3) | st.integers(), max_size=3
).map(lambda properties: json.dumps(properties, ensure_ascii=False).encode(errors="surrogatepass"))


@given(st.dictionaries(st.sampled_from(NAMES), PLAIN_VALUES | st.binary(max_size=5)))
def test_what_is_read_in_one_step_is_what_all_checks_give(found: dict[bytes, bytes]) -> None:
    fields = [part for pair in found.items() for part in pair]

    def outcome() -> Message | str:
        try:
            return _codec.decode(fields)
        except _codec.MalformedEntry:
            return "malformed"

    at_once = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_codec, "_PLAIN", frozenset())
        assert outcome() == at_once


@pytest.mark.parametrize(
    "properties",
    [
        b"[1]",
        b"null",
        b'{"a":{"z":1}}',
        b'{"a":{"b":"*"}}',
        b'{"a":{"b":1}}',
        b'{"a":{"d":true}}',
        b'{"a":{"d":99999999999999999999999}}',
        b'{"a":{"u":"nope"}}',
        b'{"a":{"n":1}}',
        b'{"a":{"n":null}}',
        b'{"a":{"n":""}}',
        b'{"a":{"n":"NaN"}}',
        b'{"a":{"n":"sNaN1"}}',
        b'{"a":{"n":"Infinity"}}',
        b'{"a":{"n":"1E+1"}}',
        b'{"a":{"n":"1E1"}}',
        b'{"a":{"n":"1E-256"}}',
        b'{"a":{"n":"1E-999999999999999999999"}}',
        b'{"a":{"n":"-0"}}',
        b'{"a":{"n":"-0.00"}}',
        b'{"a":{"n":"2147483648"}}',
        b'{"a":{"n":"1_0"}}',
        b'{"a":{"n":" 1"}}',
        b'{"a":{"n":"1\\n"}}',
        b'{"a":{"n":"\\u0663"}}',
        b'{"a":{"n":".5"}}',
        b'{"a":{"n":"' + b"1" * 100_000 + b'"}}',
        b'{"a":{"m":1}}',
        b'{"a":{"m":null}}',
        b'{"a":{"m":[]}}',
        b'{"a":{"m":{"":1}}}',
        b'{"a":{"m":{"' + b"k" * 129 + b'":1}}}',
        b'{"a":{"m":{"k":{"z":1}}}}',
        b'{"a":{"m":{},"b":""}}',
        b'{"a":{}}',
        b'{"a":[{}]}',
        b'{"a":[NaN]}',
        b'{"a":[9223372036854775808]}',
        b'{"a":["\\ud800"]}',
        b'{"a":' + b"[" * 17 + b"]" * 17 + b"}",
        b'{"a":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b'{"m":{"k":' * 17 + b"1" + b"}}" * 17 + b"}",
        b'{"a":' + b'{"m":{"k":' * 450 + b"1" + b"}}" * 450 + b"}",
        b'{"a":' + b'{"m":{"k":' * 50_000 + b"1" + b"}}" * 50_000 + b"}",
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":9223372036854775808}',
        b'{"":1}',
        b'{"":"text"}',
        b'{"' + b"k" * 129 + b'":"text"}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000,
        b'{"a":' + b"9" * 5000 + b"}",
        b"\xff",
    ],
)
def test_bad_properties_are_malformed(properties: bytes) -> None:
    with pytest.raises(_codec.MalformedEntry):
        _codec.decode([b"b", b"", b"a", properties])


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"b"],
        [b"x", b"y"],
        [b"b", b"", b"t", b"nan"],
        [b"b", b"", b"t", b"-1"],
        [b"b", b"", b"e", b"9" * 40],
        [b"b", b"", b"n", b"\xff"],
        [b"b", b"", b"y", b""],
        [b"b", b"", b"y", b"256"],
        [b"b", b"", b"y", b"-1"],
        [b"b", b"", b"y", b"+1"],
        [b"b", b"", b"y", b" 1"],
        [b"b", b"", b"y", b"1\n"],
        [b"b", b"", b"y", b"1_0"],
        [b"b", b"", b"y", b"1.0"],
        [b"b", b"", b"y", "\u0663".encode()],
        [b"b", b"", b"y", b"9" * 5000],
        [b"b", b"", b"i", b""],
        [b"b", b"", b"i", b"x" * 129],
        [b"b", b"", b"i", b"\xff"],
        [b"b", b"", b"s", b"1", b"k", b"2"],
    ],
)
def test_bad_fields_are_malformed(fields: list[bytes]) -> None:
    with pytest.raises(_codec.MalformedEntry):
        _codec.decode(fields)


def test_nothing_is_unpickled() -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (pytest.fail, ("unpickled",))

    bomb = pickle.dumps(Bomb())
    assert _codec.decode([b"b", bomb]).body == bomb
    with pytest.raises(_codec.MalformedEntry):
        _codec.decode([b"b", b"", b"a", bomb])


def test_unset_and_empty_stay_different() -> None:
    assert _codec.decode(_codec.encode(Message(subject=""))).subject == ""
    assert _codec.decode(_codec.encode(Message())).subject is None


def test_a_property_that_is_none_and_an_absent_one_stay_different() -> None:
    assert _codec.decode(_codec.encode(Message(application_properties={"a": None}))).application_properties == {
        "a": None
    }
    assert _codec.decode(_codec.encode(Message(priority=0))).priority == 0
    assert _codec.decode(_codec.encode(Message())).priority is None


@pytest.mark.parametrize("of", ["list", "dict"])
def test_the_deepest_value_comes_back(of: str) -> None:
    value: Any = Decimal("1.10")
    for _ in range(MAX_NESTING):
        value = [value] if of == "list" else {"m": value}
    message = Message(application_properties={"a": value})
    back = _codec.decode(_codec.encode(message))
    assert typed(dict(back.application_properties)) == typed(dict(message.application_properties))


def test_a_decimal_does_not_depend_on_the_callers_context() -> None:
    message = Message(application_properties={"a": Decimal("-2147483648E-255"), "b": Decimal("2147483647")})
    with localcontext() as context:
        context.prec, context.capitals, context.Emin, context.Emax = 1, 0, 0, 0
        back = _codec.decode(_codec.encode(message))
    assert typed(dict(back.application_properties)) == typed(dict(message.application_properties))


def test_an_entry_of_an_older_version_is_read() -> None:
    old = [b"t", b"1.5", b"b", b"body", b"i", b"id", b"c", b"a/b", b"e", b"1000000", b"a"]
    properties = b'{"s":"x","t":true,"i":1,"f":1.0,"y":{"b":"AA=="},"d":{"d":1000000},"u":{"u":"' + b"0" * 32 + b'"}}'
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert _codec.decode([*old, properties]) == Message(
        b"body",
        message_id="id",
        time_to_live=1.5,
        scheduled_enqueue_at=at,
        content_type="a/b",
        application_properties={"s": "x", "t": True, "i": 1, "f": 1.0, "y": b"\0", "d": at, "u": UUID(int=0)},
    )


def test_fields_of_a_newer_version_are_ignored() -> None:
    assert _codec.decode([b"b", b"1", b"zz", b"new", b"!reason", b"old"]) == Message(b"1")


def test_the_time_to_live_stands_first_for_the_scripts() -> None:
    assert _codec.encode(Message(b"1", time_to_live=1.5, subject="x"))[:2] == [b"t", b"1.5"]


def test_a_malformed_entry_is_shown_with_its_raw_fields() -> None:
    shown = _codec.decode_leniently([b"x", b"\x00", b"b", b"body", b"i", b"", b"!reason", b"malformed"])
    assert shown.body == b"body"
    assert (shown.message_id, shown.application_properties) == (None, {"raw:x": b"\x00", "raw:i": b""})
    assert _codec.decode_leniently([b"x", b"\x00", b"i", b"an id"]).message_id == "an id"


def test_a_schedule_is_due_at_the_next_whole_millisecond() -> None:
    at = datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    assert _codec.due_at_ms(Message(scheduled_enqueue_at=at)) == 1893456000001


def test_the_size_counts_names_and_values() -> None:
    assert _codec.size(
        Message(b"12345", message_id="id", application_properties={"u": UUID(int=0)})
    ) == 5 + 1 + 2 + 1 + len(b'a{"u":{"u":"00000000000000000000000000000000"}}')

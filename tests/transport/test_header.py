"""A message comes back from its header as it was, and no header does more than be refused."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import MAX_NESTING, MAX_TIME_TO_LIVE, Message
from pairmq.transport import MalformedHeader, decode_header, encode_header

# A fold means nothing in UTC, and is not told apart by ==.
_instants = st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(fold=0))
_decimals = st.builds(
    lambda whole, places: Decimal(whole).scaleb(-places), st.integers(-(2**31), 2**31 - 1), st.integers(0, 255)
)
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.uuids(),
    _instants,
    _decimals,
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=9), inner, max_size=4),
    max_leaves=10,
)
_texts = st.none() | st.text(max_size=30)
_ids = st.none() | st.text(min_size=1, max_size=128)


@given(
    st.builds(
        Message,
        body=st.binary(max_size=100),
        message_id=_ids,
        session_id=_ids,
        reply_to_session_id=_ids,
        content_type=_texts,
        content_encoding=_texts,
        correlation_id=_texts,
        subject=_texts,
        to=_texts,
        reply_to=_texts,
        priority=st.none() | st.integers(0, 255),
        time_to_live=st.none() | st.floats(1e-6, MAX_TIME_TO_LIVE),
        scheduled_enqueue_at=st.none() | _instants,
        application_properties=st.dictionaries(st.text(min_size=1, max_size=20), _values, max_size=5),
    )
)
def test_every_message_comes_back_as_it_was(message):
    assert repr(decode_header(encode_header(message), message.body)) == repr(message)  # repr tells 1 from 1.0 and True


@given(
    st.builds(
        Message,
        body=st.just(b"x"),
        message_id=_ids,
        content_type=_texts,
        subject=_texts,
        reply_to=_texts,
        application_properties=st.dictionaries(
            st.text("ab\u00e9", min_size=1, max_size=3), st.text(max_size=2) | _scalars, max_size=3
        ),
    )
)
def test_a_message_with_usual_fields_comes_back_as_it_was(message):
    assert repr(decode_header(encode_header(message), message.body)) == repr(message)


def test_a_property_without_a_value_comes_back_beside_texts():
    message = Message(b"x", application_properties={"task": "ship", "eta": None, "retries": 0})
    assert decode_header(encode_header(message), b"x") == message


@pytest.mark.parametrize("written", ['"st"', '["str"]', '["str","a","b"]', '{"str":"a","b":"c"}', "null", "7"])
def test_a_property_that_is_no_pair_of_type_and_value_is_refused(written):
    with pytest.raises(MalformedHeader):
        decode_header(f'{{"application_properties":{{"a":{written}}}}}', b"x")


def test_the_deepest_nesting_comes_back():
    value: object = Decimal("1.50")
    for _ in range(MAX_NESTING):
        value = ({"a": value},)[0] if _ % 2 else [value]
    message = Message(application_properties={"deep": value})  # type: ignore[dict-item]
    assert decode_header(encode_header(message), b"") == message


def test_unset_and_empty_are_not_the_same():
    message = Message(subject="", reply_to=None)
    decoded = decode_header(encode_header(message), b"")
    assert (decoded.subject, decoded.reply_to) == ("", None)


def test_a_later_versions_fields_are_ignored():
    assert decode_header('{"message_id":"a","colour":"red"}', b"x") == Message(b"x", message_id="a")


def _with_property(written: object) -> str:
    return json.dumps({"application_properties": {"p": written}})


@pytest.mark.parametrize(
    ("header", "body"),
    [
        ("", b""),
        ("{", b""),
        ("[]", b""),
        ("null", b""),
        ("7", b""),
        (None, b""),
        (b"{}", b""),
        ("{}", None),
        ("{}", "text"),
        ('{"message_id":7}', b""),
        ('{"message_id":""}', b""),
        ('{"priority":300}', b""),
        ('{"priority":true}', b""),
        ('{"time_to_live":"1"}', b""),
        ('{"time_to_live":NaN}', b""),
        ('{"scheduled_enqueue_at":"tomorrow"}', b""),
        ('{"scheduled_enqueue_at":"2026-01-01T00:00:00"}', b""),
        ('{"subject":"\\ud800"}', b""),
        ('{"application_properties":[]}', b""),
        ('{"application_properties":{"":["int",1]}}', b""),
        (_with_property(7), b""),
        (_with_property([]), b""),
        (_with_property(["int"]), b""),
        (_with_property(["int", 1, 2]), b""),
        (_with_property(["int", "1"]), b""),
        (_with_property(["int", True]), b""),
        (_with_property(["int", 2**63]), b""),
        (_with_property(["float", 1]), b""),
        (_with_property(["str", None]), b""),
        (_with_property(["bytes", "!!"]), b""),
        (_with_property(["decimal", "1E+999999999"]), b""),
        (_with_property(["decimal", "NaN"]), b""),
        (_with_property(["uuid", "x"]), b""),
        (_with_property(["uuid", 1]), b""),
        (_with_property(["datetime", 1]), b""),
        (_with_property(["pickle", "x"]), b""),
        (_with_property([["int"], 1]), b""),
        (_with_property(["list", {"a": 1}]), b""),
        (_with_property(["map", [1]]), b""),
        ("[" * 100_000, b""),
        ('{"application_properties":{"p":' + '["list",[' * 5000 + "]]" * 5000 + "}}", b""),
    ],
)
def test_what_is_no_message_of_ours_is_malformed(header, body):
    with pytest.raises(MalformedHeader) as caught:
        decode_header(header, body)
    assert len(str(caught.value)) <= 200


@given(st.one_of(st.none(), st.integers(), st.binary(), st.text()), st.one_of(st.none(), st.text(), st.binary()))
def test_decoding_raises_nothing_else(header, body):
    with contextlib.suppress(MalformedHeader):
        decode_header(header, body)


@given(st.recursive(st.none() | st.booleans() | st.text() | st.integers() | st.floats(), st.lists))
def test_no_written_property_raises_anything_else(written):
    with contextlib.suppress(MalformedHeader):
        decode_header(_with_property(written), b"")


def test_types_are_named_in_the_file():
    message = Message(application_properties={"a": b"\x00", "b": UUID(int=1), "c": datetime(2026, 1, 2, tzinfo=UTC)})
    assert json.loads(encode_header(message))["application_properties"] == {
        "a": ["bytes", "AA=="],
        "b": ["uuid", "00000000-0000-0000-0000-000000000001"],
        "c": ["datetime", "2026-01-02T00:00:00+00:00"],
    }

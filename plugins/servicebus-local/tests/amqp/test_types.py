"""Values: what is written is read back the same, and what is malformed is said to be."""

from __future__ import annotations

import contextlib
import math
import struct
import uuid
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebus_local import amqp

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
chars = st.characters(exclude_categories=["Cs"]).map(amqp.Char)


def whole(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(kind)


SCALARS: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    whole(amqp.UByte, 0, 2**8 - 1),
    whole(amqp.UShort, 0, 2**16 - 1),
    whole(amqp.UInt, 0, 2**32 - 1),
    whole(amqp.ULong, 0, 2**64 - 1),
    whole(amqp.Byte, -(2**7), 2**7 - 1),
    whole(amqp.Short, -(2**15), 2**15 - 1),
    whole(amqp.Int, -(2**31), 2**31 - 1),
    whole(amqp.Long, -(2**63), 2**63 - 1),
    whole(amqp.Timestamp, -(2**63), 2**63 - 1),
    st.floats(width=32).map(amqp.Float),
    st.floats(),
    st.binary(min_size=4, max_size=4).map(amqp.Decimal32),
    st.binary(min_size=8, max_size=8).map(amqp.Decimal64),
    st.binary(min_size=16, max_size=16).map(amqp.Decimal128),
    chars,
    st.uuids(),
    st.binary(max_size=300),
    texts,
    texts.map(amqp.Symbol),
]
scalars = st.one_of(SCALARS)
# Only what differs as a Python key can be in one map together.
keys = texts.map(amqp.Symbol) | whole(amqp.ULong, 0, 2**64 - 1) | st.uuids()


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(keys, inner, max_size=4),
        st.builds(amqp.Described, texts.map(amqp.Symbol) | whole(amqp.ULong, 0, 2**64 - 1), inner),
        st.lists(inner, max_size=3).map(lambda item: amqp.Array([item, item])),
        st.dictionaries(keys, inner, max_size=3).map(lambda item: amqp.Array([item, {}])),
    )


arrays = st.one_of([st.lists(scalar, max_size=5).map(amqp.Array) for scalar in SCALARS])
described_arrays = st.lists(texts, max_size=4).map(
    lambda items: amqp.Array([amqp.Described(amqp.Symbol("d"), item) for item in items])
)
values = st.recursive(
    scalars | arrays | described_arrays | arrays.map(lambda item: amqp.Array([item, item])), nested, max_leaves=15
)


def alike(one: Any, other: Any) -> bool:
    """Equal, of the same types throughout; NaN is like NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", other) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            alike(*pair) for items in zip(one.items(), other.items(), strict=True) for pair in zip(*items, strict=True)
        )
    if isinstance(one, amqp.Described):
        return alike(one.descriptor, other.descriptor) and alike(one.value, other.value)
    return bool(one == other)


@given(values)
def test_a_value_comes_back_as_it_was_written(value: Any) -> None:
    encoded = amqp.encode_value(value)
    for buffer in (encoded, memoryview(b"xx" + encoded)[2:]):
        decoded, end = amqp.decode_value(buffer, 0)
        assert end == len(encoded)
        assert alike(decoded, value)
    assert amqp.encode_value(decoded) == encoded


@given(values, st.data())
def test_a_truncated_value_is_refused(value: Any, data: st.DataObject) -> None:
    encoded = amqp.encode_value(value)
    with pytest.raises(amqp.AmqpDecodeError):
        amqp.decode_value(encoded[: data.draw(st.integers(0, len(encoded) - 1))], 0)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    with contextlib.suppress(amqp.AmqpDecodeError):
        _, end = amqp.decode_value(data, 0)
        assert 0 < end <= len(data)


@given(values, st.data())
def test_a_changed_byte_is_a_value_or_refused(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(amqp.encode_value(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(amqp.AmqpDecodeError):
        amqp.decode_value(bytes(encoded), 0)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (amqp.UInt(0), "43"),
        (amqp.UInt(255), "52ff"),
        (amqp.UInt(256), "7000000100"),
        (amqp.ULong(0), "44"),
        (amqp.ULong(9), "5309"),
        (amqp.Int(-1), "54ff"),
        (5, "5505"),
        (200, "8100000000000000c8"),
        (amqp.Long(-128), "5580"),
        (1.0, "823ff0000000000000"),
        (amqp.Float(1.0), "723f800000"),
        ("é", "a102c3a9"),
        (amqp.Symbol("a"), "a30161"),
        (b"\x01", "a00101"),
        ([], "45"),
        ([None], "c0020140"),
        ({}, "c10100"),
        (amqp.Array(["a", "b"]), "e00602a101610162"),
        (amqp.Char("A"), "7300000041"),
        (amqp.Described(amqp.ULong(0x24), []), "00532445"),
    ],
)
def test_the_smallest_encoding_is_written(value: Any, encoded: str) -> None:
    assert amqp.encode_value(value).hex() == encoded


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        ("5601", True),
        ("5600", False),
        ("7000000000", amqp.UInt(0)),
        ("800000000000000005", amqp.ULong(5)),
        ("7100000005", amqp.Int(5)),
        ("810000000000000005", amqp.Long(5)),
        ("b100000001" + "61", "a"),
        ("b300000001" + "61", amqp.Symbol("a")),
        ("b000000001" + "61", b"a"),
        ("d00000000400000000", []),
        ("d10000000400000000", {}),
        ("f0000000060000000252" + "01", None),
        ("e0040252" + "0102", [amqp.UInt(1), amqp.UInt(2)]),
        ("e0020341", [True, True, True]),
        ("e003020045", None),
    ],
)
def test_every_encoding_is_read(encoded: str, value: Any) -> None:
    if value is None:
        with pytest.raises(amqp.AmqpDecodeError):
            amqp.decode_value(bytes.fromhex(encoded), 0)
        return
    decoded, _ = amqp.decode_value(bytes.fromhex(encoded), 0)
    assert decoded == value
    assert type(decoded) is type(value) or isinstance(decoded, amqp.Array)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "3f",
        "5602",
        "a102c328",  # no UTF-8
        "730000d800",  # half of a surrogate pair
        "7300110000",  # beyond Unicode
        "c0020240",  # more items than bytes
        "c0030140",  # more bytes than items
        "c10201" + "40",  # a key without a value
        "c10302" + "4540",  # a list as a key
        "c10d04a10161a10161a10161a10161",  # the same key twice
        "f000000005ffffffff40",  # four thousand million nulls in ten bytes
        "d000000004ffffffff",
        "b0ffffffff",
        "00" * 40,
        "00" * 2000,
        "c0ff01" * 2000,
    ],
)
def test_what_is_malformed_is_refused(encoded: str) -> None:
    with pytest.raises(amqp.AmqpDecodeError):
        amqp.decode_value(bytes.fromhex(encoded), 0)


def test_nesting_has_a_limit() -> None:
    value: Any = None
    for _ in range(32):
        value = [value]
    assert amqp.decode_value(amqp.encode_value(value), 0)[0] == value
    with pytest.raises(amqp.AmqpDecodeError, match="32"):
        amqp.decode_value(amqp.encode_value([value]), 0)


def test_an_empty_array_keeps_its_type() -> None:
    for kind in (str, amqp.Long, amqp.Symbol, uuid.UUID):
        array = amqp.Array([], kind)
        decoded, _ = amqp.decode_value(amqp.encode_value(array), 0)
        assert decoded == []
        assert amqp.encode_value(decoded) == amqp.encode_value(array)


class Fruit(StrEnum):
    APPLE = "apple"


def test_types_that_inherit_are_written_like_their_base() -> None:
    assert amqp.encode_value(Fruit.APPLE) == amqp.encode_value("apple")


@pytest.mark.parametrize("value", [datetime.now(UTC), object(), 1j, {1, 2}, [object()]])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        amqp.encode_value(value)


@pytest.mark.parametrize("items", [["a", 1], [amqp.Int(1), amqp.Long(1)], [amqp.Described(1, 2), 3]])
def test_an_array_of_several_types_is_refused(items: list[Any]) -> None:
    with pytest.raises(TypeError):
        amqp.encode_value(amqp.Array(items))


@pytest.mark.parametrize(
    "value", [amqp.UByte(256), amqp.UInt(-1), amqp.ULong(2**64), 2**63, amqp.Byte(-129), amqp.Float(1e300)]
)
def test_what_does_not_fit_its_type_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        amqp.encode_value(value)

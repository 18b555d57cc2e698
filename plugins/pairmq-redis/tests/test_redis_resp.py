"""The reply parser: the same replies however the bytes are cut."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import InvalidResponse, ReadOnlyError

from pairmq_redis._resp import ReplyParser

replies = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=20,
)


def written(reply: object) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    assert isinstance(reply, list)
    return b"*%d\r\n" % len(reply) + b"".join(map(written, reply))


@given(st.lists(replies, max_size=5), st.lists(st.integers(1, 20), min_size=1))
def test_replies_are_the_same_however_they_are_cut(expected: list[object], cuts: list[int]) -> None:
    data, parser, found, turn = b"".join(map(written, expected)), ReplyParser(), [], 0
    while data:
        size = cuts[turn % len(cuts)]
        found += parser.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert found == expected


def test_status_errors_and_null_arrays() -> None:
    ok, error, nothing = ReplyParser().feed(b"+OK\r\n-READONLY no\r\n*-1\r\n")
    assert (ok, nothing) == (b"OK", None)
    assert isinstance(error, ReadOnlyError)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_but_invalid_response(data: bytes) -> None:
    with contextlib.suppress(InvalidResponse):
        ReplyParser().feed(data)


@pytest.mark.parametrize("data", [b"$x\r\n", b"%1\r\n", b"\r\n", b":1.5\r\n"])
def test_what_is_no_resp2_is_told(data: bytes) -> None:
    with pytest.raises(InvalidResponse):
        ReplyParser().feed(data)

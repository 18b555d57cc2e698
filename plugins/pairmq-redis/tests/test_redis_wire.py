"""What the reply parser is set up to give."""

from __future__ import annotations

import pytest
from redis.exceptions import InvalidResponse, ReadOnlyError

from pairmq_redis._wire import INCOMPLETE, reply_parser


def test_replies_come_whole_however_they_are_cut() -> None:
    parser = reply_parser()
    found = []
    for byte in b"+OK\r\n$-1\r\n*2\r\n:7\r\n$2\r\n\r\n\r\n":
        parser.feed(bytes([byte]))
        while (reply := parser.gets()) is not INCOMPLETE:
            found.append(reply)
    assert found == [b"OK", None, [7, b"\r\n"]]


def test_error_replies_are_given_as_the_drivers_exceptions() -> None:
    parser = reply_parser()
    parser.feed(b"-READONLY no\r\n*1\r\n-ERR inner\r\n")
    error, (inner,) = parser.gets(), parser.gets()
    assert isinstance(error, ReadOnlyError)
    assert isinstance(inner, Exception)


def test_what_is_no_reply_is_told() -> None:
    parser = reply_parser()
    parser.feed(b"\x00nonsense\r\n")
    with pytest.raises(InvalidResponse):
        parser.gets()

"""Numbers that callers pass: one that can't be used is one clear error, and nothing is sent or received."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from uuid import uuid4

import pytest

import pairmq.sync
from pairmq import ConfigurationError, Entity, Message, Pair
from pairmq.model import Source

NUMBERS = [
    ("5", TypeError, "'5': give a number of seconds"),
    ([1], TypeError, r"\[1\]: give a number of seconds"),
    (math.nan, ValueError, "nan: it must be"),
    (-1, ValueError, "-1: it must be"),
]


@pytest.fixture
async def pair():
    name = uuid4().hex
    async with Pair.connect(f"memory://{name}-1", f"memory://{name}-2") as opened:
        await opened.primary.admin.create(Entity("orders"))
        yield opened


@pytest.mark.parametrize(("seconds", "error", "text"), [*NUMBERS, (0, ValueError, "0: it must be more than 0 seconds")])
@pytest.mark.parametrize(
    "call",
    [
        lambda pair, seconds: pair.sender("orders").send(Message(b"1"), timeout=seconds),
        lambda pair, seconds: pair.sender("orders").send_batch([Message(b"1")], timeout=seconds),
        lambda pair, seconds: anext(pair.sender("orders").send_stream([Message(b"1")], timeout=seconds)),
        lambda pair, seconds: pair.check("orders", timeout=seconds),
        lambda pair, seconds: pair.agreement(timeout=seconds),
    ],
    ids=["send", "send_batch", "send_stream", "check", "agreement"],
)
async def test_timeout_that_is_no_time_is_rejected(pair, call, seconds, error, text):
    with pytest.raises(error, match=f"timeout is {text}"):
        await call(pair, seconds)
    assert (await pair.primary.admin.counts(Source(Entity("orders")))).active == 0


@pytest.mark.parametrize(("seconds", "error", "text"), NUMBERS)
async def test_wait_that_is_no_time_is_rejected(pair, seconds, error, text):
    with pytest.raises(error, match=f"wait is {text}"):
        await pair.receiver("orders").receive(wait=seconds)


@pytest.mark.parametrize(("number", "error"), [("1", TypeError), (1.5, TypeError), (0, ValueError)])
async def test_number_of_messages_must_be_whole_and_positive(pair, number, error):
    with pytest.raises(error, match=f"max_messages is {number!r}"):
        await pair.receiver("orders").receive(number, wait=0)
    with pytest.raises(error, match=f"window is {number!r}"):
        await anext(pair.sender("orders").send_stream([], window=number))


@pytest.mark.parametrize("seconds", [math.inf, 10**400])
async def test_time_without_end_counts_as_a_year(pair, seconds):
    await pair.sender("orders").send(Message(b"1"), timeout=seconds)
    assert [each.message.body for each in await pair.receiver("orders").receive(wait=seconds)] == [b"1"]


def test_a_url_in_place_of_a_transport_names_the_call_that_takes_urls():
    with pytest.raises(ConfigurationError, match="primary is a value of type str: give a transport, or URLs to"):
        Pair("memory://east", "memory://west")


@pytest.mark.parametrize("connect", [Pair.connect, pairmq.sync.Pair.connect])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pair_that_is_copied_or_pickled_says_what_to_do(
    connect: Callable[..., object], duplicate: Callable[[object], object]
) -> None:
    name = uuid4().hex
    pair = connect(f"memory://{name}-1", f"memory://{name}-2")
    with pytest.raises(TypeError, match="connect one in each process, with the same URLs"):
        duplicate(pair)

"""What callers pass: what can't be used is one clear error, and nothing is sent or received."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

import pairmq.sync
from pairmq import ConfigurationError, Entity, EntityState, Message, Pair, PairClosed
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
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"options": {"failover_interval": 3}}, "options is a value of type dict: give PairOptions"),
        ({"options": {}}, "options is a value of type dict: give PairOptions"),
        ({"observers": 5}, "observers is 5: give a list of observers, or of their names"),
        ({"observers": "opentelemetry"}, "observers is 'opentelemetry': give a list of observers, or of their names"),
        ({"journal": 5}, "journal is a value of type int: it must be the path of a directory"),
        ({"journal": b"/tmp/journal"}, "journal is a value of type bytes: it must be the path of a directory"),
        ({"config": 5}, "config is a value of type int: give the path of a TOML file"),
    ],
)
def test_an_argument_of_another_type_is_one_clear_error(
    connect: Callable[..., object], given: dict[str, object], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{text}"):
        connect("memory://east", "memory://west", **given)


@pytest.mark.parametrize("queues", [5, "0", [[0]], []])
def test_queues_of_a_syphon_that_are_no_indexes_are_refused(queues: Any) -> None:
    with pytest.raises(ConfigurationError, match="syphon_queues must hold some of the indexes 0 to 9"):
        Pair.connect("memory://east", "memory://west", enable_syphon=True, syphon_queues=queues)


@pytest.mark.parametrize("make", ["sender", "receiver", "outbox", "hold"])
async def test_a_name_or_kind_that_no_entity_has_says_what_to_give(pair: Pair, make: str) -> None:
    with pytest.raises(ConfigurationError, match=r"entity path 5: .*: give a string"):
        getattr(pair, make)(5)
    if make != "receiver":
        with pytest.raises(ConfigurationError, match="kind is 'que': it must be 'queue' or 'topic'"):
            getattr(pair, make)("orders", kind="que")


async def test_a_check_of_what_is_no_entity_is_refused(pair: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"entity path 5: .*: give a string"):
        await pair.check(5)


async def _take(delivery: object) -> None:
    pass


@pytest.mark.parametrize("take", [5, _take])
async def test_a_consumer_refuses_a_callback_that_would_not_run(pair: Any, take: object) -> None:
    """Nothing awaited it: the consumer held all messages, and renewed their locks, while the pair was open."""
    with pytest.raises(TypeError, match=r"on_message is .*: give a function that is not async"):
        pair.consumer("orders", take)


@pytest.mark.parametrize("make", ["sender", "receiver"])
async def test_a_closed_pair_makes_nothing_and_knows_how_it_ended(make: str) -> None:
    name = uuid4().hex
    async with Pair.connect(f"memory://{name}-1", f"memory://{name}-2") as pair:
        pair.force_failover("orders")
    with pytest.raises(PairClosed):
        getattr(pair, make)("orders")
    assert pair.state("orders") is EntityState.FAILED_OVER
    assert pair.states() == {Entity("orders"): EntityState.FAILED_OVER}


def test_a_closed_pair_of_threads_knows_how_it_ended() -> None:
    name = uuid4().hex
    with pairmq.sync.Pair.connect(f"memory://{name}-1", f"memory://{name}-2") as pair:
        pair.force_failover("orders")
    with pytest.raises(PairClosed):
        pair.receiver("orders")
    assert pair.state("orders") is EntityState.FAILED_OVER


@pytest.mark.parametrize("connect", [Pair.connect, pairmq.sync.Pair.connect])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pair_that_is_copied_or_pickled_says_what_to_do(
    connect: Callable[..., object], duplicate: Callable[[object], object]
) -> None:
    name = uuid4().hex
    pair = connect(f"memory://{name}-1", f"memory://{name}-2")
    with pytest.raises(TypeError, match="connect one in each process, with the same URLs"):
        duplicate(pair)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_sender_that_is_copied_says_what_to_do_instead(pair: Any, copied: Any) -> None:
    """A copy that was dropped gave the link of the first one back."""
    with pytest.raises(TypeError, match=r"make one with Pair\.sender"):
        copied(pair.sender("orders"))

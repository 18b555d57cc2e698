"""What consumers took out of the primary during a run counts as what it held: neither lost, nor doubled."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pairmq.model import Delivery, PairClosed
from pairmq.model.events import Side
from pairmq.observe.journal import statistics
from pairmq.testing.chaos import KILL, Settings, planned
from pairmq.testing.chaos.__main__ import main
from pairmq.testing.chaos._books import with_consumed
from pairmq.testing.chaos._ledger import message_of, number_of
from pairmq.testing.chaos.client import Client


class Pen:
    """Writes the ledger of a consumer by hand."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._at = 0.0

    def line(self, kind: str, **fields: Any) -> None:
        self._at += 1
        with (self.directory / "consumer-a-1.jsonl").open("a") as ledger:
            ledger.write(json.dumps({"t": self._at, "k": kind, "broker": "primary", "path": "orders", **fields}) + "\n")

    def got(self, number: int, place: str = "", count: int = 1) -> None:
        self.line("got", messages=[(place, number, count)])

    def completed(self, number: int, place: str = "", error: str | None = None) -> None:
        self.line("settle", how="complete", messages=[(place, number)])
        event = {"kind": "MessageDelivered", "settlement": "completed", "entity": "orders", "error": error}
        self.line("event", event={**event, "message_id": f"id-{number}"})

    def held(self, *left: tuple[int, str], count: int = 1) -> list[int | None]:
        """The numbers of all that the queue has ever held, some of it being left in it."""
        deliveries = [Delivery(message_of(number), None, count, place) for number, place in left]
        return [number_of(message) for message in with_consumed(self.directory, {"orders": deliveries})["orders"]]


@pytest.fixture
def pen(tmp_path: Path) -> Pen:
    return Pen(tmp_path)


def test_what_was_completed_stands_at_its_place(pen: Pen) -> None:
    for number, place in ((1, "17-0"), (3, "20-0")):
        pen.got(number, place)
        pen.completed(number, place)
    assert pen.held((2, "18-0")) == [1, 2, 3]


def test_what_a_lane_gave_is_no_part_of_the_primary(pen: Pen) -> None:
    pen.line("handle", turn=0, number=1, side="secondary", place="")
    pen.completed(1)
    pen.got(1)
    pen.line("handle", turn=1, number=1, side="primary", place="")
    pen.completed(1)
    assert pen.held() == [1]


def test_what_was_released_is_counted_where_it_is_left(pen: Pen) -> None:
    pen.got(1, "17-0")
    pen.completed(1, "17-0", error="the connection is gone")
    assert pen.held((1, "17-0")) == [1]


def test_two_copies_at_two_places_are_two(pen: Pen) -> None:
    for place in ("17-0", "18-0"):
        pen.got(1, place)
        pen.completed(1, place)
    assert pen.held() == [1, 1]


def test_what_is_missing_without_a_reason_is_lost(pen: Pen) -> None:
    """A consumer was killed with it in its hand, and it never came back."""
    pen.got(1, "17-0")
    assert pen.held() == []


def test_without_places_as_many_copies_are_gone_as_were_confirmed(pen: Pen) -> None:
    for _ in range(2):
        pen.got(1)
        pen.completed(1)
    assert pen.held((1, "")) == [1, 1, 1]


def test_a_completion_that_a_killed_broker_forgot_makes_no_second_copy(pen: Pen) -> None:
    for count in (1, 2):
        pen.got(1, count=count)
        pen.completed(1)
    assert pen.held() == [1]
    assert pen.held((1, ""), count=3) == [1]


def test_without_places_a_copy_whose_first_delivery_was_not_seen_is_one(pen: Pen) -> None:
    pen.got(1, count=2)
    pen.completed(1)
    assert pen.held() == [1]


def test_without_places_a_completion_in_doubt_is_one_unless_the_message_is_left(pen: Pen) -> None:
    for number in (1, 2):
        pen.got(number)
        pen.completed(number, error="cancelled")
    assert pen.held((2, "")) == [1, 2]


def test_consumers_are_struck_as_clients_are() -> None:
    plan = planned(("redis", "redis"), Settings(seed=3, seconds=600, consumers=2), ((KILL,), (KILL,)))
    assert {strike.client for strike in plan.of("")} == {*plan.clients, *plan.consumers}
    assert plan.consumers == ("consumer-a", "consumer-b")


def test_a_plan_without_consumers_is_the_one_that_it_always_was() -> None:
    """A seed that somebody has written down must still find what it found."""
    plan = planned(("redis", "redis"), Settings(seed=3, seconds=60), ((KILL,), (KILL,)))
    assert {strike.client for strike in plan.of("")} <= set(plan.clients)


class FarDelivery:
    """One of a batch whose settlements end when all of them are under way."""

    origin = Side.SECONDARY

    def __init__(self, number: int, together: asyncio.Barrier) -> None:
        self.message = message_of(number)
        self.delivery = Delivery(self.message, None, 1, str(number))
        self._together = together

    async def complete(self) -> None:
        await self._together.wait()

    abandon = complete


class FarQueue:
    """A pair and its receiver, which gives a batch once."""

    def __init__(self, size: int) -> None:
        together = asyncio.Barrier(size)
        self._batch = [FarDelivery(number, together) for number in range(size)]

    def receiver(self, _: str) -> FarQueue:
        return self

    async def __aenter__(self) -> FarQueue:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def receive(self, *_: object) -> list[FarDelivery]:
        batch, self._batch = self._batch, []
        if not batch:
            raise PairClosed("this pair is closed")
        return batch


async def test_a_consumer_settles_what_it_received_side_by_side(tmp_path: Path) -> None:
    """One after the other over a distance is slower than what is sent, and no lane would be drained in time."""
    spec = {"ledger": tmp_path / "consumer-a-1.jsonl", "seed": 7, "name": "consumer-a", "place": 3, "life": 1}
    client = Client({**spec, "options": {}, "syphon": False, "journal": ""})
    with client._ledger:
        async with asyncio.timeout(60):
            await client._keep_consuming(FarQueue(10), "orders")  # type: ignore[arg-type]


@pytest.mark.real_server
def test_the_command_has_all_processes_keep_a_journal(tmp_path: Path) -> None:
    journals, ledgers = tmp_path / "journals", tmp_path / "ledgers"
    size = ["--minutes=0.05", "--every=1", "--clients=1", "--consumers=1", "--seed=7", "--faults=reset,pause"]
    assert main(["--pair=redis,redis", *size, f"--journal={journals}", f"--keep={ledgers}", "--quiet"]) == 0
    found = statistics(journals / "redis-redis-7")
    assert found.kinds["SendCompleted"] > 0
    assert found.kinds["MessageDelivered"] > 0
    assert all(span.ended and not span.missing for span in found.processes)
    assert len(found.processes) >= 2

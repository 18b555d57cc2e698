"""Completions that callers ask for together, on a link that answers when the test says so; and the ends of locks."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from pairmq.model import FailureReason, TransportError
from pairmq.testing import in_virtual_time
from pairmq_servicebus import _client
from pairmq_servicebus._client import LONGEST_LOCK, ServiceClock
from pairmq_servicebus._settling import Completion, Completions, Held, Shelf


class FakeLink:
    """Takes completions; each waits until it is answered."""

    def __init__(self, *, is_far: bool) -> None:
        self.is_far = is_far
        self.open = True
        self.client = self
        self.asked: list[Any] = []
        self.answers: deque[asyncio.Future[None]] = deque()

    def usable(self) -> bool:
        return self.open

    def answered_in(self, seconds: float) -> None:
        """No test measures."""

    async def complete_message(self, received: Any) -> None:
        self.asked.append(received)
        self.answers.append(asyncio.get_running_loop().create_future())
        await self.answers[-1]


class Received:
    locked_until_utc = None


class Bench:
    """Completions of some messages, under way."""

    def __init__(self, link: FakeLink, messages: int) -> None:
        self.link: Any = link
        self.left: list[Completion] = []
        shelf = Shelf(dead_letter=False)
        received: list[Any] = [Received() for _ in range(messages)]
        self.completions = [Completion(Held(each, self.link, shelf, in_session=False)) for each in received]
        self.job = Completions(shelf, 30.0, "complete", self.left.extend)
        self.job.add(self.completions)
        self.task: asyncio.Task[None] | None = None

    async def settle(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self.job.run(self.link))
        for _ in range(5):
            await asyncio.sleep(0)

    async def answer_all(self) -> int:
        """Answer whatever is asked until nothing is; returns how many round trips that took."""
        trips = 0
        await self.settle()
        while self.link.answers:
            trips += 1
            for _ in range(len(self.link.answers)):
                self.link.answers.popleft().set_result(None)
            await self.settle()
        return trips


@pytest.mark.parametrize(("is_far", "round_trips"), [(True, 1), (False, 20)])
async def test_messages_that_are_completed_together_share_round_trips_of_a_slow_network(
    is_far: bool, round_trips: int
) -> None:
    bench = Bench(FakeLink(is_far=is_far), 20)
    assert await bench.answer_all() == round_trips
    assert [completion.done.result() for completion in bench.completions] == [None] * 20


async def test_one_message_that_is_completed_twice_together_is_completed_once() -> None:
    link = FakeLink(is_far=True)
    bench = Bench(link, 1)
    twice = Completion(bench.completions[0].held)
    bench.job.add([twice])
    await bench.answer_all()
    assert len(link.asked) == 1
    second = twice.done.result()
    assert isinstance(second, TransportError)
    assert second.reason is FailureReason.LOCK_LOST


async def test_what_was_not_begun_when_the_link_is_lost_goes_on_over_the_next_one() -> None:
    link = FakeLink(is_far=False)
    bench = Bench(link, 3)
    await bench.settle()
    link.open = False
    await bench.answer_all()
    assert (len(link.asked), bench.left) == (1, bench.completions[1:])
    assert not any(completion.done.done() for completion in bench.left)


async def test_completions_are_given_up_when_their_last_caller_gives_up() -> None:
    bench = Bench(FakeLink(is_far=True), 3)
    await bench.settle()
    bench.link.answers.popleft().set_result(None)
    await bench.settle()
    assert [bench.job.give_up(completion) for completion in bench.completions[1:]] == [False, True]
    assert bench.task is not None
    bench.task.cancel()


# The clock of the service.

HERE = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ServiceClock:
    """What is known of the service's clock by a machine whose own stands still."""

    class Standing(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return HERE

    monkeypatch.setattr(_client, "datetime", Standing)
    return ServiceClock()


@in_virtual_time
async def test_a_clock_that_is_behind_is_corrected_by_dates_of_the_service(clock: ServiceClock) -> None:
    service = HERE + timedelta(minutes=4)
    until = service + timedelta(seconds=10)
    assert clock.left(until) == 250, "nothing is known"
    clock.note(service)
    assert clock.left(until) == pytest.approx(10)
    assert clock.here(until) == HERE + timedelta(seconds=10)
    await asyncio.sleep(7)
    clock.note(service)  # an old message
    assert clock.left(until) == pytest.approx(3)
    assert clock.now() == pytest.approx(service.timestamp() + 7)


@in_virtual_time
async def test_a_lock_lasts_no_longer_than_the_service_allows(clock: ServiceClock) -> None:
    assert clock.left(HERE + timedelta(hours=1)) == pytest.approx(LONGEST_LOCK)


@in_virtual_time
async def test_a_clock_that_is_ahead_ends_locks_early(clock: ServiceClock) -> None:
    service = HERE - timedelta(minutes=2)
    clock.note(service)
    assert clock.left(service + timedelta(minutes=1)) == -60


@in_virtual_time
async def test_a_date_of_long_ago_does_not_count(clock: ServiceClock) -> None:
    """The loop's clock and the service's drift."""
    clock.note(HERE + timedelta(minutes=4))
    await asyncio.sleep(4000)
    clock.note(HERE)
    assert clock.now() == HERE.timestamp()

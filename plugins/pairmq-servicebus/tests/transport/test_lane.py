"""How long a lane keeps its link, and how often it looks at it, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from pairmq import TransportError
from pairmq.testing import in_virtual_time
from pairmq_servicebus._lane import Call, Job, Lane

IDLE = 60.0  # s
LOOKS = 10.0  # s between two, as the README says
HOUR = 3600.0  # s


class FakeLink:
    """Notes when it was looked at and used."""

    def __init__(self) -> None:
        self.open = True
        self.looks: list[float] = []
        self.uses: list[float] = []

    def usable(self) -> bool:
        return self.open

    def unread(self) -> bool:
        return False

    async def look(self) -> None:
        self.looks.append(asyncio.get_running_loop().time())

    def drop(self) -> None:
        self.open = False

    async def close(self) -> None:
        self.open = False


class Bench:
    """A lane and its links."""

    def __init__(self, idle_limit: float | None = IDLE) -> None:
        self.links: list[FakeLink] = []
        self.lane = Lane(self._open, "look into q", idle_limit=idle_limit)

    async def _open(self) -> FakeLink:
        self.links.append(FakeLink())
        return self.links[-1]

    async def use(self) -> None:
        async def work(link: FakeLink) -> None:
            link.uses.append(asyncio.get_running_loop().time())

        await self.lane.call(work, 1.0, "use q")


@in_virtual_time
async def test_a_link_that_is_only_looked_at_is_closed_when_it_was_idle_for_long_enough() -> None:
    bench = Bench()
    await bench.use()
    [link] = bench.links
    await asyncio.sleep(IDLE - 1)
    assert link.open
    assert set(link.looks) == {LOOKS * number for number in range(1, 6)}
    await asyncio.sleep(1 + LOOKS + 1)
    assert not link.open
    assert bench.lane.link is None
    looks = len(link.looks)
    await asyncio.sleep(HOUR)
    assert (len(bench.links), len(link.looks)) == (1, looks)
    await bench.use()
    assert len(bench.links) == 2
    await bench.lane.close()


@pytest.mark.parametrize("idle_limit", [IDLE, None])
@in_virtual_time
async def test_a_link_in_use_is_kept_and_looked_at_in_between(idle_limit: float | None) -> None:
    bench = Bench(idle_limit)
    for _ in range(100):
        await bench.use()
        await asyncio.sleep(IDLE * 3 / 4)
    [link] = bench.links
    assert link.open
    seen = sorted(link.looks + link.uses)
    assert max(after - before for before, after in itertools.pairwise(seen)) <= LOOKS
    await bench.lane.close()


@in_virtual_time
async def test_a_link_without_a_limit_is_kept_and_looked_at_forever() -> None:
    bench = Bench(None)
    await bench.use()
    await asyncio.sleep(HOUR + 1)
    [link] = bench.links
    assert link.open
    assert set(link.looks) == {LOOKS * number for number in range(1, 361)}
    await bench.lane.close()


@in_virtual_time
async def test_one_that_was_lost_while_idle_and_opened_anew_is_idle_all_the_same() -> None:
    bench = Bench()
    await bench.use()
    await asyncio.sleep(IDLE / 2)
    bench.links[0].open = False
    await asyncio.sleep(IDLE / 2 + LOOKS + 1)
    assert not any(link.open for link in bench.links)
    assert bench.lane.link is None
    await bench.lane.close()


@in_virtual_time
async def test_what_was_just_looked_at_is_used_without_another_look() -> None:
    bench = Bench(None)
    await bench.use()
    await asyncio.sleep(LOOKS + 0.5)
    [link] = bench.links
    looks = len(link.looks)
    await bench.use()
    assert len(link.looks) == looks
    await asyncio.sleep(LOOKS - 1)
    await bench.use()
    assert len(link.looks) == looks + 1
    await bench.lane.close()


@in_virtual_time
async def test_thousands_of_calls_that_are_given_up_are_not_looked_for_among_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0

    def equals(self: object, other: object) -> bool:
        nonlocal compared
        compared += 1
        return self is other

    monkeypatch.setattr(Call, "__eq__", equals)
    monkeypatch.setattr(Call, "__hash__", object.__hash__)
    bench = Bench()

    async def hang(link: FakeLink) -> None:
        await asyncio.get_running_loop().create_future()

    calls = [asyncio.create_task(bench.lane.call(hang, HOUR, "use q")) for _ in range(2000)]
    await asyncio.sleep(1)
    for call in reversed(calls):
        call.cancel()
    await asyncio.wait(calls)
    assert compared < 10 * len(calls)
    await bench.lane.close()


class Waiting(Job[FakeLink]):
    """Waits for what never comes, and makes way."""

    def __init__(self) -> None:
        super().__init__(HOUR, yields=True)

    async def run(self, link: FakeLink) -> None:
        await asyncio.sleep(HOUR)

    def fail(self, error: TransportError, *, begun: bool) -> None:
        """No caller waits for it."""


@in_virtual_time
async def test_a_job_that_waits_does_not_begin_before_one_that_was_submitted_beside_another() -> None:
    bench = Bench()
    bench.lane.submit(Waiting())
    await asyncio.sleep(1)
    started = asyncio.get_running_loop().time()

    async def work(link: FakeLink) -> None:
        await asyncio.sleep(0.1)

    first = asyncio.create_task(bench.lane.call(work, 1.0, "use q"))
    await asyncio.sleep(0.05)  # the first one is under way, and what it interrupted waits for its turn
    await asyncio.gather(first, bench.lane.call(work, 1.0, "use q"))
    assert asyncio.get_running_loop().time() - started < 1
    await bench.lane.close()

"""Operations under time limits, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq import Message, Receipt, Route, SendError, SendRefused
from pairmq.core.send import TRIALS_AT_ONCE
from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.model.events import AttemptFailed, SendCompleted
from pairmq.runner import TimeLimits
from pairmq.runner._limits import Limit
from pairmq.testing import Fault, VirtualTimeLoop, in_virtual_time, run_virtual
from pairmq.testing._loop import JumpingSelector
from pairmq.transport import AT_ONCE, nothing_sent

INSTANTS = st.integers(0, 40).map(lambda tenths: tenths / 10)
DURATIONS = st.integers(1, 40).map(lambda tenths: tenths / 10)


def now() -> float:
    return asyncio.get_running_loop().time()


async def most_in_a_turn(works: Sequence[Awaitable[object]]) -> int:
    """Await them all; returns how many ended in one turn of the loop at most."""
    log: list[str] = []

    async def one(work: Awaitable[object]) -> None:
        await work
        log.append("e")
        asyncio.get_running_loop().call_soon(log.append, " ")

    await asyncio.gather(*(one(work) for work in works))
    return max(len(ends) for ends in "".join(log).split())


async def answer(after: float) -> float:
    await asyncio.sleep(after)
    return after


@given(operations=st.lists(st.tuples(INSTANTS, DURATIONS, INSTANTS), max_size=30), closing=st.none() | INSTANTS)
def test_each_operation_ends_with_its_answer_or_at_its_limit(operations, closing):
    """Whatever else runs, began earlier, and is limited to an earlier or a later instant."""
    limits = TimeLimits()

    async def one(start: float, takes: float, limit: float) -> tuple[float, bool]:
        await asyncio.sleep(start)
        try:
            assert await limits.run(answer(takes), limit) == takes
        except TransportError as error:
            timed_out = error.kind is FailureKind.UNAVAILABLE and error.reason is FailureReason.TIMEOUT
            return now(), not (timed_out and error.maybe_applied)
        return now(), True

    async def close() -> None:
        if closing is not None:
            await asyncio.sleep(closing)
            limits.end_by(closing + 1.05)

    async def all_of_them() -> list[tuple[float, bool]]:
        # Limits are off the others' tenths: which of two things of one instant is first is not the question.
        tasks = [asyncio.create_task(one(start, takes, limit + 0.02)) for start, takes, limit in operations]
        closer = asyncio.create_task(close())
        results = await asyncio.gather(*tasks)
        await closer
        return results

    expected = []
    for start, takes, limit in operations:
        last = limit + 0.02 if closing is None else min(limit + 0.02, closing + 1.05)
        answered = start + takes <= last
        expected.append((start + takes if answered else max(start, last), answered))
    found = run_virtual(all_of_them())
    assert [answered for _, answered in found] == [answered for _, answered in expected]
    assert [instant for instant, _ in found] == pytest.approx([instant for instant, _ in expected])


@in_virtual_time
async def test_a_call_that_had_written_nothing_is_marked_nothing_sent():
    async def unwritten() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise

    with pytest.raises(TransportError) as failure:
        await TimeLimits().run(unwritten(), 1.0)
    assert not failure.value.maybe_applied


@pytest.mark.parametrize("cancelled_at", [1.0, 2.0])
@in_virtual_time
async def test_a_cancellation_by_others_stays_one(cancelled_at):
    """Also one that comes at the very instant of the limit."""
    task = asyncio.create_task(TimeLimits().run(answer(10), 2.0))
    asyncio.get_running_loop().call_at(cancelled_at, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_a_time_out_leaves_no_cancellation_behind():
    limits = TimeLimits()
    for limit in (1.0, 2.0):
        with pytest.raises(TransportError):
            await limits.run(answer(10), limit)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@in_virtual_time
async def test_an_answer_that_comes_in_spite_of_the_limit_counts():
    async def stubborn() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "it was there already"
        return ""

    assert await TimeLimits().run(stubborn(), 1.0) == "it was there already"
    await asyncio.sleep(1)  # the task itself was not cancelled


@pytest.mark.parametrize("swallowed", [1, 3])
@in_virtual_time
async def test_an_operation_that_swallows_a_cancellation_and_goes_on_waiting_is_cancelled_again(swallowed):
    """As `asyncio.wait_for` of Python 3.11 does when its answer comes with the cancellation."""

    async def deaf() -> None:
        for _ in range(swallowed):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)
        await asyncio.sleep(1000)

    with pytest.raises(TransportError) as failure:
        await TimeLimits().run(deaf(), now() + 1)
    assert failure.value.reason is FailureReason.TIMEOUT
    assert now() < 20
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


@pytest.mark.parametrize("closing", [False, True])
@in_virtual_time
async def test_an_operation_that_was_cancelled_has_time_to_put_things_away(closing):
    limits, put_away = TimeLimits(), []

    async def tidy() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(2)
            put_away.append(1)

    if closing:
        asyncio.get_running_loop().call_later(1.5, lambda: limits.end_by(now()))
    with pytest.raises(TransportError):
        await limits.run(tidy(), now() + 1)
    assert put_away == [1]


@in_virtual_time
async def test_a_driver_that_cancels_its_own_work_has_failed():
    async def dropped() -> None:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, future.cancel)
        await future

    with pytest.raises(TransportError, match="unexpected CancelledError") as failure:
        await TimeLimits().run(dropped(), 5.0)
    assert failure.value.maybe_applied


@pytest.mark.parametrize("error", [TimeoutError("its own"), OSError("gone"), KeyError("a defect")])
@in_virtual_time
async def test_what_a_transport_should_have_mapped_counts_as_a_failure(error):
    async def failing() -> None:
        raise error

    with pytest.raises(TransportError, match=type(error).__name__) as failure:
        await TimeLimits().run(failing(), 5.0)
    assert failure.value.kind is FailureKind.UNAVAILABLE
    assert failure.value.maybe_applied


@in_virtual_time
async def test_a_limit_does_not_strike_a_caller_whose_operation_has_ended():
    assert await TimeLimits().run(answer(1), 2.0) == 1
    await asyncio.sleep(5)


@in_virtual_time
async def test_what_runs_keeps_its_limit_when_many_others_have_ended():
    limits = TimeLimits()
    slow = asyncio.create_task(limits.run(answer(50), 10.0))
    for _ in range(1000):
        await limits.run(asyncio.sleep(0), 30.0)
    with pytest.raises(TransportError):
        await slow
    assert now() == pytest.approx(10.0)


@in_virtual_time
async def test_what_has_ended_is_not_kept():
    """A fast sender must not gather a limit for each of the sends of the last seconds, nor a timer for each."""
    limits = TimeLimits()
    loop = asyncio.get_running_loop()
    slow = asyncio.create_task(limits.run(answer(50), 100.0))
    for _ in range(10_000):
        await limits.run(asyncio.sleep(0), loop.time() + 30)
    assert len(limits._limits) < 300
    assert len(loop._scheduled) < 10  # type: ignore[attr-defined]  # asyncio's timers
    assert await slow == 50


@in_virtual_time
async def test_what_runs_alone_ends_when_a_close_requests_it():
    """Nothing else begins or ends meanwhile that would set the timer anew."""
    limits = TimeLimits()
    asyncio.get_running_loop().call_at(1.0, limits.end_by, 2.0)
    with pytest.raises(TransportError):
        await limits.run(answer(60), 30.0)
    assert now() == pytest.approx(2.0)


@in_virtual_time
async def test_many_limits_of_one_instant_are_reached_over_many_turns_of_the_loop():
    limits = TimeLimits()

    async def one() -> None:
        with pytest.raises(TransportError):
            await limits.run(answer(50), 10.0)

    assert await most_in_a_turn([one() for _ in range(1000)]) <= AT_ONCE


def test_many_operations_end_by_their_limits_when_their_ends_take_a_while():
    """From the second time on, when it is known what each of them takes; and no sooner than at half of their time."""
    selector, count, takes = JumpingSelector(), 5000, 0.0002
    ends: list[list[float]] = [[], []]

    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            selector.now += takes

    async def one(limits: TimeLimits) -> None:
        for row, limit in enumerate((10.0, 20.0)):
            with pytest.raises(TransportError):
                await limits.run(hang(), limit)
            ends[row].append(now())

    async def all_of_them() -> None:
        limits = TimeLimits()
        await asyncio.gather(*(one(limits) for _ in range(count)))

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(selector)) as runner:
        runner.run(all_of_them())
    assert 10.9 < max(ends[0]) < 11.1
    assert 20 - 2 * count * takes < min(ends[1])
    assert max(ends[1]) < 20.05


class _Slow:
    """A loop in which each operation that is cut off takes a while of its own."""

    def __init__(self, takes: float) -> None:
        self._selector = JumpingSelector()
        self._takes = takes

    async def hang(self) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            self._selector.now += self._takes

    async def until(self, limits: TimeLimits, limit: float) -> float:
        """Cut one off at a limit; returns when it ended."""
        with pytest.raises(TransportError):
            await limits.run(self.hang(), limit)
        return now()

    def pass_by(self, seconds: float) -> None:
        """Time passes in which the loop can do nothing."""
        self._selector.now += seconds

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(self._selector)) as runner:
            runner.run(work)


def test_short_operations_do_not_hold_up_those_that_are_cut_off_early():
    slow, count = _Slow(0.0002), 5000

    async def work() -> None:
        limits, ended = TimeLimits(), False

        async def short() -> None:
            while not ended:
                await slow.until(limits, now() + 0.2)

        await asyncio.gather(*(slow.until(limits, 10.0) for _ in range(count)))
        others = [asyncio.create_task(short()) for _ in range(100)]
        ends = await asyncio.gather(*(slow.until(limits, 20.0) for _ in range(count)))
        ended = True
        await asyncio.wait(others)
        assert max(ends) < 20.1

    slow.run(work())


def test_a_loop_that_stands_still_while_the_first_ends_are_measured_ends_no_others_too_early():
    """As in a pass of the garbage collector."""
    slow, count = _Slow(0.0002), 5000

    async def work() -> None:
        limits = TimeLimits()

        async def first() -> None:
            await slow.until(limits, 10.0)
            slow.pass_by(0.1)

        await asyncio.gather(first(), *(slow.until(limits, 10.0) for _ in range(3 * AT_ONCE)))
        ends = await asyncio.gather(*(slow.until(limits, 20.0) for _ in range(count)))
        assert min(ends) > 20 - 1.5 * 0.0002 * count
        assert max(ends) < 20.05

    slow.run(work())


def test_operations_that_begin_meanwhile_do_not_hold_up_those_that_are_cut_off_early():
    slow, count = _Slow(0.0002), 2000

    async def work() -> None:
        limits = TimeLimits()
        others: list[asyncio.Task[float]] = []

        async def one() -> float:
            ended = await slow.until(limits, 20.0)
            others.extend(asyncio.create_task(limits.run(answer(1000))) for _ in range(3))
            return ended

        await asyncio.gather(*(slow.until(limits, 10.0) for _ in range(count)))
        ends = await asyncio.gather(*(one() for _ in range(count)))
        for other in others:
            other.cancel()
        await asyncio.wait(others)
        assert max(ends) < 20.05

    slow.run(work())


def test_limits_are_reached_when_the_end_of_one_takes_longer_than_a_turn_should():
    """As on a machine with ten times the work that it can do: then none was ended, ever."""
    slow = _Slow(0.02)

    async def work() -> None:
        limits = TimeLimits()
        ending = asyncio.gather(*(slow.until(limits, 10.0) for _ in range(500)))
        await asyncio.sleep(9)
        slow.pass_by(1)
        for _ in range(5000):
            await asyncio.sleep(0)
            if ending.done():
                break
        else:
            ending.cancel()
        await ending

    slow.run(work())


def test_what_operations_cost_a_while_ago_does_not_end_later_ones_early():
    slow = _Slow(0.0005)

    async def work() -> None:
        limits = TimeLimits()
        await asyncio.gather(*(slow.until(limits, 10.0) for _ in range(3000)))
        await asyncio.sleep(100)
        others = [asyncio.create_task(slow.until(limits, now() + 500)) for _ in range(3000)]
        await asyncio.sleep(0)
        began = now()
        assert await slow.until(limits, began + 1) == pytest.approx(began + 1, abs=0.01)
        for other in others:
            other.cancel()
        await asyncio.wait(others)

    slow.run(work())


@in_virtual_time
async def test_many_waits_of_one_instant_end_over_many_turns_of_the_loop():
    limits = TimeLimits()
    most = await most_in_a_turn([limits.wait(asyncio.get_running_loop().create_future(), 5.5) for _ in range(1000)])
    assert most <= AT_ONCE


def test_many_waits_that_must_not_end_yet_are_looked_at_over_many_turns_of_the_loop():
    """Ending them all would take longer than they have: those that have half of their time left are put off."""
    slow, count = _Slow(0.002), 6000

    async def work() -> None:
        limits = TimeLimits()
        await asyncio.gather(*(slow.until(limits, now() + 5) for _ in range(200)))
        waits = [
            asyncio.ensure_future(
                limits.wait(asyncio.get_running_loop().create_future(), now() + 2, exact=False, began_at=now())
            )
            for _ in range(count)
        ]
        await asyncio.sleep(0)
        slow.pass_by(0.1)  # until this is planned
        put_off = [0]
        for _ in range(count):
            await asyncio.sleep(0)
            put_off.append(len(limits._exact))
        assert put_off[-1] == count
        assert max(after - before for before, after in pairwise(put_off)) <= 1000
        for wait in waits:
            wait.cancel()

    slow.run(work())


@in_virtual_time
async def test_many_who_wait_are_woken_over_many_turns_of_the_loop():
    waiters = [asyncio.get_running_loop().create_future() for _ in range(1000)]
    asyncio.get_running_loop().call_later(5.5, TimeLimits.wake, waiters)
    assert await most_in_a_turn(waiters) <= AT_ONCE


@in_virtual_time
async def test_a_wait_ends_with_its_future_or_at_its_instant():
    limits = TimeLimits()
    early: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(1, early.set_result, "came")
    late: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    assert await limits.wait(early, 2.0) == "came"
    assert now() == pytest.approx(1.0)
    assert await limits.wait(early, 0.5) == "came"
    assert await limits.wait(late, 3.0) is None
    assert now() == pytest.approx(3.0)


@in_virtual_time
async def test_a_time_out_keeps_nothing_of_the_operation_alive():
    with Limit(TimeLimits(), 1.0) as limit:
        await answer(10)
    failure = limit.take_failure()
    assert failure.reason is FailureReason.TIMEOUT
    assert failure.__context__ is None
    assert failure.__cause__ is None


@pytest.mark.parametrize(
    ("apart", "at_once", "earliest"),
    [
        pytest.param(0.0, 10_000, -0.5, id="of one instant, which takes 0.3 s"),
        pytest.param(0.0, 500, -0.5, id="of one instant, two thirds of which never had a turn"),
        pytest.param(0.0005, 10_000, -0.02, id="further apart than the end of each takes"),
    ],
)
def test_thousands_of_sends_end_at_their_deadlines_when_both_brokers_hang(world, apart, at_once, earliest):
    selector, count, timeout = JumpingSelector(), 1500, 6.0
    ends: list[float] = []

    def take_a_while(event: object) -> None:
        if isinstance(event, AttemptFailed | SendCompleted):
            selector.now += 0.0002

    async def send_all() -> None:
        options = {"failover_interval": 0.5, "attempt_timeout": 1, "max_pending_sends": at_once}
        async with world(**options, send_timeout=timeout) as w:
            w.pair.subscribe(take_a_while)
            sender = w.pair.sender("orders")
            await sender.send(Message(b"first"))
            w.east.fail(Fault.HANG)
            w.west.fail(Fault.HANG)

            async def one(number: int) -> None:
                await asyncio.sleep(number * apart)
                began = now()
                with pytest.raises(SendError):
                    await sender.send(Message(b"1"))
                ends.append(now() - began - timeout)

            await asyncio.gather(*(one(number) for number in range(count)))
            w.east.heal()
            w.west.heal()

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(selector)) as runner:
        runner.run(send_all())
    assert min(ends) > earliest
    assert max(ends) < 0.05


@in_virtual_time
async def test_a_send_that_begins_no_other_attempt_goes_on_when_its_broker_is_back(world, monkeypatch):
    """So many run that to end them would take all of its time."""
    async with world(send_timeout=60, failover_interval=600, ping_primary_interval=0.5) as w:
        w.east.fail(Fault.DOWN)
        sending = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(40)
        monkeypatch.setattr(TimeLimits, "lead", 100.0)
        await asyncio.sleep(15)
        assert not sending.done()
        w.pair.mark_healthy("orders")
        w.east.heal()
        assert (await sending).route is Route.PRIMARY


@pytest.mark.parametrize("route", [Route.PRIMARY, Route.BACKLOG])
def test_a_send_is_attempted_at_both_brokers_when_what_others_cost_exceeds_its_time(world, route):
    """Thousands end early by what all of them cost; a new send must not, before it has tried both."""
    selector = JumpingSelector()

    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            selector.now += 0.002

    async def end_late(limits: TimeLimits) -> None:
        for limit in (now() + 1, now() + 1000):
            with suppress(TransportError):
                await limits.run(hang(), limit)

    async def send() -> None:
        async with world(send_timeout=3.0, failover_interval=0.0) as w:
            limits = w.pair._engine._context.limits
            others = [asyncio.create_task(end_late(limits)) for _ in range(2500)]
            await asyncio.sleep(60)
            assert limits.lead > 3.0
            if route is Route.BACKLOG:
                w.east.fail(Fault.HANG)
            receipt = await w.pair.sender("orders").send(Message(b"1"))
            w.east.heal()
            assert receipt.route is route
            for other in others:
                other.cancel()
            await asyncio.wait(others)

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(selector)) as runner:
        runner.run(send())


@in_virtual_time
async def test_a_send_that_waits_for_its_turn_is_not_let_in_when_its_time_would_not_suffice(world, monkeypatch):
    async with world(max_pending_sends=1) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = asyncio.create_task(sender.send(Message(b"1"), timeout=3))
        soon, later = [asyncio.create_task(sender.send(Message(b"1"), timeout=3.5 + more)) for more in (0, 60)]
        await asyncio.sleep(1)
        monkeypatch.setattr(TimeLimits, "lead", 3.0)  # what it costs to end all that runs
        with pytest.raises(SendError):
            await first
        with pytest.raises(SendRefused, match="max_pending_sends"):
            await soon
        w.east.heal()
        w.west.heal()
        await later


@in_virtual_time
async def test_a_send_in_line_ends_at_its_deadline_when_its_time_would_not_suffice_for_an_attempt(world, monkeypatch):
    """To let it in only for that costs more than its end, and took the processor from those that were due."""
    async with world(attempt_timeout=50.0, failover_interval=600.0) as w:
        w.east.fail(Fault.HANG)
        sender = w.pair.sender("orders")

        def start(count: int, timeout: float) -> list[asyncio.Task[Receipt]]:
            return [asyncio.create_task(sender.send(Message(b"1"), timeout=timeout)) for _ in range(count)]

        first = start(TRIALS_AT_ONCE, 60)
        await asyncio.sleep(0.5)
        soon = start(20, 2.0)
        await asyncio.sleep(1.2)  # some went on as scouts
        attempted = w.east.operations["SEND"]
        monkeypatch.setattr(TimeLimits, "lead", 0.9)  # what it costs to end all that runs
        first[0].cancel()
        await asyncio.sleep(0.6)
        assert w.east.operations["SEND"] == attempted
        assert not any(task.done() for task in soon)
        later = start(1, 60)
        await asyncio.sleep(0.3)
        assert w.east.operations["SEND"] == attempted + 1
        assert all(task.done() for task in soon)
        for task in (*first, *later):
            task.cancel()
        await asyncio.wait([*first, *soon, *later])
        w.east.heal()


@in_virtual_time
async def test_hundreds_that_wait_for_their_turns_are_let_in_over_some_turns_of_the_loop(world):
    async with world(max_pending_sends=350) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.HANG)
        batch = asyncio.gather(sender.send_batch([Message(b"1") for _ in range(350)]))
        await asyncio.sleep(1)
        sends = [asyncio.create_task(sender.send(Message(b"2"))) for _ in range(350)]
        await asyncio.sleep(1)
        batch.cancel()
        await asyncio.wait([batch])
        seen = []
        for _ in range(20):
            seen.append(w.pair.in_flight)
            await asyncio.sleep(0)
        assert seen[-1] == 350
        assert max(after - before for before, after in pairwise(seen)) <= AT_ONCE
        w.east.heal()
        await asyncio.gather(*sends)

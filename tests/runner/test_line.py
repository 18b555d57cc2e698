"""Many sends to one entity while no broker answers: some of them find out when one does, the others wait in line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pairmq import BacklogUnavailable, EntityState, Message, Receipt, Route, SendError, SendRefused, SendUnknown
from pairmq.core.send import TRIALS_AT_ONCE
from pairmq.testing import Fault, Operation, in_virtual_time

MANY = 1000


def start(w, count: int, path: str = "orders", **options) -> list[asyncio.Task[Receipt]]:
    sender = w.pair.sender(path)
    return [asyncio.create_task(sender.send(Message(b"%d" % number), **options)) for number in range(count)]


async def outcomes(sends) -> list[Receipt | BaseException]:
    return await asyncio.gather(*sends, return_exceptions=True)


@in_virtual_time
async def test_sends_stand_in_line_while_no_broker_answers(world):
    async with world(send_timeout=4.0) as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        attempted = w.east.operations["SEND"]
        others = start(w, MANY)
        await asyncio.sleep(0.4)
        assert attempted == TRIALS_AT_ONCE
        assert w.east.operations["SEND"] == attempted + 1  # a scout
        found = await outcomes([*first, *others])
        assert all(isinstance(each, SendUnknown) for each in found[:TRIALS_AT_ONCE])
        # Nothing of theirs was sent, and that is what their callers hear, with both causes.
        in_line = [each for each in found[TRIALS_AT_ONCE:] if "the sends before it" in str(each)]
        # As many again find out whether the secondary answers, one goes on for each that ends, and a few scouts.
        assert len(in_line) >= MANY - 2 * TRIALS_AT_ONCE - 20
        assert all(isinstance(each, BacklogUnavailable) for each in in_line)


@in_virtual_time
async def test_no_send_in_line_outlasts_its_deadline(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE, timeout=15)
        await asyncio.sleep(0.5)
        loop = asyncio.get_running_loop()
        ends: list[float] = []

        async def one() -> None:
            began = loop.time()
            with pytest.raises(SendError):
                await w.pair.sender("orders").send(Message(b"x"), timeout=3)
            ends.append(loop.time() - began)

        await asyncio.gather(*(one() for _ in range(MANY)))
        assert min(ends) > 1.5
        assert max(ends) < 3.01
        await outcomes(first)


@pytest.mark.parametrize("back", ["primary", "secondary"])
@in_virtual_time
async def test_the_line_goes_on_when_a_broker_answers(world, back):
    async with world(ping_primary_interval=0.5, backlog_retry_interval=1.0) as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, MANY)
        await asyncio.sleep(5)
        assert not any(task.done() for task in others)
        (w.east if back == "primary" else w.west).heal()
        await asyncio.sleep(5)
        found = await outcomes([*first, *others])
        route = Route.PRIMARY if back == "primary" else Route.BACKLOG
        assert {each.route if isinstance(each, Receipt) else each for each in found} == {route}
        w.west.heal()
        w.east.heal()


@in_virtual_time
async def test_the_line_goes_on_when_the_secondary_takes_the_first_diverted_send(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        found = await outcomes([*first, *start(w, MANY)])
        assert {each.route for each in found if isinstance(each, Receipt)} == {Route.BACKLOG}
        assert sum(isinstance(each, Receipt) for each in found) == len(found)
        attempted = sum(isinstance(each, Receipt) and each.maybe_duplicate for each in found)
        assert TRIALS_AT_ONCE < attempted < TRIALS_AT_ONCE + 20  # with four scouts a second
        w.east.heal()


@in_virtual_time
async def test_the_whole_line_goes_on_at_one_answer_of_the_secondary(world):
    """Not one send for each that ends: others may hang there for long."""
    async with world() as w:
        w.pair.force_failover("orders")
        w.west.fail(Fault.HANG, Operation.SEND, times=TRIALS_AT_ONCE - 1)
        w.west.fail(Fault.SLOW, Operation.SEND, delay=0.2)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.15)
        others = start(w, MANY)
        await asyncio.sleep(0.4)
        assert all(task.done() for task in others)
        assert {each.route for each in await outcomes(others)} == {Route.BACKLOG}
        for task in first:
            task.cancel()
        await outcomes(first)
        w.west.heal()


@in_virtual_time
async def test_a_short_send_behind_long_ones_ends_as_not_sent_at_its_deadline(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE + 10, timeout=60)  # ten of them are in line before it
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        [short] = start(w, 1, timeout=1)
        await asyncio.wait([short])
        assert isinstance(short.exception(), SendRefused)
        assert "the sends before it" in str(short.exception())
        assert 0.75 < asyncio.get_running_loop().time() - began < 1.01
        for task in first:
            task.cancel()
        await outcomes(first)
        w.east.heal()


@in_virtual_time
async def test_a_short_send_behind_long_ones_is_accepted_when_the_primary_answers_within_its_time(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE, timeout=60)
        await asyncio.sleep(0.5)
        [short] = start(w, 1, timeout=1)
        await asyncio.sleep(0.5)
        w.east.heal()
        assert (await short).route is Route.PRIMARY
        await outcomes(first)


@in_virtual_time
async def test_a_short_send_behind_long_ones_that_hang_finds_out_itself_that_the_primary_answers(world):
    """What the broker answers now, it may not answer to those that it has forgotten."""
    async with world(attempt_timeout=50.0, failover_interval=600.0) as w:
        w.east.fail(Fault.HANG, Operation.SEND, times=TRIALS_AT_ONCE)
        w.west.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE, timeout=60)
        await asyncio.sleep(0.5)
        [short] = start(w, 1, timeout=1)
        assert (await short).route is Route.PRIMARY
        assert not any(task.done() for task in first)
        for task in first:
            task.cancel()
        await outcomes(first)
        w.west.heal()


@in_virtual_time
async def test_the_line_goes_on_when_the_entity_fails_over(world):
    """Sends in flight at the primary say nothing about the secondary, and may hang there for long."""
    async with world(attempt_timeout=50.0, failover_interval=0.5, send_timeout=60.0) as w:
        w.east.fail(Fault.HANG)
        first = start(w, 1)
        await asyncio.sleep(1.0)
        assert w.pair.state("orders") is EntityState.HEALTHY
        first += start(w, TRIALS_AT_ONCE - 1)
        await asyncio.sleep(0.2)
        others = start(w, MANY)
        await asyncio.sleep(0.01)
        w.pair.force_failover("orders")
        others += start(w, MANY)
        await asyncio.sleep(0.2)  # before a scout finds the secondary
        found = [task.result() if task.done() else None for task in others]
        assert {each and each.route for each in found} == {Route.BACKLOG}
        w.east.heal()
        await outcomes(first)


@in_virtual_time
async def test_one_in_line_goes_on_for_each_send_that_ends(world):
    async with world(failover_interval=600.0) as w:
        w.east.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, 20)
        await asyncio.sleep(0.1)
        for task in first[:7]:
            task.cancel()
        await asyncio.sleep(0.1)
        assert w.east.operations["SEND"] == TRIALS_AT_ONCE + 7
        for task in (*first, *others):
            task.cancel()
        await outcomes([*first, *others])
        assert w.pair._engine.sends.in_flight == 0
        w.east.heal()


@in_virtual_time
async def test_a_send_that_is_cancelled_when_its_turn_comes_leaves_it_to_the_next_one(world):
    async with world(failover_interval=600.0) as w:
        w.east.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, 3)
        await asyncio.sleep(0.1)
        first[0].cancel()
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.sleep(0.1)
        assert w.east.operations["SEND"] == TRIALS_AT_ONCE + 1
        for task in (*first, *others):
            task.cancel()
        await outcomes([*first, *others])
        w.east.heal()


@in_virtual_time
async def test_sends_to_other_entities_do_not_stand_in_line(world):
    async with world() as w:
        w.east.fail(Fault.HANG, entities=("orders",))
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, MANY)
        await asyncio.sleep(0.1)
        receipt = await w.pair.sender("prices").send(Message(b"x"), timeout=0.1)
        assert receipt.route is Route.PRIMARY
        await outcomes([*first, *others])
        w.east.heal()


@in_virtual_time
async def test_no_send_stands_in_line_when_failures_are_raised_at_once(world):
    """Its caller waits for the failure, not for the deadline."""
    async with world(while_failing="raise") as w:
        w.east.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, 10)
        await asyncio.sleep(0.1)
        assert w.east.operations["SEND"] == TRIALS_AT_ONCE + 10
        await outcomes([*first, *others])
        w.east.heal()


@in_virtual_time
async def test_sends_in_line_end_when_the_pair_closes(world):
    async with world(close_grace=1.0) as w:
        w.east.fail(Fault.HANG)
        first = start(w, TRIALS_AT_ONCE)
        await asyncio.sleep(0.5)
        others = start(w, 10)
        await asyncio.sleep(0.1)
        await w.pair.close()
        found = await outcomes(others)
        assert all("the pair closed" in str(each) for each in found)
        # The first ones went on as scouts, four in a second.
        assert [type(each) is SendUnknown for each in found] == [at < 4 for at in range(10)]
        for task in first:
            with suppress(SendError):
                await task

"""A pair is opened once, which callers wait and which give up, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from cut_calls import cancel_at_each_await
from pairmq import ConfigurationError, Message, Pair, PairClosed, PairOptions, Route
from pairmq.model import Entity, TransportError
from pairmq.model.events import Event, PairEnded, PairOpened
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time


async def _slowly_opening() -> Pair:
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    await east.transport().admin.create(Entity("orders"))
    west.fail(Fault.SLOW, delay=1.0, times=1)
    return Pair(east.transport(), west.transport(), PairOptions(backlog_queue_count=1, attempt_timeout=5))


def _others() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@in_virtual_time
async def test_a_caller_that_gives_up_opening_takes_it_from_no_other():
    pair = await _slowly_opening()
    impatient, patient = asyncio.create_task(pair.open()), asyncio.create_task(pair.open())
    await asyncio.sleep(0.5)
    impatient.cancel()
    assert await patient is pair
    assert impatient.cancelled()
    assert (await pair.sender("orders").send(Message(b"1"))).route is Route.PRIMARY
    await pair.close()


@in_virtual_time
async def test_a_pair_whose_opening_was_given_up_raises_instead_of_cancelling_its_callers():
    pair = await _slowly_opening()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await pair.open()
    assert _others() == []
    with pytest.raises(PairClosed, match="make a new one"):
        await pair.open()
    await pair.close()


def test_a_pair_needs_an_event_loop_of_asyncio():
    """As under trio, which runs coroutines, too."""
    opening = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport()).open()
    with pytest.raises(RuntimeError, match=r"asyncio\.run.*pairmq\.sync"):
        opening.send(None)


@in_virtual_time
async def test_who_waits_for_a_pair_that_is_closed_learns_it_and_is_not_cancelled():
    pair = await _slowly_opening()
    opening = asyncio.create_task(pair.open())
    await asyncio.sleep(0.5)
    await pair.close()
    with pytest.raises(PairClosed, match="make a new one"):
        await opening


@in_virtual_time
async def test_an_opening_that_is_cancelled_just_as_it_succeeds_leaves_nothing_behind():
    """Nobody would close what ``async with`` never gave."""
    pair = await _slowly_opening()
    opening = asyncio.create_task(pair.open())
    await asyncio.sleep(0.5)
    assert pair._opening is not None
    pair._opening.add_done_callback(lambda _: opening.cancel())
    await asyncio.wait((opening,))
    assert opening.cancelled()
    assert _others() == []
    with pytest.raises(PairClosed):
        await pair.open()


@pytest.mark.parametrize("turns", range(60))
@in_virtual_time
async def test_an_opening_that_is_cancelled_at_each_await_leaves_nothing_behind(turns):
    options = PairOptions(backlog_queue_count=2, enable_syphon=True)
    pair = Pair.connect(f"memory://east-{turns}", f"memory://west-{turns}", options=options)
    opening = asyncio.create_task(pair.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    await cancel_at_each_await(opening)
    if not opening.cancelled():  # it had been opened before
        await pair.close()
    await asyncio.sleep(10)
    assert _others() == []


@in_virtual_time
async def test_a_cancelled_call_leaves_an_open_pair_open():
    pair = await _slowly_opening()
    await pair.open()
    again = asyncio.create_task(pair.open())
    again.cancel()
    await asyncio.wait((again,))
    assert (await pair.sender("orders").send(Message(b"1"))).route is Route.PRIMARY
    await pair.close()


@pytest.mark.parametrize("given_up", [False, True])
@in_virtual_time
async def test_a_pair_that_does_not_open_reports_no_end(given_up):
    """A count of the open pairs would be one too low from then on."""
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    west.fail(Fault.HANG if given_up else Fault.UNAUTHORIZED)
    pair = Pair(east.transport(), west.transport(), PairOptions(attempt_timeout=5))
    told: list[Event] = []
    pair.subscribe(told.append)
    with pytest.raises(TimeoutError if given_up else TransportError):
        async with asyncio.timeout(1):
            await pair.open()
    await pair.close()
    assert [event for event in told if isinstance(event, PairOpened | PairEnded)] == []


@pytest.mark.parametrize("claimed", [False, True])
@in_virtual_time
async def test_the_events_of_a_pair_that_does_not_open_come_to_their_end(claimed):
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    if not claimed:
        west.fail(Fault.UNAUTHORIZED)
    pair = Pair(east.transport(), (east if claimed else west).transport())

    async def read() -> None:
        async for _ in pair.events():
            pass

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    with pytest.raises(ConfigurationError if claimed else TransportError):
        await pair.open()
    async with asyncio.timeout(60):
        await reader

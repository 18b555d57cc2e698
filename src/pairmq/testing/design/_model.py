"""A design as a system that can be searched, and what is wrong with a state.

The promises are asked without knowing by which rules a design keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain

from pairmq.testing.design._design import Design, Naive, Verdict
from pairmq.testing.design._search import OWN, Circle, Goal, Kind, Step, System
from pairmq.testing.design._sends import health_steps, send_steps
from pairmq.testing.design._state import (
    HOME,
    RUNNING,
    UNDER_WAY,
    Fate,
    Holding,
    Message,
    Mode,
    Phase,
    Primary,
    Process,
    Pump,
    Queue,
    State,
)
from pairmq.testing.design._syphon import broker_steps, process_steps, pump_steps, time_steps


def system(design: Design) -> System[State]:
    """Make the system of a design.

    Args:
        design: a world, and what is planted in it.

    Returns:
        What `search` takes.
    """
    return System(
        initial=beginning(design),
        steps=partial(_steps, design),
        broken=partial(judge, design),
        goals=goals(design),
        circles=CIRCLES,
    )


def beginning(design: Design) -> State:
    """Nothing sent, nothing broken; a process that has to know of the backlog begins with one (SPEC 4.5)."""
    world = design.world
    return State(
        primary=Primary.WORKS,
        queues=(Queue(),) * world.queues,
        processes=tuple(Process(dirty=world.tracks(number)) for number in range(len(world.hosts))),
        messages=(Message(),) * len(world.senders),
        pumps=(Pump(),) * len(design.pumps),
        home=(),
        adrift=(),
        receipts=(),
        faults=world.faults,
        crashes=world.crashes,
        cancels=world.cancels,
        closes=world.closes,
    )


def _steps(design: Design, state: State) -> Iterable[Step[State]]:
    return chain(
        send_steps(design, state),
        health_steps(design, state),
        pump_steps(design, state),
        broker_steps(design, state),
        time_steps(design, state),
        process_steps(design, state),
    )


_ACCEPTED = (Phase.AT_HOME, Phase.AT_BACKLOG)


def judge(design: Design, state: State) -> Verdict | None:
    """Find what is wrong with a state.

    Args:
        design: which was searched; only its world and what it promises are looked at.
        state: any.

    Returns:
        The first verdict that is true of it; None where every promise is kept.
    """
    home = state.home
    for number, message in enumerate(state.messages):
        copies = home.count(number)
        phase = message.phase
        if copies and phase in (Phase.REFUSED, Phase.IDLE):
            return Verdict.PHANTOM
        if copies > 1 and not message.explained:
            return Verdict.DUPLICATE
        if message.fate is Fate.DROPPED:
            return Verdict.DROPPED
        if phase is Phase.NOT_SENT and (copies or _in_backlog(state, number)):
            return Verdict.FALSE_REPORT
        if phase in _ACCEPTED and not copies and _nowhere(state, number):
            return Verdict.LOST
    if len(state.receipts) > 1 and _disordered(design, state):
        return Verdict.ORDER
    for number, process in enumerate(state.processes):
        if process.misled:
            return Verdict.STATE
        says_drained = process.mode is Mode.OPEN and not process.dirty and design.world.tracks(number)
        if says_drained and _answers_for_a_message(state, number):
            return Verdict.FALSE_DRAINED
    return None


def _in_backlog(state: State, number: int) -> bool:
    return any(entry.message == number for queue in state.queues for entry in queue.entries)


def _nowhere(state: State, number: int) -> bool:
    """Whether an accepted message is neither in a queue, nor locked by a living pump, nor dead-lettered and counted."""
    if state.messages[number].fate is Fate.SET_ASIDE or _in_backlog(state, number) or (number, HOME) in state.adrift:
        return False
    return all(pump.holding is Holding.NOTHING or pump.message != number for pump in state.pumps)


def _disordered(design: Design, state: State) -> bool:
    """Whether copies stand, or can only come to stand, in another order than the receipts."""
    home, places = state.home, []
    for number in state.receipts:
        if state.messages[number].fate is not Fate.SET_ASIDE:
            places.append(home.index(number) if number in home else len(home))
    if places != sorted(places):
        return True
    if design.does(Naive.ORDER_OF_ALL_COPIES):
        copies = [number for number in home if number in state.receipts]
        return copies != sorted(copies, key=state.receipts.index)
    return False


def _answers_for_a_message(state: State, number: int) -> bool:
    return any(
        entry.owed >> number & 1 and state.messages[entry.message].phase is Phase.AT_BACKLOG
        for queue in state.queues
        for entry in queue.entries
    )


def all_ended(state: State) -> bool:
    """Whether no caller waits for a send or a close."""
    for message in state.messages:
        if message.phase in UNDER_WAY:
            return False
    return all(process.mode is not Mode.CLOSING for process in state.processes)


def all_well(design: Design, state: State) -> bool:
    """Whether everything accepted is delivered, every pump idle, and every process knows it."""
    if not all_ended(state) or any(pump.holding is not Holding.NOTHING for pump in state.pumps):
        return False
    if any(queue.entries for queue in state.queues) and design.pumps:
        return False  # where no process has a syphon, what was diverted waits for one
    for number, process in enumerate(state.processes):
        if process.mode is not Mode.OPEN or process.health not in RUNNING:
            return False
        if process.dirty and design.world.tracks(number):
            return False
    return all(
        message.phase not in _ACCEPTED or not design.pumps or number in state.home or message.fate is Fate.SET_ASIDE
        for number, message in enumerate(state.messages)
    )


def goals(design: Design) -> tuple[Goal[State], ...]:
    """What must stay possible: an end of everything begun without any help, and a good end once faults cease."""
    return (
        Goal(Verdict.HANG, all_ended, OWN),
        Goal(Verdict.STRANDED, lambda state: all_well(design, state), OWN | Kind.HEAL),
    )


CIRCLES = (Circle(Verdict.LIVELOCK, Kind.RECOVERY, Kind.STEP | Kind.RECOVERY),)
"""Recoveries without end, and nothing diverted meanwhile."""

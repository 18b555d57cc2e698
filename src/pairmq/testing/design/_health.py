"""The state of the entity as each process sees it: results, the failover interval, pings, and looks at the backlog.

The clauses are SPEC 4 and 6. A timer may fire at any moment. The one thing that needs to be said of time is that a
process which waits longer before it pings (SPEC 4.8) lets the sends that wait have their turn first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pairmq.testing.design._design import Design, Naive
from pairmq.testing.design._search import Kind, Step
from pairmq.testing.design._state import (
    HOME,
    IN_FLIGHT,
    LETTERS,
    RUNNING,
    Health,
    Mode,
    Phase,
    Primary,
    Process,
    State,
    with_process,
)

MOST_NEEDED: Final = 2
"""Cap of the good pings that a flapping entity needs; the real one is 8, and two show all that three would."""


def succeeded(design: Design, state: State, number: int, *, late: bool) -> State:
    """The process heard that an attempt at the primary was accepted."""
    process = state.processes[number]
    if late and not _counts_late_success(design, process):
        return state
    if process.health is Health.UP:
        return state
    back = process._replace(health=Health.UP, needed=1, good=0, patient=False, misled=process.misled or late)
    if process.health is Health.FAILING and design.does(Naive.ONE_CHAIN_OF_STATES):
        back = back._replace(dirty=False)
    if process.health is Health.TRIAL:
        return with_process(state, number, back)  # no new epoch: the other sends of the trial are not late
    return _new_epoch(design, with_process(state, number, back), number)


def _counts_late_success(design: Design, process: Process) -> bool:
    if process.health is Health.DOWN and design.does(Naive.LATE_SUCCESS_REOPENS):
        return True
    return design.does(Naive.RESULTS_WITHOUT_EPOCHS)


def failed(design: Design, state: State, number: int, *, late: bool) -> State:
    """The process heard that an attempt at the primary failed, in a way that counts toward failover."""
    process = state.processes[number]
    if late and not design.does(Naive.RESULTS_WITHOUT_EPOCHS):
        return state
    if process.health in (Health.FAILING, Health.DOWN):
        return state
    if process.health is Health.TRIAL and not design.does(Naive.PINGS_AT_ONCE):
        # The canary: no second interval is spent on a ping's word, and the next ping waits longer.
        needed = min(MOST_NEEDED, process.needed * 2)
        down = process._replace(health=Health.DOWN, needed=needed, good=0, patient=True, misled=process.misled or late)
        return _new_epoch(design, with_process(state, number, down), number)
    failing = process._replace(health=Health.FAILING, misled=process.misled or late)
    return _new_epoch(design, with_process(state, number, failing), number)


def _new_epoch(design: Design, state: State, number: int) -> State:
    """Every attempt at the primary that is in flight is now one of an earlier epoch (SPEC 4.6)."""
    senders = design.world.senders
    messages = tuple(
        message._replace(late=True)
        if message.phase in IN_FLIGHT and message.to == HOME and senders[index] == number
        else message
        for index, message in enumerate(state.messages)
    )
    return state._replace(messages=messages)


def health_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """The interval's end, pings, and looks at the backlog queues, of each process that is open."""
    for number, process in enumerate(state.processes):
        if process.mode is not Mode.OPEN:
            continue
        name = LETTERS[number]
        if process.health is Health.FAILING:
            down = with_process(state, number, process._replace(health=Health.DOWN))
            yield Step(
                Kind.STEP, f"{name}: the failover interval is over, failed over", _new_epoch(design, down, number)
            )
        elif process.health is Health.DOWN:
            yield from _ping(design, state, number, name)
        elif process.dirty and design.world.tracks(number):
            yield from _looks(design, state, number, name)


def _ping(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    process = state.processes[number]
    if process.patient and any(
        message.phase is Phase.WAITING and sender == number
        for message, sender in zip(state.messages, design.world.senders, strict=True)
    ):
        return
    passes = state.primary is Primary.WORKS or (state.primary is Primary.FULL and design.world.probe_lies)
    if not passes:
        if process.good:
            yield Step(Kind.STEP, f"{name}: a ping fails", with_process(state, number, process._replace(good=0)))
    elif process.good + 1 < process.needed:
        good = process._replace(good=process.good + 1)
        yield Step(Kind.STEP, f"{name}: a good ping, more are needed", with_process(state, number, good))
    else:
        health = Health.UP if design.does(Naive.PINGS_AT_ONCE) else Health.TRIAL
        back = process._replace(health=health, good=0, patient=False, seen=0)
        there = _new_epoch(design, with_process(state, number, back), number)
        yield Step(Kind.RECOVERY, f"{name}: a good ping, back at the primary", there)


def _looks(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    """One look at one queue; with the last of them the backlog may be called empty (SPEC 4.5)."""
    process = state.processes[number]
    everywhere = (1 << design.choice) - 1
    for index, queue in enumerate(state.queues[: design.choice]):
        empty = not queue.entries if queue.there else design.does(Naive.UNREACHABLE_IS_EMPTY)
        seen = process.seen | 1 << index if empty else process.seen & ~(1 << index)
        how = "is empty" if queue.there else "can't be reached, so it counts as empty"
        if seen == everywhere and (design.does(Naive.DRAINED_IN_FLIGHT) or not diverting(design, state, number)):
            clean = process._replace(dirty=False, seen=0)
            text = f"{name}: queue {index + 1} {how}, and so were all: drained"
            yield Step(Kind.STEP, text, with_process(state, number, clean))
        elif seen not in (process.seen, everywhere):
            text = f"{name}: queue {index + 1} {how if empty else 'is not empty'}"
            yield Step(Kind.STEP, text, with_process(state, number, process._replace(seen=seen)))


def diverting(design: Design, state: State, number: int) -> bool:
    """Whether a diverted send of the process is registered as in flight."""
    return any(
        message.phase in IN_FLIGHT and message.to != HOME and sender == number
        for message, sender in zip(state.messages, design.world.senders, strict=True)
    )


def is_running(process: Process) -> bool:
    """Whether sends of the process go to the primary, or try to."""
    return process.health in RUNNING or process.health is Health.FAILING

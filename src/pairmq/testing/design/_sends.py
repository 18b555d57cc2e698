"""Sends (SPEC 3), and the state of the entity as each process sees it (SPEC 4 and 6).

A send is begun, routed, attempted, confirmed, and ended in exactly one way. The entity's state changes by results, the
failover interval, pings, and looks at the backlog. A timer may fire at any moment. The one thing that needs to be said
of time is that a process which waits longer before it pings (SPEC 4.8) lets the sends that wait have their turn first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pairmq.testing.design._design import Design, Naive, Trouble
from pairmq.testing.design._search import Kind, Step
from pairmq.testing.design._state import (
    HOME,
    IN_FLIGHT,
    LETTERS,
    RUNNING,
    UNDER_WAY,
    Entry,
    Health,
    Message,
    Mode,
    Phase,
    Primary,
    Process,
    State,
    with_message,
    with_process,
    with_queue,
)


def send_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """What can happen to each message that its caller still waits for, or has not sent yet."""
    for number, message in enumerate(state.messages):
        if message.phase is Phase.IDLE:
            yield from _begin(design, state, number)
        elif message.phase is Phase.WAITING:
            yield from _route(design, state, number)
            yield from _give_up(design, state, number)
        elif message.phase is Phase.ROUTED:
            registered = with_message(state, number, message._replace(phase=Phase.SENT))
            yield Step(Kind.DIVERT, f"send {number + 1}: registered, and in flight", registered)
        elif message.phase is Phase.SENT:
            yield from _arrive(design, state, number)
            yield from _interrupted(design, state, number)
        elif message.phase is Phase.STORED:
            yield from _confirmed(design, state, number)
            yield from _interrupted(design, state, number)


def _begin(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    senders = design.world.senders
    if state.processes[senders[number]].mode is not Mode.OPEN:
        return
    for earlier in range(number):
        if senders[earlier] == senders[number]:
            phase = state.messages[earlier].phase
            # Messages of one process are alike, so that they may as well begin in this order. Where order is kept
            # the sends of one key go one at a time: two in flight could be confirmed in another order than stored.
            if phase is Phase.IDLE or (design.world.ordered and phase in UNDER_WAY):
                return
    begun = with_message(state, number, Message(Phase.WAITING))
    yield Step(Kind.USER, f"send {number + 1}: begins in process {LETTERS[senders[number]]}", begun)


def _route(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    """Routing and registering, in one step (SPEC 4.6)."""
    world, owner = design.world, design.world.senders[number]
    process, message = state.processes[owner], state.messages[number]
    if process.mode is not Mode.OPEN:
        return
    keeps_diverting = world.ordered and process.dirty and not design.does(Naive.RETURN_WITH_BACKLOG)
    if is_running(process) and not keeps_diverting:
        sent = message._replace(phase=Phase.SENT, to=HOME, late=False)
        yield Step(Kind.STEP, f"send {number + 1}: in flight to the primary", with_message(state, number, sent))
        return
    # Dirty from before the first diverted send leaves (SPEC 4.5).
    if world.tracks(owner) and not process.dirty:
        state = with_process(state, owner, process._replace(dirty=True))
    for queue in range(design.choice):
        if design.does(Naive.AWAIT_BETWEEN_ROUTE_AND_REGISTER):
            routed = with_message(state, number, message._replace(phase=Phase.ROUTED, to=queue, late=False))
            yield Step(Kind.STEP, f"send {number + 1}: routed to queue {queue + 1}", routed)
        else:
            sent = message._replace(phase=Phase.SENT, to=queue, late=False)
            text = f"send {number + 1}: in flight to queue {queue + 1}"
            yield Step(Kind.DIVERT, text, with_message(state, number, sent))


def _give_up(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    """The deadline, or the close, while no attempt is under way."""
    if state.messages[number].doubt:
        ended, told = Phase.UNKNOWN, "unknown"
    else:
        ended, told = Phase.REFUSED, "refused"
    yield Step(Kind.STEP, f"send {number + 1}: its time limit has passed, it is {told}", _ended(state, number, ended))


def _arrive(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    """The attempt reaches its broker, which stores the message, refuses it, or says nothing."""
    message, owner = state.messages[number], design.world.senders[number]
    stored = with_message(state, number, message._replace(phase=Phase.STORED))
    if message.to != HOME:
        queue = state.queues[message.to]
        if not queue.there:
            text = f"send {number + 1}: queue {message.to + 1} can't be reached"
            yield Step(Kind.STEP, text, _attempt_failed(design, state, number, applied=False))
            return
        owed = 1 << owner if design.world.tracks(owner) else 0
        more = queue._replace(entries=(*queue.entries, Entry(number, owed=owed)))
        stored = with_queue(stored, message.to, more)
        yield Step(Kind.STEP, f"send {number + 1}: stored in queue {message.to + 1}", stored)
    elif state.primary is Primary.WORKS:
        yield Step(Kind.STEP, f"send {number + 1}: stored at the primary", at_home(design, stored, number))
    elif state.primary is Primary.SILENT:
        text = f"send {number + 1}: the primary says nothing, the attempt's time is over"
        yield Step(Kind.STEP, text, _attempt_failed(design, state, number, applied=True))
    else:
        text = f"send {number + 1}: the primary takes no messages"
        yield Step(Kind.STEP, text, _attempt_failed(design, state, number, applied=False))


def _confirmed(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    message, owner = state.messages[number], design.world.senders[number]
    if message.to == HOME:
        accepted = _ended(state, number, Phase.AT_HOME)
        accepted = succeeded(design, accepted, owner, late=message.late)
        text = f"send {number + 1}: accepted by the primary"
    else:
        accepted = _divert_ended(design, _ended(state, number, Phase.AT_BACKLOG), owner)
        text = f"send {number + 1}: accepted by queue {message.to + 1}"
    if design.world.ordered:
        accepted = accepted._replace(receipts=(*accepted.receipts, number))
    yield Step(Kind.STEP, text, accepted)


def _interrupted(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    """What can end an attempt before its confirmation comes: the connection, its caller, or a close."""
    message, world = state.messages[number], design.world
    stored = message.phase is Phase.STORED
    wanted = Trouble.UNCONFIRMED if stored else Trouble.DELAYED
    if state.faults and world.trouble & wanted:
        lost = "its confirmation is lost" if stored else "its connection dies with the write on it"
        fewer = state._replace(faults=state.faults - 1)
        failed = _attempt_failed(design, fewer, number, applied=True)
        yield Step(Kind.FAULT, f"send {number + 1}: {lost}", failed)
    if state.cancels:
        fewer = state._replace(cancels=state.cancels - 1)
        told = Phase.NOT_SENT if design.does(Naive.CANCELLED_IS_NOT_SENT) else Phase.UNKNOWN
        name = "not sent" if told is Phase.NOT_SENT else "unknown"
        text = f"send {number + 1}: cancelled by its caller, it is {name}"
        yield Step(Kind.USER, text, abandoned(design, fewer, number, told))
    if state.processes[world.senders[number]].mode is Mode.CLOSING:
        text = f"send {number + 1}: the grace of the close is over, it is unknown"
        yield Step(Kind.STEP, text, abandoned(design, state, number, Phase.UNKNOWN))


def _attempt_failed(design: Design, state: State, number: int, *, applied: bool) -> State:
    """An attempt failed; ``applied``: the broker may have stored the message, or may yet."""
    message, owner = state.messages[number], design.world.senders[number]
    waiting = message._replace(phase=Phase.WAITING, to=HOME, late=False)
    if applied:
        marked = not design.does(Naive.UNMARKED_COPY)
        waiting = waiting._replace(doubt=True, explained=message.explained or marked)
        state = set_adrift(state, number)
    state = with_message(state, number, waiting)
    if message.to == HOME:
        return failed(design, state, owner, late=message.late)
    return _divert_ended(design, state, owner)


def set_adrift(state: State, number: int) -> State:
    """The write of an attempt that is given up may be applied later, unless it has been already."""
    message = state.messages[number]
    return late_write(state, number, message.to) if message.phase is Phase.SENT else state


def late_write(state: State, number: int, to: int) -> State:
    """Note a write that may be applied later; a second one of the same message to the same place adds nothing."""
    if (number, to) in state.adrift:
        return state
    return state._replace(adrift=tuple(sorted((*state.adrift, (number, to)))))


def abandoned(design: Design, state: State, number: int, told: Phase) -> State:
    """An attempt is abandoned: its outcome is unknown, whatever is reported (SPEC 3.7)."""
    message = state.messages[number]
    ended = _ended(set_adrift(state, number), number, told)
    if message.to == HOME:
        return ended
    return _divert_ended(design, ended, design.world.senders[number])


def _ended(state: State, number: int, phase: Phase) -> State:
    """A message reached its end: nothing of its attempts matters any more."""
    message = state.messages[number]
    return with_message(state, number, Message(phase, explained=message.explained, fate=message.fate))


def _divert_ended(design: Design, state: State, owner: int) -> State:
    """A diverted send is no longer in flight: only looks that begin now count (SPEC 4.5)."""
    process = state.processes[owner]
    if not process.seen or design.does(Naive.DRAINED_IN_FLIGHT):
        return state
    return with_process(state, owner, process._replace(seen=0))


def at_home(design: Design, state: State, number: int) -> State:
    """The primary stored a copy; a third would add nothing, nor does their order if none is required."""
    if state.home.count(number) > 1:
        return state
    home = (*state.home, number)
    return state._replace(home=home if design.world.ordered else tuple(sorted(home)))


MOST_NEEDED: Final = 2
"""Cap of the good pings that a flapping entity needs; the real one is 8, and two show all that three would."""


def succeeded(design: Design, state: State, number: int, *, late: bool) -> State:
    """The process received the primary's confirmation of an attempt."""
    process = state.processes[number]
    if late and not _counts_late_success(design, process):
        return state
    if process.health is Health.UP:
        return state
    back = process._replace(health=Health.UP, needed=1, good=0, patient=False, misled=process.misled or late)
    if process.health is Health.FAILING and design.does(Naive.ONE_CHAIN_OF_STATES):
        back = back._replace(dirty=False)
    if process.health is Health.TRIAL:
        return with_process(state, number, back)  # no new epoch: the other sends of the canary phase are not late
    return _new_epoch(design, with_process(state, number, back), number)


def _counts_late_success(design: Design, process: Process) -> bool:
    if process.health is Health.DOWN and design.does(Naive.LATE_SUCCESS_REOPENS):
        return True
    return design.does(Naive.RESULTS_WITHOUT_EPOCHS)


def failed(design: Design, state: State, number: int, *, late: bool) -> State:
    """The process received a failure of an attempt at the primary that counts toward failover."""
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
                Kind.STEP, f"{name}: the failover interval has elapsed, failed over", _new_epoch(design, down, number)
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
        yield Step(Kind.STEP, f"{name}: a successful ping; more are needed", with_process(state, number, good))
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

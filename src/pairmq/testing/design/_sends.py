"""Sends: begun, routed, attempted, confirmed, and ended in exactly one way (SPEC 3)."""

from __future__ import annotations

from collections.abc import Iterator

from pairmq.testing.design import _health
from pairmq.testing.design._design import Design, Naive
from pairmq.testing.design._search import Kind, Step
from pairmq.testing.design._state import (
    HOME,
    LETTERS,
    UNDER_WAY,
    Entry,
    Message,
    Mode,
    Phase,
    Primary,
    State,
    with_message,
    with_process,
    with_queue,
)
from pairmq.testing.design._worlds import Trouble


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
            yield Step(Kind.DIVERT, f"send {number + 1}: registered, and on its way", registered)
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
    if _health.is_running(process) and not keeps_diverting:
        sent = message._replace(phase=Phase.SENT, to=HOME, late=False)
        yield Step(Kind.STEP, f"send {number + 1}: on its way to the primary", with_message(state, number, sent))
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
            text = f"send {number + 1}: on its way to queue {queue + 1}"
            yield Step(Kind.DIVERT, text, with_message(state, number, sent))


def _give_up(design: Design, state: State, number: int) -> Iterator[Step[State]]:
    """The deadline, or the close, while no attempt is under way."""
    if state.messages[number].doubt:
        ended, told = Phase.UNKNOWN, "unknown"
    else:
        ended, told = Phase.REFUSED, "refused"
    yield Step(Kind.STEP, f"send {number + 1}: its time is over, it is {told}", _ended(state, number, ended))


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
        accepted = _health.succeeded(design, accepted, owner, late=message.late)
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
        return _health.failed(design, state, owner, late=message.late)
    return _divert_ended(design, state, owner)


def set_adrift(state: State, number: int) -> State:
    """The write of an attempt that is given up may be applied later, unless it has been already."""
    message = state.messages[number]
    return late_write(state, number, message.to) if message.phase is Phase.SENT else state


def late_write(state: State, number: int, to: int) -> State:
    """Note a write that may be applied later; a second one of the same message to the same place tells nothing new."""
    if (number, to) in state.adrift:
        return state
    return state._replace(adrift=tuple(sorted((*state.adrift, (number, to)))))


def abandoned(design: Design, state: State, number: int, told: Phase) -> State:
    """An attempt is given up in the middle: its outcome is unknown, whatever is told of it (SPEC 3.7)."""
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
    """A diverted send is no longer in flight: only looks that begin now tell anything (SPEC 4.5)."""
    process = state.processes[owner]
    if not process.seen or design.does(Naive.DRAINED_IN_FLIGHT):
        return state
    return with_process(state, owner, process._replace(seen=0))


def at_home(design: Design, state: State, number: int) -> State:
    """The primary stored a copy; a third would tell nothing new, nor does their order where none is asked for."""
    if state.home.count(number) > 1:
        return state
    home = (*state.home, number)
    return state._replace(home=home if design.world.ordered else tuple(sorted(home)))

"""What breaks and what is mended: brokers, queues, processes; and what callers and time do besides sending."""

from __future__ import annotations

from collections.abc import Iterator

from pairmq.testing.design import _sends, _syphon
from pairmq.testing.design._design import Design, Naive
from pairmq.testing.design._search import Kind, Step
from pairmq.testing.design._state import (
    FREE,
    HOME,
    IN_FLIGHT,
    LETTERS,
    UNDER_WAY,
    Entry,
    Fate,
    Holding,
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
from pairmq.testing.design._worlds import Trouble

_OUTAGES = (
    (Trouble.REFUSES, Primary.REFUSES, "the primary goes down"),
    (Trouble.SILENT, Primary.SILENT, "the primary falls silent"),
    (Trouble.FULL, Primary.FULL, "the primary is full: it lets pings pass, and refuses messages"),
)


def broker_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """Outages of the primary and of backlog queues, their end, and writes that come late."""
    trouble = design.world.trouble
    if state.primary is not Primary.WORKS:
        yield Step(Kind.HEAL, "the primary works again", state._replace(primary=Primary.WORKS))
    elif state.faults:
        for wanted, condition, text in _OUTAGES:
            if trouble & wanted:
                yield Step(Kind.FAULT, text, state._replace(primary=condition, faults=state.faults - 1))
    for index, queue in enumerate(state.queues):
        if not queue.there:
            back = with_queue(state, index, queue._replace(there=True))
            yield Step(Kind.HEAL, f"queue {index + 1} can be reached again", back)
        elif state.faults and trouble & Trouble.QUEUE_AWAY:
            away = with_queue(state, index, queue._replace(there=False))._replace(faults=state.faults - 1)
            yield Step(Kind.FAULT, f"queue {index + 1} can't be reached any more", away)
    for place, (number, to) in enumerate(state.adrift):
        rest = state._replace(adrift=state.adrift[:place] + state.adrift[place + 1 :])
        if to == HOME and state.primary is Primary.WORKS:
            text = f"the primary applies a late write of message {number + 1}"
            yield Step(Kind.FAULT, text, _sends.at_home(design, rest, number))
        elif to != HOME and state.queues[to].there:
            queue = state.queues[to]
            more = queue._replace(entries=(*queue.entries, Entry(number)))
            text = f"queue {to + 1} applies a late write of message {number + 1}"
            yield Step(Kind.FAULT, text, with_queue(rest, to, more))


def time_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """Times-to-live that run out in a backlog queue."""
    if not design.world.expires:
        return
    for index, queue in enumerate(state.queues):
        for place, entry in enumerate(queue.entries):
            message = state.messages[entry.message]
            if entry.holder != FREE or message.fate is not Fate.NONE:
                continue
            text = f"the time-to-live of message {entry.message + 1} runs out in queue {index + 1}"
            fate = Fate.OVERDUE
            if design.does(Naive.TTL_RUNS_IN_BACKLOG):
                fate, text = Fate.EXPIRED, f"{text}, which removes it"
                rest = queue.entries[:place] + queue.entries[place + 1 :]
                state = with_queue(state, index, queue._replace(entries=rest))
            yield Step(Kind.FAULT, text, with_message(state, entry.message, message._replace(fate=fate)))


def process_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """Processes that die, close and are started again."""
    for number, process in enumerate(state.processes):
        name = f"process {LETTERS[number]}"
        if process.mode is Mode.GONE:
            yield Step(Kind.HEAL, f"{name} is started again", _started(design, state, number))
            continue
        if state.crashes:
            yield Step(Kind.FAULT, f"{name} dies", _died(design, state, number))
        if process.mode is Mode.CLOSING:
            if not _busy(design, state, number):
                yield Step(Kind.STEP, f"{name} is closed", _gone(design, state, number))
        elif state.closes:
            closing = with_process(state, number, process._replace(mode=Mode.CLOSING))
            yield Step(Kind.USER, f"{name} begins to close", closing._replace(closes=state.closes - 1))


def _started(design: Design, state: State, number: int) -> State:
    """A process knows nothing of an earlier one: it starts with a backlog, until it has seen that there is none."""
    tracks = design.world.tracks(number)
    dirty = tracks and not design.does(Naive.RESTART_IS_CLEAN)
    state = with_process(state, number, Process(dirty=dirty))
    if not tracks:
        return state
    queues = tuple(
        queue._replace(entries=tuple(entry._replace(owed=entry.owed | 1 << number) for entry in queue.entries))
        for queue in state.queues
    )
    return state._replace(queues=queues)


def _died(design: Design, state: State, number: int) -> State:
    for index, sender in enumerate(design.world.senders):
        if sender == number and state.messages[index].phase in UNDER_WAY:
            if state.messages[index].phase in IN_FLIGHT:
                state = _sends.set_adrift(state, index)
            message = state.messages[index]
            forgotten = Message(Phase.FORGOTTEN, explained=message.explained, fate=message.fate)
            state = with_message(state, index, forgotten)
    for index, (process, _) in enumerate(design.pumps):
        if process == number and state.pumps[index].holding is not Holding.NOTHING:
            state = _syphon.let_go(design, state, index)
    return _gone(design, state._replace(crashes=state.crashes - 1), number)


def _busy(design: Design, state: State, number: int) -> bool:
    """Whether a closing process still has something to end."""
    sending = any(
        sender == number and message.phase in UNDER_WAY
        for sender, message in zip(design.world.senders, state.messages, strict=True)
    )
    return sending or any(
        process == number and state.pumps[index].holding is not Holding.NOTHING
        for index, (process, _) in enumerate(design.pumps)
    )


def _gone(design: Design, state: State, number: int) -> State:
    """The process is no more, and answers for nothing."""
    state = with_process(state, number, Process(mode=Mode.GONE))
    if not design.world.tracks(number):
        return state
    queues = tuple(
        queue._replace(entries=tuple(entry._replace(owed=entry.owed & ~(1 << number)) for entry in queue.entries))
        for queue in state.queues
    )
    return state._replace(queues=queues)

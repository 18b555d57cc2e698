"""The syphon's pumps (SPEC 7), and what breaks and is repaired: brokers, queues, processes, callers and time.

A pump receives, sends, has it confirmed, and completes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pairmq.testing.design import _sends
from pairmq.testing.design._design import Design, Naive, Trouble
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
    Pump,
    Queue,
    State,
    with_message,
    with_process,
    with_pump,
    with_queue,
)


def pump_steps(design: Design, state: State) -> Iterator[Step[State]]:
    """What each pump can do, and what can happen to it."""
    for number, pump in enumerate(state.pumps):
        process, index = design.pumps[number]
        mode = state.processes[process].mode
        if mode is Mode.GONE:
            continue
        name = f"{LETTERS[process]}'s pump {index + 1}"
        if pump.holding is Holding.NOTHING:
            if mode is Mode.OPEN:
                yield from _receive(design, state, number, name)
            continue
        if pump.holding is Holding.HELD:
            yield from _send(design, state, number, name)
        elif pump.holding is Holding.SENT:
            yield from _arrive(design, state, number, name)
        elif pump.holding is Holding.STORED:
            yield from _confirmed(design, state, number, name)
        else:
            yield from _complete(design, state, number, name)
        yield from _lock_ends(design, state, number, name)
        if mode is Mode.CLOSING and not design.does(Naive.CLOSE_WAITS_FOR_DRAIN):
            text = f"{name}: gives message {pump.message + 1} back, as its process closes"
            yield Step(Kind.STEP, text, let_go(design, state, number))


def _receive(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    process, index = design.pumps[number]
    queue = state.queues[index]
    if not queue.there:
        return
    if design.does(Naive.PUMP_ASKS_OWN_MACHINE) and not state.processes[process].dirty:
        return
    if design.world.ordered and not design.does(Naive.TWO_CONSUMERS) and any(e.holder != FREE for e in queue.entries):
        return  # one consumer at a time (SPEC 8.2)
    for place, entry in enumerate(queue.entries):
        if entry.holder == FREE:
            counted = entry.deliveries + 1 if design.world.delivery_limit else 0
            held = _with_entry(queue, place, entry._replace(holder=number, deliveries=counted))
            holding = with_pump(with_queue(state, index, held), number, Pump(Holding.HELD, entry.message))
            yield Step(Kind.STEP, f"{name}: receives message {entry.message + 1}", holding)
            return


def _send(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    """To the primary, or aside; a pump of a closing process begins nothing."""
    pump, index = state.pumps[number], design.pumps[number][1]
    message = state.messages[pump.message]
    if state.processes[design.pumps[number][0]].mode is not Mode.OPEN and not design.does(Naive.CLOSE_WAITS_FOR_DRAIN):
        return
    if pump.message in design.world.poison and design.does(Naive.POISON_IS_TRIED_AGAIN):
        text = f"{name}: message {pump.message + 1} is refused, and released to the queue's head"
        yield Step(Kind.STEP, text, let_go(design, state, number))
    elif pump.message in design.world.poison or message.fate is Fate.OVERDUE:
        if not state.queues[index].there:
            return
        why = "is refused" if pump.message in design.world.poison else "is overdue"
        aside = with_message(state, pump.message, message._replace(fate=Fate.SET_ASIDE))
        text = f"{name}: message {pump.message + 1} {why}, and dead-lettered"
        yield Step(Kind.STEP, text, _settled(design, aside, number))
    else:
        sent = with_pump(state, number, pump._replace(holding=Holding.SENT))
        text = f"{name}: message {pump.message + 1} in flight to the primary"
        if design.does(Naive.COMPLETE_BEFORE_CONFIRM):
            text += ", and completed"
            sent = with_queue(sent, index, _without(sent.queues[index], number))
        yield Step(Kind.STEP, text, sent)


def _arrive(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    pump = state.pumps[number]
    if state.primary is Primary.WORKS:
        stored = with_pump(state, number, pump._replace(holding=Holding.STORED))
        text = f"{name}: message {pump.message + 1} stored at the primary"
        yield Step(Kind.STEP, text, _sends.at_home(design, stored, pump.message))
    elif state.primary is Primary.SILENT:
        text = f"{name}: the primary says nothing, the time of message {pump.message + 1} is over"
        yield Step(Kind.STEP, text, _not_taken(design, _doubted(_adrift(state, pump), pump), number))
    else:
        text = f"{name}: the primary does not take message {pump.message + 1}"
        yield Step(Kind.STEP, text, _not_taken(design, state, number))
    if state.faults and design.world.trouble & Trouble.DELAYED:
        fewer = _adrift(state, pump)._replace(faults=state.faults - 1)
        text = f"{name}: the connection dies with message {pump.message + 1} on it"
        yield Step(Kind.FAULT, text, _not_taken(design, _doubted(fewer, pump), number))


def _confirmed(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    pump = state.pumps[number]
    confirmed = with_pump(state, number, pump._replace(holding=Holding.CONFIRMED))
    yield Step(Kind.STEP, f"{name}: the primary confirms message {pump.message + 1}", confirmed)
    if state.faults and design.world.trouble & Trouble.UNCONFIRMED:
        fewer = state._replace(faults=state.faults - 1)
        text = f"{name}: the confirmation of message {pump.message + 1} is lost"
        yield Step(Kind.FAULT, text, _not_taken(design, _doubted(fewer, pump), number))


def _complete(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    pump, index = state.pumps[number], design.pumps[number][1]
    if state.queues[index].there:
        yield Step(Kind.STEP, f"{name}: completes message {pump.message + 1}", _settled(design, state, number))


def _not_taken(design: Design, state: State, number: int) -> State:
    """The message is held under its lock, so that an outage spends no deliveries (SPEC 7.3)."""
    if design.does(Naive.OUTAGE_SPENDS_DELIVERIES):
        return with_pump(_given_back(design, state, number), number, Pump())
    return with_pump(state, number, state.pumps[number]._replace(holding=Holding.HELD))


def _lock_ends(design: Design, state: State, number: int, name: str) -> Iterator[Step[State]]:
    """A lock expires unless renewed; a broker may also lose one, which explains a second copy."""
    pump, index = state.pumps[number], design.pumps[number][1]
    if all(entry.holder != number for entry in state.queues[index].entries):
        return
    freed = _given_back(design, state, number)
    if design.does(Naive.LOCK_NOT_RENEWED):
        yield Step(Kind.STEP, f"{name}: the lock of message {pump.message + 1} runs out", freed)
    if state.faults and design.world.trouble & Trouble.LOCK_LOST:
        lost = _doubted(freed, pump)._replace(faults=state.faults - 1)
        yield Step(Kind.FAULT, f"{name}: the lock of message {pump.message + 1} is lost", lost)


def let_go(design: Design, state: State, number: int) -> State:
    """A pump gives up what it holds, or dies over it: another may receive it, and what was under way is in doubt."""
    pump = state.pumps[number]
    if pump.holding > Holding.HELD:
        state = _doubted(_adrift(state, pump), pump)
    return with_pump(_given_back(design, state, number), number, Pump())


def _given_back(design: Design, state: State, number: int) -> State:
    """The broker has the message back, and may say that it was delivered often enough."""
    index, limit = design.pumps[number][1], design.world.delivery_limit
    queue = state.queues[index]
    entry = next((entry for entry in queue.entries if entry.holder == number), None)
    if entry is None:
        return state
    if limit and entry.deliveries >= limit:
        dropped = state.messages[entry.message]._replace(fate=Fate.DROPPED)
        return with_queue(with_message(state, entry.message, dropped), index, _without(queue, number))
    return with_queue(state, index, _with_entry(queue, queue.entries.index(entry), entry._replace(holder=FREE)))


def _settled(design: Design, state: State, number: int) -> State:
    index = design.pumps[number][1]
    return with_pump(with_queue(state, index, _without(state.queues[index], number)), number, Pump())


def _adrift(state: State, pump: Pump) -> State:
    if pump.holding is not Holding.SENT:
        return state
    return _sends.late_write(state, pump.message, HOME)


def _doubted(state: State, pump: Pump) -> State:
    """A second copy of the message would be explained: it carries the mark, or a syphon died over it."""
    message = state.messages[pump.message]
    return with_message(state, pump.message, message._replace(explained=True))


def _with_entry(queue: Queue, place: int, entry: Entry) -> Queue:
    return queue._replace(entries=(*queue.entries[:place], entry, *queue.entries[place + 1 :]))


def _without(queue: Queue, number: int) -> Queue:
    return queue._replace(entries=tuple(entry for entry in queue.entries if entry.holder != number))


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
    """A new process has no state: it assumes a backlog until it has seen that it is empty."""
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
            state = let_go(design, state, index)
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
    """The process has ended, with all its state."""
    state = with_process(state, number, Process(mode=Mode.GONE))
    if not design.world.tracks(number):
        return state
    queues = tuple(
        queue._replace(entries=tuple(entry._replace(owed=entry.owed & ~(1 << number)) for entry in queue.entries))
        for queue in state.queues
    )
    return state._replace(queues=queues)

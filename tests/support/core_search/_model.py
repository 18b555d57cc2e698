"""A world around the machines of the core, as a system that can be searched, and what is wrong with a state.

Brokers, the network, callers and the death of processes are here; what processes decide is in their cells. The promises
are asked without knowing by which rules a design keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from core_search import _sends, _syphon
from core_search._cells import Cells, Outputs
from core_search._design import Design, Naive, Trouble, Verdict
from core_search._search import OWN, Circle, Goal, Kind, Step, System
from core_search._sends import Sending
from core_search._state import (
    CONSUMER,
    FREE,
    HOME,
    IN_HAND,
    LETTERS,
    NONE,
    NOWHERE,
    Entry,
    Fate,
    Message,
    Mode,
    Operation,
    Phase,
    Primary,
    Process,
    Queue,
    State,
    with_message,
    with_process,
    with_pump,
    with_queue,
)
from core_search._syphon import PumpFacts, Settling, Syphon
from pairmq.core.lanes import LaneStep, drained_since
from pairmq.core.pump import Room
from pairmq.core.transitions import Health

Steps = Iterator[Step[State]]

CIRCLES = (Circle(Verdict.LIVELOCK, Kind.RECOVERY, Kind.STEP | Kind.RECOVERY),)
"""Recoveries without end, and nothing diverted meanwhile."""

_ACCEPTED = (Phase.AT_HOME, Phase.AT_BACKLOG)
_RUNNING = (Health.UP, Health.TRIAL)
_ENDINGS = {"refused": Phase.REFUSED, "unknown": Phase.UNKNOWN}
_OUTAGES = (
    (Trouble.REFUSES, Primary.REFUSES, "the primary goes down"),
    (Trouble.SILENT, Primary.SILENT, "the primary falls silent"),
    (Trouble.FULL, Primary.FULL, "the primary is full: it lets pings pass, and refuses messages"),
)
_NO_OPERATION = Operation()
_FAILS = {Primary.REFUSES: "refuses", Primary.SILENT: "silent", Primary.FULL: "refuses"}


def system(design: Design) -> System[State]:
    """Make the system of a design."""
    return Model(design).system()


class Model:
    """A design, and what is known of its cells."""

    def __init__(self, design: Design) -> None:
        self.design = design
        self.world = design.world
        self.sending: Cells[Sending, _sends.Facts] = Cells(_sends.facts)
        self.syphons: Cells[Syphon, _syphon.Facts] = Cells(_syphon.facts)
        self._fresh = tuple(self.sending.number(Sending(design, each)) for each in range(len(self.world.hosts)))
        self._chances = (0.0, 0.5) if self.world.queues > 1 and not self.world.ordered else (0.0,)
        if design.does(Naive.SESSION_OVER_QUEUES):
            self._chances = (0.0, 0.5)
        self._pump_of = {pump: number for number, pump in enumerate(design.pumps)}
        # What never changes is asked for once: flags are slow to combine, and each step would do it.
        world, does = self.world, design.does
        self._outages = [outage[1:] for outage in _OUTAGES if outage[0] in world.trouble]
        self._loses_confirmations = Trouble.UNCONFIRMED in world.trouble
        self._delays_writes = Trouble.DELAYED in world.trouble
        self._loses_queues = Trouble.QUEUE_AWAY in world.trouble
        self._loses_locks = Trouble.LOCK_LOST in world.trouble
        self._loses_settlements = Trouble.UNSETTLED in world.trouble
        self._locks_run_out = does(Naive.LOCK_NOT_RENEWED)
        self._completes_early = does(Naive.COMPLETE_BEFORE_CONFIRM)
        self._pumps_when_dirty = does(Naive.PUMP_ASKS_OWN_MACHINE)
        self._takes_locked = does(Naive.LANE_WITHOUT_LOCKS)
        self._completes_unhandled = does(Naive.COMPLETE_BEFORE_HANDLED)
        self._one_consumer = world.ordered and not does(Naive.TWO_CONSUMERS)
        self._ways = [self._send_steps, self._health_steps]
        self._ways += [self._pump_steps] if design.pumps else []
        self._ways += [self._broker_steps]
        self._ways += [self._time_steps] if world.expires else []
        self._ways += [self._consumer_steps] if world.consumer else []
        self._ways += [self._process_steps] if world.crashes or world.closes else []

    def system(self) -> System[State]:
        """What `search` takes."""
        goals: tuple[Goal[State], ...] = (
            Goal(Verdict.HANG, self.all_ended, OWN),
            Goal(Verdict.STRANDED, self.all_well, OWN | Kind.HEAL),
        )
        if self.world.consumer:
            goals = (*goals, Goal(Verdict.UNREAD, self.all_read, OWN))
        return System(self.beginning(), self.steps, self.judge, goals, CIRCLES)

    def beginning(self) -> State:
        """Nothing sent, nothing broken; a process that has to know of the backlog begins with one (SPEC 4.5)."""
        world = self.world
        return State(
            primary=Primary.REFUSES if world.outage else Primary.WORKS,
            queues=(Queue(),) * world.queues,
            processes=tuple(map(self._process, range(len(world.hosts)))),
            messages=(Message(),) * len(world.senders),
            pumps=(_NO_OPERATION,) * len(self.design.pumps),
            home=(),
            adrift=(),
            receipts=(),
            faults=world.faults,
            crashes=world.crashes,
            cancels=world.cancels,
            closes=world.closes,
            postpones=world.postpones,
        )

    def _process(self, number: int) -> Process:
        syphon = self.syphons.number(Syphon(self.design)) if self.world.hosts[number] else NONE
        return Process(Mode.OPEN, self._fresh[number], syphon)

    def steps(self, state: State) -> Iterator[Step[State]]:
        """Every way on from a state."""
        return chain.from_iterable([way(state) for way in self._ways])

    # Sends (SPEC 3).

    def _send_steps(self, state: State) -> Steps:
        for number, message in enumerate(state.messages):
            owner = self.world.senders[number]
            process = state.processes[owner]
            if message.phase is Phase.IDLE:
                yield from self._begin(state, number, process)
                continue
            if message.phase is not Phase.BEGUN:
                continue
            name = f"send {number + 1}"
            if message.to != NOWHERE:
                if number in self.sending.facts[process.sending].unregistered:
                    yield from self._asked(state, owner, f"{name}: registered, and in flight", "registered", number)
                elif message.stored:
                    yield from self._confirmed(state, number, owner, name)
                else:
                    yield from self._arrives(state, number, owner, name)
                yield from self._interrupted(state, number, owner, name)
            else:
                yield from self._waits(state, number, owner, name)

    def _begin(self, state: State, number: int, process: Process) -> Steps:
        senders = self.world.senders
        if process.mode is not Mode.OPEN:
            return
        for earlier in range(number):
            if senders[earlier] == senders[number]:
                phase = state.messages[earlier].phase
                # Messages of one process are alike, so that they may as well begin in this order. Where order is kept
                # the sends of one key go one at a time: two in flight could be confirmed in another order than stored.
                if phase is Phase.IDLE or (self.world.ordered and phase is Phase.BEGUN):
                    return
        owner = senders[number]
        begun = with_message(state, number, Message(Phase.BEGUN))
        text = f"send {number + 1}: begins in process {LETTERS[owner]}"
        yield from self._asked(begun, owner, text, "begin", number, kind=Kind.USER)

    def _waits(self, state: State, number: int, owner: int, name: str) -> Steps:
        """It waits for time, or for an answer about its queue."""
        sending = state.processes[owner].sending
        waits = dict(self.sending.facts[sending].waits)[number]
        if waits == "look":
            queue = state.queues[0]
            oldest = queue.entries[0].position if queue.entries else None
            newest = queue.newest if queue.there else None
            what = "can't be reached" if not queue.there else "is empty" if oldest is None else "is not empty"
            yield from self._asked(state, owner, f"{name}: queue 1 {what}", "look", number, oldest, newest)
        else:
            text = f"{name}: tries again"
            yield from self._asked(state, owner, text, "later", number, "pause")
            if waits == "patience":
                text = f"{name}: waits no longer for the backlog"
                yield from self._asked(state, owner, text, "later", number, "patience")
        yield from self._asked(state, owner, f"{name}: its time limit has passed", "later", number, "deadline")
        yield from self._interrupted(state, number, owner, name)

    def _arrives(self, state: State, number: int, owner: int, name: str) -> Steps:
        """The attempt reaches its broker, which stores the message, refuses it, or says nothing."""
        message = state.messages[number]
        if message.to != HOME:
            queue = state.queues[message.to]
            if not queue.there:
                text = f"{name}: queue {message.to + 1} can't be reached"
                yield from self._failed(state, number, owner, text, "refuses")
                return
            owed = 1 << owner if self.world.hosts[owner] else 0
            stored = with_message(state, number, message._replace(stored=True))
            stored = with_queue(stored, message.to, _with_new(queue, number, owed))
            yield Step(Kind.STEP, f"{name}: stored in queue {message.to + 1}", stored)
        elif state.primary is not Primary.WORKS:
            silent = state.primary is Primary.SILENT
            text = "the primary says nothing, the attempt's time is over" if silent else "the primary takes no messages"
            yield from self._failed(state, number, owner, f"{name}: {text}", _FAILS[state.primary])
        elif number in self.world.poison:
            yield from self._failed(state, number, owner, f"{name}: the primary refuses it", "poison")
        else:
            stored = with_message(state, number, message._replace(stored=True))
            yield Step(Kind.STEP, f"{name}: stored at the primary", self._at_home(stored, number))

    def _confirmed(self, state: State, number: int, owner: int, name: str) -> Steps:
        to = state.messages[number].to
        where = "the primary" if to == HOME else f"queue {to + 1}"
        ended = _landed(state, number)
        yield from self._asked(ended, owner, f"{name}: accepted by {where}", "ended", number, None, True, of=to)

    def _failed(self, state: State, number: int, owner: int, text: str, why: str, kind: Kind = Kind.STEP) -> Steps:
        """An attempt failed; at any moment of its send's time, the last one included."""
        if why in ("silent", "cut"):
            state = _set_adrift(state, number)
        state = _landed(state, number)
        yield from self._asked(state, owner, text, "ended", number, why, True, kind=kind)
        if why == "silent":
            text = f"{text}, as its own"
            yield from self._asked(state, owner, text, "ended", number, why, False, kind=kind)

    def _interrupted(self, state: State, number: int, owner: int, name: str) -> Steps:
        """What can end an attempt before its confirmation comes: the connection, its caller, or a close."""
        message = state.messages[number]
        closing = state.processes[owner].mode is Mode.CLOSING
        if message.to != NOWHERE and state.faults:
            fewer = state._replace(faults=state.faults - 1)
            if message.stored and self._loses_confirmations:
                yield from self._failed(fewer, number, owner, f"{name}: its confirmation is lost", "cut", Kind.FAULT)
            elif not message.stored and self._delays_writes:
                text = f"{name}: its connection dies with the write on it"
                yield from self._failed(fewer, number, owner, text, "cut", Kind.FAULT)
        if not state.cancels and not closing:
            return
        gone = _landed(_set_adrift(state, number), number) if message.to != NOWHERE else state
        if state.cancels:
            lies = self.design.does(Naive.CANCELLED_IS_NOT_SENT)
            text = f"{name}: cancelled by its caller, it is {'not sent' if lies else 'unknown'}"
            fewer = gone._replace(cancels=state.cancels - 1)
            for step in self._asked(fewer, owner, text, "abandoned", number, kind=Kind.USER, quiet=True):
                if lies:
                    told = step.state.messages[number]._replace(phase=Phase.NOT_SENT)
                    step = step._replace(state=with_message(step.state, number, told))
                yield step
        if closing:
            text = f"{name}: the grace of the close is over"
            yield from self._asked(gone, owner, text, "abandoned", number)

    # What a process does with a fact.

    def _asked(
        self,
        state: State,
        owner: int,
        text: str,
        what: str,
        *details: Any,
        kind: Kind = Kind.STEP,
        of: int = NOWHERE,
        quiet: bool = False,
    ) -> list[Step[State]]:
        """Hand a fact to the sending half of a process, by each choice that chance can make."""
        mode, sending, syphon = state.processes[owner]
        steps, known = [], None
        for chance in self._chances:
            move = self.sending.after(sending, chance, what, *details)
            if move == known:
                continue
            known = move
            after = state if move[0] == sending else with_process(state, owner, Process(mode, move[0], syphon))
            if move[1]:
                steps.append(self._carried_out(after, text, move[1], kind, of, quiet=quiet))
            else:
                steps.append(Step(kind, text, after))
        return steps

    def _carried_out(
        self, state: State, text: str, outputs: Outputs, kind: Kind, of: int, *, quiet: bool
    ) -> Step[State]:
        for what, number, result, marked in outputs:
            message = state.messages[number]
            explained = message.explained or marked
            if what == "send":
                message = Message(message.phase, result, False, explained, message.fate)
                text += f"; send {number + 1} in flight to {'the primary' if result == HOME else f'queue {result + 1}'}"
                if result != HOME and kind & OWN:
                    kind = Kind.DIVERT
            else:
                phase = _ENDINGS.get(result) or (Phase.AT_HOME if of == HOME else Phase.AT_BACKLOG)
                message = Message(phase, explained=explained, fate=message.fate)
                if phase in _ACCEPTED:
                    if self.world.ordered:
                        state = state._replace(receipts=(*state.receipts, number))
                elif not quiet:
                    text += f"; send {number + 1} is {result}"
            state = with_message(state, number, message)
        return Step(kind, text, state)

    def _at_home(self, state: State, number: int) -> State:
        """The primary stored a copy; a third would add nothing, nor does their order if none is required."""
        if state.home.count(number) > 1:
            return state
        home = (*state.home, number)
        return state._replace(home=home if self.world.ordered else tuple(sorted(home)))

    # The entity, as each process sees it (SPEC 4, 6).

    def _health_steps(self, state: State) -> Steps:
        for owner, process in enumerate(state.processes):
            if process.mode is Mode.GONE:
                continue
            facts, name = self.sending.facts[process.sending], LETTERS[owner]
            if facts.health is Health.FAILING:
                text = f"{name}: the failover interval has elapsed, failed over"
                yield from self._asked(state, owner, text, "interval")
            if process.mode is not Mode.OPEN:
                continue
            if facts.health is Health.DOWN:
                passes = state.primary is Primary.WORKS
                passes = passes or (state.primary is Primary.FULL and self.world.probe_lies)
                for step in self._asked(state, owner, "", "ping", passes):
                    yield self._pinged(step, owner, name, passes=passes)
            elif facts.health in _RUNNING and facts.dirty and self.world.hosts[owner]:
                yield from self._looks(state, owner, name)
            for index in facts.out:
                if state.queues[index].there:
                    text = f"{name}: queue {index + 1} is in use again"
                    yield from self._asked(state, owner, text, "back", index)

    def _pinged(self, step: Step[State], owner: int, name: str, *, passes: bool) -> Step[State]:
        health = self.sending.facts[step.state.processes[owner].sending].health
        if health is Health.DOWN:
            told = "a successful ping; more are needed" if passes else "a ping fails"
            return step._replace(text=f"{name}: {told}{step.text}")
        kind = step.kind if step.kind is Kind.DIVERT else Kind.RECOVERY
        return Step(kind, f"{name}: a good ping, back at the primary{step.text}", step.state)

    def _looks(self, state: State, owner: int, name: str) -> Steps:
        index = self.sending.facts[state.processes[owner].sending].looked
        queue = state.queues[index]
        empty = not queue.entries if queue.there else self.design.does(Naive.UNREACHABLE_IS_EMPTY)
        if self.world.consumer:
            lane = len(queue.entries) if queue.there else None
            empty = self.design.does(Naive.LANE_NOT_COUNTED) or drained_since(0.0, lane) is not None
        how = "is empty" if empty else "is not empty"
        if not queue.there:
            how = "can't be reached" + (", so it counts as empty" if empty else "")
        for step in self._asked(state, owner, f"{name}: queue {index + 1} {how}", "seen", empty):
            if not self.sending.facts[step.state.processes[owner].sending].dirty:
                step = step._replace(text=f"{step.text}, and so were all: drained")
            yield step

    # Pumps (SPEC 7).

    def _pump_steps(self, state: State) -> Steps:
        for owner, process in enumerate(state.processes):
            if process.syphon == NONE:
                continue
            facts = self.syphons.facts[process.syphon]
            if facts.shut and (state.primary is Primary.WORKS or self._lets_probes_pass(state)):
                yield self._pumped(state, owner, f"{LETTERS[owner]}: a good probe, the gate opens", "probed")
            for index in range(self.world.queues):
                yield from self._one_pump(state, owner, index)

    def _lets_probes_pass(self, state: State) -> bool:
        return state.primary is Primary.FULL and self.world.probe_lies

    def _one_pump(self, state: State, owner: int, index: int) -> Steps:
        process = state.processes[owner]
        facts = self.syphons.facts[process.syphon].pumps[index]
        pump = self._pump_of[owner, index]
        name = f"{LETTERS[owner]}'s pump {index + 1}"
        if facts.broken:
            if not facts.delivering:
                text = f"{name}: order was lost with a lock, it begins anew"
                yield self._pumped(self._freed(state, owner, index), owner, text, "anew", index)
        elif facts.step is LaneStep.LET_GO:
            if not facts.delivering:
                yield self._lets_go(state, owner, index, name)
        elif process.mode is Mode.OPEN:
            yield from self._receive(state, owner, index, name)
        if state.pumps[pump].message >= 0:
            yield from self._operation(state, owner, index, name)
        if facts.copying or state.postpones:
            yield from self._postponing(state, owner, index, facts, name)
        for item in facts.settling:
            yield from self._settle(state, owner, index, item, name)
        yield from self._locks(state, owner, index, name)

    def _receive(self, state: State, owner: int, index: int, name: str) -> Steps:
        process, queue = state.processes[owner], state.queues[index]
        facts = self.syphons.facts[process.syphon].pumps[index]
        roomy = facts.room is Room.ENOUGH or (facts.more and state.primary is Primary.WORKS)
        if not queue.there or not roomy:
            return
        if self._pumps_when_dirty and not self.sending.facts[process.sending].dirty:
            return
        if facts.step is not None and facts.step is not LaneStep.READ:
            yield from self._before_reading(state, owner, index, facts, name)
            return
        pump = self._pump_of[owner, index]
        if self._one_consumer and any(entry.holder not in (FREE, pump) for entry in queue.entries):
            return  # one consumer at a time (SPEC 8.2)
        for place, entry in enumerate(queue.entries):
            if entry.holder == FREE or (entry.holder == CONSUMER and self._takes_locked):
                counted = entry.deliveries + 1 if self.world.delivery_limit else 0
                held = _with_entry(queue, place, entry._replace(holder=pump, deliveries=counted))
                overdue = state.messages[entry.message].fate is Fate.OVERDUE
                text = f"{name}: receives message {entry.message + 1}"
                details = index, entry.message, entry.position, max(1, counted), overdue, entry.origin
                yield self._pumped(with_queue(state, index, held), owner, text, "received", *details)
                return
        if facts.step is not None:
            yield self._pumped(state, owner, f"{name}: receives nothing", "nothing", index)

    # Lanes (SPEC 11).

    def _before_reading(self, state: State, owner: int, index: int, facts: PumpFacts, name: str) -> Steps:
        """The syphon leaves a lane to its consumers: it counts, and asks the primary before it reads."""
        if facts.step is LaneStep.ASK:
            answers = state.primary in (Primary.WORKS, Primary.FULL)
            told = "answers" if answers else "does not answer"
            yield self._pumped(state, owner, f"{name}: the primary {told}", "asked", index, answers)
        elif not facts.held:
            pending = len(state.queues[index].entries)
            text = f"{name}: looks at the lane, which holds {pending}"
            yield self._pumped(state, owner, text, "counted", index, pending)

    def _lets_go(self, state: State, owner: int, index: int, name: str) -> Step[State]:
        """What can't be delivered is released; what had been stored, and was not completed in time, may come twice."""
        for item in self.syphons.facts[state.processes[owner].syphon].pumps[index].settling:
            if not item.dead:
                state = _explained(state, item.message)
        text = f"{name}: releases what the primary does not take"
        step: Step[State] = self._pumped(self._freed(state, owner, index), owner, text, "anew", index)
        return step

    def _consumer_steps(self, state: State) -> Steps:
        """A consumer reads both sides, whatever the other one does, and completes what it has handled."""
        queue = state.queues[0]
        mine = [entry for entry in queue.entries if entry.holder in (CONSUMER, IN_HAND)]
        free = next((place for place, entry in enumerate(queue.entries) if entry.holder == FREE), None)
        if queue.there and free is not None:
            entry = queue.entries[free]
            if self._completes_unhandled:
                held = with_queue(state, 0, _with_entry(queue, free, entry._replace(holder=IN_HAND)))
                yield Step(Kind.STEP, f"a consumer receives message {entry.message + 1} and completes it", held)
            else:
                held = with_queue(state, 0, _with_entry(queue, free, entry._replace(holder=CONSUMER)))
                yield Step(Kind.STEP, f"a consumer handles message {entry.message + 1} of the lane", _read(held, entry))
        for entry in mine:
            done = with_queue(state, 0, _without(queue, entry.position))
            if entry.holder == IN_HAND:
                yield Step(Kind.STEP, f"a consumer handles message {entry.message + 1}", _read(done, entry))
            elif queue.there:
                yield Step(Kind.STEP, f"a consumer completes message {entry.message + 1} in the lane", done)
            if entry.holder == CONSUMER and state.faults and self._loses_locks:
                lost = _explained(self._given_back(state, 0, entry.position), entry.message)
                text = f"a consumer's lock of message {entry.message + 1} is lost"
                yield Step(Kind.FAULT, text, lost._replace(faults=state.faults - 1))
        if mine and state.crashes:
            yield Step(Kind.FAULT, "the consumer dies", self._consumer_died(state))
        if state.primary is Primary.WORKS:
            for number in sorted(set(state.home)):
                if state.home.count(number) > state.taken.count(number):
                    taken = tuple(sorted((*state.taken, number)))
                    text = f"a consumer handles message {number + 1} of the primary"
                    yield Step(Kind.STEP, text, state._replace(taken=taken))

    def _consumer_died(self, state: State) -> State:
        """It is started again at once; what it had handled and not completed is handled again, explained by that."""
        for entry in state.queues[0].entries:
            if entry.holder == IN_HAND:
                state = with_queue(state, 0, _without(state.queues[0], entry.position))
            elif entry.holder == CONSUMER:
                state = _explained(self._given_back(state, 0, entry.position), entry.message)
        return state._replace(crashes=state.crashes - 1)

    def all_read(self, state: State) -> bool:
        """Whether nothing that a lane accepted waits in it: it was handled, or moved."""
        if not state.queues[0].there:
            return True
        return all(
            message.phase is not Phase.AT_BACKLOG
            or message.fate is Fate.SET_ASIDE
            or number in state.read
            or number in state.home
            for number, message in enumerate(state.messages)
        )

    def _pumped(self, state: State, owner: int, text: str, what: str, *details: Any, kind: Kind = Kind.STEP) -> Any:
        """Hand a fact to the syphon of a process."""
        process = state.processes[owner]
        number, outputs = self.syphons.after(process.syphon, what, *details)
        if number != process.syphon:
            state = with_process(state, owner, Process(process.mode, process.sending, number))
        for output in outputs:
            if output[0] == "out":
                _, index, message, position = output
                pump = self._pump_of[owner, index]
                operation = state.pumps[pump]
                more = operation._replace(rest=(*operation.rest, message))
                state = with_pump(state, pump, Operation(message) if operation.message < 0 else more)
                text += f"; message {message + 1} in flight to the primary"
                if self._completes_early:
                    text += ", and completed"
                    state = with_queue(state, index, _without(state.queues[index], int(position)))
            elif output[0] == "release":
                _, index, position = output
                text += "; released to its queue"
                state = self._given_back(state, index, position)
            else:
                state = _explained(state, output[1])
        return Step(kind, text, state)

    def _operation(self, state: State, owner: int, index: int, name: str) -> Steps:
        """What a pump has on its way reaches the primary, or is confirmed."""
        pump = self._pump_of[owner, index]
        operation = _at_turn(state.pumps[pump])
        number, stored, before, rest = operation
        done = (len(before),) * bool(before)
        ended = with_pump(state, pump, _NO_OPERATION)
        cuts = state.faults and (self._loses_confirmations if stored else self._delays_writes)
        fewer = ended._replace(faults=state.faults - 1) if cuts else ended
        if stored:
            yield self._pumped(ended, owner, f"{name}: the primary confirms message {number + 1}", "sent", index, None)
            if cuts:
                text = f"{name}: the confirmation of message {number + 1} is lost"
                yield self._pumped(fewer, owner, text, "sent", index, "cut", kind=Kind.FAULT)
            return
        if state.primary is Primary.SILENT:
            text = f"{name}: the primary says nothing, the time of message {number + 1} is over"
            yield self._pumped(_late_write(ended, number, HOME), owner, text, "sent", index, "silent")
        elif state.primary is not Primary.WORKS:
            text = f"{name}: the primary does not take message {number + 1}"
            if rest and self.design.does(Naive.REST_IS_STORED):
                yield Step(Kind.STEP, text, with_pump(state, pump, Operation(rest[0], rest=rest[1:])))
            else:
                yield self._pumped(ended, owner, text, "sent", index, "refuses", *done)
        elif number in self.world.poison:
            text = f"{name}: message {number + 1} is refused"
            yield self._pumped(ended, owner, text, "sent", index, "poison", *done)
        else:
            there = with_pump(state, pump, operation._replace(stored=True))
            yield Step(Kind.STEP, f"{name}: message {number + 1} stored at the primary", self._at_home(there, number))
        if cuts:
            text = f"{name}: the connection dies with message {number + 1} on it"
            yield self._pumped(_late_write(fewer, number, HOME), owner, text, "sent", index, "cut", kind=Kind.FAULT)

    def _postponing(self, state: State, owner: int, index: int, facts: PumpFacts, name: str) -> Steps:
        """What waits for a destination that takes nothing goes to the tail, while the primary as such answers."""
        queue = state.queues[index]
        if not facts.copying:
            full = facts.room is Room.POSTPONE and state.primary is Primary.FULL and not facts.settling
            if full and state.processes[owner].mode is Mode.OPEN:
                fewer = state._replace(postpones=state.postpones - 1)
                yield self._pumped(fewer, owner, f"{name}: postpones what it holds", "postponed", index)
            return
        number, position = facts.copying[0]
        if not queue.there:
            text = f"{name}: can't reach the queue to copy message {number + 1} to its tail"
            yield self._pumped(state, owner, text, "copied", index, "refuses")
            return
        held = next((entry for entry in queue.entries if entry.position == position), None)
        copied = _with_new(
            queue, number, 0 if held is None else held.owed, position if held is None else held.origin or position
        )
        there = with_queue(state, index, copied)
        text = f"{name}: message {number + 1} is copied to the tail"
        yield self._pumped(there, owner, text, "copied", index, None)
        if state.faults and self._loses_confirmations:
            fewer = there._replace(faults=state.faults - 1)
            text = f"{text}, and the confirmation of that is lost"
            yield self._pumped(fewer, owner, text, "copied", index, "cut", kind=Kind.FAULT)

    def _settle(self, state: State, owner: int, index: int, item: Settling, name: str) -> Steps:
        """It is completed or dead-lettered, if its queue can be reached and its lock is good."""
        queue, pump = state.queues[index], self._pump_of[owner, index]
        verb = "dead-letters" if item.dead else "completes"
        entry = next((each for each in queue.entries if each.position == item.position), None)
        if not queue.there:
            text = f"{name}: can't reach the queue to settle message {item.message + 1}"
            yield self._pumped(state, owner, text, "settled", index, item.position, "refuses")
        elif self._completes_early and entry is None:
            yield self._pumped(state, owner, f"{name}: it was", "settled", index, item.position, None)
        elif entry is None or entry.holder != pump:
            text = f"{name}: {verb} message {item.message + 1} in vain, its lock is lost"
            yield self._pumped(state, owner, text, "settled", index, item.position, "lock lost")
        else:
            after = with_queue(state, index, _without(queue, item.position))
            if item.dead:
                message = state.messages[item.message]._replace(fate=Fate.SET_ASIDE)
                after = with_message(after, item.message, message)
            text = f"{name}: {verb} message {item.message + 1}"
            yield self._pumped(after, owner, text, "settled", index, item.position, None)
            if state.faults and self._loses_settlements:
                fewer = after._replace(faults=state.faults - 1)
                text = f"{text}, and the confirmation of that is lost"
                yield self._pumped(fewer, owner, text, "settled", index, item.position, "cut", kind=Kind.FAULT)

    def _locks(self, state: State, owner: int, index: int, name: str) -> Steps:
        """A lock expires unless renewed; a broker may also lose one, which explains a second copy."""
        queue, pump = state.queues[index], self._pump_of[owner, index]
        runs_out = self._locks_run_out
        may_lose = state.faults and self._loses_locks
        if runs_out or may_lose:
            for entry in queue.entries:
                if entry.holder != pump:
                    continue
                freed = self._given_back(state, index, entry.position)
                if runs_out:
                    yield Step(Kind.STEP, f"{name}: the lock of message {entry.message + 1} runs out", freed)
                if may_lose:
                    lost = _explained(freed, entry.message)._replace(faults=state.faults - 1)
                    yield Step(Kind.FAULT, f"{name}: the lock of message {entry.message + 1} is lost", lost)
        held = self.syphons.facts[state.processes[owner].syphon].pumps[index]
        if runs_out or not queue.there or not held.held:
            return
        mine = [entry.position for entry in queue.entries if entry.holder == pump]
        for number, position in held.held:
            if position not in mine:
                text = f"{name}: finds that the lock of message {number + 1} is lost"
                yield self._pumped(state, owner, text, "renewed", index, position, False)
            elif position in held.stale:
                text = f"{name}: renews the lock of message {number + 1}"
                yield self._pumped(state, owner, text, "renewed", index, position, True)

    def _given_back(self, state: State, index: int, position: int) -> State:
        """The broker has the message back, and may say that it was delivered often enough."""
        queue, limit = state.queues[index], self.world.delivery_limit
        place = next((at for at, entry in enumerate(queue.entries) if entry.position == position), None)
        if place is None:
            return state
        entry = queue.entries[place]
        if limit and entry.deliveries >= limit:
            dropped = state.messages[entry.message]._replace(fate=Fate.DROPPED)
            return with_queue(with_message(state, entry.message, dropped), index, _without(queue, position))
        return with_queue(state, index, _with_entry(queue, place, entry._replace(holder=FREE)))

    def _freed(self, state: State, owner: int, index: int) -> State:
        """Whatever a pump has locked is released."""
        pump = self._pump_of[owner, index]
        for entry in state.queues[index].entries:
            if entry.holder == pump:
                state = self._given_back(state, index, entry.position)
        return state

    def _pumps_ended(self, state: State, owner: int) -> State:
        """The pumps of a process are gone: what they had under way, or were about to complete, may come twice."""
        for index in range(self.world.queues):
            pump = self._pump_of[owner, index]
            number, stored, before, _ = _at_turn(state.pumps[pump])
            for item in self.syphons.facts[state.processes[owner].syphon].pumps[index].settling:
                if not item.dead:
                    state = _explained(state, item.message)
            for each in (*before, number) if number >= 0 else ():
                state = _explained(state, each)
            state = self._freed(state, owner, index)
            if number >= 0 and not stored:
                state = _late_write(state, number, HOME)
            state = with_pump(state, pump, _NO_OPERATION)
        return with_process(state, owner, state.processes[owner]._replace(syphon=NONE))

    # What breaks and is repaired: brokers, time, processes.

    def _broker_steps(self, state: State) -> Steps:
        if state.primary is not Primary.WORKS:
            yield Step(Kind.HEAL, "the primary works again", state._replace(primary=Primary.WORKS))
        elif state.faults:
            for condition, text in self._outages:
                yield Step(Kind.FAULT, text, state._replace(primary=condition, faults=state.faults - 1))
        for index, queue in enumerate(state.queues):
            if not queue.there:
                back = with_queue(state, index, queue._replace(there=True))
                yield Step(Kind.HEAL, f"queue {index + 1} can be reached again", back)
            elif state.faults and self._loses_queues:
                away = with_queue(state, index, queue._replace(there=False))._replace(faults=state.faults - 1)
                yield Step(Kind.FAULT, f"queue {index + 1} can't be reached any more", away)
        for place, (number, to) in enumerate(state.adrift):
            rest = state._replace(adrift=state.adrift[:place] + state.adrift[place + 1 :])
            if to == HOME and state.primary is Primary.WORKS:
                if number not in self.world.poison:
                    text = f"the primary applies a late write of message {number + 1}"
                    yield Step(Kind.FAULT, text, self._at_home(rest, number))
            elif to != HOME and state.queues[to].there:
                more = with_queue(rest, to, _with_new(state.queues[to], number, 0))
                yield Step(Kind.FAULT, f"queue {to + 1} applies a late write of message {number + 1}", more)

    def _time_steps(self, state: State) -> Steps:
        """Times-to-live that run out in a backlog queue."""
        for index, queue in enumerate(state.queues):
            for entry in queue.entries:
                message = state.messages[entry.message]
                if entry.holder != FREE or message.fate is not Fate.NONE:
                    continue
                text = f"the time-to-live of message {entry.message + 1} runs out in queue {index + 1}"
                fate, after = Fate.OVERDUE, state
                if self.design.does(Naive.TTL_RUNS_IN_BACKLOG):
                    fate, text = Fate.EXPIRED, f"{text}, which removes it"
                    after = with_queue(state, index, _without(queue, entry.position))
                yield Step(Kind.FAULT, text, with_message(after, entry.message, message._replace(fate=fate)))

    def _process_steps(self, state: State) -> Steps:
        for number, process in enumerate(state.processes):
            name = f"process {LETTERS[number]}"
            if process.mode is Mode.GONE:
                yield Step(Kind.HEAL, f"{name} is started again", self._started(state, number))
                continue
            if state.crashes:
                yield Step(Kind.FAULT, f"{name} dies", self._died(state, number))
            if process.mode is Mode.OPEN and state.closes:
                closing = with_process(state, number, process._replace(mode=Mode.CLOSING))
                yield Step(Kind.USER, f"{name} begins to close", closing._replace(closes=state.closes - 1))
            elif process.mode is Mode.CLOSING:
                if process.syphon != NONE and not self._must_drain(process):
                    text = f"{name}: its syphon ends, and releases what it holds"
                    yield Step(Kind.STEP, text, self._pumps_ended(state, number))
                elif process.syphon == NONE and not self._sends(state, number):
                    yield Step(Kind.STEP, f"{name} is closed", self._gone(state, number))

    def _must_drain(self, process: Process) -> bool:
        held = any(pump.held for pump in self.syphons.facts[process.syphon].pumps)
        return held and self.design.does(Naive.CLOSE_WAITS_FOR_DRAIN)

    def _sends(self, state: State, owner: int) -> bool:
        return any(
            sender == owner and message.phase is Phase.BEGUN
            for sender, message in zip(self.world.senders, state.messages, strict=True)
        )

    def _started(self, state: State, number: int) -> State:
        """A new process has no state: it assumes a backlog until it has seen that it is empty."""
        return self._owing(with_process(state, number, self._process(number)), number, owes=True)

    def _died(self, state: State, owner: int) -> State:
        for number, message in enumerate(state.messages):
            if self.world.senders[number] == owner and message.phase is Phase.BEGUN:
                if message.to != NOWHERE:
                    state = _set_adrift(state, number)
                forgotten = Message(Phase.FORGOTTEN, explained=message.explained, fate=message.fate)
                state = with_message(state, number, forgotten)
        if state.processes[owner].syphon != NONE:
            state = self._pumps_ended(state, owner)
        return self._gone(state._replace(crashes=state.crashes - 1), owner)

    def _gone(self, state: State, number: int) -> State:
        """The process has ended, with all its state."""
        return self._owing(with_process(state, number, Process(Mode.GONE)), number, owes=False)

    def _owing(self, state: State, number: int, *, owes: bool) -> State:
        if not self.world.hosts[number]:
            return state
        bit = 1 << number
        return state._replace(
            queues=tuple(
                queue._replace(
                    entries=tuple(
                        entry._replace(owed=entry.owed | bit if owes else entry.owed & ~bit) for entry in queue.entries
                    )
                )
                for queue in state.queues
            )
        )

    # What is wrong with a state.

    def judge(self, state: State) -> Verdict | None:
        """Find what is wrong with a state; None where every promise is kept."""
        home = state.home
        for number, message in enumerate(state.messages):
            copies = home.count(number)
            phase = message.phase
            if copies and phase in (Phase.REFUSED, Phase.IDLE):
                return Verdict.PHANTOM
            handled = state.read.count(number) + state.taken.count(number)
            if max(copies, handled) > 1 and not message.explained:
                return Verdict.DUPLICATE
            if message.fate is Fate.DROPPED:
                return Verdict.DROPPED
            if phase is Phase.NOT_SENT and (copies or _in_backlog(state, number)):
                return Verdict.FALSE_REPORT
            if phase in _ACCEPTED and not copies and not handled and self._nowhere(state, number):
                return Verdict.LOST
        if len(state.receipts) > 1 and self._disordered(state):
            return Verdict.ORDER
        for number, process in enumerate(state.processes):
            if process.mode is Mode.GONE:
                continue
            facts = self.sending.facts[process.sending]
            if facts.misled:
                return Verdict.STATE
            says_drained = process.mode is Mode.OPEN and not facts.dirty and self.world.hosts[number]
            if says_drained and _answers_for_a_message(state, number):
                return Verdict.FALSE_DRAINED
        return None

    def _nowhere(self, state: State, number: int) -> bool:
        """Whether an accepted message is neither in a queue, nor locked by a living pump, nor dead-lettered."""
        if state.messages[number].fate is Fate.SET_ASIDE or _in_backlog(state, number):
            return False
        if (number, HOME) in state.adrift or any(pump.message == number for pump in state.pumps):
            return False
        return not any(
            held == number
            for process in state.processes
            if process.syphon != NONE
            for pump in self.syphons.facts[process.syphon].pumps
            for held, _ in pump.held
        )

    def _disordered(self, state: State) -> bool:
        """Whether copies are, or can only come to be, in another order than the receipts."""
        home, places = state.home, []
        for number in state.receipts:
            if state.messages[number].fate is not Fate.SET_ASIDE:
                places.append(home.index(number) if number in home else len(home))
        if places != sorted(places):
            return True
        if self.design.does(Naive.ORDER_OF_ALL_COPIES):
            copies = [number for number in home if number in state.receipts]
            return copies != sorted(copies, key=state.receipts.index)
        return False

    def all_ended(self, state: State) -> bool:
        """Whether no caller waits for a send or a close."""
        return all(message.phase is not Phase.BEGUN for message in state.messages) and all(
            process.mode is not Mode.CLOSING for process in state.processes
        )

    def all_well(self, state: State) -> bool:
        """Whether everything accepted is delivered, every pump idle, and every process knows it."""
        if not self.all_ended(state) or any(pump.message >= 0 for pump in state.pumps):
            return False
        if any(queue.entries for queue in state.queues) and self.design.pumps:
            return False  # where no process has a syphon, what was diverted waits for one
        for number, process in enumerate(state.processes):
            if process.mode is not Mode.OPEN:
                return False
            facts = self.sending.facts[process.sending]
            if facts.health not in _RUNNING or (facts.dirty and self.world.hosts[number]):
                return False
            if process.syphon != NONE and any(pump.held for pump in self.syphons.facts[process.syphon].pumps):
                return False
        if self.world.consumer and state.taken != state.home:
            return False
        return all(
            message.phase not in _ACCEPTED or not self.design.pumps or number in state.home
            or message.fate is Fate.SET_ASIDE or number in state.read
            for number, message in enumerate(state.messages)
        )  # fmt: skip


def _at_turn(operation: Operation) -> Operation:
    """An operation by its message that is not stored yet, or by the last one."""
    number, stored, before, rest = operation
    return Operation(rest[0], False, (*before, number), rest[1:]) if stored and rest else operation


def _in_backlog(state: State, number: int) -> bool:
    return any(entry.message == number for queue in state.queues for entry in queue.entries)


def _answers_for_a_message(state: State, number: int) -> bool:
    return any(
        entry.owed >> number & 1 and state.messages[entry.message].phase is Phase.AT_BACKLOG
        for queue in state.queues
        for entry in queue.entries
    )


def _landed(state: State, number: int) -> State:
    phase, _, _, explained, fate = state.messages[number]
    return with_message(state, number, Message(phase, NOWHERE, False, explained, fate))


def _set_adrift(state: State, number: int) -> State:
    """The write of an attempt that is given up may be applied later, unless it has been already."""
    message = state.messages[number]
    return state if message.stored else _late_write(state, number, message.to)


def _late_write(state: State, number: int, to: int) -> State:
    """Note a write that may be applied later; a second one of the same message to the same place adds nothing."""
    if (number, to) in state.adrift:
        return state
    return state._replace(adrift=tuple(sorted((*state.adrift, (number, to)))))


def _explained(state: State, number: int) -> State:
    """A second copy of the message would be explained: it carries the mark, or a syphon died over it."""
    message = state.messages[number]
    return state if message.explained else with_message(state, number, message._replace(explained=True))


def _read(state: State, entry: Entry) -> State:
    """A consumer has handled a message of the lane; a third time would add nothing."""
    if state.read.count(entry.message) > 1:
        return state
    return state._replace(read=tuple(sorted((*state.read, entry.message))))


def _with_new(queue: Queue, number: int, owed: int, origin: int = 0) -> Queue:
    position = queue.newest + 1
    return queue._replace(newest=position, entries=(*queue.entries, Entry(number, position, owed=owed, origin=origin)))


def _with_entry(queue: Queue, place: int, entry: Entry) -> Queue:
    return queue._replace(entries=(*queue.entries[:place], entry, *queue.entries[place + 1 :]))


def _without(queue: Queue, position: int) -> Queue:
    return queue._replace(entries=tuple(entry for entry in queue.entries if entry.position != position))

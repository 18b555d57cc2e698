"""Makes the judge's history of the ledgers and of what the brokers hold in the end; and what they are to hold before.

What can't be observed on real servers is omitted: when a message was stored, by which of several attempts in doubt, and
when a lock expired. If a fact is known only within bounds, the bound that raises no violation is used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pairmq.core import MAYBE_DUPLICATE, PairOptions, lane_name
from pairmq.model import Delivery, Entity, Message, Source
from pairmq.model.events import MessageDelivered, Settlement
from pairmq.model.records import event_of
from pairmq.plugins import registry
from pairmq.testing.chaos._ledger import lines, message_of, number_of
from pairmq.testing.chaos.network import BOTH, DELAY, JITTER
from pairmq.testing.chaos.plan import ENTITIES, SIDES, Plan
from pairmq.testing.history import (
    PRIMARY,
    SECONDARY,
    Attempt,
    Copy,
    Handling,
    Handover,
    Life,
    Note,
    Result,
    Sent,
    WriteResult,
)
from pairmq.testing.simulator._history import History, Trouble
from pairmq.testing.simulator._scenario import Fault, ProcessPlan, Scenario, SenderPlan, Setup
from pairmq.transport import QueueProperties, Receiver, Transport

_WAIT = 2.0  # s without a message after which a queue counts as read, with any count, and no lock is left
_BATCH = 500


def backlog_queues(plan: Plan) -> tuple[str, ...]:
    """The names of the backlog queues of all clients, lanes last."""
    names = (
        name for each in plan.clients for name in PairOptions(**plan.options_of(each)).backlog_queue_names("chaos")
    )
    lanes = (lane_name(PRIMARY, path) for path in ENTITIES if plan.settings.continuity)
    return tuple(dict.fromkeys((*names, *lanes)))


async def make_queues(plan: Plan, primary: str, secondary: str) -> None:
    """Make the primary's queues, and the backlog queues with locks as short as the plan says."""
    # As a pair creates them (SPEC 5.2), except for short locks: a killed syphon's messages should be redelivered soon.
    properties = QueueProperties(
        max_size_megabytes=5120,
        max_delivery_count=2**31 - 1,
        lock_duration=plan.lock_duration,
        single_consumer=plan.settings.ordering == "session",
    )
    async with registry.transport(primary) as broker:
        for path in ENTITIES:
            # A killed consumer's messages are redelivered as soon, and no number of kills dead-letters a message.
            await broker.admin.create(Entity(path), properties if plan.consumers else None)
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            await backlog.admin.create(Entity(path), properties)


async def pending(plan: Plan, secondary: str) -> dict[str, int]:
    """The number of messages in each backlog queue, including scheduled ones, as reported by its transport."""
    async with registry.transport(secondary) as backlog:
        return {path: (await backlog.admin.counts(Source(Entity(path)))).pending for path in backlog_queues(plan)}


@dataclass(frozen=True, slots=True)
class Found:
    """What the brokers held when all was over: ``backlog`` and ``dead`` are numbers of messages, with their queue."""

    primary: dict[str, list[Message]] = field(default_factory=dict)
    backlog: dict[int, str] = field(default_factory=dict)
    dead: dict[int, str] = field(default_factory=dict)
    undrained: tuple[str, ...] = ()


async def read_out(
    plan: Plan,
    primary: str,
    secondary: str,
    journalled: Callable[[Receiver, Source], Receiver] = lambda receiver, _: receiver,
) -> tuple[dict[str, list[Delivery]], Found]:
    """Take everything out of all queues, by the transports' receivers: of the primary, and of the secondary."""
    # A killed consumer's messages are not available before its locks expire.
    wait = _WAIT + (plan.lock_duration if plan.consumers else 0.0)
    async with registry.transport(primary) as broker:
        sources = {path: Source(Entity(path)) for path in ENTITIES}
        contents = {
            path: await _taken(broker, source, journalled(broker.receiver(source), source), wait)
            for path, source in sources.items()
        }
    left: dict[int, str] = {}
    dead: dict[int, str] = {}
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            for found, source in ((left, Source(Entity(path))), (dead, Source(Entity(path), dead_letter=True))):
                found |= _numbered(path, await _taken(backlog, source, backlog.receiver(source), _WAIT))
    return contents, Found({}, left, dead)


def _numbered(path: str, deliveries: Iterable[Delivery]) -> dict[int, str]:
    numbers = (number_of(delivery.message) for delivery in deliveries)
    return {number: path for number in numbers if number is not None}


async def _taken(transport: Transport, source: Source, receiver: Receiver, wait: float) -> list[Delivery]:
    found: list[Delivery] = []
    try:
        # By the count, as waiting for what is not there takes a while at each queue; a wrong one shows in the end, when
        # the server's own is compared.
        counts = await transport.admin.counts(Source(source.entity))
        there = counts.dead_letter if source.dead_letter else counts.pending
        while len(found) < there and (deliveries := await receiver.receive(_BATCH, wait)):
            found += deliveries
            for error in await receiver.complete_batch(deliveries):
                if error is not None and not error.maybe_applied:  # of a slow replica; what is redelivered is counted
                    raise error
    finally:
        await receiver.close()
    return found


def with_consumed(directory: Path, left: Mapping[str, Sequence[Delivery]]) -> dict[str, list[Message]]:
    """Put together what consumers completed and what the queues still held."""
    taken = _Taken(directory)
    return {path: taken.merged(path, deliveries) for path, deliveries in left.items()}


class _Taken:
    def __init__(self, directory: Path) -> None:
        self._order: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """Of each queue, places and numbers in the order of first delivery."""
        self._asked: Counter[tuple[str, str, int]] = Counter()
        """How often it was asked to complete a place and number of a queue."""
        self._first: Counter[tuple[str, int]] = Counter()
        """How often a number of a queue was delivered for the first time, each time another copy."""
        self._confirmed: Counter[tuple[str, str]] = Counter()
        """How often the broker confirmed the completion of a message id of a queue."""
        self._sides: dict[tuple[str, str, str], str] = {}
        """The side of which a process has last handled a message id of a queue."""
        for file, line in lines(directory):
            if line["k"] == "got" and line["broker"] == PRIMARY:
                self._order[line["path"]] |= {(place, n): None for place, n, _ in line["messages"] if n is not None}
                self._first.update((line["path"], n) for _, n, count in line["messages"] if count == 1)
            elif line["k"] == "settle" and line["broker"] == PRIMARY and line["how"] == "complete":
                self._asked.update((line["path"], place, n) for place, n in line["messages"] if n is not None)
            elif line["k"] == "handle":
                self._sides[file, line["path"], f"id-{line['number']}"] = line["side"]
            elif line["k"] == "event":
                self._note(file, line["event"])

    def _note(self, file: str, event: dict[str, Any]) -> None:
        done = event["kind"] == MessageDelivered.__name__ and event["settlement"] == Settlement.COMPLETED.value
        if done and event["error"] is None:
            path, message_id = event["entity"], event["message_id"]
            if self._sides.get((file, path, message_id), PRIMARY) == PRIMARY:  # what a lane gave was never there
                self._confirmed[path, message_id] += 1

    def merged(self, path: str, left: Sequence[Delivery]) -> list[Message]:
        there = {(each.sequence_number, number_of(each.message)) for each in left}
        numbers = Counter(number_of(each.message) for each in left)
        again = Counter(number_of(each.message) for each in left if each.delivery_count > 1)
        found = [(each.sequence_number, each.message) for each in left]
        before: list[tuple[str, Message]] = []
        for place, number in self._order[path]:
            asked = self._asked[path, place, number]
            if place:
                # A copy has its own place: it was consumed if it was to be settled and is missing.
                copies = int(bool(asked) and (place, number) not in there)
            else:
                # Without places copies can't be distinguished: as many are gone as were confirmed, and one whose
                # completion was not, if it was not seen since. A broker that is killed forgets completions, and
                # delivers the same copy again; what it delivered for the first time was another one.
                seen = max(1, self._first[path, number]) - again[number]
                confirmed = self._confirmed[path, f"id-{number}"]
                copies = max(0, min(confirmed, seen)) if confirmed else int(bool(asked) and not numbers[number])
            before += [(place, message_of(number))] * copies
        whole = [*before, *found]
        if all(place for place, _ in whole):
            whole.sort(key=lambda each: _position(each[0]))
        return [message for _, message in whole]


def _position(place: str) -> tuple[int, ...]:
    """A broker's position as numbers, written as ``17`` or as ``1700000000000-3``."""
    return tuple(int(part) for part in place.split("-"))


GRACE = 0.3
"""Seconds by which a send may outlive its deadline, beside what its event loop was late by."""

NOBODY = "nobody"
"""The receiver of a delivery that the broker counts and no client has seen."""

RUN = "run"
"""The name of the run's own ledger."""

# Lines that say when something happened, and no more: to the run, or to a life.
_INSTANTS = ("healed", "drained", "opened", "closing", "closed", "ended")


def history_of(plan: Plan, directory: Path, found: Found) -> History:
    return _Books(plan, found).read(directory)


class _Books:
    def __init__(self, plan: Plan, found: Found) -> None:
        self._plan = plan
        self._found = found
        self._history = History(_scenario(plan), exact=False, grace=GRACE)
        self._history.in_order = len(plan.consumers) < 2
        self._lives: dict[str, Life] = {}
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._marked: set[tuple[int, int | None]] = set()
        """Writes of messages that bore the mark of a possible duplicate."""
        self._deliveries: dict[tuple[str, str, int], Copy] = {}
        self._handled: dict[tuple[str, int], Handling] = {}
        self._struck: dict[int, int] = {}
        """Indexes of the strikes that have not ended yet."""
        self._began: float | None = None
        self._at = 0.0
        self._tick = 0

    def read(self, directory: Path) -> History:
        history = self._history
        readers: dict[str, Callable[[str, dict[str, Any]], None]] = {
            name.removeprefix("_line_"): getattr(self, name) for name in dir(self) if name.startswith("_line_")
        }
        for file, line in lines(directory):
            if self._began is None:
                self._began = line["t"]
            self._at = line["t"] - self._began
            self._tick = history.tick()
            process, _, number = file.rpartition("-")
            who, kind = f"{process}/{number}" if file != RUN else RUN, line["k"]
            if kind in _INSTANTS:
                setattr(history if who == RUN else self._lives[who], f"{kind}_at", self._at)
            elif kind in readers:
                readers[kind](who, line)
        history.ended_at = self._at
        history.bound = self._plan.settings.patience
        history.undrained = self._found.undrained
        for place in self._struck.values():
            self._end_stroke(place)
        self._add_backlog()
        self._add_primary()
        return history

    # The run's own lines.

    def _line_strike(self, _: str, line: dict[str, Any]) -> None:
        side = "" if line["side"] == BOTH else line["side"]
        fault = Fault(self._at, line["fault"], line["seconds"], side, line["client"])
        self._history.strokes.append((self._at, self._tick, fault))
        self._struck[line["number"]] = len(self._history.strokes) - 1

    def _line_cured(self, _: str, line: dict[str, Any]) -> None:
        self._end_stroke(self._struck.pop(line["number"]))

    def _end_stroke(self, place: int) -> None:
        """It has lasted until now, which may be longer than it was planned: a server takes its time to boot."""
        at, tick, fault = self._history.strokes[place]
        self._history.strokes[place] = at, tick, replace(fault, duration=self._at - at)
        self._history.disturbed.append((at, self._at))

    def _line_killed(self, _: str, line: dict[str, Any]) -> None:
        life = self._lives.get(line["life"])
        if life is not None:  # else it was killed before it could write a line
            life.killed, life.ended_at = True, self._at

    def _line_altered(self, who: str, line: dict[str, Any]) -> None:
        text = f"{who} got {line['number']} from {line['path']} as another message than was sent: {line['message']}"
        self._history.crashes.append((self._at, text))

    def _line_crash(self, who: str, line: dict[str, Any]) -> None:
        self._history.crashes.append((self._at, f"{who}: {line['text']}"))

    # A life.

    def _line_life(self, who: str, line: dict[str, Any]) -> None:
        life = Life(line["process"], line["number"], line["syphon"], "", 0.0, self._at, self._tick)
        self._lives[who] = life
        self._history.lives.append(life)

    def _line_lag(self, who: str, line: dict[str, Any]) -> None:
        began = self._began or 0.0
        self._history.lags.setdefault(who, []).append((line["due"] - began, line["woken"] - began))

    def _line_event(self, who: str, line: dict[str, Any]) -> None:
        self._history.notes.append(Note(self._at, self._tick, who, event_of(line["event"])))

    def _line_trouble(self, who: str, line: dict[str, Any]) -> None:
        result = WriteResult(*line["result"])
        trouble = Trouble(self._at, self._tick, who, line["broker"], line["path"], line["operation"], result)
        self._history.troubles.append(trouble)

    # Sends.

    def _line_send(self, who: str, line: dict[str, Any]) -> None:
        for number in line["messages"]:
            entity, message = Entity(line["entity"]), message_of(number)
            self._history.sent[number] = Sent(
                number, who, line["sender"], entity, message, self._at, self._tick, line["timeout"]
            )

    def _line_reported(self, who: str, line: dict[str, Any]) -> None:
        for each in line["results"]:
            sent = self._history.sent[each["number"]]
            sent.result = Result(each["result"])
            sent.ended_at, sent.end_tick = self._at, self._tick
            sent.maybe_duplicate = each.get("duplicate", False)
            sent.queue = each.get("queue")
            sent.error = each.get("error", "")

    def _line_try(self, who: str, line: dict[str, Any]) -> None:
        number, messages, began = len(self._history.attempts), tuple(line["messages"]), (self._at, self._tick)
        attempt = Attempt(number, who, line["broker"], Entity(line["path"]), line["syphon"], messages, *began)
        self._history.attempts.append(attempt)
        self._attempts[who, line["attempt"]] = attempt
        self._marked |= {(attempt.number, n) for n, yes in zip(attempt.messages, line["marked"], strict=True) if yes}

    def _line_tried(self, who: str, line: dict[str, Any]) -> None:
        attempt = self._attempts[who, line["attempt"]]
        attempt.results = tuple(WriteResult(*each) for each in line["results"])
        attempt.ended_at, attempt.end_tick = self._at, self._tick

    # The consumers'.

    def _line_handle(self, who: str, line: dict[str, Any]) -> None:
        number, entity = line["number"], Entity(line["path"])
        message = Message(b"") if number is None else message_of(number)
        handling = Handling(number, entity, who, line["side"], line["place"], message, self._at, self._tick)
        self._history.handlings.append(handling)
        self._handled[who, line["turn"]] = handling

    def _line_handled(self, who: str, line: dict[str, Any]) -> None:
        handling = self._handled[who, line["turn"]]
        handling.settled, handling.ended_at = line["settled"], self._at

    # The syphon's side, and that of lanes.

    def _line_got(self, who: str, line: dict[str, Any]) -> None:
        if line["broker"] != SECONDARY:
            return
        for place, number, count in line["messages"]:
            if number is None:
                continue
            key = line["path"], place, number
            copy = self._deliveries.get(key)
            if copy is None:
                copy = self._deliveries[key] = Copy(
                    0, number, SECONDARY, Entity(line["path"]), message_of(number), None, self._at, self._tick
                )
            # The broker also counts deliveries that were never received.
            unseen = max(0, count - 1 - len(copy.handovers))
            copy.handovers += [Handover(self._at, self._tick, NOBODY)] * unseen
            consumer = who.partition("/")[0] in self._plan.consumers
            copy.handovers.append(Handover(self._at, self._tick, who, consumer, place))

    def _line_settle(self, who: str, line: dict[str, Any]) -> None:
        for place, number in line["messages"]:
            copy = self._deliveries.get((line["path"], place, number))
            if copy is None or copy.gone or line["how"] == "abandon":
                continue
            # It may be gone from here on: whether and when it was, only the broker knows.
            copy.gone = "completed" if line["how"] == "complete" else "dead-lettered"
            copy.gone_at, copy.gone_tick, copy.reason = self._at, self._tick, line["reason"]

    def _add_backlog(self) -> None:
        """Give the copies of the backlog their places, and the attempts that wrote them where only one can have."""
        writes = self._writes(SECONDARY)
        copies: dict[tuple[str, int], list[Copy]] = defaultdict(list)
        for (path, _, number), copy in self._deliveries.items():
            copies[path, number].append(copy)
        for (path, number), attempts in writes.items():
            stored = copies[path, number]
            sure = [each for each in attempts if each.result(number).confirmed]
            if not stored and sure:
                # It was never delivered; that it was stored was reported to its sender.
                stored.append(_unseen(path, number))
            if len(stored) == len(attempts) == len(sure) == 1 and not sure[0].syphon:
                copy, attempt = stored[0], sure[0]
                copy.attempt, copy.at, copy.tick = attempt.number, attempt.ended_at or 0.0, attempt.end_tick or 0
                if (attempt.number, number) in self._marked:
                    copy.message = replace(copy.message, application_properties={MAYBE_DUPLICATE: "true"})
        for number, path in self._found.backlog.items():
            if all(copy.gone for copy in copies[path, number]):
                copies[path, number].append(_unseen(path, number))
        ordered = sorted((copy for group in copies.values() for copy in group), key=self._place)
        for place, copy in enumerate(ordered):
            copy.number = place
            known = copy.message_number
            if not copy.gone and known not in self._found.backlog:
                copy.gone = "dead-lettered" if known in self._found.dead else "missing"
                written = writes[copy.entity.path, known or 0]
                confirmed = known is None or any(each.result(known).confirmed for each in written)
                if copy.handovers and not confirmed:
                    # A broker may forget what it never confirmed, though it delivered it: a master that is replaced.
                    copy.gone_at, copy.gone_tick = copy.handovers[-1].at, copy.handovers[-1].tick
        self._history.copies += ordered

    def _place(self, copy: Copy) -> tuple[int, int]:
        tick = copy.tick if copy.attempt is None else self._history.attempts[copy.attempt].tick
        return tick, copy.message_number or 0

    def _add_primary(self) -> None:
        writes = self._writes(PRIMARY)
        start = len(self._history.copies)
        for path, messages in self._found.primary.items():
            numbers = [number_of(message) for message in messages]
            for place, (number, message) in enumerate(zip(numbers, messages, strict=True)):
                attempts = [] if number is None else writes[path, number]
                last = attempts[-1] if attempts else None
                at, tick = (0.0, 0) if last is None else (last.ended_at or last.at, last.end_tick or last.tick)
                alone = last is not None and len(attempts) == 1 and numbers.count(number) == 1
                writer = last.number if last is not None and alone else None
                copy = Copy(start + place, number, PRIMARY, Entity(path), message, writer, at, tick)
                self._history.copies.append(copy)

    def _writes(self, side: str) -> dict[tuple[str, int], list[Attempt]]:
        """Of each path and message: the attempts that may have stored it."""
        found: dict[tuple[str, int], list[Attempt]] = defaultdict(list)
        for attempt in self._history.attempts:
            for number in attempt.messages:
                if attempt.broker == side and number is not None:
                    result = attempt.result(number)
                    if result.confirmed or result.doubtful:
                        found[attempt.entity.path, number].append(attempt)
        return found


def _unseen(path: str, number: int) -> Copy:
    return Copy(0, number, SECONDARY, Entity(path), message_of(number), None, 0.0, 0)


def _scenario(plan: Plan) -> Scenario:
    syphon = plan.clients[0]
    processes = tuple(
        ProcessPlan(name, syphon=name == syphon, backlog_queue_count=plan.queue_counts.get(name))
        for name in (*plan.clients, *plan.consumers)
    )
    senders = tuple(SenderPlan(f"{name}-{path}", name, path) for name in plan.clients for path in ENTITIES)
    there, back = (2 * (DELAY + JITTER) if side in plan.settings.distant else 0.0 for side in SIDES)
    setup = Setup(processes, senders, ENTITIES, plan.options, latency=(there, back))
    return Scenario(plan.settings.seed, plan.settings.seconds, "liveness", setup)

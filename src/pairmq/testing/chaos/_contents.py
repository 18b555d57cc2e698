"""Before and after a chaos run: the queues are made, and in the end everything is read out of them.

What consumers completed meanwhile is in no queue: it is put beside that, from the ledgers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairmq.core import PairOptions, lane_name
from pairmq.model import Delivery, Entity, Message, Source
from pairmq.model.events import MessageDelivered, Settlement
from pairmq.plugins import registry
from pairmq.testing.chaos._ledger import lines
from pairmq.testing.chaos._messages import made, number_of
from pairmq.testing.chaos.plan import ENTITIES, Plan
from pairmq.testing.history import PRIMARY
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
    async with registry.transport(primary) as home:
        for path in ENTITIES:
            # A killed consumer's messages are redelivered as soon, and no number of kills dead-letters a message.
            await home.admin.create(Entity(path), properties if plan.consumers else None)
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            await backlog.admin.create(Entity(path), properties)


async def pending(plan: Plan, secondary: str) -> dict[str, int]:
    """The number of messages in each backlog queue, including scheduled ones, as reported by its transport."""
    async with registry.transport(secondary) as backlog:
        return {path: (await backlog.admin.counts(Source(Entity(path)))).pending for path in backlog_queues(plan)}


@dataclass(frozen=True, slots=True)
class Contents:
    """What the queues held: ``backlog`` and ``dead`` are numbers of messages, with their queue."""

    home: Mapping[str, Sequence[Delivery]]
    backlog: dict[int, str]
    dead: dict[int, str]


async def read_out(
    plan: Plan,
    primary: str,
    secondary: str,
    journalled: Callable[[Receiver, Source], Receiver] = lambda receiver, _: receiver,
) -> Contents:
    """Take everything out of all queues, by the transports' receivers."""
    # A killed consumer's messages are not available before its locks expire.
    wait = _WAIT + (plan.lock_duration if plan.consumers else 0.0)
    async with registry.transport(primary) as home:
        sources = {path: Source(Entity(path)) for path in ENTITIES}
        contents = {
            path: await _taken(home, source, journalled(home.receiver(source), source), wait)
            for path, source in sources.items()
        }
    left: dict[int, str] = {}
    dead: dict[int, str] = {}
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            for found, source in ((left, Source(Entity(path))), (dead, Source(Entity(path), dead_letter=True))):
                found |= _numbered(path, await _taken(backlog, source, backlog.receiver(source), _WAIT))
    return Contents(contents, left, dead)


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
                if error is not None:
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
        done = event["type"] == MessageDelivered.__name__ and event["settlement"] == Settlement.COMPLETED.value
        if done and event["error"] is None:
            path, message_id = event["entity"]["path"], event["message_id"]
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
            before += [(place, made(number))] * copies
        whole = [*before, *found]
        if all(place for place, _ in whole):
            whole.sort(key=lambda each: _position(each[0]))
        return [message for _, message in whole]


def _position(place: str) -> tuple[int, ...]:
    """A broker's position as numbers, written as ``17`` or as ``1700000000000-3``."""
    return tuple(int(part) for part in place.split("-"))

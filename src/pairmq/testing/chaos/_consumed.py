"""The messages that consumers completed during a run, from the ledgers: at the end they are in no queue."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pairmq.model import Delivery, Message
from pairmq.model.events import MessageDelivered, Settlement
from pairmq.testing.chaos._ledger import lines
from pairmq.testing.chaos._messages import made, number_of
from pairmq.testing.simulator._scenario import PRIMARY


def with_consumed(directory: Path, left: Mapping[str, Sequence[Delivery]]) -> dict[str, list[Message]]:
    """Put together what consumers completed and what the queues still held.

    Args:
        directory: of the ledgers.
        left: of each queue, what was read out of it in the end.

    Returns:
        Each queue with its messages; by the broker's positions, if it reports them, else consumed ones first.
    """
    taken = _Taken(directory)
    return {path: taken.merged(path, deliveries) for path, deliveries in left.items()}


class _Taken:
    def __init__(self, directory: Path) -> None:
        self._order: dict[str, dict[tuple[str, int], None]] = defaultdict(dict)
        """Of each queue, places and numbers in the order of first delivery."""
        self._asked: Counter[tuple[str, str, int]] = Counter()
        """How often it was asked to complete a place and number of a queue."""
        self._confirmed: Counter[tuple[str, str]] = Counter()
        """How often the broker confirmed the completion of a message id of a queue."""
        for _, line in lines(directory):
            if line["k"] == "got" and line["broker"] == PRIMARY:
                self._order[line["path"]] |= {(place, n): None for place, n, _ in line["messages"] if n is not None}
            elif line["k"] == "settle" and line["broker"] == PRIMARY and line["how"] == "complete":
                self._asked.update((line["path"], place, n) for place, n in line["messages"] if n is not None)
            elif line["k"] == "event":
                self._note(line["event"])

    def _note(self, event: dict[str, Any]) -> None:
        done = event["type"] == MessageDelivered.__name__ and event["settlement"] == Settlement.COMPLETED.value
        if done and event["error"] is None:
            self._confirmed[event["entity"]["path"], event["message_id"]] += 1

    def merged(self, path: str, left: Sequence[Delivery]) -> list[Message]:
        there = {(each.sequence_number, number_of(each.message)) for each in left}
        numbers = Counter(number_of(each.message) for each in left)
        found = [(each.sequence_number, each.message) for each in left]
        before: list[tuple[str, Message]] = []
        for place, number in self._order[path]:
            asked = self._asked[path, place, number]
            if place:
                # A copy has its own place: it was consumed if it was to be settled and is missing.
                copies = int(bool(asked) and (place, number) not in there)
            else:
                # Without places copies can't be distinguished: as many are gone as were confirmed, and one whose
                # completion was not, if it was not seen since.
                copies = self._confirmed[path, f"id-{number}"] or int(bool(asked) and not numbers[number])
            before += [(place, made(number))] * copies
        whole = [*before, *found]
        if all(place for place, _ in whole):
            whole.sort(key=lambda each: _position(each[0]))
        return [message for _, message in whole]


def _position(place: str) -> tuple[int, ...]:
    """A broker's position as numbers, written as ``17`` or as ``1700000000000-3``."""
    return tuple(int(part) for part in place.split("-"))

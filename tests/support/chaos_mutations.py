"""What is taken out of the journal of a chaos run on purpose, and which verdicts must come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from chaos_copies import Copy
from chaos_rows import CLOSED, Key, Row

SLACK = 1.0
"""Seconds to which clocks agree."""
_EACH = 4
"""Messages of one mutation."""
_ABOUT_MESSAGES = ("SendCompleted", "MessageMoved", "MessageDelivered")

Judged = dict[str, Any]
"""What the other engine has counted of a message, and its verdict."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A copy from which rows are missing, and what must be said of their messages."""

    copy: Copy
    expected: dict[str, str]  # by message id, the verdicts that change
    touched: frozenset[str]  # the messages of the missing rows; of others only faults may become milder


def without_the_killed(rows: Iterable[Row], days: int = 0) -> Copy:
    """The reference: the journal without the processes that were killed, as if they had kept none.

    A killed process leaves a hole of a minute, in which nothing could be proven.
    """
    rows = list(rows)
    ended = {row["process"] for row in rows if row["kind"] == CLOSED}
    return Copy("reference", days, frozenset(_key(row) for row in rows if row["process"] not in ended))


class Mutations:
    """Chooses rows and messages.

    Args:
        rows: of the journal.
        segments: the rows of each segment.
        judged: each message of the reference, on the journal's own day.
        patience: as the pipeline's.
    """

    def __init__(
        self, rows: Sequence[Row], segments: Sequence[frozenset[Key]], judged: Iterable[Judged], patience: float
    ) -> None:
        self._patience = patience
        self._segments = segments
        self._killed = without_the_killed(rows).gone
        self._rows = [row for row in rows if _key(row) not in self._killed]
        self._judged = {(each["entity"], each["message_id"]): each for each in judged}
        self._about: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in self._rows:
            if row["kind"] in _ABOUT_MESSAGES and row.get("message_id"):
                self._about[row["entity"], row["message_id"]].append(row)

    def all(self) -> list[Mutation]:
        """Every mutation, each on a day of its own."""
        makers = (self.dropped, self.torn, self.unmoved, self.unsent, self.unchanged, self.segmentless)
        return [maker(days) for days, maker in enumerate(makers, start=2)]

    def dropped(self, days: int) -> Mutation:
        """Deliveries are gone, and nothing shows it: as if the messages had been lost."""
        return self._mutation("dropped", days, self._overtaken(), ["MessageDelivered"], lambda _: "lost")

    def torn(self, days: int) -> Mutation:
        """The same deliveries are gone, and their numbers are missing: the messages may have been delivered."""
        return self._mutation("torn", days, self._overtaken(), ["MessageDelivered"], lambda _: "unproven", hidden=False)

    def unmoved(self, days: int) -> Mutation:
        """Moves and deliveries are gone: lost, if the backlog was seen empty later."""

        def verdict(message: Judged) -> str:
            seen = any(
                row.get("cause") == "backlog drained"
                and row["entity"] == message["entity"]
                and row["at"] - row["lasted"] > message["diverted_at"] + SLACK
                for row in self._rows
            )
            return "lost" if seen else "diverted"

        chosen = [each for each in self._plain("in_backlog") if each["moved"] == 1][:_EACH]
        return self._mutation("unmoved", days, chosen, ["MessageMoved", "MessageDelivered"], verdict)

    def unsent(self, days: int) -> Mutation:
        """Receipts are gone: who sent these messages is unknown."""
        return self._mutation("unsent", days, self._overtaken(), ["SendCompleted"], lambda _: "not journalled")

    def unchanged(self, days: int) -> Mutation:
        """A failover is gone: an outage looks otherwise, and no message does."""
        gone = [_key(row) for row in self._rows if row.get("cause") == "failover interval over"]
        return Mutation(Copy("unchanged", days, self._killed | frozenset(gone[:1])), {}, frozenset())

    def segmentless(self, days: int) -> Mutation:
        """The segment with the most receipts is gone: the senders of most messages are unknown."""

        def receipts(keys: frozenset[Key]) -> int:
            return sum(_key(row) in keys and row["kind"] == "SendCompleted" for row in self._rows)

        gone = max(self._segments, key=receipts)
        expected, touched = {}, set()
        for message, rows in self._about.items():
            left = {row["kind"] for row in rows if _key(row) not in gone}
            if all(_key(row) not in gone for row in rows):
                continue
            touched.add(message[1])
            judged = self._judged[message]
            accepted = judged["at_primary"] + judged["in_backlog"] > 0
            if "MessageDelivered" in left and accepted and not judged["tries_failed"] and "SendCompleted" not in left:
                expected[message[1]] = "not journalled"
        return Mutation(Copy("segmentless", days, self._killed | gone, hidden=False), expected, frozenset(touched))

    def _plain(self, accepted: str) -> Iterable[Judged]:
        """Messages that were sent once, without a doubt, and delivered once."""
        for each in self._judged.values():
            sends = each["at_primary"] + each["in_backlog"] + each["refused"] + each["unsure"]
            plain = sends == each["seen"] == each[accepted] == 1 and not each["tries_failed"] and not each["aside"]
            if plain and each["lives"] is None and each["verdict"] == "delivered":
                yield each

    def _overtaken(self) -> list[Judged]:
        """Some that would be lost without the rows of their deliveries, of each entity about as many.

        Those at the ends tell since when, and until when, deliveries were journalled: they are not chosen.
        """
        arrived: dict[str, list[float]] = defaultdict(list)
        for each in self._judged.values():
            if each["seen"] and each["home"] is not None:
                arrived[each["entity"]].append(each["home"])
        chosen: dict[str, list[Judged]] = defaultdict(list)
        for each in self._plain("at_primary"):
            first, last = min(arrived[each["entity"]]), max(arrived[each["entity"]])
            if first < each["home"] < last - self._patience:
                chosen[each["entity"]].append(each)
        return [message for each in chosen.values() for message in each[: _EACH // 2]]

    def _mutation(
        self,
        name: str,
        days: int,
        chosen: Sequence[Judged],
        kinds: Sequence[str],
        verdict: Callable[[Judged], str],
        *,
        hidden: bool = True,
    ) -> Mutation:
        gone: set[Key] = set(self._killed)
        for each in chosen:
            gone |= {_key(row) for row in self._about[each["entity"], each["message_id"]] if row["kind"] in kinds}
        expected = {each["message_id"]: verdict(each) for each in chosen}
        return Mutation(Copy(name, days, frozenset(gone), hidden), expected, frozenset(expected))


def _key(row: Row) -> Key:
    return row["process"], row["seq"]

"""What is taken out of the journal of a chaos run on purpose, and which verdicts must come of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from chaos_cases import SLACK, Case, Message
from chaos_copies import Copy
from chaos_rows import CLOSED, Key, Told
from chaos_truth import Judge
from pairmq.model.events import (
    Cause,
    Event,
    MessageDelivered,
    MessageMoved,
    SendCompleted,
    SendOutcome,
    StateChanged,
)

_EACH = 4
"""Messages of one mutation."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A copy from which rows are missing, and what must be said of the messages that they told of."""

    copy: Copy
    expected: dict[str, str]  # by message id, the verdicts that change
    touched: frozenset[str]  # the messages that a missing row told of; of others only faults may become milder


class Mutations:
    """Chooses rows and messages.

    The reference is the journal without the processes that were killed, as if they had kept none: a killed process
    leaves a hole of a minute, in which nothing could be proven.

    Args:
        told: the rows of the journal.
        segments: the rows of each segment.
        patience: as the judge's.
    """

    def __init__(self, told: Sequence[Told], segments: Sequence[frozenset[Key]], patience: float) -> None:
        self._patience = patience
        self._segments = segments
        ended = {row.process for row in told if row.own == CLOSED}
        self.killed = frozenset(row.key for row in told if row.process not in ended)
        self.reference = Copy("reference", 1, self.killed)
        self._told = [row for row in told if row.key not in self.killed]
        self._judge = Judge(self.reference.rows(told), patience)
        self._verdicts = self._judge.verdicts()
        self._rows: dict[tuple[str, str], list[Told]] = defaultdict(list)
        for row in self._told:
            message = _message_of(row.event)
            if message is not None:
                self._rows[message].append(row)

    def all(self) -> list[Mutation]:
        """Every mutation, each on a day of its own."""
        makers = (self.dropped, self.torn, self.unmoved, self.unsent, self.unchanged, self.segmentless)
        return [maker(days) for days, maker in enumerate(makers, start=2)]

    def dropped(self, days: int) -> Mutation:
        """Deliveries are gone, and nothing shows it: as if the messages had been lost."""
        chosen = self._overtaken()
        return self._mutation("dropped", days, chosen, MessageDelivered, lambda _: "lost")

    def torn(self, days: int) -> Mutation:
        """The same deliveries are gone, and their numbers are missing: the messages may have been delivered."""
        chosen = self._overtaken()
        return self._mutation("torn", days, chosen, MessageDelivered, lambda _: "unproven", hidden=False)

    def unmoved(self, days: int) -> Mutation:
        """Moves and deliveries are gone: lost, if the backlog was seen empty later."""

        def verdict(message: Message) -> str:
            at = self._judge.cases[message].diverted_at
            assert at is not None
            seen = any(
                isinstance(row.event, StateChanged)
                and row.event.cause is Cause.DRAINED
                and row.event.entity.path == message[1]
                and row.event.at - row.event.lasted > at + self.reference_shift + SLACK
                for row in self._told
            )
            return "lost" if seen else "diverted"

        chosen = [message for message, case in self._plain(SendOutcome.BACKLOG) if len(case.moves) == 1][:_EACH]
        return self._mutation("unmoved", days, chosen, (MessageMoved, MessageDelivered), verdict)

    def unsent(self, days: int) -> Mutation:
        """Receipts are gone: nobody knows who sent these messages."""
        chosen = self._overtaken()
        return self._mutation("unsent", days, chosen, SendCompleted, lambda _: "not journalled")

    def unchanged(self, days: int) -> Mutation:
        """A failover is gone: an outage looks otherwise, and no message does."""
        rows = [
            row for row in self._told if isinstance(row.event, StateChanged) and row.event.cause is Cause.INTERVAL_OVER
        ]
        gone = frozenset(row.key for row in rows[:1])
        return Mutation(Copy("unchanged", days, self.killed | gone), {}, frozenset())

    def segmentless(self, days: int) -> Mutation:
        """The segment with the most receipts is gone: of most messages nobody knows any more who sent them."""

        def receipts(keys: frozenset[Key]) -> int:
            return sum(row.key in keys and isinstance(row.event, SendCompleted) for row in self._told)

        gone = max(self._segments, key=receipts)
        expected, touched = {}, set()
        for (entity, id_), rows in self._rows.items():
            if all(row.key not in gone for row in rows):
                continue
            touched.add(id_)
            left = [row.event for row in rows if row.key not in gone]
            case = self._judge.cases[self.reference.name, entity, id_]
            known = case.failures or any(isinstance(event, SendCompleted) for event in left)
            if any(isinstance(event, MessageDelivered) for event in left) and case.accepted and not known:
                expected[id_] = "not journalled"
        return Mutation(Copy("segmentless", days, self.killed | gone, hidden=False), expected, frozenset(touched))

    @property
    def reference_shift(self) -> float:
        """Seconds by which the reference is earlier than the journal itself."""
        return self.reference.days * 86_400.0

    def _plain(self, outcome: SendOutcome) -> Iterable[tuple[Message, Case]]:
        """Messages that were sent once, without a doubt, and delivered once."""
        for message, case in self._judge.cases.items():
            plain = len(case.sends) == len(case.deliveries) == 1 and not case.failures and not case.aside
            lasting = plain and case.sends[0].outcome is outcome and case.sends[0].time_to_live is None
            if lasting and self._verdicts[message] == "delivered":
                yield message, case

    def _overtaken(self) -> list[Message]:
        """Some that would be lost if nobody had told of their deliveries, of each entity about as many.

        Those at the ends tell since when, and until when, deliveries were journalled: they are not chosen.
        """
        arrived: dict[tuple[str, str], list[float]] = defaultdict(list)
        for message, case in self._judge.cases.items():
            if case.deliveries and case.home_at is not None:
                arrived[message[:2]].append(case.home_at)
        chosen: dict[tuple[str, str], list[Message]] = defaultdict(list)
        for message, case in self._plain(SendOutcome.PRIMARY):
            first, last = min(arrived[message[:2]]), max(arrived[message[:2]])
            at = case.home_at
            if at is not None and first < at < last - self._patience:
                chosen[message[:2]].append(message)
        return [message for each in chosen.values() for message in each[: _EACH // 2]]

    def _mutation(
        self,
        name: str,
        days: int,
        chosen: Sequence[Message],
        kinds: type[Event] | tuple[type[Event], ...],
        verdict: Callable[[Message], str],
        *,
        hidden: bool = True,
    ) -> Mutation:
        gone: set[Key] = set(self.killed)
        for _, entity, id_ in chosen:
            gone |= {row.key for row in self._rows[entity, id_] if isinstance(row.event, kinds)}
        expected = {id_: verdict((pair, entity, id_)) for pair, entity, id_ in chosen}
        return Mutation(Copy(name, days, frozenset(gone), hidden), expected, frozenset(expected))


def _message_of(event: Event | None) -> tuple[str, str] | None:
    if isinstance(event, SendCompleted | MessageMoved | MessageDelivered) and event.message_id:
        return event.entity.path, event.message_id
    return None

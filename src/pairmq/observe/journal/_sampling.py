"""Which healthy sends are kept: the same messages in every process, and never one that an outage touched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from pairmq.model import Entity, EntityState
from pairmq.model.events import SendCompleted, SendOutcome, StateChanged
from pairmq.model.records import Values, message_key

_SEND = {entry.name: index for index, entry in enumerate(fields(SendCompleted), start=1)}
_CHANGE = {entry.name: index for index, entry in enumerate(fields(StateChanged), start=1)}
_AT, _PAIR, _ENTITY = _SEND["at"], _SEND["pair"], _SEND["entity"]


class Sampler:
    """Drops a part of the healthy sends, and nothing else.

    A send is healthy that the primary accepted at its first attempt, without a doubt, and that lay whole within a time
    in which its entity was healthy.

    Args:
        rate: the part that is kept, 0 to 1.
    """

    def __init__(self, rate: float) -> None:
        self._below = int(rate * 2**64)
        self._all = rate >= 1
        self._changed_at: dict[tuple[str, Entity], float] = {}

    def kept(self, rows: list[Values]) -> list[Values]:
        """Give the rows that are kept, in their order."""
        return rows if self._all else [row for row in self._looked_at(rows) if self._keeps(row)]

    def _looked_at(self, rows: Iterable[Values]) -> Iterable[Values]:
        for row in rows:
            if row[0] is StateChanged:
                self._changed_at[row[_CHANGE["pair"]], row[_CHANGE["entity"]]] = row[_CHANGE["at"]]
            yield row

    def _keeps(self, row: Values) -> bool:
        if row[0] is not SendCompleted or not self._healthy(row):
            return True
        key = message_key(row[_SEND["message_id"]]) or 0
        return key % 2**64 < self._below

    def _healthy(self, row: Values) -> bool:
        began_at = row[_AT] - row[_SEND["elapsed"]]
        return (
            row[_SEND["outcome"]] is SendOutcome.PRIMARY
            and row[_SEND["attempts"]] == 1
            and not row[_SEND["maybe_duplicate"]]
            and row[_SEND["state"]] is EntityState.HEALTHY
            and began_at > self._changed_at.get((row[_PAIR], row[_ENTITY]), float("-inf"))
        )

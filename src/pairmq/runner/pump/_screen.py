"""What must not be delivered, and what of its time a message takes along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pairmq.core import Diversion, PairOptions, elapsed_time_to_live
from pairmq.model import Entity, Message
from pairmq.runner._clock import Clock
from pairmq.runner.pump._item import Item
from pairmq.transport import Transport


class Poison(NamedTuple):
    """Why a message is dead-lettered."""

    reason: str
    description: str


class Screen:
    """Keeps back messages whatever their destination would say of them (SPEC 5.8, 7.4).

    Args:
        primary: knows its own system entities.
        options: the pair's.
        clock: time.
    """

    def __init__(self, primary: Transport, options: PairOptions, clock: Clock) -> None:
        self._primary = primary
        self._options = options
        self._clock = clock
        self._counts_time = options.ttl_policy != "restore"

    def admits(self, entity: Entity) -> bool:
        """Whether the syphon may deliver there at all."""
        forbidden = self._primary.admin.is_system_entity(entity) or self._options.is_backlog_queue(entity.path)
        return not forbidden and self._options.allows(entity.path)

    def overdue(self, message: Message, diversion: Diversion | None) -> Poison | None:
        """Tell whether a message's time has run out in the backlog, where that counts."""
        left = self._time_left(message, diversion)
        if left is None or left > 0:
            return None
        text = f"its time-to-live of {message.time_to_live} s ran out in the backlog (ttl_policy is 'elapse')"
        return Poison("TTLExpiredException", text)

    def unexpired(self, items: list[Item]) -> tuple[list[Item], list[tuple[Item, Poison]]]:
        """Part those that have time left from those that ran out of it while they were held."""
        if not self._counts_time:
            return items, []
        found = [(item, self.overdue(item.message, item.diversion)) for item in items]
        expired = [(item, poison) for item, poison in found if poison is not None]
        return [item for item, poison in found if poison is None], expired

    def outgoing(self, items: Sequence[Item]) -> list[Message]:
        """The messages as they are sent home, with the time that they have left."""
        if not self._counts_time:
            return [item.message for item in items]
        return [self._shortened(item) for item in items]

    def _shortened(self, item: Item) -> Message:
        left = self._time_left(item.message, item.diversion)
        return item.message if left is None else replace(item.message, time_to_live=max(left, 1e-6))

    def _time_left(self, message: Message, diversion: Diversion | None) -> float | None:
        """Seconds left to live, where the time in the backlog counts; None where it does not."""
        if not self._counts_time or diversion is None:
            return None
        return elapsed_time_to_live(message, diversion, self._clock.instant())

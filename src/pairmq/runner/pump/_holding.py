"""Holding more than a batch for destinations that are away, where order forbids to postpone (SPEC 7.3, 8)."""

from __future__ import annotations

from typing import Final

from pairmq.model import TransportError
from pairmq.runner.pump._intake import Intake
from pairmq.runner.pump._lines import Lines
from pairmq.runner.pump._reader import Reader
from pairmq.transport import Transport

_BATCHES: Final = 10
_MOST: Final = 1000
"""Messages under locks of a minute, and fewer in proportion under shorter ones: each lock costs a renewal in time."""
_BYTES: Final = 16 << 20
"""Of bodies, as each of many backlog queues may hold as much."""


class Holding:
    """Says whether a pump may hold still more, so that it comes to the messages of other destinations.

    What is held keeps its order in its line, and comes again in its order should it be given back; so nothing speaks
    against it but memory, and the renewing of the locks.

    Args:
        intake: where it is in hand.
        lines: where it waits.
        primary: asked whether it is there at all: were it away, no other destination could be served either.
        batch: messages a receive; one is held in any case.
    """

    def __init__(self, intake: Intake, lines: Lines, primary: Transport, batch: int) -> None:
        self._reader = intake.reader
        self._settler = intake.settler
        self._lines = lines
        self._primary = primary
        self._batch = batch

    async def has_room(self) -> bool:
        """Whether one more batch may be received, although one is held."""
        if not self._reader.ordered or self._settler.unsettled >= self._batch:
            return False
        held = [item for line in self._lines.shut for item in line.items]
        if len(held) >= self._most or sum(len(item.message.body) for item in held) >= _BYTES:
            return False
        return await is_there(self._primary, self._reader)

    @property
    def _most(self) -> int:
        lock = self._reader.lock_duration
        return min(_BATCHES * self._batch, _MOST if lock is None else min(_MOST, int(_MOST * lock / 60)))


async def is_there(primary: Transport, reader: Reader) -> bool:
    """Whether the primary as such answers."""
    try:
        await reader.limited(primary.admin.check())
    except TransportError:
        return False
    return True

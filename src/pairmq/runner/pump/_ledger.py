"""What came of each message of a backlog queue: counted, told, and remembered until its completion is confirmed."""

from __future__ import annotations

from collections import OrderedDict

from pairmq.model import Entity, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner.pump._item import Item, Settlement
from pairmq.runner.pump._screen import Poison

_REMEMBERED = 10_000  # messages that came home and may come again, because their completion was lost


class Ledger:
    """Makes the settlements of what was sent, or is not to be sent, and keeps account of them.

    Args:
        queue: the backlog queue.
        clock: time.
        emit: takes events.
    """

    def __init__(self, queue: Entity, clock: Clock, emit: Emitter) -> None:
        self.moved = 0
        self.dead_lettered = 0
        self._queue = queue
        self._clock = clock
        self._emit = emit
        self._home: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def is_home(self, item: Item) -> bool:
        """Whether it came home before and its completion was lost: to send it again would make a second copy."""
        return item.identity in self._home

    def came_home(self, item: Item) -> Settlement:
        """It has come home: until its completion is confirmed, it may come again."""
        self._home[item.identity] = None
        if len(self._home) > _REMEMBERED:
            self._home.popitem(last=False)
        return Settlement(item, self._moved)

    def came_again(self, item: Item) -> Settlement:
        """It was delivered again, and `is_home`."""
        return Settlement(item, self._completed)

    def poison(self, item: Item, path: str | None, poison: Poison) -> Settlement:
        """It is not to be delivered to ``path``; None where the message does not tell its destination."""

        def done(item: Item, error: TransportError | None) -> None:
            if error is not None:
                return  # it comes again, and so does this
            self.dead_lettered += 1
            self._emit.of_message(
                item.message,
                MessageDeadLettered,
                queue=self._queue.path,
                entity=path,
                message_id=item.message.message_id,
                reason=poison.reason,
                description=poison.description,
            )

        return Settlement(item, done, poison.reason, poison.description)

    def _moved(self, item: Item, error: TransportError | None) -> None:
        self.moved += 1
        self._completed(item, error)
        if self._emit.active and item.diversion is not None:
            waited = (self._clock.instant() - item.diversion.diverted_at).total_seconds()
            self._emit.of_message(
                item.message,
                MessageMoved,
                queue=self._queue.path,
                entity=item.diversion.entity,
                message_id=item.message.message_id or "",
                waited=max(0.0, waited),
                maybe_duplicate=item.unknown,
                redelivered=item.delivery.delivery_count > 1,
                completed=error is None,
            )

    def _completed(self, item: Item, error: TransportError | None) -> None:
        if error is None:
            self._home.pop(item.identity, None)

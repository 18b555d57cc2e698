"""How many messages the receivers of this process hold, by broker and queue.

RabbitMQ tells its clients how many messages of a queue wait, and not how many are delivered and unsettled.
"""

from __future__ import annotations

import threading

_lock = threading.Lock()  # transports may live in several threads, each with a loop of its own
_held: dict[tuple[tuple[str, ...], str], int] = {}


def held_by_this_process(identity: tuple[str, ...], queue: str) -> int:
    """Count what receivers of this process hold, given to a caller or not: all transports, loops and threads.

    Args:
        identity: the broker's, as in `Endpoint.identity`.
        queue: the broker's name of the queue.
    """
    with _lock:
        return _held.get((identity, queue), 0)


class Share:
    """What one channel holds of a queue.

    Args:
        identity: the broker's.
        queue: the broker's name of the queue.
    """

    def __init__(self, identity: tuple[str, ...], queue: str) -> None:
        self._key = (identity, queue)
        self._count = 0
        self._released = False

    def change(self, by: int) -> None:
        """Count more, or less."""
        if self._released:
            return
        self._count += by
        self._add(by)

    def release(self) -> None:
        """Hold nothing from now on: the channel is gone, and its messages are the broker's again."""
        if not self._released:
            self._released = True
            self._add(-self._count)

    def _add(self, by: int) -> None:
        with _lock:
            count = _held.get(self._key, 0) + by
            if count:
                _held[self._key] = count
            else:
                _held.pop(self._key, None)

"""How many messages the receivers of this process hold, by broker and queue.

RabbitMQ tells its clients how many messages of a queue wait, and not how many are delivered and unsettled.
"""

from __future__ import annotations

import threading

_lock = threading.Lock()  # transports may live in several threads, each with a loop of its own
_shares: dict[tuple[tuple[str, ...], str], list[Share]] = {}


def held_by_this_process(identity: tuple[str, ...], queue: str) -> int:
    """Count what receivers of this process hold, given to a caller or not: all transports, loops and threads.

    Args:
        identity: the broker's, as in `Endpoint.identity`.
        queue: the broker's name of the queue.
    """
    with _lock:
        return sum(share.count for share in _shares.get((identity, queue), ()))


class Share:
    """What one channel holds of a queue.

    Args:
        identity: the broker's.
        queue: the broker's name of the queue.
    """

    def __init__(self, identity: tuple[str, ...], queue: str) -> None:
        self.count = 0
        """Changed by the channel's own thread alone, for each message that comes and goes; read by any."""
        self._key = (identity, queue)
        with _lock:
            _shares.setdefault(self._key, []).append(self)

    def release(self) -> None:
        """Hold nothing from now on: the channel is gone, and its messages are the broker's again."""
        with _lock:
            shares = _shares.get(self._key, [])
            if self in shares:
                shares.remove(self)
                if not shares:
                    del _shares[self._key]

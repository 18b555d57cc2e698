"""Which backlog queues are in use (SPEC 5.4, 5.5)."""

from __future__ import annotations


class Rotation:
    """The backlog queues of a pair, some of them out of use after a failure; shared by all senders of the pair.

    Queues are named by their index. Instants are seconds of one monotonic clock.

    Args:
        count: how many queues there are, at least 1.
        retry_interval: seconds after which a queue that is out is to be tried again.
    """

    __slots__ = ("_in_use", "_retry_at", "_retry_interval")

    def __init__(self, count: int, retry_interval: float) -> None:
        if count < 1:
            raise ValueError(f"count is {count}: at least 1 backlog queue is needed")
        self._retry_interval = retry_interval
        self._in_use = list(range(count))
        self._retry_at: dict[int, float] = {}

    @property
    def in_use(self) -> tuple[int, ...]:
        """The queues in use, by index."""
        return tuple(self._in_use)

    @property
    def out(self) -> tuple[int, ...]:
        """The queues out of use, by index."""
        return tuple(sorted(self._retry_at))

    def choose(self, kept: int | None, chance: float) -> int | None:
        """Choose the queue for a sender: the one it kept while that is in use, else one at random (SPEC 5.4).

        Args:
            kept: the sender's queue so far, None if it has none yet.
            chance: a random number in [0, 1).

        Returns:
            A queue in use; None when none is left.
        """
        if kept is not None and kept not in self._retry_at:
            return kept
        if not self._in_use:
            return None
        return self._in_use[int(chance * len(self._in_use))]

    def take_out(self, index: int, now: float) -> bool:
        """Take a queue that failed out of use, for all senders; its retry is due one interval from now.

        Args:
            index: which queue.
            now: when it failed.

        Returns:
            True when it was in use until now. A failure of a queue that is out already does not postpone its retry.
        """
        if index in self._retry_at:
            return False
        self._in_use.remove(index)
        self._retry_at[index] = now + self._retry_interval
        return True

    def put_back(self, index: int) -> bool:
        """Bring a queue back that works again; True when it was out."""
        if self._retry_at.pop(index, None) is None:
            return False
        self._in_use.append(index)
        self._in_use.sort()
        return True

    def due(self, now: float) -> tuple[int, ...]:
        """Tell which queues are to be tried now, and plan their next retry in case they fail again."""
        ready = tuple(sorted(index for index, at in self._retry_at.items() if at <= now))
        for index in ready:
            self._retry_at[index] = now + self._retry_interval
        return ready

    def next_deadline(self) -> float | None:
        """Tell when the next retry is due; None when all queues are in use."""
        return min(self._retry_at.values(), default=None)

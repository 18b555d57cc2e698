"""Which backlog queues are in use (SPEC 5.4, 5.5)."""

from __future__ import annotations

import enum
from typing import Protocol

from pairmq.core.backoff import TRIALS

_LANE_RETRY = 1.0
"""Seconds until the first retry of a lane, each further one after twice as long: consumers read no other queue."""


class Missing(enum.Enum):
    """What is to be done about a queue that a send did not find (SPEC 5.5)."""

    MADE = "it was made meanwhile: send once more"
    MAKE = "make it, and send once more"
    AGAIN = "it vanished again: leave it to its next retry"


DROPS = "drops messages that it has accepted when it is full"
"""Why a queue is unfit that an operator can make fit while the pair runs."""


class QueueKind(Protocol):
    """What a queue is, as its broker reports it."""

    @property
    def keeps_completed(self) -> bool: ...
    @property
    def forwards_to(self) -> str | None: ...
    @property
    def drops_duplicates(self) -> bool: ...
    @property
    def requires_session(self) -> bool: ...
    @property
    def single_consumer(self) -> bool: ...
    @property
    def drops_when_full(self) -> bool: ...


def unfit(queue: QueueKind, *, ordered: bool) -> str | None:
    """Why a queue that exists can't be a backlog queue, one that is ``ordered`` maybe (SPEC 5.3); None when it can."""
    if queue.keeps_completed:
        return "keeps messages that are completed, so that none would ever be moved"
    if queue.forwards_to is not None:
        return f"forwards its messages to {queue.forwards_to}, so that none would ever be moved"
    if queue.drops_duplicates:
        return "drops messages with an id that it has seen, although they are for different entities"
    if queue.requires_session:
        return "requires sessions, and diverted messages have none"
    if ordered and not queue.single_consumer:
        return "can be read by several consumers at once, and ordering='session' needs one at a time"
    return DROPS if queue.drops_when_full else None


class Out:
    """A queue out of use: when it is to be tried again, in the background and by a send."""

    __slots__ = ("failed_trials", "in_trial", "retries", "retry_at", "trial_at")

    def __init__(self, retry_at: float, trial_at: float) -> None:
        self.retry_at = retry_at
        self.trial_at = trial_at
        self.failed_trials = 0
        self.in_trial = False
        self.retries = 0


class Rotation:
    """The backlog queues of a pair, some of them out of use after a failure; shared by all senders of the pair.

    Queues are named by their index. The shared ones come first; each further one is a lane, which only the sends of its
    queue use, and before any other (SPEC 11.2). Instants are seconds of one monotonic clock, and so is
    ``retry_interval``, after which a queue that is out is to be tried again; a lane sooner at first.
    """

    __slots__ = ("_created_at", "_in_use", "_lanes", "_missing", "_out", "_retry_interval", "_shared")

    def __init__(self, count: int, retry_interval: float) -> None:
        if count < 1:
            raise ValueError(f"count is {count}: at least 1 backlog queue is needed")
        self._retry_interval = retry_interval
        self._shared = count
        self._lanes = 0
        self._in_use = list(range(count))
        self._out: dict[int, Out] = {}
        self._missing: set[int] = set()
        self._created_at: dict[int, float] = {}

    def add_lane(self) -> int:
        """Add a lane, in use; returns its index."""
        self._lanes += 1
        return self._shared + self._lanes - 1

    @property
    def lanes_in_use(self) -> tuple[int, ...]:
        """The lanes in use, by index."""
        return tuple(index for index in range(self._shared, self._shared + self._lanes) if index not in self._out)

    @property
    def in_use(self) -> tuple[int, ...]:
        """The shared queues in use, by index."""
        return tuple(self._in_use)

    @property
    def out(self) -> tuple[int, ...]:
        """The queues out of use, lanes too, by index."""
        return tuple(sorted(self._out))

    def takes(self, only: int | None = None, lane: int | None = None) -> bool:
        """Return whether any shared queue, a send's lane, or the only one that it may use, is in use."""
        if only is not None:
            return only not in self._out
        return bool(self._in_use) or (lane is not None and lane not in self._out)

    def take_out(self, index: int, now: float, chance: float = 0.0, *, missing: bool = False) -> bool:
        """Take a queue that failed out of use, for all senders, and plan its retry: of one that is ``missing`` at once,
        unless it vanishes again.

        True when it was in use until now. A failure of a queue that is out already does not postpone its retry.
        """
        soon = missing and self.missing(index, now)
        if index in self._out:
            return False
        if index < self._shared:
            self._in_use.remove(index)
        self._out[index] = Out(now if soon else now + self._pause(index, 0), now + TRIALS.wait(0, chance))
        return True

    def put_back(self, index: int) -> bool:
        """Bring a queue back that works again; True when it was out."""
        if self._out.pop(index, None) is None:
            return False
        if index < self._shared:
            self._in_use.append(index)
            self._in_use.sort()
        return True

    def tried(self, *, trials: bool) -> tuple[int, ...]:
        """The shared queues that a send would try, with ``trials`` those out of use where no other is left."""
        if self._in_use or not trials:
            return self.in_use
        return tuple(index for index in self.out if index < self._shared)

    # Probing sends: a send with no queue in use tries one itself (SPEC 5.5).

    def trial(self, now: float, only: int | None = None, lane: int | None = None) -> int | None:
        """Name the queue that a send may try now, of all, or ``only`` that one: one that is out, that no other send
        tries, and that has waited longest; None when the send has to wait."""
        indexes = self._out if only is None else (only,)
        due = [
            (out.trial_at, index)
            for index in indexes
            if (index < self._shared or index in (lane, only))
            and (out := self._out.get(index)) is not None
            and not out.in_trial
            and out.trial_at <= now
        ]
        return min(due)[1] if due else None

    def attempt(
        self,
        now: float,
        chance: float,
        kept: int | None = None,
        only: int | None = None,
        lane: int | None = None,
        *,
        trials: bool = True,
    ) -> tuple[int | None, bool]:
        """Choose the queue of one attempt, the ``lane`` before any other (SPEC 11.2): the one that its sender ``kept``
        while that is in use, else one at random (SPEC 5.4); with none in use, and with ``trials``, register the trial
        of one that is out. None when the send has to wait; and whether it is a trial, to be ended by `end_trial`."""
        if lane is not None and lane not in self._out:
            return lane, False
        if only is not None:
            if only not in self._out:
                return only, False
        elif kept is not None and kept not in self._out:
            return kept, False
        elif self._in_use:
            return self._in_use[int(chance * len(self._in_use))], False
        index = self.trial(now, only, lane) if trials else None
        if index is not None:
            self.begin_trial(index)
        return index, index is not None

    def begin_trial(self, index: int) -> None:
        """A send tries a queue that is out: no other one does meanwhile."""
        self._out[index].in_trial = True

    def end_trial(self, index: int, now: float, chance: float, *, works: bool | None) -> bool:
        """The probing send has ended, perhaps without a result: then the next send tries. A queue that was brought back
        meanwhile is left as it is.

        True if the queue is back in use by it. The others are then due for a retry: what failed together most likely
        comes back together.
        """
        if works:
            self.hasten(now)
            return self.put_back(index)
        out = self._out.get(index)
        if out is not None:
            out.in_trial = False
            if works is False:
                out.failed_trials += 1
                out.trial_at = now + TRIALS.wait(out.failed_trials, chance)
        return False

    def try_soon(self, now: float, chance: float) -> bool:
        """A send was refused for lack of a queue: let the retry of one be due now, at most as often as sends would try;
        whether it is."""
        index = self.trial(now)
        if index is None:
            return False
        self.end_trial(index, now, chance, works=False)
        self.hasten(now, index)
        return True

    # Queues that do not exist any more (SPEC 5.5).

    def missing(self, index: int, now: float) -> bool:
        """Record that a queue does not exist; return whether to create it at once: not one that vanishes again."""
        self._missing.add(index)
        created_at = self._created_at.get(index)
        return created_at is None or now - created_at >= self._retry_interval

    def not_found(self, index: int, began_at: float, now: float) -> Missing:
        """A send that began at an instant did not find a queue."""
        created_at = self._created_at.get(index)
        if created_at is not None and created_at >= began_at:
            return Missing.MADE
        return Missing.MAKE if self.missing(index, now) else Missing.AGAIN

    def created(self, index: int, now: float) -> None:
        """A queue exists; of one that was missing, this is the instant from which it does."""
        if index in self._missing:
            self._missing.discard(index)
            self._created_at[index] = now

    # Retries, in the background.

    def hasten(self, now: float, only: int | None = None) -> None:
        """Let the retry of a queue that is out, or of every one, be due now."""
        for index, out in self._out.items():
            if only in (None, index):
                out.retry_at = now

    def due(self, now: float) -> tuple[int, ...]:
        """Return which queues to try now, and plan their next retry in case they fail again."""
        ready = tuple(sorted(index for index, out in self._out.items() if out.retry_at <= now))
        for index in ready:
            out = self._out[index]
            out.retries += 1
            out.retry_at = now + self._pause(index, out.retries)
        return ready

    def next_deadline(self) -> float | None:
        """Return when the next retry is due; None when all queues are in use."""
        return min((out.retry_at for out in self._out.values()), default=None)

    def _pause(self, index: int, retries: int) -> float:
        """Seconds from a failure to the next retry."""
        if index < self._shared:
            return self._retry_interval
        return min(self._retry_interval, _LANE_RETRY * 2.0 ** min(retries, 20))

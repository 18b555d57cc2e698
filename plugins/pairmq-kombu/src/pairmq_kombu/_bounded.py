"""What a process remembers of many queues and exchanges, of which it keeps the ones it uses.

A program that publishes to a queue for each customer or each reply runs for months: whatever it keeps for each has an
end. The locks are held for some dictionary steps, and never across a call of a broker.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

from pairmq import Entity
from pairmq.sync import PairSender

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MOST_SENDERS: Final = 1000
MOST_EXCHANGES: Final = 10_000
MOST_POSTPONED: Final = 10_000
MOST_HANDLED: Final = 10_000


class Recent(Generic[K, V]):
    """A mapping that forgets what was not used for the longest time; safe to share between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Look something up, which counts as using it."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._most:
                self._entries.popitem(last=False)

    def after_fork(self) -> None:
        """In the child: a thread that is not there may have held the lock."""
        self._lock = threading.Lock()


class Postponed:
    """Declarations that wait for the primary, each once; safe to share between threads.

    A full one takes no more, rather than forget any: a queue that is never declared costs the messages that the backlog
    has for it a way round through the dead letters.
    """

    def __init__(self, most: int = MOST_POSTPONED) -> None:
        self._most = most
        self._waiting: dict[str, tuple[str, dict[str, Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, method: str, arguments: dict[str, Any]) -> bool:
        """Let a declaration wait."""
        key = f"{method}{sorted(arguments.items(), key=str)}"
        if key not in self._waiting and len(self._waiting) >= self._most:
            return False
        self._waiting[key] = (method, arguments)
        return True

    def all(self) -> list[tuple[str, tuple[str, dict[str, Any]]]]:
        """All that wait, the oldest first, each with what `made` wants to hear."""
        return list(self._waiting.items())

    def made(self, key: str) -> None:
        """One was made, or was refused for good."""
        self._waiting.pop(key, None)


class Senders:
    """The senders of one pair, of which those that send stay; safe to share between threads."""

    def __init__(self, make: Callable[[Entity], PairSender], most: int = MOST_SENDERS) -> None:
        self._make = make
        self._most = most
        self._kept: OrderedDict[Entity, _Kept] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @contextmanager
    def using(self, entity: Entity) -> Iterator[PairSender]:
        """Lend the sender to an entity; it is not closed meanwhile."""
        kept = self._lend(entity)
        if kept is None:
            made = self._make(entity)  # asks the pair's thread, and so not under the lock
            kept = self._lend_or_keep(entity, made)
            if kept.sender is not made:  # another thread was quicker
                made.close()
        try:
            yield kept.sender
        finally:
            for idle in self._take_back(kept):
                idle.close()

    def after_fork(self) -> None:
        """In the child: its threads are not there, and what they had borrowed is idle."""
        self._lock = threading.Lock()
        for kept in self._kept.values():
            kept.users = 0

    def _lend(self, entity: Entity) -> _Kept | None:
        with self._lock:
            kept = self._kept.get(entity)
            if kept is not None:
                self._kept.move_to_end(entity)
                kept.users += 1
            return kept

    def _lend_or_keep(self, entity: Entity, made: PairSender) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(entity, _Kept(made))
            kept.users += 1
            return kept

    def _take_back(self, kept: _Kept) -> list[PairSender]:
        """End one use; gives the senders that are over the limit and idle, forgotten already."""
        with self._lock:
            kept.users -= 1
            over = len(self._kept) - self._most
            idle = [entity for entity, each in self._kept.items() if not each.users][:over] if over > 0 else []
            return [self._kept.pop(entity).sender for entity in idle]


class _Kept:
    __slots__ = ("sender", "users")

    def __init__(self, sender: PairSender) -> None:
        self.sender = sender
        self.users = 0

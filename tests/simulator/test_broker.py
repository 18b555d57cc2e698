"""The simulator's broker: what it notes of each copy, and whom it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from history_by_hand import ORDERS, Book
from pairmq.memory import Queue
from pairmq.model import Message
from pairmq.testing.simulator._broker import Broker, Poll
from pairmq.transport import QueueProperties


class Clock:
    """A loop's time, which a test sets, and what was to happen later."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def later(self, delay: float, act: Callable[..., None], *arguments: Any) -> None:
        self._due.append((self.now + delay, act, arguments))

    def run(self) -> None:
        """Do what is due by now."""
        due = [each for each in self._due if each[0] <= self.now]
        for each in due:
            self._due.remove(each)
            each[1](*each[2])


class World:
    """A broker with one message in one queue."""

    def __init__(self, *, time_to_live: float | None = None, **settings: Any) -> None:
        self.clock, self.history = Clock(), Book().history
        self.broker = Broker("secondary", self.clock, self.history)  # type: ignore[arg-type]
        self.broker.create(ORDERS, QueueProperties(**settings))
        self.copy = self.broker.store(ORDERS, Message(b"m00000001", message_id="id-1", time_to_live=time_to_live), None)
        self.queue: Queue = self.broker.queues[ORDERS]
        self.answered: list[str] = []

    def poll(self, holder: str) -> None:
        poll = Poll(holder, f"{holder}/1", False, 1, lambda found: self.answered.append(holder), lambda: True)
        self.broker.poll(self.queue, poll)


@pytest.mark.parametrize("look", [Broker.counts, Broker.positions])
def test_a_poll_is_answered_when_a_lock_ends_at_the_instant_of_a_count(look: Callable[[Broker, Queue], object]) -> None:
    world = World(lock_duration=30.0)
    world.poll("a")
    world.poll("s")
    assert world.answered == ["a"]
    world.clock.now = 30.0
    look(world.broker, world.queue)
    world.clock.run()
    assert world.answered == ["a", "s"]


@pytest.mark.parametrize("dead_lettered", [True, False])
def test_an_expired_copy_is_noted_as_expired(dead_lettered: bool) -> None:
    world = World(time_to_live=1.0, dead_letter_on_expiration=dead_lettered)
    world.clock.now = 5.0
    world.poll("a")
    assert (world.copy.gone, world.copy.gone_at, world.answered) == ("expired", 5.0, [])


def test_a_copy_is_noted_as_dead_lettered_with_its_reason_when_it_is_worn_out() -> None:
    world = World(max_delivery_count=1, lock_duration=1.0)
    world.poll("a")
    world.clock.now = 2.0
    world.clock.run()
    world.poll("a")
    assert (world.copy.gone, world.copy.reason) == ("dead-lettered", "max-delivery-count")

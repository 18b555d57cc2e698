"""Hands events to the observers, without letting them disturb a send (SPEC 10.1)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pairmq.model import Message
from pairmq.model.events import AttemptFailed, Event, MessageDelivered, MessageMoved, SendCompleted
from pairmq.runner._clock import Clock

_log = logging.getLogger("pairmq")

FAILURES: Final = (Exception, asyncio.CancelledError)
"""What an observer may raise without disturbing anything.

No caller cancels a task in the midst of a call that awaits nothing: an observer that raises `CancelledError` has asked
another task's future, and must not make a send look cancelled that was accepted.
"""

_PER_MESSAGE = frozenset((SendCompleted, AttemptFailed, MessageMoved, MessageDelivered))

Sink = Callable[[Event], None]
Follower = Callable[[Event, Message], None]


class Emitter:
    """Makes events and gives each to every sink."""

    def __init__(self, pair: str, clock: Clock) -> None:
        self.pair = pair
        self.active = False
        """Whether an observer wants events of single messages; the hot path asks before it makes one."""
        self._clock = clock
        self._sinks: tuple[Sink, ...] = ()
        self._message_sinks: tuple[Sink, ...] = ()  # those of them that want events of single messages
        self._followers: tuple[Follower, ...] = ()
        self._reported: set[int] = set()
        self._waiting: deque[tuple[Event, Message | None]] = deque()
        self._handing_out = False

    def add(self, sink: Sink, *, per_message: bool = True, follower: Follower | None = None) -> None:
        """Give ``sink`` every event from now on, or all but those of single messages; ``follower`` takes those with
        their messages."""
        if follower is not None:
            self._followers = (*self._followers, follower)
        self._sinks = (*self._sinks, sink)
        if per_message:
            self._message_sinks = (*self._message_sinks, sink)
            self.active = True

    def remove(self, sink: Sink) -> None:
        """Give ``sink`` no more events."""
        self._sinks = tuple(known for known in self._sinks if known != sink)
        self._message_sinks = tuple(known for known in self._message_sinks if known != sink)
        self.active = bool(self._message_sinks)

    def has(self, sink: Sink) -> bool:
        """Whether ``sink`` gets events of single messages."""
        return sink in self._message_sinks

    def __call__(self, kind: type[Event], message: Message | None = None, /, **values: Any) -> None:
        """Make an event of now and hand it out: one of what became of a message with that, where it is at hand."""
        if self._sinks:
            self.hand_out(kind(at=self._clock.wall(), pair=self.pair, **values), message)

    def hand_out(self, event: Event, message: Message | None = None) -> None:
        """Give an event to every sink that wants it; with its message to those who follow messages, too."""
        self._waiting.append((event, message))
        if self._handing_out:
            return  # a sink has caused this event: each sink gets all events in the order in which they happened
        self._handing_out = True
        try:
            while self._waiting:
                event, message = self._waiting.popleft()
                sinks = self._message_sinks if type(event) in _PER_MESSAGE else self._sinks
                for sink in sinks:
                    try:
                        sink(event)
                    except FAILURES:
                        self.report(sink)
                if message is not None and sinks:
                    for follower in self._followers:
                        try:
                            follower(event, message)
                        except FAILURES:
                            self.report(follower)
        finally:
            self._handing_out = False

    def report(self, sink: object) -> None:
        """Say, where it is caught, that an observer fails: once for each, as a log must not be filled in an outage."""
        if id(sink) not in self._reported:
            self._reported.add(id(sink))
            _log.exception("an observer failed; its further failures are not reported: %r", sink)

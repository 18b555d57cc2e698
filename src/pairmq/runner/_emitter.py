"""Hands events to the observers, without letting them disturb a send (SPEC 10.1)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from pairmq.model import Message
from pairmq.model.events import AttemptFailed, Event, MessageDelivered, MessageMoved, SendCompleted
from pairmq.model.records import Values, event_from
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
    """Makes events and gives each to every sink.

    Args:
        pair: the pair's name, for every event.
        clock: time.
    """

    def __init__(self, pair: str, clock: Clock) -> None:
        self.pair = pair
        self.active = False
        """Whether an observer wants events of single messages; the hot path asks before it makes one."""
        self._clock = clock
        self._sinks: tuple[Sink, ...] = ()
        self._message_sinks: tuple[Sink, ...] = ()
        self._send_sinks: tuple[Sink, ...] = ()
        self._values_sinks: tuple[Callable[[Values], None], ...] = ()
        self._followers: tuple[Follower, ...] = ()
        self._reported: set[int] = set()
        self._waiting: deque[tuple[tuple[Callable[..., None], ...], tuple[Any, ...]]] = deque()
        self._handing_out = False

    def add(
        self,
        sink: Sink,
        *,
        per_message: bool = True,
        values: Callable[[Values], None] | None = None,
        follower: Follower | None = None,
    ) -> None:
        """Give ``sink`` every event from now on, or all but those of single messages.

        Args:
            sink: takes events.
            per_message: also those of single messages.
            values: takes the values of every `SendCompleted` in the place of ``sink``. To make that event costs more
                than all else that is done for it, and there is one for every send.
            follower: takes what `of_message` hands out, with its message, besides ``sink``.
        """
        if follower is not None:
            self._followers = (*self._followers, follower)
        self._sinks = (*self._sinks, sink)
        if not per_message:
            return
        self._message_sinks = (*self._message_sinks, sink)
        self.active = True
        if values is None:
            self._send_sinks = (*self._send_sinks, sink)
        else:
            self._values_sinks = (*self._values_sinks, values)

    def remove(self, sink: Sink) -> None:
        """Give ``sink`` no more events; not for one that was added with ``values``."""
        self._sinks = tuple(known for known in self._sinks if known != sink)
        self._message_sinks = tuple(known for known in self._message_sinks if known != sink)
        self._send_sinks = tuple(known for known in self._send_sinks if known != sink)
        self.active = bool(self._message_sinks)

    def has(self, sink: Sink) -> bool:
        """Whether ``sink`` gets events of single messages."""
        return sink in self._message_sinks

    def __call__(self, kind: type[Event], /, **values: Any) -> None:
        """Make an event of now and hand it out."""
        sinks = self._message_sinks if kind in _PER_MESSAGE else self._sinks
        if sinks:
            self._waiting.append((sinks, (kind(at=self._clock.wall(), pair=self.pair, **values),)))
            self._hand_out_all()

    def of_message(self, message: Message, kind: type[Event], /, **values: Any) -> None:
        """The same for what became of a message that is at hand, for those too who follow messages."""
        sinks = self._message_sinks if kind in _PER_MESSAGE else self._sinks
        if sinks:
            event = kind(at=self._clock.wall(), pair=self.pair, **values)
            self._waiting.append((sinks, (event,)))
            if self._followers:
                self._waiting.append((self._followers, (event, message)))
            self._hand_out_all()

    def send_completed(self, values: Values) -> None:
        """Hand out a `SendCompleted`, given by its values; only for those who want it the event itself is made."""
        if not self._handing_out and not self._send_sinks:
            # The usual case with a journal, and every send's: nothing waits, and nothing is put in line.
            self._handing_out = True
            try:
                for sink in self._values_sinks:
                    try:
                        sink(values)
                    except FAILURES:
                        self.report(sink)
            finally:
                self._handing_out = False
            if self._waiting:  # a taker has caused events
                self._hand_out_all()
            return
        if self._values_sinks:
            self._waiting.append((self._values_sinks, (values,)))
        if self._send_sinks:
            self._waiting.append((self._send_sinks, (event_from(values),)))
        self._hand_out_all()

    def _hand_out_all(self) -> None:
        if self._handing_out:
            return  # a sink has caused this event: each sink gets all events in the order in which they happened
        self._handing_out = True
        try:
            while self._waiting:
                self._hand_out(*self._waiting.popleft())
        finally:
            self._handing_out = False

    def _hand_out(self, sinks: tuple[Callable[..., None], ...], arguments: tuple[Any, ...]) -> None:
        for sink in sinks:
            try:
                sink(*arguments)
            except FAILURES:
                self.report(sink)

    def report(self, sink: object) -> None:
        """Say, where it is caught, that an observer fails: once for each, as a log must not be filled in an outage."""
        if id(sink) not in self._reported:
            self._reported.add(id(sink))
            _log.exception("an observer failed; its further failures are not reported: %r", sink)

"""Hands events to whoever watches, without letting them disturb a send (SPEC 10.1)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from pairmq.model.events import AttemptFailed, Event, MessageMoved, SendCompleted
from pairmq.runner._clock import Clock

_log = logging.getLogger("pairmq")

_PER_MESSAGE = frozenset((SendCompleted, AttemptFailed, MessageMoved))


class Emitter:
    """Makes events and gives each to every sink.

    Args:
        pair: the pair's name, for every event.
        clock: tells the instants.
    """

    def __init__(self, pair: str, clock: Clock) -> None:
        self.pair = pair
        self._clock = clock
        self._sinks: tuple[Callable[[Event], None], ...] = ()
        self._message_sinks: tuple[Callable[[Event], None], ...] = ()
        self._reported: set[int] = set()
        self._waiting: deque[tuple[tuple[Callable[[Event], None], ...], Event]] = deque()
        self._handing_out = False

    @property
    def active(self) -> bool:
        """Whether anyone wants events of single messages; the hot path asks before it makes one."""
        return bool(self._message_sinks)

    def add(self, sink: Callable[[Event], None], *, per_message: bool = True) -> None:
        """Give ``sink`` every event from now on, or all but those of single messages."""
        self._sinks = (*self._sinks, sink)
        if per_message:
            self._message_sinks = (*self._message_sinks, sink)

    def remove(self, sink: Callable[[Event], None]) -> None:
        """Give ``sink`` no more events."""
        self._sinks = tuple(known for known in self._sinks if known != sink)
        self._message_sinks = tuple(known for known in self._message_sinks if known != sink)

    def __call__(self, kind: type[Event], /, **values: Any) -> None:
        """Make an event of now and hand it out."""
        sinks = self._message_sinks if kind in _PER_MESSAGE else self._sinks
        if not sinks:
            return
        self._waiting.append((sinks, kind(at=self._clock.wall(), pair=self.pair, **values)))
        if self._handing_out:
            return  # a sink has caused this event: each sink gets all events in the order in which they happened
        self._handing_out = True
        try:
            while self._waiting:
                self._hand_out(*self._waiting.popleft())
        finally:
            self._handing_out = False

    def _hand_out(self, sinks: tuple[Callable[[Event], None], ...], event: Event) -> None:
        for sink in sinks:
            try:
                sink(event)
            except Exception:
                # Once for each observer: one that always fails must not fill the log in an outage.
                if id(sink) not in self._reported:
                    self._reported.add(id(sink))
                    _log.exception("an observer failed; its further failures are not reported: %r", sink)

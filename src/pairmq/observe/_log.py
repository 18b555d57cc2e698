"""Events as log lines of the standard library's logger ``pairmq``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, defaultdict
from dataclasses import fields

from pairmq.model import EntityState
from pairmq.model.events import (
    AttemptFailed,
    DestinationChanged,
    Event,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    OperationsCounted,
    PairEnded,
    PingCompleted,
    ReceiverChanged,
    RotationChanged,
    SendCompleted,
    StateChanged,
    SyphonFailed,
    Warned,
)

# All others are information.
_LEVELS: dict[type[Event], int] = {
    StateChanged: logging.WARNING,
    RotationChanged: logging.WARNING,
    MessageDeadLettered: logging.WARNING,
    DestinationChanged: logging.WARNING,
    ReceiverChanged: logging.WARNING,
    SyphonFailed: logging.WARNING,
    Warned: logging.WARNING,
    AttemptFailed: logging.DEBUG,
    SendCompleted: logging.DEBUG,
    MessageMoved: logging.DEBUG,
    MessageDelivered: logging.DEBUG,
    OperationsCounted: logging.DEBUG,
}
# What is in the logger's own fields, or on every line alike.
_LEFT_OUT = frozenset(("at", "pair"))
# What each entity has alike when its broker fails, and the field that says what happened to it.
_OF_ENTITIES: dict[type[Event], str] = {StateChanged: "current", PingCompleted: "ok", DestinationChanged: "open"}
_MOST = 10  # lines of these, of one kind, in a second
_SECOND = 1.0  # s
_RETURNED = 60.0  # s for which a backlog queue is in use before it counts as one that has returned


class _Queue:
    """What the log has of a backlog queue that was out of use."""

    def __init__(self) -> None:
        self.error: str | None = None
        self.returned_at = -math.inf
        self.again = False  # it has left soon after its return, for the same reason
        self.timer: asyncio.TimerHandle | None = None


class LogObserver:
    """Writes each event as one line ``StateChanged entity=orders previous=healthy …``.

    Changes for the worse, lost queues, faults, dead-letters and warnings are warnings; recoveries, pings and closes are
    information; what happens to single messages is a debug line each.

    A pair may send to thousands of entities, which fail and recover together. Of state changes, pings and destinations
    of one kind a second has ten lines, and a last one with the number of the others; those are debug lines.

    So are the changes of a backlog queue that leaves after each return for the same reason, since a retry found its
    broker well and the next send fails: from the second time on, until it has been in use for a minute.

    Args:
        logger: where to write; the logger ``pairmq`` when left out.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("pairmq")
        self._began = 0.0
        self._lines: Counter[tuple[str, ...]] = Counter()  # of this second
        self._others: dict[tuple[str, ...], tuple[int, str]] = {}  # level, and the last entity of those without a line
        self._timer: asyncio.TimerHandle | None = None
        self._queues: dict[tuple[str, str], _Queue] = defaultdict(_Queue)

    def on_event(self, event: Event) -> None:
        """Write one line, or count the event where its kind has had its lines of this second."""
        kind = type(event)
        level = _LEVELS.get(kind, logging.INFO)
        if _is_recovery(event):
            level = logging.INFO
        elif isinstance(event, PairEnded) and event.fault is not None:
            level = logging.WARNING  # a program that only hosts a syphon has no other sign of it
        if isinstance(event, RotationChanged):
            level = self._level_of_queue(event, level)
        if not self._logger.isEnabledFor(level):
            return
        if kind not in _OF_ENTITIES or self._has_line(event, level):
            self._write(level, describe(event), kind.__name__)
        elif self._logger.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, describe(event), kind.__name__)

    async def close(self) -> None:
        """Write the numbers of events without a line."""
        self._end_second()
        for queue in self._queues.values():
            if queue.timer is not None:
                queue.timer.cancel()

    def _level_of_queue(self, event: RotationChanged, level: int) -> int:
        queue = self._queues[event.pair, event.queue]
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        if not event.in_use:
            again = 0 <= event.at - queue.returned_at < _RETURNED and event.error == queue.error
            known, queue.again, queue.error = again and queue.again, again, event.error
            return logging.DEBUG if known else level
        queue.returned_at = event.at
        if not queue.again:
            return level
        with contextlib.suppress(RuntimeError):  # no running loop: the line is left out
            line = (level, describe(event), type(event).__name__)
            queue.timer = asyncio.get_running_loop().call_later(_RETURNED, self._write, *line)
        return logging.DEBUG

    def _has_line(self, event: Event, level: int) -> bool:
        if not 0 <= event.at - self._began < _SECOND:  # a wall clock may be set back
            self._end_second()
            self._began = event.at
        name = _OF_ENTITIES[type(event)]
        kind = (type(event).__name__, event.pair, f"{name}={getattr(event, name)}")
        self._lines[kind] += 1
        if self._lines[kind] <= _MOST:
            return True
        self._others[kind] = (level, _text(getattr(event, "entity", "")))
        if self._timer is None:
            with contextlib.suppress(RuntimeError):  # no running loop: the next event writes it
                self._timer = asyncio.get_running_loop().call_later(_SECOND, self._end_second)
        return False

    def _end_second(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, Counter()
        others, self._others = self._others, {}
        for kind, (level, last) in others.items():
            event, _, what = kind
            more = lines[kind] - _MOST
            self._write(level, f"{event} {what} {more} more times within a second, last of {last}", event)

    def _write(self, level: int, text: str, event: str) -> None:
        # The field lets a handler distinguish events from PairMQ's other log records.
        self._logger.log(level, "%s", text, extra={"pairmq_event": event})


def _is_recovery(event: Event) -> bool:
    if isinstance(event, StateChanged):
        return event.current in (EntityState.HEALTHY, EntityState.DRAINING)
    return (isinstance(event, DestinationChanged | ReceiverChanged) and event.open) or (
        isinstance(event, RotationChanged) and event.in_use
    )


def describe(event: Event) -> str:
    """Write an event as its name and its fields; control characters of foreign text are escaped."""
    parts = [type(event).__name__]
    for entry in fields(event):
        value = getattr(event, entry.name)
        if entry.name in _LEFT_OUT or value is None or value == ():
            continue
        parts.append(f"{entry.name}={value:.3f}" if isinstance(value, float) else f"{entry.name}={_text(value)}")
    return " ".join(parts)


def _text(value: object) -> str:
    text = str(value)
    return repr(text) if " " in text or not text.isprintable() else text

"""Events as log lines of the standard library's logger ``pairmq``."""

from __future__ import annotations

import logging
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


class LogObserver:
    """Writes each event as one line ``StateChanged entity=orders previous=healthy …``.

    Changes for the worse, lost queues, dead-letters and warnings are warnings; recoveries, pings and closes are
    information; what happens to single messages is a debug line each.

    Args:
        logger: where to write; the logger ``pairmq`` when left out.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("pairmq")

    def on_event(self, event: Event) -> None:
        """Write one line."""
        level = _LEVELS.get(type(event), logging.INFO)
        if _is_recovery(event):
            level = logging.INFO
        if self._logger.isEnabledFor(level):
            # The field lets a handler distinguish events from PairMQ's other log records.
            self._logger.log(level, "%s", describe(event), extra={"pairmq_event": type(event).__name__})

    async def close(self) -> None:
        """Nothing is held back."""


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
        if isinstance(value, float):
            text = f"{value:.3f}"
        else:
            text = str(value)
            if " " in text or not text.isprintable():
                text = repr(text)
        parts.append(f"{entry.name}={text}")
    return " ".join(parts)

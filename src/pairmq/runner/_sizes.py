"""Whether messages fit into the backlog (SPEC 3.8)."""

from __future__ import annotations

from pairmq.core import Diversion, divert
from pairmq.model import Entity, Message
from pairmq.model.events import Warned
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import Transport

_HEADROOM = 0.8  # share of the limit from which a warning names the rest
_ENVELOPE = 4096  # bytes that an envelope surely needs less than; a cheap first look before the exact measure


class BacklogSizes:
    """Compares backlog forms with the secondary's limit, and warns, once per entity, while all is well.

    Args:
        secondary: tells its limit and measures.
        clock: for a trial envelope.
        emit: takes the warnings.
    """

    def __init__(self, secondary: Transport, clock: Clock, emit: Emitter) -> None:
        self._secondary = secondary
        self._clock = clock
        self._emit = emit
        self._warned: set[Entity] = set()

    def problem(self, envelope: Message) -> str | None:
        """Say why a backlog form does not fit; None when it does."""
        limit = self._secondary.capabilities.max_message_bytes
        if limit is None:
            return None
        size = self._secondary.measure(envelope)
        if size <= limit:
            return None
        return f"its backlog form has {size} bytes, the secondary takes {limit}: make it smaller"

    def look(self, entity: Entity, message: Message) -> None:
        """Warn if a message that the primary has just taken would have little or no room in the backlog."""
        limit = self._secondary.capabilities.max_message_bytes
        if limit is None:
            return
        if not message.application_properties and len(message.body) < _HEADROOM * limit - _ENVELOPE:
            return
        if entity in self._warned:
            return
        size = self._secondary.measure(divert(message, Diversion(entity, self._clock.instant(), "x" * 32, 10**9, True)))
        if size <= _HEADROOM * limit:
            return
        self._warned.add(entity)
        left = limit - size
        room = f"{left} bytes of headroom are left" if left >= 0 else "it would be refused in an outage"
        text = f"a message of {size} bytes in its backlog form nears the secondary's limit of {limit}: {room}"
        self._emit(Warned, subject=str(entity), text=text)

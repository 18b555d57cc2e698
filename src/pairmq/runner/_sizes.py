"""Whether both brokers can hold a message (SPEC 3.8)."""

from __future__ import annotations

import math

from pairmq.core import Diversion, divert
from pairmq.model import Entity, Message, TransportError
from pairmq.model.events import Warned
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.transport import Transport

_HEADROOM = 0.8  # share of the limit from which a warning names the rest
_ENVELOPE = 4096  # bytes that an envelope surely needs less than; a cheap first look before the exact measure
_MOST_WARNED = 10_000  # entities; the same of ever more of them would fill the log and the memory
_A_CHARACTER = 12  # bytes at most, as an escape in JSON
_A_PROPERTY = 64  # bytes that surely hold what a codec writes beside a property's, or a field's, name and text


class MessageLimits:
    """Asks both brokers what they can hold, and warns, once per entity, while all is well.

    Args:
        primary: where each message belongs.
        secondary: tells its limit and measures.
        clock: for a trial envelope.
        emit: takes the warnings.
    """

    def __init__(self, primary: Transport, secondary: Transport, clock: Clock, emit: Emitter) -> None:
        self._primary = primary
        self._secondary = secondary
        self._clock = clock
        self._emit = emit
        self._warned: set[Entity] = set()

    def of_primary(self, entity: Entity, message: Message) -> TransportError | None:
        """Why the primary can never hold a message, as far as it can be known without asking it; None when it can."""
        return _refusal(self._primary, entity, message, "the primary can't hold it")

    def of_backlog(self, queue: Entity, envelope: Message) -> TransportError | None:
        """Why a backlog queue can't hold a message in its backlog form; None when it can."""
        return _refusal(self._secondary, queue, envelope, "the backlog can't hold it")

    def look(self, entity: Entity, message: Message) -> None:
        """Warn if a message that the primary has just taken would have little or no room in the backlog."""
        limit = self._secondary.capabilities.max_message_bytes
        if limit is None:
            return
        if _at_most(message) < _HEADROOM * limit - _ENVELOPE or entity in self._warned:
            return
        size = self._secondary.measure(divert(message, Diversion(entity, self._clock.instant(), "x" * 32, 10**9, True)))
        if size <= _HEADROOM * limit:
            return
        if len(self._warned) >= _MOST_WARNED:
            return
        self._warned.add(entity)
        left = limit - size
        room = f"{left} bytes of headroom are left" if left >= 0 else "it would be refused in an outage"
        text = f"a message of {size} bytes in its backlog form nears the secondary's limit of {limit}: {room}"
        self._emit(Warned, subject=str(entity), text=text)


def _refusal(transport: Transport, entity: Entity, message: Message, text: str) -> TransportError | None:
    try:
        transport.check_message(entity, message)
    except TransportError as error:
        return TransportError(f"{text}: {error}", error.kind, error.reason)
    return None


def _at_most(message: Message) -> float:
    """Bytes that a message surely needs no more of, without its envelope; infinite where only measuring can tell.

    Nearly every message has some short texts for properties, a trace's context for one. To measure each of them exactly
    would cost a healthy send as much as the rest of it.
    """
    size = len(message.body)
    # Fields whose length nothing bounds; the envelope's share holds the ids. One by one: a healthy send pays for it.
    if message.content_type is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.content_type)
    if message.content_encoding is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.content_encoding)
    if message.correlation_id is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.correlation_id)
    if message.subject is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.subject)
    if message.to is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.to)
    if message.reply_to is not None:
        size += _A_PROPERTY + _A_CHARACTER * len(message.reply_to)
    for name, value in message.application_properties.items():
        if type(value) is not str:
            return math.inf
        size += _A_PROPERTY + _A_CHARACTER * (len(name) + len(value))
    return size

"""The broker in memory: one state, and the transport ``memory://name`` to it."""

from pairmq.memory._broker import Calls, Link, Operation, StateBroker
from pairmq.memory._claims import MemoryClaims
from pairmq.memory._state import Lock, Queue, Session, State, Stored
from pairmq.memory._transport import (
    CAPABILITIES,
    MemoryTransport,
    StateAdmin,
    StateReceiver,
    StateSender,
    StateTransport,
    control,
)

__all__ = [
    "CAPABILITIES",
    "Calls",
    "Link",
    "Lock",
    "MemoryClaims",
    "MemoryTransport",
    "Operation",
    "Queue",
    "Session",
    "State",
    "StateAdmin",
    "StateBroker",
    "StateReceiver",
    "StateSender",
    "StateTransport",
    "Stored",
    "control",
]

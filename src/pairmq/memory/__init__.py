"""The broker in memory: one state, and the transport ``memory://name`` to it."""

from pairmq.memory._claims import MemoryClaims
from pairmq.memory._state import Lock, Queue, Session, State, Stored
from pairmq.memory._transport import CAPABILITIES, MemoryTransport, control

__all__ = [
    "CAPABILITIES",
    "Lock",
    "MemoryClaims",
    "MemoryTransport",
    "Queue",
    "Session",
    "State",
    "Stored",
    "control",
]

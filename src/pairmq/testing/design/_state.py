"""What the abstract design consists of, at one instant.

Everything is a small tuple of numbers, so that states can be compared and remembered by the hundred thousand. There is
one entity. Time is absent: what takes time may end at any moment, and an epoch is one bit of an attempt that says
whether the entity's health has changed since it was made. Two epochs more or less make no difference to any rule.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

HOME: Final = -1
"""Where an attempt goes: the primary; 0 and up are backlog queues."""
FREE: Final = -1
"""The lock is free."""
LETTERS: Final = "AB"
"""What stories call the processes."""


class Phase(enum.IntEnum):
    """The progress of a message from its caller."""

    IDLE = 0
    WAITING = 1
    """Begun, and without an attempt under way."""
    ROUTED = 2
    """Routed, and not yet registered: only a naive design has such a moment (SPEC 4.6)."""
    SENT = 3
    """In flight to a broker."""
    STORED = 4
    """The broker has it, and its confirmation is in flight."""
    AT_HOME = 5
    """Accepted by the primary."""
    AT_BACKLOG = 6
    """Accepted by a backlog queue."""
    REFUSED = 7
    UNKNOWN = 8
    NOT_SENT = 9
    """What a naive design reports of a cancelled send."""
    FORGOTTEN = 10
    """Its process died before it could report anything."""


class Fate(enum.IntEnum):
    """The fate of a message in the backlog, other than being moved."""

    NONE = 0
    OVERDUE = 1
    """Its time-to-live has expired, not yet noticed."""
    EXPIRED = 2
    """The broker removed it silently."""
    DROPPED = 3
    """The broker removed it after too many deliveries."""
    SET_ASIDE = 4
    """Dead-lettered, with its reason, and counted."""


class Health(enum.IntEnum):
    """The first fact of an entity, as one process sees it (SPEC 4)."""

    UP = 0
    TRIAL = 1
    FAILING = 2
    DOWN = 3


class Mode(enum.IntEnum):
    """Whether a process takes part."""

    OPEN = 0
    CLOSING = 1
    GONE = 2


class Primary(enum.IntEnum):
    """What the primary does with writes."""

    WORKS = 0
    REFUSES = 1
    SILENT = 2
    """It takes connections and says nothing."""
    FULL = 3
    """It refuses messages, and lets a naive ping pass."""


class Holding(enum.IntEnum):
    """How far a pump is with the message that it holds (SPEC 7.1)."""

    NOTHING = 0
    HELD = 1
    SENT = 2
    STORED = 3
    CONFIRMED = 4


class Message(NamedTuple):
    """One message. ``doubt``: the design remembers that an attempt may have been applied; ``explained``: a
    second copy has a reason, its mark or a syphon's death; ``late``: the attempt is of an earlier epoch."""

    phase: Phase = Phase.IDLE
    to: int = HOME
    late: bool = False
    doubt: bool = False
    explained: bool = False
    fate: Fate = Fate.NONE


class Process(NamedTuple):
    """One process with a pair. ``seen``: the queues seen empty since the last diverted send ended, as bits;
    ``patient``: the next ping comes after the sends that wait; ``misled``: a late result has moved the health."""

    mode: Mode = Mode.OPEN
    health: Health = Health.UP
    dirty: bool = False
    seen: int = 0
    needed: int = 1
    good: int = 0
    patient: bool = False
    misled: bool = False


class Entry(NamedTuple):
    """One message in a backlog queue. ``owed``: the processes that must not call the backlog empty over it, as bits:
    those that diverted it, or that began after it was there."""

    message: int
    holder: int = FREE
    deliveries: int = 0
    owed: int = 0


class Queue(NamedTuple):
    """One backlog queue, in order."""

    there: bool = True
    entries: tuple[Entry, ...] = ()


class Pump(NamedTuple):
    """One pump of a syphon."""

    holding: Holding = Holding.NOTHING
    message: int = -1


class State(NamedTuple):
    """Everything. ``home``: the copies that the primary stored, in order if order is required, else sorted; ``adrift``:
    writes of dead connections that may be applied later, as (message, where); ``receipts``: the messages in the order
    of their receipts, where order is asked for; the rest is what may still happen."""

    primary: Primary
    queues: tuple[Queue, ...]
    processes: tuple[Process, ...]
    messages: tuple[Message, ...]
    pumps: tuple[Pump, ...]
    home: tuple[int, ...]
    adrift: tuple[tuple[int, int], ...]
    receipts: tuple[int, ...]
    faults: int
    crashes: int
    cancels: int
    closes: int


IN_FLIGHT: Final = (Phase.SENT, Phase.STORED)
UNDER_WAY: Final = (Phase.WAITING, Phase.ROUTED, Phase.SENT, Phase.STORED)
RUNNING: Final = (Health.UP, Health.TRIAL)


def with_message(state: State, number: int, message: Message) -> State:
    """The state with one message in another condition."""
    messages = state.messages
    return state._replace(messages=(*messages[:number], message, *messages[number + 1 :]))


def with_process(state: State, number: int, process: Process) -> State:
    """The state with one process in another condition."""
    processes = state.processes
    return state._replace(processes=(*processes[:number], process, *processes[number + 1 :]))


def with_queue(state: State, number: int, queue: Queue) -> State:
    """The state with one backlog queue in another condition."""
    return state._replace(queues=(*state.queues[:number], queue, *state.queues[number + 1 :]))


def with_pump(state: State, number: int, pump: Pump) -> State:
    """The state with one pump in another condition."""
    return state._replace(pumps=(*state.pumps[:number], pump, *state.pumps[number + 1 :]))

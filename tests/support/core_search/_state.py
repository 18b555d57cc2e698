"""Everything that can be different in a world, at one instant.

The insides of processes are numbers of cells (`_cells`); around them are brokers, queues, what is on its way between
them, and what the judge has to know. Everything is a small tuple, so that states can be compared and remembered by the
hundred thousand. There is one entity. Time is absent: what takes time may end at any moment.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

NOWHERE: Final = -2
HOME: Final = -1
"""Where an attempt goes: the primary; 0 and up are backlog queues."""
FREE: Final = -1
"""The lock is free."""
CONSUMER: Final = -2
"""The lane's consumer holds the lock."""
IN_HAND: Final = -3
"""A naive consumer holds the message, which the broker has forgotten."""
NONE: Final = -1
"""No cell."""
LETTERS: Final = "AB"
"""What stories call the processes."""


class Phase(enum.IntEnum):
    """The progress of a message from its caller."""

    IDLE = 0
    BEGUN = 1
    AT_HOME = 2
    """Accepted by the primary."""
    AT_BACKLOG = 3
    """Accepted by a backlog queue."""
    REFUSED = 4
    UNKNOWN = 5
    NOT_SENT = 6
    """What a naive design reports of a cancelled send."""
    FORGOTTEN = 7
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


class Message(NamedTuple):
    """One message. ``to``: where an attempt of its send is on its way; ``stored``: it is there, and its confirmation is
    on the way; ``explained``: a second copy has a reason, its mark or a syphon's death."""

    phase: Phase = Phase.IDLE
    to: int = NOWHERE
    stored: bool = False
    explained: bool = False
    fate: Fate = Fate.NONE


class Process(NamedTuple):
    """One process with a pair, and its cells."""

    mode: Mode = Mode.OPEN
    sending: int = NONE
    syphon: int = NONE


class Entry(NamedTuple):
    """One message in a backlog queue. ``owed``: the processes that must not call the backlog empty over it, as bits:
    those that diverted it, or that began after it was there. ``origin``: the position of what a pump has copied to the
    tail; 0 where it is no copy."""

    message: int
    position: int
    holder: int = FREE
    deliveries: int = 0
    owed: int = 0
    origin: int = 0


class Queue(NamedTuple):
    """One backlog queue, in order, and the position that was given last."""

    there: bool = True
    newest: int = 0
    entries: tuple[Entry, ...] = ()


class Operation(NamedTuple):
    """What a pump has on its way to the primary. ``message``: the one that is stored next, or was last; ``before`` it
    are those of the operation that are stored, and then comes the ``rest``."""

    message: int = -1
    stored: bool = False
    before: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()


class State(NamedTuple):
    """Everything. ``home``: the copies that the primary stored, in order if order is required, else sorted; ``adrift``:
    writes of dead connections that may be applied later, as (message, where); ``receipts``: the messages in the order
    of their receipts, where order is asked for; the rest is what may still happen."""

    primary: Primary
    queues: tuple[Queue, ...]
    processes: tuple[Process, ...]
    messages: tuple[Message, ...]
    pumps: tuple[Operation, ...]
    home: tuple[int, ...]
    adrift: tuple[tuple[int, int], ...]
    receipts: tuple[int, ...]
    faults: int
    crashes: int
    cancels: int
    closes: int
    read: tuple[int, ...] = ()
    """The messages that a consumer has handled from the lane; one twice at most."""
    taken: tuple[int, ...] = ()
    """Those of the copies at the primary that a consumer has handled."""
    postpones: int = 0
    """How often a message may still be copied to the tail of its queue."""


def with_message(state: State, number: int, message: Message) -> State:
    """The state with one message in another condition; faster than `_replace`."""
    primary, queues, processes, messages, *rest = state
    return _new(State, (primary, queues, processes, _with(messages, number, message), *rest))


def with_process(state: State, number: int, process: Process) -> State:
    """The state with one process in another condition."""
    primary, queues, processes, *rest = state
    return _new(State, (primary, queues, _with(processes, number, process), *rest))


def with_queue(state: State, number: int, queue: Queue) -> State:
    """The state with one backlog queue in another condition."""
    primary, queues, *rest = state
    return _new(State, (primary, _with(queues, number, queue), *rest))


def with_pump(state: State, number: int, operation: Operation) -> State:
    """The state with one pump's operation in another condition."""
    primary, queues, processes, messages, pumps, *rest = state
    return _new(State, (primary, queues, processes, messages, _with(pumps, number, operation), *rest))


_new = tuple.__new__  # faster than `State` itself: each step of a search makes several


def _with(parts: tuple[T, ...], number: int, part: T) -> tuple[T, ...]:
    changed = list(parts)
    changed[number] = part
    return tuple(changed)

"""A design: the real rules, or some replaced by what one would do at first; in a world; and what can be wrong with it.

A world says how much of everything there is, so that each space is small enough to be searched to its end.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final


class Verdict(enum.StrEnum):
    """A promise that a design breaks."""

    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATE = "unexplained duplicate"
    ORDER = "wrong order"
    FALSE_DRAINED = "false drained"
    STATE = "wrong state"
    FALSE_REPORT = "false report"
    DROPPED = "delivery budget spent"
    STRANDED = "stranded"
    HANG = "hang"
    UNREAD = "not handled"
    LIVELOCK = "livelock"


MEANING: dict[Verdict, str] = {
    Verdict.LOST: "an accepted message is missing",
    Verdict.PHANTOM: "a message was delivered that was refused, or never sent",
    Verdict.DUPLICATE: "a second copy that neither a mark nor the death of a syphon explains",
    Verdict.ORDER: "first copies are in another order than their receipts",
    Verdict.FALSE_DRAINED: "the backlog is called empty over a message that the process answers for",
    Verdict.STATE: "the result of an attempt from before the last change moved the state",
    Verdict.FALSE_REPORT: "a message was reported as not sent, but it was",
    Verdict.DROPPED: "the broker dropped a message whose deliveries were used up by an outage",
    Verdict.STRANDED: "no way leads from here to everything delivered, even once all faults have ceased",
    Verdict.HANG: "a send or a close can't end unless a broker recovers first",
    Verdict.UNREAD: "what a lane accepted is not handled before the primary works again",
    Verdict.LIVELOCK: "a circle of recoveries and failovers in which nothing is ever diverted",
}


class Trouble(enum.Flag):
    """What may go wrong in a world, each time at the price of one fault."""

    NONE = 0
    REFUSES = enum.auto()
    """The primary refuses everything."""
    SILENT = enum.auto()
    """The primary says nothing any more."""
    FULL = enum.auto()
    """The primary refuses messages, and lets naive pings pass."""
    UNCONFIRMED = enum.auto()
    """A confirmation is lost, after the write."""
    DELAYED = enum.auto()
    """A connection dies with a write on it, which may be applied later, or never."""
    QUEUE_AWAY = enum.auto()
    """A backlog queue can't be reached."""
    LOCK_LOST = enum.auto()
    """A broker forgets the lock of a message that is held."""
    UNSETTLED = enum.auto()
    """A message is completed or dead-lettered, and the confirmation of that is lost."""


@dataclass(frozen=True, slots=True)
class World:
    """The bounds of one space."""

    name: str  # of the world
    about: str  # what it is for, in a sentence
    trouble: Trouble  # what may go wrong
    faults: int = 1  # how often in all
    senders: tuple[int, ...] = (0, 0)  # for each message, the number of the process that sends it
    hosts: tuple[bool, ...] = (True,)  # for each process, whether it hosts a syphon
    queues: int = 1  # backlog queues
    crashes: int = 0  # how often a process may die
    cancels: int = 0  # how many sends may be cancelled
    closes: int = 0  # how often a process may be closed
    ordered: bool = False  # whether sends keep their order (SPEC 8)
    batches: bool = False  # whether the primary's senders can send several messages of a session in one operation
    poison: frozenset[int] = frozenset()  # the messages whose entity does not exist
    expires: bool = False  # whether the messages' time-to-live may run out in the backlog
    probe_lies: bool = False  # whether a ping passes where messages are refused
    delivery_limit: int = 0  # deliveries after which the secondary drops a message; 0 for no limit
    flap_window: float = 0.0  # the option of that name; what it bounds lasts as long as the world, or no time at all
    outage: bool = False  # whether the primary refuses everything at first
    # Whether the one queue of the secondary is a lane, and a consumer reads it beside the primary's.
    consumer: bool = False
    postpones: int = 0  # how often a message may be copied to the tail of its queue

    @property
    def pumps(self) -> tuple[tuple[int, int], ...]:
        """Of each pump, its process and its queue."""
        return tuple(
            (process, queue) for process, host in enumerate(self.hosts) if host for queue in range(self.queues)
        )

    def tracks(self, process: int) -> bool:
        """Whether a process has to know when the backlog is empty (SPEC 4.5, 8.3)."""
        return self.hosts[process] or self.ordered


T = Trouble

SENDS: Final = World(
    "sends",
    "two sends and a cancellation, with everything that can happen to an attempt, and no syphon",
    hosts=(False,),
    trouble=T.REFUSES | T.UNCONFIRMED | T.DELAYED,
    faults=2,
    cancels=1,
)
DRAIN: Final = World(
    "drain",
    "two backlog queues, of which one or both may be unavailable",
    senders=(0,),
    trouble=T.REFUSES | T.QUEUE_AWAY,
    faults=3,
    queues=2,
)
RESTART: Final = World(
    "restart",
    "a backlog queue that may be unavailable, and a process that dies at any moment and is started again",
    trouble=T.REFUSES | T.UNCONFIRMED | T.QUEUE_AWAY,
    crashes=1,
)
TWO_PROCESSES: Final = World(
    "two processes",
    "one process sends, another hosts the syphon and sees no outage of its own; one of them may die",
    hosts=(False, True),
    trouble=T.REFUSES | T.UNCONFIRMED,
    crashes=1,
)
BOTH: Final = World(
    "both send",
    "two processes that send, of which one hosts the syphon and one may die",
    senders=(0, 1),
    hosts=(False, True),
    trouble=T.REFUSES | T.DELAYED,
    crashes=1,
)
SESSIONS: Final = World(
    "sessions",
    "two messages of one session, a backlog queue that may be unavailable, and writes that are applied late",
    trouble=T.REFUSES | T.DELAYED | T.QUEUE_AWAY,
    faults=2,
    ordered=True,
)
SESSION_QUEUES: Final = World(
    "session queues",
    "two messages of one session, and two backlog queues",
    trouble=T.REFUSES | T.QUEUE_AWAY,
    faults=2,
    queues=2,
    ordered=True,
)
LONG_SESSION: Final = World(
    "long session",
    "three messages of one session, through an outage and back",
    senders=(0, 0, 0),
    trouble=T.REFUSES | T.DELAYED,
    ordered=True,
)
SESSION_RESTART: Final = World(
    "session restart",
    "two messages of one session, and a process that dies between them",
    trouble=T.REFUSES | T.UNCONFIRMED,
    crashes=1,
    ordered=True,
)
SESSION_BATCHES: Final = World(
    "session batches",
    "two messages of one session in an outage, which the syphon moves in one operation",
    trouble=T.REFUSES | T.UNCONFIRMED | T.DELAYED,
    ordered=True,
    batches=True,
    outage=True,
)
TWO_SYPHONS: Final = World(
    "two syphons",
    "two messages of one session in an outage, two processes with a syphon, and a lock that is lost",
    hosts=(True, True),
    trouble=T.LOCK_LOST,
    ordered=True,
    outage=True,
)
SYPHON_DIES: Final = World(
    "a syphon dies",
    "the same, and one of the two processes dies instead",
    hosts=(True, True),
    trouble=T.NONE,
    faults=0,
    crashes=1,
    ordered=True,
    outage=True,
)
QUOTA: Final = World(
    "quota",
    "a primary that lets pings pass and refuses messages",
    trouble=T.REFUSES | T.FULL,
    probe_lies=True,
    flap_window=86_400.0,
)
EXPIRY: Final = World(
    "expiry",
    "messages whose time-to-live may run out in the backlog",
    trouble=T.REFUSES,
    crashes=1,
    expires=True,
)
POISON: Final = World(
    "poison",
    "a message that is refused forever lies before one that can be delivered",
    trouble=T.REFUSES,
    crashes=1,
    poison=frozenset((0,)),
)
LOCKS: Final = World(
    "locks",
    "two processes with a syphon, sends that take long, and a primary that may not confirm them",
    hosts=(True, True),
    trouble=T.REFUSES | T.UNCONFIRMED,
)
SETTLEMENTS: Final = World(
    "settlements",
    "a message that is refused lies before one that can be delivered, and a settlement is applied without an answer",
    trouble=T.UNSETTLED,
    crashes=1,
    poison=frozenset((0,)),
    outage=True,
)
DELIVERIES: Final = World(
    "deliveries",
    "a secondary that drops a message after its third delivery, an outage that outlasts three, and a close",
    trouble=T.REFUSES,
    closes=1,
    delivery_limit=3,
)
CLOSE: Final = World(
    "close",
    "a close at any moment, whatever one broker does",
    trouble=T.REFUSES | T.QUEUE_AWAY,
    closes=1,
)
CLOSE_ALONE: Final = World(
    "close without brokers",
    "a close with one message in flight and both brokers unavailable",
    senders=(0,),
    trouble=T.REFUSES | T.SILENT | T.QUEUE_AWAY,
    faults=2,
    closes=1,
)
LANE: Final = World(
    "lane",
    "two messages, a consumer that reads the primary and a lane, and the syphon that joins it",
    trouble=T.REFUSES,
    consumer=True,
)
LANE_IN_DOUBT: Final = World(
    "lane in doubt",
    "the same with one message, lost confirmations, writes that are applied late, and a lane that is unavailable",
    senders=(0,),
    trouble=T.REFUSES | T.UNCONFIRMED | T.DELAYED | T.QUEUE_AWAY,
    faults=2,
    consumer=True,
)
LANE_LOCKS: Final = World(
    "lane locks",
    "a message in a lane, whose lock may be lost, and the process of the syphon or of the consumer may die",
    senders=(0,),
    trouble=T.LOCK_LOST | T.REFUSES,
    crashes=1,
    outage=True,
    consumer=True,
)

TAIL: Final = World(
    "tail",
    "a primary that answers and takes no messages, a full pump that postpones, and a queue that may be unavailable",
    trouble=T.FULL | T.UNCONFIRMED | T.QUEUE_AWAY,
    faults=2,
    postpones=2,
)

WORLDS: Final = (
    SENDS,
    DRAIN,
    RESTART,
    TWO_PROCESSES,
    BOTH,
    SESSIONS,
    SESSION_QUEUES,
    LONG_SESSION,
    SESSION_RESTART,
    SESSION_BATCHES,
    TWO_SYPHONS,
    SYPHON_DIES,
    QUOTA,
    EXPIRY,
    POISON,
    LOCKS,
    SETTLEMENTS,
    DELIVERIES,
    CLOSE,
    CLOSE_ALONE,
    LANE,
    LANE_IN_DOUBT,
    LANE_LOCKS,
    TAIL,
)


class Naive(enum.Enum):
    """A naive behaviour that can be planted; each breaks a promise."""

    UNMARKED_COPY = "a message whose confirmation was lost is sent again as if for the first time"
    COMPLETE_BEFORE_CONFIRM = "the syphon completes a message as soon as it has sent it"
    RETURN_WITH_BACKLOG = "all sends return to the primary as soon as it is back"
    DRAINED_IN_FLIGHT = "the backlog counts as empty when every queue was seen empty"
    AWAIT_BETWEEN_ROUTE_AND_REGISTER = "a send is registered as in flight some time after it was routed"
    PUMP_ASKS_OWN_MACHINE = "the syphon runs while its own process knows of a backlog"
    ONE_CHAIN_OF_STATES = "a success while failing leads to healthy"
    SESSION_OVER_QUEUES = "each diverted message of a session takes any backlog queue"
    UNREACHABLE_IS_EMPTY = "a backlog queue that can't be reached is counted as empty"
    RESTART_IS_CLEAN = "a process that starts has no backlog"
    RESULTS_WITHOUT_EPOCHS = "the result of any attempt moves the state"
    PINGS_AT_ONCE = "one good ping is a recovery, and the next failover pings at once"
    TTL_RUNS_IN_BACKLOG = "a message keeps its time-to-live in the backlog queue"
    CANCELLED_IS_NOT_SENT = "a cancelled send is reported as not sent"
    POISON_IS_TRIED_AGAIN = "a refused message is released to its queue"
    ORDER_OF_ALL_COPIES = "the order of every copy is promised, not of first copies"
    TWO_CONSUMERS = "every syphon reads every queue"
    LOCK_NOT_RENEWED = "a lock is left to run while its message is sent"
    OUTAGE_SPENDS_DELIVERIES = "a message that can't be delivered now is released to its queue"
    CLOSE_WAITS_FOR_DRAIN = "a close finishes what the syphon holds, however long it takes"
    LATE_SUCCESS_REOPENS = "a success that comes after the failover ends it"
    REST_COUNTS_AS_DELIVERED = "what is behind a failure in one operation counts as delivered"
    REST_IS_STORED = "each message of an operation is stored or refused by itself"
    LANE_WITHOUT_LOCKS = "the syphon takes what a consumer of the lane is handling"
    COMPLETE_BEFORE_HANDLED = "a consumer completes what a lane gives it before it handles it"
    LANE_HELD = "the syphon holds a lane's messages until the primary works again"
    LANE_NOT_COUNTED = "the backlog counts as empty over a lane that consumers read"
    FAILED_COPY_COUNTS = "a postponed message is completed whatever came of its copy"


@dataclass(frozen=True, slots=True)
class Design:
    """What is searched: a world, and the naive behaviours planted in it."""

    world: World  # the bounds
    naive: frozenset[Naive] = frozenset()  # what is planted; empty for the real rules
    pumps: tuple[tuple[int, int], ...] = field(init=False)
    choice: int = field(init=False)

    def __post_init__(self) -> None:
        # Both are asked for at every state. Of the queues that a diverted message may take there is one where order is
        # kept: the session's (SPEC 8.2).
        one_queue = self.world.ordered and Naive.SESSION_OVER_QUEUES not in self.naive
        object.__setattr__(self, "pumps", self.world.pumps)
        object.__setattr__(self, "choice", 1 if one_queue else self.world.queues)

    def does(self, naive: Naive) -> bool:
        """Whether a naive behaviour is planted."""
        return naive in self.naive

"""A design: the real rules, or some of them replaced by what one would do at first thought."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pairmq.testing.design._worlds import World


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
    POISON_IS_TRIED_AGAIN = "a message that is refused is given back to its queue"
    ORDER_OF_ALL_COPIES = "the order of every copy is promised, not of first copies"
    TWO_CONSUMERS = "every syphon reads every queue"
    LOCK_NOT_RENEWED = "a lock is left to run while its message is sent"
    OUTAGE_SPENDS_DELIVERIES = "a message that can't be delivered now is given back to its queue"
    CLOSE_WAITS_FOR_DRAIN = "a close finishes what the syphon holds, however long it takes"
    LATE_SUCCESS_REOPENS = "a success that comes after the failover ends it"


@dataclass(frozen=True, slots=True)
class Design:
    """What is searched: a world, and the naive behaviours planted in it.

    Args:
        world: the bounds.
        naive: what is planted; empty for the real rules.
    """

    world: World
    naive: frozenset[Naive] = frozenset()
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

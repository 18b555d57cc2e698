"""What must be so of a message, by the judge of its history, on which the pipeline has a verdict that is no fault."""

from __future__ import annotations

from collections.abc import Callable

from pairmq.pipeline.transforms.verdicts import Verdict as Row
from pairmq.testing.history import Result
from pairmq.testing.judge import Account

AS_SAID: dict[Row, Callable[[Account], bool]] = {
    Row.DELIVERED: lambda it: it.at_primary > 0,
    Row.DUPLICATED: lambda it: it.at_primary > 0 and it.announced,
    Row.OUT_OF_ORDER: lambda it: it.at_primary > 0,
    Row.UNSETTLED: lambda it: it.at_primary > 0,
    Row.IN_FLIGHT: lambda it: it.at_primary > 0,
    Row.NOT_OBSERVED: lambda it: it.at_primary > 0,
    Row.UNPROVEN: lambda it: it.at_primary > 0,  # of a queue that nothing was seen to consume
    Row.DIVERTED: lambda it: it.results == (Result.BACKLOG,),
    Row.EXPIRED: lambda it: it.at_primary > 0 or it.excused,
    Row.DEAD_LETTERED: lambda it: it.at_primary > 0 or it.excused,
    Row.REFUSED: lambda it: it.results == (Result.REFUSED,) and not it.stored_in,
    Row.UNKNOWN: lambda it: it.results[0] in (Result.UNKNOWN, Result.CANCELLED),
    Row.UNKNOWN_DELIVERED: lambda it: it.results[0] in (Result.UNKNOWN, Result.CANCELLED, None) and it.at_primary > 0,
    Row.NOT_JOURNALLED: lambda it: it.results == (None,),
}

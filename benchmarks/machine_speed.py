"""How many inputs the machine of an entity takes a second, in a send's usual course and through whole failovers.

It is pure computation, so that what counts is this process's time on the processor: what the machine does for others
meanwhile is no part of it. Exit status 1 when an input of either course costs more than the limit.

Run it with: make bench-one NAME=machine_speed
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable

from _measuring import Contender, arguments, interleaved, report

from pairmq.core import PairOptions
from pairmq.core.machine import EntityMachine
from pairmq.core.signals import (
    DIVERT_ENDED,
    ROUTE_REQUESTED,
    BacklogSeenEmpty,
    PingSucceeded,
    PrimaryAccepted,
    PrimaryFailed,
    TimerFired,
)
from pairmq.model import EntityState, FailureKind

LEAST = 500_000  # inputs a second
SENDS = 50
"""Of each kind in a failover's course: an outage without sends would measure nothing but its transitions."""


def healthy(machine: EntityMachine, now: float) -> int:
    """Sends that the primary accepts; returns how many inputs that was."""
    for _ in range(SENDS):
        machine.handle(ROUTE_REQUESTED, now)
        machine.handle(PrimaryAccepted(machine.epoch), now)
    return 2 * SENDS


def failover(machine: EntityMachine, now: float) -> int:
    """A failure, the interval, diverted sends, a ping, recovery, the drain, accepted sends; counted as in `healthy`."""
    machine.handle(ROUTE_REQUESTED, now)
    machine.handle(PrimaryFailed(machine.epoch, FailureKind.UNAVAILABLE), now)
    machine.handle(TimerFired(), now + 10)
    effects = machine.handle(TimerFired(), now + 10)
    for _ in range(SENDS):
        machine.handle(ROUTE_REQUESTED, now + 10)
        machine.handle(DIVERT_ENDED, now + 10)
    machine.handle(PingSucceeded(effects[0].number), now + 11)  # type: ignore[union-attr]
    machine.handle(BacklogSeenEmpty(now + 12), now + 12)
    healthy(machine, now + 12)
    if machine.state is not EntityState.HEALTHY:
        raise RuntimeError(f"the course ended in {machine.state}")
    return 6 + 4 * SENDS


def timed(course: Callable[[EntityMachine, float], int], seconds: float) -> Contender:
    """A course again and again for so long: inputs a second of processor time."""

    async def run() -> float:
        machine = EntityMachine(PairOptions(flap_window=0), 0.0, tracks_backlog=True)
        inputs, now, began = 0, 0.0, time.process_time()
        while (spent := time.process_time() - began) < seconds:
            inputs += course(machine, now)
            now += 100.0
        return inputs / spent

    return run


def main() -> int:
    """Measure and print; exit status 1 when it is slower than `LEAST`."""
    parser = arguments(__doc__, rounds=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    options = parser.parse_args()
    contenders = {"sends that are accepted": healthy, "failovers and back": failover}
    turns = {name: timed(course, options.seconds) for name, course in contenders.items()}
    figures = asyncio.run(interleaved(turns, options.rounds))
    report(figures, [], "inputs a second", as_json=options.json)
    return 0 if min(map(statistics.median, figures.values())) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())

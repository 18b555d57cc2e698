"""A design as a system that can be searched."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain

from pairmq.testing.design._design import Design
from pairmq.testing.design._faults import broker_steps, process_steps, time_steps
from pairmq.testing.design._health import health_steps
from pairmq.testing.design._judge import CIRCLES, goals, judge
from pairmq.testing.design._search import Step, System
from pairmq.testing.design._sends import send_steps
from pairmq.testing.design._state import Message, Primary, Process, Pump, Queue, State
from pairmq.testing.design._syphon import pump_steps


def system(design: Design) -> System[State]:
    """Make the system of a design.

    Args:
        design: a world, and what is planted in it.

    Returns:
        What `search` takes.
    """
    return System(
        initial=beginning(design),
        steps=partial(_steps, design),
        broken=partial(judge, design),
        goals=goals(design),
        circles=CIRCLES,
    )


def beginning(design: Design) -> State:
    """Nothing sent, nothing broken; a process that has to know of the backlog begins with one (SPEC 4.5)."""
    world = design.world
    return State(
        primary=Primary.WORKS,
        queues=(Queue(),) * world.queues,
        processes=tuple(Process(dirty=world.tracks(number)) for number in range(len(world.hosts))),
        messages=(Message(),) * len(world.senders),
        pumps=(Pump(),) * len(design.pumps),
        home=(),
        adrift=(),
        receipts=(),
        faults=world.faults,
        crashes=world.crashes,
        cancels=world.cancels,
        closes=world.closes,
    )


def _steps(design: Design, state: State) -> Iterable[Step[State]]:
    return chain(
        send_steps(design, state),
        health_steps(design, state),
        pump_steps(design, state),
        broker_steps(design, state),
        time_steps(design, state),
        process_steps(design, state),
    )

"""Before and after a chaos run: the queues are made, and in the end everything is read out of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pairmq.core import PairOptions
from pairmq.model import Delivery, Entity, Source
from pairmq.plugins import registry
from pairmq.testing.chaos._messages import number_of
from pairmq.testing.chaos.plan import ENTITIES, Plan
from pairmq.transport import QueueProperties, Receiver, Transport

_WAIT = 2.0  # s without a message after which a queue counts as read, with any count, and no lock is left
_BATCH = 500


def backlog_queues(plan: Plan) -> tuple[str, ...]:
    """The names of the backlog queues of all clients."""
    names = (
        name for each in plan.clients for name in PairOptions(**plan.options_of(each)).backlog_queue_names("chaos")
    )
    return tuple(dict.fromkeys(names))


async def make_queues(plan: Plan, primary: str, secondary: str) -> None:
    """Make the primary's queues, and the backlog queues with locks as short as the plan says.

    Args:
        plan: to be carried out.
        primary: the primary's address.
        secondary: the secondary's.

    Raises:
        TransportError: a broker did not.
    """
    # As a pair creates them (SPEC 5.2), except for short locks: a killed syphon's messages should be redelivered soon.
    properties = QueueProperties(
        max_size_megabytes=5120,
        max_delivery_count=2**31 - 1,
        lock_duration=plan.lock_duration,
        single_consumer=plan.settings.ordering == "session",
    )
    async with registry.transport(primary) as home:
        for path in ENTITIES:
            # A killed consumer's messages are redelivered as soon, and no number of kills dead-letters a message.
            await home.admin.create(Entity(path), properties if plan.consumers else None)
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            await backlog.admin.create(Entity(path), properties)


async def pending(plan: Plan, secondary: str) -> dict[str, int]:
    """The number of messages in each backlog queue, including scheduled ones, as reported by its transport.

    Raises:
        TransportError: the secondary did not report them.
    """
    async with registry.transport(secondary) as backlog:
        return {path: (await backlog.admin.counts(Source(Entity(path)))).pending for path in backlog_queues(plan)}


@dataclass(frozen=True, slots=True)
class Contents:
    """What the queues held.

    Args:
        home: each of the primary's queues with its messages.
        backlog: numbers of messages that a backlog queue held, with the queue's path.
        dead: numbers of messages in the backlog queues' dead-letter queues, with the queue's path.
    """

    home: Mapping[str, Sequence[Delivery]]
    backlog: dict[int, str]
    dead: dict[int, str]


async def read_out(
    plan: Plan,
    primary: str,
    secondary: str,
    journalled: Callable[[Receiver, Source], Receiver] = lambda receiver, _: receiver,
) -> Contents:
    """Take everything out of all queues, by the transports' receivers.

    Args:
        plan: that was carried out.
        primary: the primary's address.
        secondary: the secondary's.
        journalled: makes a receiver of the primary one that keeps a journal.

    Raises:
        TransportError: a broker can't be read.
    """
    # A killed consumer's messages are not available before its locks expire.
    wait = _WAIT + (plan.lock_duration if plan.consumers else 0.0)
    async with registry.transport(primary) as home:
        sources = {path: Source(Entity(path)) for path in ENTITIES}
        contents = {
            path: await _taken(home, source, journalled(home.receiver(source), source), wait)
            for path, source in sources.items()
        }
    left: dict[int, str] = {}
    dead: dict[int, str] = {}
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            for found, source in ((left, Source(Entity(path))), (dead, Source(Entity(path), dead_letter=True))):
                found |= _numbered(path, await _taken(backlog, source, backlog.receiver(source), _WAIT))
    return Contents(contents, left, dead)


def _numbered(path: str, deliveries: Iterable[Delivery]) -> dict[int, str]:
    numbers = (number_of(delivery.message) for delivery in deliveries)
    return {number: path for number in numbers if number is not None}


async def _taken(transport: Transport, source: Source, receiver: Receiver, wait: float) -> list[Delivery]:
    found: list[Delivery] = []
    try:
        # By the count, as waiting for what is not there takes a while at each queue; a wrong one shows in the end, when
        # the server's own is compared.
        counts = await transport.admin.counts(Source(source.entity))
        there = counts.dead_letter if source.dead_letter else counts.pending
        while len(found) < there and (deliveries := await receiver.receive(_BATCH, wait)):
            found += deliveries
            for error in await receiver.complete_batch(deliveries):
                if error is not None:
                    raise error
    finally:
        await receiver.close()
    return found

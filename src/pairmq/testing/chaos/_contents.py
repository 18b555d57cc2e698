"""Before and after a chaos run: the queues are made, and in the end everything is read out of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pairmq.core import PairOptions
from pairmq.model import Entity, Message, Source
from pairmq.plugins import registry
from pairmq.testing.chaos._books import Found
from pairmq.testing.chaos._messages import number_of
from pairmq.testing.chaos.plan import ENTITIES, Plan
from pairmq.transport import QueueProperties, Transport

_WAIT = 2.0  # s without a message after which a queue counts as read, whatever its count says
_BATCH = 500


def backlog_queues(plan: Plan) -> tuple[str, ...]:
    """The names of the backlog queues."""
    return PairOptions(**plan.options).backlog_queue_names("chaos")


async def make_queues(plan: Plan, primary: str, secondary: str) -> None:
    """Make the primary's queues, and the backlog queues with locks as short as the plan says.

    Args:
        plan: to be carried out.
        primary: the primary's address.
        secondary: the secondary's.

    Raises:
        TransportError: a broker did not.
    """
    async with registry.transport(primary) as home:
        for path in ENTITIES:
            await home.admin.create(Entity(path))
    # As a pair asks for them (SPEC 5.2), but for the locks: what a killed syphon held is to come back soon.
    properties = QueueProperties(
        max_size_megabytes=5120, max_delivery_count=2**31 - 1, lock_duration=plan.settings.lock_duration
    )
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            await backlog.admin.create(Entity(path), properties)


async def pending(plan: Plan, secondary: str) -> dict[str, int]:
    """What each backlog queue holds, scheduled messages included, as its transport tells.

    Raises:
        TransportError: the secondary did not tell.
    """
    async with registry.transport(secondary) as backlog:
        return {path: (await backlog.admin.counts(Source(Entity(path)))).pending for path in backlog_queues(plan)}


async def read_out(plan: Plan, primary: str, secondary: str, undrained: Sequence[str]) -> Found:
    """Take everything out of all queues, by the transports' receivers.

    Args:
        plan: that was carried out.
        primary: the primary's address.
        secondary: the secondary's.
        undrained: what is known to be wrong already.

    Raises:
        TransportError: a broker can't be read.
    """
    async with registry.transport(primary) as home:
        contents = {path: await _taken(home, Source(Entity(path))) for path in ENTITIES}
    left: dict[int, str] = {}
    dead: dict[int, str] = {}
    async with registry.transport(secondary) as backlog:
        for path in backlog_queues(plan):
            left |= _numbered(path, await _taken(backlog, Source(Entity(path))))
            dead |= _numbered(path, await _taken(backlog, Source(Entity(path), dead_letter=True)))
    return Found(contents, left, dead, tuple(undrained))


def _numbered(path: str, messages: Iterable[Message]) -> dict[int, str]:
    numbers = (number_of(message) for message in messages)
    return {number: path for number in numbers if number is not None}


async def _taken(transport: Transport, source: Source) -> list[Message]:
    receiver = transport.receiver(source)
    found: list[Message] = []
    try:
        # By the count, as waiting for what is not there takes a while at each queue; a wrong one shows in the end, when
        # the server's own is compared.
        counts = await transport.admin.counts(Source(source.entity))
        there = counts.dead_letter if source.dead_letter else counts.pending
        while len(found) < there and (deliveries := await receiver.receive(_BATCH, _WAIT)):
            found += [delivery.message for delivery in deliveries]
            for error in await receiver.complete_batch(deliveries):
                if error is not None:
                    raise error
    finally:
        await receiver.close()
    return found

"""One look at a pair from outside."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from pairmq.cli._backlog_counts import Depths, count_queues
from pairmq.cli._common import within
from pairmq.model import Entity, EntityKind, Source, TransportError
from pairmq.runner import Agreement
from pairmq.transport import QueueCounts, Transport


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """Whether a broker answered.

    Args:
        url: without secrets.
        seconds: how long it took.
        error: why not; None when it did.
    """

    url: str
    seconds: float
    error: str | None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "url": self.url,
            "reachable": self.error is None,
            "seconds": round(self.seconds, 6),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class EntityLook:
    """Whether an entity takes messages, and what it holds.

    Args:
        entity: which one.
        seconds: how long the probe took.
        error: why it takes none; None when it does.
        counts: None for a topic, and when it could not be counted.
    """

    entity: Entity
    seconds: float
    error: str | None
    counts: QueueCounts | None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        counts = self.counts
        return {
            "entity": str(self.entity),
            "accepts": self.error is None,
            "seconds": round(self.seconds, 6),
            "error": self.error,
            "active": None if counts is None else counts.active,
            "locked": None if counts is None else counts.locked,
            "scheduled": None if counts is None else counts.scheduled,
            "dead_letter": None if counts is None else counts.dead_letter,
        }


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was seen.

    Args:
        primary: the broker.
        secondary: the broker.
        entities: those asked for.
        backlog: all backlog queues.
        agreement: what other processes of the pair use.
    """

    primary: BrokerLook
    secondary: BrokerLook
    entities: tuple[EntityLook, ...]
    backlog: Depths
    agreement: Agreement

    @property
    def ok(self) -> bool:
        """Whether everything was asked and answered well, and no messages wait where they are not moved."""
        agreement = self.agreement
        if agreement.conflict is not None or agreement.unread is not None:
            return False
        if any(stray.certain for stray in agreement.strays):
            return False
        parts = (self.primary.error, self.secondary.error, self.backlog.error, *(one.error for one in self.entities))
        return all(error is None for error in parts)


async def look(
    primary: Transport,
    secondary: Transport,
    queues: Sequence[Entity],
    entities: Sequence[Entity],
    time_limit: float,
    agreement: Agreement,
) -> Look:
    """Look at both brokers, all backlog queues and some entities at the same time; failures are part of the result."""
    queues = (*queues, *agreement.found)
    brokers = asyncio.gather(see_broker(primary, time_limit), see_broker(secondary, time_limit))
    seen = asyncio.gather(*(_see_entity(primary, entity, time_limit) for entity in entities))
    backlog = asyncio.ensure_future(count_queues(secondary, queues, time_limit))
    first, second = await brokers
    return Look(first, second, tuple(await seen), await backlog, agreement)


async def see_broker(transport: Transport, time_limit: float) -> BrokerLook:
    """Make one round trip to a broker."""
    seconds, error = await _timed(transport.admin.check(), time_limit)
    return BrokerLook(transport.endpoint.url, seconds, error)


async def _see_entity(primary: Transport, entity: Entity, time_limit: float) -> EntityLook:
    seconds, error = await _timed(primary.admin.probe(entity), time_limit)
    counts = None
    if entity.kind is EntityKind.QUEUE:
        try:
            counts = await within(time_limit, primary.admin.counts(Source(entity)))
        except TransportError as failure:
            error = error or str(failure)
    return EntityLook(entity, seconds, error, counts)


async def _timed(operation: Awaitable[None], time_limit: float) -> tuple[float, str | None]:
    started = time.monotonic()
    error = None
    try:
        await within(time_limit, operation)
    except TransportError as failure:
        error = str(failure)
    return time.monotonic() - started, error

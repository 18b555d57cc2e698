"""What the backlog queues hold, as their broker counts it, and what the tasks did, as their journals count it.

The journals are the only record of an attempt that died.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pairmq.model import Entity, FailureReason, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.transport import QueueCounts, QueueProperties, Transport, counts_of

_AT_ONCE = 8  # queues asked for side by side: soon done, without a burst of connections


@dataclass(frozen=True, slots=True)
class Depth:
    """What one queue holds.

    Args:
        counts: None when it could not be asked; all zero when it does not exist.
        error: why it could not be asked.
        exists: False when the broker knows no such queue.
    """

    counts: QueueCounts | None
    error: str | None = None
    exists: bool = True

    @property
    def pending(self) -> int | None:
        """Messages still to be moved; None when not known."""
        return None if self.counts is None else self.counts.pending

    @property
    def dead_letter(self) -> int | None:
        """Messages dead-lettered; None when not known."""
        return None if self.counts is None else self.counts.dead_letter


def total(numbers: Sequence[int | None]) -> int | None:
    """Add up; None when a summand is not known."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def set_aside(before: Depth, after: Depth) -> int | None:
    """Return how many messages of a queue were dead-lettered between two counts; None if unknown."""
    if after.dead_letter == 0:
        return 0
    if before.dead_letter is None or after.dead_letter is None:
        return None
    return max(0, after.dead_letter - before.dead_letter)


async def count(transport: Transport, queues: Sequence[Entity], time_limit: float) -> tuple[Depth, ...]:
    """Count every queue; failures are part of the result.

    Args:
        transport: the secondary.
        queues: which.
        time_limit: seconds for each.

    Returns:
        One entry each, in the same order.
    """
    return tuple(_depth(transport, counts) for counts in await counts_of(transport, queues, time_limit))


async def count_surely(
    transport: Transport, queues: Sequence[Entity], time_limit: float, properties: QueueProperties
) -> tuple[Depth, ...]:
    """Count every queue, where 0 means that it is empty; failures are part of the result.

    RabbitMQ's quick answer is 0 too while a queue has no leader, and it looks closer only where the same transport was
    asked to make the queue, as a pair asks for its own when it opens. So that is done for the queues that seem empty:
    they stay as they are, and those that do not exist are not made.

    Args:
        transport: the secondary.
        queues: backlog queues.
        time_limit: seconds for each operation.
        properties: what the pair's backlog queues are asked to be.

    Returns:
        One entry each, in the same order.
    """
    depths = await count(transport, queues, time_limit)
    empty = [queue for queue, depth in zip(queues, depths, strict=True) if depth.exists and depth.pending == 0]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask_for(queue: Entity) -> None:
        async with turns:
            # The count shows whether it can be queried.
            with contextlib.suppress(TransportError, TimeoutError):
                async with asyncio.timeout(time_limit):
                    await transport.admin.create(queue, properties)

    await asyncio.gather(*map(ask_for, empty))
    again = dict(zip(empty, await count(transport, empty, time_limit), strict=True))
    return tuple(again.get(queue, depth) for queue, depth in zip(queues, depths, strict=True))


def _depth(transport: Transport, counts: QueueCounts | TransportError) -> Depth:
    if isinstance(counts, QueueCounts):
        return Depth(counts)
    if counts.reason is FailureReason.NOT_FOUND:
        return Depth(QueueCounts(), exists=False)
    text = str(counts)
    return Depth(None, text if transport.endpoint.url in text else f"{transport.endpoint}: {text}")


_SEGMENT = re.compile(r"segment-(.+)-[0-9]{6,12}\.parquet")
_PART = re.compile(r"(.+)-[0-9]{6,12}\.(?:part|lost-[0-9-]+(?:closed-[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Journalled:
    """Results of a drain from the journals.

    Args:
        moved: messages that were moved back and left their backlog queue.
        again: of these, those of which the primary may hold a second copy: marked by the sender, or locked by an
            earlier attempt.
        dead_lettered: messages dead-lettered.
    """

    moved: int
    again: int
    dead_lettered: int


def count_journalled(directory: str, runs: Collection[str]) -> Journalled:
    """Count what some processes journalled, also those that were killed.

    Raises:
        OSError: the directory can't be read, or something of these processes in it is damaged or may not be read.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from pairmq.observe.journal import recover, segments

    for path, why in recover(directory).failed.items():
        name = _PART.fullmatch(path.name)
        if name is not None and name[1] in runs:
            raise OSError(f"{path}: {why}")
    moved = again = dead_lettered = 0
    for path in segments(directory):
        name = _SEGMENT.fullmatch(path.name)
        if name is None or name[1] not in runs:
            continue
        columns = ["kind", "completed", "maybe_duplicate", "redelivered"]
        try:
            rows = pq.read_table(path, columns=columns, partitioning=None)
        except pa.ArrowException as error:
            raise OSError(f"{path}: {error}") from error
        moves = rows.filter((pc.field("kind") == MessageMoved.__name__) & pc.field("completed"))
        moved += moves.num_rows
        again += moves.filter(pc.field("maybe_duplicate") | pc.field("redelivered")).num_rows
        dead_lettered += rows.filter(pc.field("kind") == MessageDeadLettered.__name__).num_rows
    return Journalled(moved, again, dead_lettered)

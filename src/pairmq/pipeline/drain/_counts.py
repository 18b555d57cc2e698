"""What the backlog queues hold, as their broker counts it, and what the tasks did, as their journals count it.

The journals are the only record of an attempt that died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pairmq.model import Entity, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.transport import Depth, QueueProperties, Transport, counts_of

_AT_ONCE = 8  # queues asked for side by side: soon done, without a burst of connections


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


async def count_surely(
    transport: Transport, queues: Sequence[Entity], time_limit: float, properties: QueueProperties
) -> tuple[Depth, ...]:
    """Count every queue, where 0 means that it is empty; failures are part of the result.

    RabbitMQ's quick answer is 0 too while a queue has no leader, and it looks closer only where the same transport was
    asked to make the queue, as a pair asks for its own when it opens. So that is done for the queues that seem empty:
    they stay as they are, and those that do not exist are not made.
    """
    depths = await counts_of(transport, queues, time_limit)
    empty = [depth.queue for depth in depths if depth.pending == 0 and not depth.missing]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask_for(queue: Entity) -> None:
        async with turns:
            # The count shows whether it can be queried.
            with contextlib.suppress(TransportError, TimeoutError):
                async with asyncio.timeout(time_limit):
                    await transport.admin.create(queue, properties)

    await asyncio.gather(*map(ask_for, empty))
    again = {depth.queue: depth for depth in await counts_of(transport, empty, time_limit)}
    return tuple(again.get(depth.queue, depth) for depth in depths)


@dataclass(frozen=True, slots=True)
class Journalled:
    """Results of a drain from the journals."""

    moved: int  # messages that were moved back and left their backlog queue
    # Of these, those of which the primary may hold a second copy: marked by the sender, or locked by an earlier
    # attempt.
    again: int
    dead_lettered: int  # messages dead-lettered


def count_journalled(directory: str, runs: Collection[str]) -> Journalled:
    """Count what some processes journalled, also those that were killed; damage to it raises `OSError`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from pairmq.observe.journal import recover, segments
    from pairmq.pipeline.journal_io import PART_NAME, SEGMENT_NAME

    for path, why in recover(directory).failed.items():
        name = PART_NAME.fullmatch(path.name)
        if name is not None and name[1] in runs:
            raise OSError(f"{path}: {why}")
    moved = again = dead_lettered = 0
    for path in segments(directory):
        name = SEGMENT_NAME.fullmatch(path.name)
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

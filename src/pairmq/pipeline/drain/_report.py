"""What a drain did, for people and for programs, as the broker counts its queues and the tasks' journals their moves.

The journals are the only record of an attempt that died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pairmq.model import Entity, TransportError
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.pipeline.drain._handover import Ending
from pairmq.transport import Depth, QueueProperties, Transport, counts_of


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One backlog queue.

    Args:
        queue: its path.
        before: messages in it at the start; None when it could not be asked.
        left: messages in it at the end; likewise.
        ending: how the work on it ended; None when there was nothing to do.
        attempts: tasks that worked on it one after the other; more than one where a worker died.
        problem: what went wrong last, None for nothing.
    """

    queue: str
    before: int | None
    left: int | None
    ending: Ending | None = None
    attempts: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a drain did.

    Args:
        queues: one entry each, by their index.
        before: messages in the backlog at the start; None when not known.
        left: messages in it at the end; likewise. Others may have put some there, or taken some out.
        moved: messages moved to the primary; None if unknown.
        gone: messages that left the queues without being dead-lettered, by the secondary's counts; None if unknown.
        counted_from: ``"journal"``: exactly what the tasks wrote down, short of the last moment of a worker that was
            killed; ``"brokers"``: the same as ``gone``, moved by any process.
        moved_again: of these, those that may have a second copy in the primary; None without a journal.
        dead_lettered: messages dead-lettered meanwhile, by the journal or the secondary, whichever is more; None when
            not known.
        workers_lost: attempts that died.
        shut: destinations that took no messages, each with the reason.
        problem: why the drain as a whole failed; None when it did not.
        stopped: a person or the system asked for the end.
        seconds: from the first count to the last.
        elsewhere: backlog queues that hold messages and that this drain leaves alone, each with the reason.
        unread: why it was not looked whether messages wait elsewhere; None when it was.
    """

    queues: tuple[QueueReport, ...]
    before: int | None
    left: int | None
    moved: int | None
    gone: int | None
    counted_from: str
    moved_again: int | None
    dead_lettered: int | None
    workers_lost: int
    shut: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    stopped: bool = False
    seconds: float = 0.0
    elsewhere: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def emptied(self) -> bool:
        """Whether every queue was asked at the end and holds nothing to be moved."""
        return self.left == 0

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do: emptied, and known to have set nothing aside."""
        return self.emptied and self.dead_lettered == 0 and self.problem is None and not self.elsewhere

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"emptied": self.emptied, **asdict(self), "seconds": round(self.seconds, 3)}


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

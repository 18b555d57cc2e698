"""Counts what the tasks did from their journals: an attempt that died has told nobody else."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from pairmq.model.events import MessageDeadLettered, MessageMoved

_SEGMENT = re.compile(r"segment-(.+)-[0-9]{6,12}\.parquet")
_PART = re.compile(r"(.+)-[0-9]{6,12}\.(?:part|lost-[0-9-]+(?:closed-[0-9]+)?)")


@dataclass(frozen=True, slots=True)
class Journalled:
    """What journals tell of a drain.

    Args:
        moved: messages that came home and left their backlog queue.
        again: of these, those of which the primary may hold a second copy: the sender says so, or an attempt had
            them in hand before.
        dead_lettered: messages set aside.
    """

    moved: int
    again: int
    dead_lettered: int


def count_journalled(directory: str, runs: Collection[str]) -> Journalled:
    """Count what some processes journalled, also those that were killed.

    Args:
        directory: the journals'.
        runs: names under which they journalled.

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
        home = rows.filter((pc.field("kind") == MessageMoved.__name__) & pc.field("completed"))
        moved += home.num_rows
        again += home.filter(pc.field("maybe_duplicate") | pc.field("redelivered")).num_rows
        dead_lettered += rows.filter(pc.field("kind") == MessageDeadLettered.__name__).num_rows
    return Journalled(moved, again, dead_lettered)

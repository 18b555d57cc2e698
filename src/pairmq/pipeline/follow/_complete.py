"""How far the tables are complete: until when every process that is known has told all that it will ever tell."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.pipeline.transforms import PROCESSES

_HOLES = "_holes"  # what a run works with is out of sight of whoever looks for tables


def complete_until(tables: Path, patience: float) -> float | None:
    """Find the first hole of the journal that reaches into its last seconds.

    An older hole is given up: nobody can tell a row that comes late from one that never comes but by waiting.

    Args:
        tables: the folder of a run's tables, and of what they were made of.
        patience: how many seconds at the journal's end may still be filled.

    Returns:
        Seconds since 1970 UTC: its beginning, else the journal's last row; None if the journal is empty.
    """
    processes = pq.read_table(tables / PROCESSES.name, columns=["last_at"], partitioning=None)
    end = pc.max(processes["last_at"].cast("timestamp[us]").cast("int64")).as_py()
    if end is None:
        return None
    last = float(end) / 1_000_000
    holes = pq.read_table(tables / _HOLES, columns=["began", "ended"], partitioning=None)
    late = holes.filter(pc.greater_equal(holes["ended"], last - patience))
    began = pc.min(late["began"]).as_py()
    return last if began is None else min(last, float(began))

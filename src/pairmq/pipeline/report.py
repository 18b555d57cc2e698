"""What a run found, as one value and one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pairmq.model.records import SCHEMA_VERSION
from pairmq.pipeline.journal_io import BadSegment, OpenPart

_LOST = "lost"


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found; ``run.json`` holds the same.

    Args:
        version: PairMQ's.
        spark: Spark's version.
        patience: seconds, as it was asked for.
        segments: how many were read.
        rows: in them, each once.
        bad: the files that were not read.
        unfinished: the parts that are not yet segments, whose rows were not read.
        first_at: the journal's first instant, seconds since 1970 UTC; None if it is empty.
        last_at: its last.
        missing: rows that the numbers of the others show to be missing.
        dropped: events that processes say they could not write.
        misdated: rows that count for nothing, as their instants can't be.
        clocks: by how many seconds the clocks of processes were set, or went wrong, while they ran; those of more than
            a second.
        absent: the queues, as pair and entity, whose consumers' journal is missing, as far as the pair's other queues
            show.
        processes: by how they ended.
        verdicts: messages by their verdict.
        faults: for each verdict that breaks a promise, the first few messages, as pair, entity and id.
        tables: rows of each table.
        seconds: how long it took.
    """

    version: str
    spark: str
    patience: float
    segments: int
    rows: int
    bad: Sequence[BadSegment]
    unfinished: Sequence[OpenPart]
    first_at: float | None
    last_at: float | None
    missing: int
    dropped: int
    misdated: int
    clocks: Mapping[str, float]
    absent: Sequence[tuple[str, str]]
    processes: Mapping[str, int]
    verdicts: Mapping[str, int]
    faults: Mapping[str, Sequence[tuple[str, str | None, str]]]
    tables: Mapping[str, int]
    seconds: float

    @property
    def lost(self) -> int:
        """Messages that were accepted and are lost."""
        return self.verdicts.get(_LOST, 0)

    @property
    def verdict(self) -> str:
        """``lost``; else ``faults``; else ``incomplete`` where the journal lacks something; else ``good``."""
        if self.lost:
            return "lost"
        if self.faults:
            return "faults"
        lacks = (self.bad, self.missing, self.dropped, self.misdated, self.clocks, self.absent)
        return "incomplete" if any(lacks) else "good"

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        return {
            "verdict": self.verdict,
            "versions": {"pairmq": self.version, "spark": self.spark, "schema": SCHEMA_VERSION},
            "patience": self.patience,
            "journal": {
                "segments": self.segments,
                "rows": self.rows,
                "first_at": self.first_at,
                "last_at": self.last_at,
                "missing_rows": self.missing,
                "dropped_events": self.dropped,
                "misdated_rows": self.misdated,
                "clock_errors": dict(self.clocks),
                "absent_consumers": [{"pair": pair, "entity": entity} for pair, entity in self.absent],
                "processes": dict(self.processes),
                "bad_segments": [{"path": str(each.path), "problem": each.problem} for each in self.bad],
                "unfinished_parts": [
                    {"path": str(each.path), "changed_at": each.changed_at} for each in self.unfinished
                ],
            },
            "messages": dict(self.verdicts),
            "faults": {
                verdict: [{"pair": pair, "entity": entity, "message_id": message} for pair, entity, message in found]
                for verdict, found in self.faults.items()
            },
            "tables": dict(self.tables),
            "seconds": round(self.seconds, 3),
        }

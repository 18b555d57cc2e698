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
    """What a run found; ``run.json`` holds the same."""

    version: str  # PairMQ's
    spark: str  # Spark's version
    patience: float  # seconds, as it was asked for
    segments: int  # how many were read
    rows: int  # in them, each once
    bad: Sequence[BadSegment]  # the files that were not read
    unfinished: Sequence[OpenPart]  # the parts that are not yet segments, whose rows were not read
    first_at: float | None  # the journal's first instant, seconds since 1970 UTC; None if it is empty
    last_at: float | None  # its last
    missing: int  # rows that the numbers of the others show to be missing
    dropped: int  # events that processes say they could not write
    misdated: int  # rows that count for nothing, as their instants can't be
    # By how many seconds the clock of a process was set, or went wrong, while it ran; where it was more than one.
    clocks: Mapping[str, float]
    # The queues, as pair and entity, whose consumers' journal is missing, as far as the pair's other queues show.
    absent: Sequence[tuple[str, str]]
    # Programs whose latest rows are missing, or all, as others on their machines saw them write later.
    missing_programs: Sequence[str]
    processes: Mapping[str, int]  # by how they ended
    verdicts: Mapping[str, int]  # messages by their verdict
    # For each verdict that breaks a promise, the first few messages, as pair, entity and id.
    faults: Mapping[str, Sequence[tuple[str, str | None, str]]]
    tables: Mapping[str, int]  # rows of each table
    seconds: float  # how long it took

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
        lacks = (self.bad, self.missing, self.dropped, self.misdated, self.clocks, self.absent, self.missing_programs)
        return "incomplete" if any(lacks) else "good"

    def to_dict(self) -> dict[str, Any]:
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
                "missing_programs": list(self.missing_programs),
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

"""What a follower tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pairmq.pipeline.report import Report


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The tables were made anew.

    Args:
        report: what they say; its seconds are those of the refresh.
        commit: the number of the last commit in them.
        batch: the number of the last batch of Spark's stream in them; None before the first.
        new_files: files that were looked at since the last refresh.
        new_rows: rows that were taken since then.
        vanished: files that were noted and are gone before they could be read.
        complete_until: seconds since 1970 UTC, see `pairmq.pipeline.follow.follow`; None if the journal is empty.
        taking: seconds that it took to take the new rows.
    """

    report: Report
    commit: int
    batch: int | None
    new_files: int
    new_rows: int
    vanished: int
    complete_until: float | None
    taking: float

    def to_dict(self) -> dict[str, Any]:
        """The document of ``run.json``: the one of a run, and how far it follows."""
        return self.report.to_dict() | {
            "following": True,
            "follow": {
                "commit": self.commit,
                "batch": self.batch,
                "new_files": self.new_files,
                "new_rows": self.new_rows,
                "vanished_files": self.vanished,
                "complete_until": self.complete_until,
                "seconds_taking": round(self.taking, 3),
            },
        }

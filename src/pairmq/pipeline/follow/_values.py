"""What a follower reports, and how it is asked to end."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from pairmq.pipeline.report import Report


@dataclass(frozen=True, slots=True)
class Refreshed:
    """The tables were made anew."""

    report: Report  # what they say; its seconds are those of the refresh
    commit: int  # the number of the last commit in them
    new_files: int  # that were looked at since the last refresh
    new_rows: int  # that were taken since then
    vanished: int  # files that were noted and are gone before they could be read
    complete_until: float | None  # seconds since 1970 UTC; None if the journal is empty
    taking: float  # seconds that it took to take the new rows

    def to_dict(self) -> dict[str, Any]:
        """The document of ``run.json``: the one of a run, and how far it follows."""
        return self.report.to_dict() | {
            "following": True,
            "follow": {
                "commit": self.commit,
                "new_files": self.new_files,
                "new_rows": self.new_rows,
                "vanished_files": self.vanished,
                "complete_until": self.complete_until,
                "seconds_taking": round(self.taking, 3),
            },
        }


class Stop:
    """Whether a follower is to end after what it is reading.

    The follower enters it once Spark has started and leaves it in the end, so that a kind of it may watch signals in
    between: Spark puts a handler of its own in place when it starts.
    """

    def __init__(self) -> None:
        self.asked = False
        # A handler may run in the midst of `wait`: of all that can be waited for only this may be used there.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ask(self) -> None:
        self.asked = True
        self._woken.put(None)

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as it is asked."""
        if self.asked or seconds <= 0:
            return
        try:
            self._woken.get(timeout=seconds)
        except queue.Empty:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to let go of."""

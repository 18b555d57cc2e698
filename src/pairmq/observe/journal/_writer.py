"""Turns events into frames of a part, and says when a part is to become a segment; no threads, no timers.

Which healthy sends are kept depends on the message alone: the same ones in every process, and every one that an outage
touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pairmq._version import version
from pairmq.model import Entity, EntityState
from pairmq.model.events import Event, SendCompleted, SendOutcome, StateChanged
from pairmq.model.records import SCHEMA_VERSION, message_key
from pairmq.observe.journal._columns import batch_of
from pairmq.observe.journal._layout import Loss, ProcessRun, loss_path
from pairmq.observe.journal._options import JournalOptions
from pairmq.observe.journal._part import Frame, Head, Part, frame_of

_READINGS = 5
_AT_ONCE = 0.001  # s
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)  # goes on while the machine sleeps, as the wall clock does


def wall_offset() -> float:
    """Seconds of the wall clock minus those of a clock that can't be set, to a millisecond."""
    found: list[tuple[float, float]] = []
    while len(found) < _READINGS:
        began = _steady()
        wall = time.time()
        took = _steady() - began
        found.append((took, wall - began))
        if took < _AT_ONCE:
            break  # else the system had let another thread run between the two
    return round(min(found)[1], 3)  # of the same digits until it is set, so that it takes no room


def _steady() -> float:
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)


@dataclass(eq=False)
class Writer:
    """Writes the parts of one process; ``finished`` takes each complete one, ``now`` are seconds that only grow."""

    directory: Path
    run: ProcessRun
    options: JournalOptions
    finished: Callable[[Part], None]
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.options.sample_healthy)
        self._part: Part | None = None
        self._number = 0
        self._seq = 0
        self._due_at: float | None = None
        self._mark: Part | None = None
        self._loss: Loss | None = None

    @property
    def due_in(self) -> float | None:
        """Seconds until the open part is to become a segment; None when none is open."""
        return None if self._due_at is None else max(0.0, self._due_at - self.now())

    def skip(self, count: int) -> None:
        """Leave out the numbers of rows that were dropped: the gap shows their loss."""
        self._seq += count

    def frame(self, rows: list[Event]) -> Frame | None:
        """Number rows and make their frame; None when sampling keeps none of them."""
        kept = self._sampler.kept(rows)
        if not kept:
            return None
        first = self._seq
        # Counted before it is made: if that fails, the gap shows it.
        self._seq += len(kept)
        return frame_of(batch_of(kept, first, wall_offset()), first)

    def write(self, frame: Frame) -> None:
        """Hand a frame to the operating system, and finish a full part; after an `OSError` it comes first."""
        if self._part is not None and self._part.is_deleted:
            self.finish()  # as long as its rows can be read
        if self._part is None:
            self._part = Part.create(self.directory, self._head(), sync=self.options.fsync)
            self._number += 1
            self._due_at = self.now() + self.options.max_age
        try:
            self._part.append(frame, sync=self.options.fsync)
        except Exception:
            if not self._part.rows:
                # It may be the file itself that can't be written to: try another one next.
                self._part.remove()
                self._part = self._due_at = None
            raise
        full = self._part.rows >= self.options.max_rows or self._part.size >= self.options.max_bytes
        if full or self._due_at is None or self.now() >= self._due_at:
            self.finish()

    def finish_if_due(self) -> None:
        if self._due_at is not None and self.now() >= self._due_at:
            self.finish()

    def finish(self) -> None:
        part, self._part, self._due_at = self._part, None, None
        if part is not None:
            self.finished(part)

    def mark_loss(self, first_seq: int | None, count: int, since: float, until: float, dropped: int | None) -> None:
        """Leave word beside the parts of rows that could not be written, the first of which has this number or the next
        one.

        A later word replaces it. ``dropped`` is the number in all where nothing more will be written. Raises `OSError`
        when not even an empty file can be made.
        """
        if self._loss is None:
            number, self._number = self._number, self._number + 1
        else:
            number = self._loss.number
        first = self._seq if first_seq is None else first_seq
        began, ended = (max(0, int(at * 1000)) for at in (since, until))
        self._loss = loss = Loss(self.run.name, number, first, count, began, ended, dropped)
        path = loss_path(self.directory, loss)
        if self._mark is None:
            self._mark = Part.mark(path)
        else:
            self._mark.rename(path)

    def unmark_loss(self) -> None:
        """Take the word back: the rows were written after all, or a row of the journal counts them."""
        mark, self._mark, self._loss = self._mark, None, None
        if mark is not None:
            mark.remove()

    def leave_mark(self) -> None:
        """Leave the word on a loss to recovery."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()

    def _head(self) -> Head:
        return Head(
            process=self.run.name,
            host=self.run.host,
            number=self._number,
            schema_version=SCHEMA_VERSION,
            version=version(),
            sample_healthy=self.options.sample_healthy,
        )


class Sampler:
    """Drops some healthy sends: accepted at the first attempt, without a doubt, the entity healthy throughout."""

    def __init__(self, rate: float) -> None:
        self._below = int(rate * 2**64)
        self._all = rate >= 1
        self._changed_at: dict[tuple[str, Entity], float] = {}

    def kept(self, rows: list[Event]) -> list[Event]:
        return rows if self._all else [row for row in self._looked_at(rows) if self._keeps(row)]

    def _looked_at(self, rows: Iterable[Event]) -> Iterable[Event]:
        for row in rows:
            if isinstance(row, StateChanged):
                self._changed_at[row.pair, row.entity] = row.at
            yield row

    def _keeps(self, row: Event) -> bool:
        if not isinstance(row, SendCompleted) or not self._healthy(row):
            return True
        key = message_key(row.message_id) or 0
        return key % 2**64 < self._below

    def _healthy(self, send: SendCompleted) -> bool:
        return (
            send.outcome is SendOutcome.PRIMARY
            and send.attempts == 1
            and not send.maybe_duplicate
            and send.state is EntityState.HEALTHY
            and send.at - send.elapsed > self._changed_at.get((send.pair, send.entity), float("-inf"))
        )

"""Follows a journal: takes what is new, and makes the tables anew of the facts of all that was taken.

All happens one thing after another, so that it can die between any two of them:

1. The rows of files that are new or were changed, of those that were not taken before, become facts, and are committed
   to the ledger, and the files with them.
2. What is in the ledger is merged into one part, the tables are made of it, what is settled now is put aside, and all
   of that is committed. Then the tables are put in place.

Whether a row was taken is known by its process and number, exactly and forever: a file that comes late, again or as a
copy is never dropped for its time, and doubles nothing. The state says of which journal it is and by which rules it was
made: read with another journal or by other rules it would give wrong tables.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model import ConfigurationError
from pairmq.pipeline import batch
from pairmq.pipeline._storage import is_url, local, local_work_folder, put_text
from pairmq.pipeline.follow._intake import Intake, Taken
from pairmq.pipeline.follow._ledger import File, Ledger
from pairmq.pipeline.follow._refresh import Tables
from pairmq.pipeline.follow._values import Refreshed, Stop
from pairmq.pipeline.journal_io import BadSegment, OpenPart, check_journal, open_parts
from pairmq.pipeline.report import Report
from pairmq.pipeline.session import session
from pairmq.pipeline.transforms import PROCESSES, Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOLDER = "pairmq pipeline run --follow"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What `pairmq.pipeline.follow.follow` is asked for, beside where."""

    settings: Settings
    every: float
    once: bool
    until_idle: float | None
    stop: Stop
    on_refresh: Callable[[Refreshed], None]
    progress: Callable[[int, str], None]

    def __post_init__(self) -> None:
        if not 0 < self.every < math.inf:
            raise ConfigurationError(f"every is {self.every!r}: it must be more than 0 seconds, and finite")
        if self.until_idle is not None and not self.until_idle >= 0:
            raise ConfigurationError(f"until_idle is {self.until_idle!r}: it must be 0 seconds or more")


def follow(
    journal: str | os.PathLike[str],
    out: str | os.PathLike[str],
    wishes: Wishes,
    *,
    spark: SparkSession | None,
    cores: int | None,
    restart: bool,
) -> Report:
    """Keep all tables of a journal up to date."""
    for place in (journal, out):
        if is_url(place):
            raise ConfigurationError(f"{place} can't be followed: give a local directory, or run without --follow")
    source, target = local(journal), local(out)
    check_journal(source)
    batch.check_places(source, target)
    with local_work_folder(target, HOLDER) as work, session(spark, cores=cores) as mine, wishes.stop:
        if not hasattr(mine, "_jsparkSession"):
            raise ConfigurationError(
                "a journal can't be followed through Spark Connect: this process has to see its files"
            )
        state = state_of(target, source, restart=restart)
        return _Follower(mine, source.resolve(), target, work, state, wishes).run()


class _Follower:
    def __init__(self, spark: SparkSession, journal: Path, out: Path, work: Path, state: Path, wishes: Wishes) -> None:
        self._spark = spark
        self._journal = journal
        self._out = out
        self._work = work
        self._wishes = wishes
        self._stop = wishes.stop
        try:
            self._ledger = Ledger(state)
            self._tables = Tables(spark, self._ledger)
        except ValueError as error:
            raise unusable(state, f"is damaged: {error}") from None
        self._intake = Intake(spark, self._ledger)
        self._report: Report | None = None
        self._refreshed_at = time.monotonic()
        self._commit = -1  # the last one in the tables
        self._parts: tuple[OpenPart, ...] = ()
        self._open: frozenset[tuple[str, float]] = frozenset()  # those that are in the tables

    def run(self) -> Report:
        """Follow until it is to end; gives what the tables say then."""
        began = time.monotonic()
        self._look(at_all=True)
        while not self._wishes.once and self._waited(began):
            began = time.monotonic()
            self._look()
        return self._report if self._report is not None else self._refreshed()

    def _waited(self, began: float) -> bool:
        """Wait until the next look is due; False without one."""
        due, idle = began + self._wishes.every, self._wishes.until_idle
        if idle is not None:
            if began >= self._refreshed_at + idle:
                return False
            due = min(due, self._refreshed_at + idle)
        self._stop.wait(due - time.monotonic())
        return not self._stop.asked

    def _look(self, *, at_all: bool = False) -> None:
        """Take what is new, and make the tables anew if there was anything."""
        self._parts = open_parts(self._journal)  # first: what becomes a segment meanwhile is the one or the other
        lots = self._intake.look(self._journal, at_all=at_all)
        while lots and not self._stop.asked:  # what is left then is taken at the next start
            self._intake.take(lots.pop(0))
            self._wishes.progress(self._intake.since.rows, "taken")
            if lots and time.monotonic() - self._refreshed_at >= self._wishes.every:
                self._refreshed([found for lot in lots for found in lot])  # there is more to come, and readers wait
        taken = self._ledger.next_number - 1 != self._commit
        if self._report is None or taken or self._open_parts() != self._open:
            self._refreshed([found for lot in lots for found in lot])

    def _open_parts(self) -> frozenset[tuple[str, float]]:
        """What the tables depend on of the parts: of one beyond the journal only that."""
        last = self._report.last_at if self._report is not None else None
        end = math.inf if last is None else last + self._wishes.settings.patience
        return frozenset((part.process, min(part.changed_at, end)) for part in self._parts)

    def _refreshed(self, coming: Sequence[File] = ()) -> Report:
        """Make the tables of all that was taken, and put them in place.

        Files that are coming were found and not read yet: their rows are a hole until then.
        """
        began = time.monotonic()
        wishes, ledger = self._wishes, self._ledger
        patience = wishes.settings.patience
        waiting = ledger.waiting
        bad = tuple(
            BadSegment(Path(each.path), each.problem, each.foreign) for each in waiting if each.problem is not None
        )
        unread = (*bad, *(BadSegment(Path(each.path), "it is taken next") for each in coming))
        work = Path(tempfile.mkdtemp(prefix="tables-", dir=self._work))
        missing = batch.missing_of(ledger.lives, unread, self._parts)
        unfinished = batch.unfinished_of(self._parts, missing)
        found = self._tables.make(
            work,
            replace(wishes.settings, unread=batch.unread_of(unread), unfinished=unfinished),
            missing,
            lambda name, number, total: wishes.progress(
                self._intake.since.rows, f"{number} of {total} tables; now {name}"
            ),
        )
        report = Report(
            version=importlib.metadata.version("pairmq"),
            spark=self._spark.version,
            patience=patience,
            segments=ledger.segments,
            bad=bad,
            unfinished=self._parts,
            seconds=time.monotonic() - began,
            **found,
        )
        taken, self._intake.since = self._intake.since, Taken()
        refreshed = Refreshed(
            report=report,
            commit=ledger.next_number - 1,
            new_files=taken.files,
            new_rows=taken.rows,
            vanished=sum(each.gone for each in waiting),
            complete_until=complete_until(work, patience),
            taking=taken.seconds,
        )
        batch.put_tables_in_place(work, self._out, refreshed.to_dict())
        shutil.rmtree(work, ignore_errors=True)
        self._report, self._commit, self._refreshed_at = report, ledger.next_number - 1, time.monotonic()
        self._open = self._open_parts()
        wishes.on_refresh(refreshed)
        return report


STATE = "_follow"
"""The folder of the output directory that holds the state."""

STATE_VERSION = 12
"""Raised with every change of what is kept: the facts' columns, how they are made of rows, the files of the ledger.

Only this decides whether a state can be gone on with, so that an upgrade which changes none of these goes on. The tests
keep fingerprints of the facts, and fail where these change and this does not.
"""

_NAME = "follow.json"


def state_of(out: Path, journal: Path, *, restart: bool) -> Path:
    """Give the folder of the state, made where it is missing; to restart, without what was kept."""
    folder = out / STATE
    if restart and folder.exists():
        # One rename, so that a kill leaves the whole state or none; names like this are deleted by the next run.
        aside = out / f"_work-{secrets.token_hex(4)}"
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    path = folder / _NAME
    # The version of PairMQ is for people, and for the error below.
    maker = importlib.metadata.version("pairmq")
    mine = {"journal": str(journal.resolve()), "state": STATE_VERSION, "pairmq": maker}
    if not path.exists():
        if any(not each.name.startswith(".") for each in folder.iterdir()):
            raise unusable(folder, "does not name its journal")
        put_text(path, json.dumps(mine, indent=1) + "\n")
        return folder
    try:
        theirs = json.loads(path.read_text("utf-8"))
        its_journal, its_version, its_maker = (theirs.get(name) for name in ("journal", "state", "pairmq"))
    except (ValueError, AttributeError):
        raise unusable(folder, f"is damaged: {path} can't be read") from None
    if its_journal != mine["journal"]:
        raise unusable(folder, f"is of the journal in {its_journal}, not of {mine['journal']}")
    if its_version != STATE_VERSION:
        raise unusable(
            folder,
            f"was made by PairMQ {its_maker} in another format (version {its_version} of the state; PairMQ {maker} "
            f"goes on with version {STATE_VERSION})",
        )
    return folder


def unusable(folder: Path, why: str) -> ConfigurationError:
    """The error that says that a state can't be gone on with, and what to do."""
    return ConfigurationError(
        f"what is kept in {folder} {why}; --restart (restart=True) deletes it and reads the whole journal again"
    )


_HOLES = "_holes"  # what a run works with is hidden from readers of the tables


def complete_until(tables: Path, patience: float) -> float | None:
    """Find the first hole that reaches into the journal's last seconds of patience: its beginning, else the last row.

    An older hole is given up: only waiting distinguishes a late row from a missing one. None if the journal is empty.
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

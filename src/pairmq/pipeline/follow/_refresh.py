"""Makes the tables of all that was taken, at the cost of what is new.

Small facts are merged, and what is made of them is made anew. Of the messages only those are judged that are not
settled, and those of pieces that something new concerns, see `_settled`; the files of the other pieces become part of
the table as they are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model.events import DestinationChanged, SyphonFailed
from pairmq.pipeline import batch
from pairmq.pipeline._making import Piece as Made
from pairmq.pipeline._making import Progress, read_written, table_pieces, write_pieces
from pairmq.pipeline._storage import parquet_files, writing
from pairmq.pipeline.follow import _settled as settled
from pairmq.pipeline.follow._intake import merge_facts
from pairmq.pipeline.follow._ledger import Ledger
from pairmq.pipeline.follow._settled import Context, Piece, columns_of, planned, stood_in
from pairmq.pipeline.journal_io import spark_path
from pairmq.pipeline.transforms import PROCESSES, RECONCILIATION, Settings
from pairmq.pipeline.transforms.facts import FACTS, MESSAGES, NOTES, SMALL
from pairmq.pipeline.transforms.places import ARRIVALS, arrivals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONTEXT = "context.json"
_LATE = "late"  # the first step that needs what the context says
_FEW = 200_000  # messages which it does not pay to send into parts


class Tables:
    """Makes tables.

    Raises `ValueError` with the path of what is kept of settled messages and damaged.
    """

    def __init__(self, spark: SparkSession, ledger: Ledger) -> None:
        self._spark = spark
        self._ledger = ledger
        self._known: dict[Path, Piece] = {}
        self._pieces()
        for part in ledger.facts():
            Context.kept(part / _CONTEXT)

    def make(self, work: Path, settings: Settings, missing: Iterable[str], progress: Progress) -> dict[str, Any]:
        """Write all tables into an exclusive folder, and commit what is settled and merged."""
        if self._ledger.facts():
            folder = self._ledger.new_folder(self._ledger.chain[0].first, self._ledger.chain[-1].last)
            pieces = _Round(self._spark, self._ledger, self._pieces(), work, settings, progress, folder).make()
        else:
            pieces = []
            if len(self._ledger.chain) > 1:
                self._ledger.merge(None)
            facts = {fact.name: self._spark.createDataFrame([], fact.schema) for fact in FACTS}
            write_pieces(self._spark, table_pieces(settings), facts, lambda name: work / batch.name_of(name), progress)
        return batch.fields_of_report(
            work, missing, {f"{piece.folder.name}.parquet": piece.verdicts for piece in pieces}
        )

    def _pieces(self) -> list[Piece]:
        folders = self._ledger.settled()
        self._known = {folder: self._known.get(folder) or Piece(folder) for folder in folders}
        return [*self._known.values()]


@dataclass(slots=True)
class _Round:
    """One refresh: what is known of it so far."""

    spark: SparkSession
    ledger: Ledger
    pieces: list[Piece]
    work: Path
    settings: Settings
    progress: Progress
    folder: Path  # of the facts of all that was taken
    opened: list[Piece] = field(default_factory=list)
    messages: list[Path] = field(default_factory=list)  # the files of all messages that are judged

    def make(self) -> list[Piece]:
        """Make the tables and the next state; gives its pieces."""
        before = self._merge()
        steps = table_pieces(self.settings)
        first = [step.name for step in steps].index(_LATE)
        self._write(steps[:first], (), len(steps))
        places = pq.read_table(self.work / "_places", partitioning=None)
        context = Context.of(
            places,
            columns_of(self.work / PROCESSES.name, "process", "clock_error"),
            columns_of(self.work / "_blind", "place", "minute", "untold"),
            self.settings.patience,
        )
        if before is not None:
            self._open([piece for piece in self._shut() if context.concerns(piece, before)], {})
        self._write(steps[first:], steps[:first], len(steps))
        self._settle(places)
        with writing(self.folder / _CONTEXT):
            (self.folder / _CONTEXT).write_text(context.to_json(), "utf-8")
        self.ledger.merge(self.folder, [piece.folder for piece in self.pieces])
        return self.pieces

    def _shut(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece not in self.opened]

    def _merge(self) -> Context | None:
        """Merge the facts of what is new, of what is not settled, and of the pieces which that concerns."""
        parts = self.ledger.facts()
        before = Context.kept(parts[0] / _CONTEXT)
        news = parts if before is None else parts[1:]
        keys, instants = _keys(news), _instants(news)
        concerned = [piece for piece in self.pieces if piece.has(keys) or settled.struck(piece, instants)]
        was = [*([] if before is None else _files(parts[0] / MESSAGES.name)), *(piece.messages for piece in concerned)]
        if len(parts) == 1 and not concerned:
            for small in SMALL:
                shutil.copytree(parts[0] / small.name, self.folder / small.name, copy_function=_link)
            self.messages = _files(parts[0] / MESSAGES.name)
        else:
            apart = self.work / "_messages"
            merge_facts(self.spark, parts, self.folder, apart, [piece.messages for piece in concerned])
            self.messages = _files(apart)
        self.opened = concerned
        if self._shut():
            rows = planned(self.messages)
            changed = pa.concat_tables([settled.with_keys(each, keys) for each in (rows, planned(was))])
            self._meet(stood_in(rows), stood_in(changed))
        return before

    def _meet(self, stood: settled.Stood, changed: settled.Stood) -> None:
        """Open the pieces whose messages decide which of the others were overtaken."""
        self._open([piece for piece in self._shut() if piece.is_among(stood, changed)], changed)

    def _open(self, pieces: Sequence[Piece], changed: settled.Stood) -> None:
        if pieces:
            self.opened += pieces
            self.messages += [piece.messages for piece in pieces]
            self._meet(stood_in(planned(piece.messages for piece in pieces)), {})

    def _frames(self) -> Mapping[str, DataFrame]:
        small = {each.name: read_written(self.spark, each.schema, self.folder / each.name) for each in SMALL}
        return {**small, MESSAGES.name: self._read(MESSAGES.schema, self.messages)}

    def _read(self, schema: Any, paths: Sequence[Path]) -> DataFrame:
        if not paths:
            return self.spark.createDataFrame([], schema)
        frame = self.spark.read.schema(schema).parquet(*map(spark_path, paths))
        return frame.coalesce(1) if sum(pq.read_metadata(path).num_rows for path in paths) <= _FEW else frame

    def _with_settled(self, step: Made) -> Made:
        """The same step with what the settled messages add to what it needs, or to what it makes."""
        shut = self._shut()
        if not shut:
            return step
        make = step.make
        if step.name == "arrivals":
            path = self._written("settled", pa.concat_tables(piece.arrivals for piece in shut))
            more = self._read(ARRIVALS, [path])
            return replace(step, make=lambda frames: make(frames).unionByName(more))
        if step.name == _LATE:
            path = self._written("frontier", pa.concat_tables(piece.frontier for piece in shut))
            return _adding(step, MESSAGES.name, self._read(MESSAGES.schema, [path]))
        if step.name == "order" and (late := [piece.judged for piece in shut if piece.late]):
            return _adding(
                step, RECONCILIATION.name, self._read(RECONCILIATION.schema, late).filter("late IS NOT NULL")
            )
        return step

    def _written(self, name: str, table: pa.Table) -> Path:
        path = self.work / f"{name}.parquet"  # of a name with a line in front Spark would read nothing
        with writing(path):
            pq.write_table(table, path)
        return path

    def _write(self, steps: Sequence[Made], done: Sequence[Made], total: int) -> None:
        write_pieces(
            self.spark,
            [self._with_settled(step) for step in steps],
            self._frames(),
            self._place_of,
            lambda name, number, _: self.progress(name, len(done) + number, total),
            done=done,
        )

    def _place_of(self, name: str) -> Path:
        if name == RECONCILIATION.name:
            return self.work / "_judged"
        return self.folder / name if name in _FACTS else self.work / batch.name_of(name)

    def _settle(self, places: pa.Table) -> None:
        """Take the messages that are settled now out of the others, and put the table together."""
        table, rest = self.work / RECONCILIATION.name, self.folder / MESSAGES.name
        for folder in (table, rest):
            folder.mkdir()
        opened = self.opened if sum(piece.rows for piece in self.opened) <= settled.AT_MOST else []
        found = settled.destinations(planned(self.messages), opened, self.settings.patience)
        groups = settled.divided(self.messages, found, rest / "part-00000.parquet")
        written = _files(self._place_of(RECONCILIATION.name))
        judged = settled.judged_apart(written, places, groups, table / "not-settled.parquet")
        becomes: dict[Piece, Piece] = {}
        new: list[Piece] = []
        wanted = [number for number, group in enumerate(groups) if len(group)]
        folders = {number: self.ledger.new_piece() for number in wanted}
        paths = {number: settled.write_messages(folders[number], groups[number]) for number in wanted}
        for number, arrived in self._arrivals(paths).items():
            rows, messages = judged[number]
            piece = settled.write_piece(
                folders[number], groups[number], rows, settled.rolled(arrived), settled.frontier(messages)
            )
            if number < len(opened):
                becomes[opened[number]] = piece
            else:
                new.append(piece)
        kept = [becomes.get(piece, piece) for piece in self.pieces if piece in becomes or piece not in self.opened]
        for piece in new:
            kept.append(piece)
            while len(kept) > 1 and kept[-2].rows < 2 * kept[-1].rows <= 2 * (settled.IN_A_PIECE - kept[-2].rows):
                kept[-2:] = [settled.merged(kept[-2:], self.ledger.new_piece())]
        self.pieces = kept
        for piece in kept:
            _link(piece.judged, table / f"{piece.folder.name}.parquet")

    def _arrivals(self, paths: Mapping[int, Path]) -> dict[int, pa.Table]:
        """What the step ``arrivals`` makes of the messages of each new piece."""

        def asked(number: int, path: Path) -> Made:
            frame = self._read(MESSAGES.schema, [path])
            return Made(f"settled{number}", ARRIVALS, (), lambda _: arrivals(frame), "snappy", "settled")

        where = {number: self.work / f"_settled{number}" for number in paths}
        write_pieces(
            self.spark,
            [asked(number, path) for number, path in paths.items()],
            {},
            lambda name: self.work / f"_{name}",
            lambda *_: None,
        )
        return {number: pq.read_table(folder, partitioning=None) for number, folder in where.items()}


_FACTS = frozenset(small.name for small in SMALL)


def _adding(step: Made, name: str, more: DataFrame) -> Made:
    make = step.make
    return replace(step, make=lambda frames: make({**frames, name: frames[name].unionByName(more)}))


def _files(folder: Path) -> list[Path]:
    return [Path(str(path)) for path in parquet_files(folder)]


def _keys(parts: Sequence[Path]) -> np.ndarray:
    """The keys of the messages that rows came about, sorted."""
    keys = [columns_of(part / MESSAGES.name, "message_key")["message_key"].to_numpy() for part in parts]
    return np.unique(np.concatenate(keys)) if keys else np.empty(0, np.int64)


def _instants(parts: Sequence[Path]) -> list[float]:
    """When pumps stopped, as rows that came say."""
    found: list[float] = []
    for part in parts:
        notes = columns_of(part / NOTES.name, "kind", "at")
        kinds = pa.array([DestinationChanged.__name__, SyphonFailed.__name__])
        found += notes.filter(pc.is_in(notes["kind"], kinds))["at"].to_pylist()
    return found


def _link(source: str | Path, target: str | Path) -> None:
    """Give a file that is never changed another name; where names can't share one, copy it."""
    try:
        os.link(source, target)
    except OSError:
        with writing(target):
            shutil.copyfile(source, target)

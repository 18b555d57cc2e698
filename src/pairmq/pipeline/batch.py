"""One run: a journal in, tables out, each put in place whole."""

from __future__ import annotations

import contextlib
import heapq
import importlib.metadata
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.errors import PySparkException

from pairmq.model import ConfigurationError
from pairmq.pipeline import transforms
from pairmq.pipeline._making import (
    COUNTS,
    Piece,
    Progress,
    fact_pieces,
    read_written,
    table_pieces,
    write_pieces,
    written_rows,
)
from pairmq.pipeline._storage import (
    Place,
    check_place,
    is_url,
    local,
    opened,
    parquet_files,
    publish,
    reached,
    work_folder,
)
from pairmq.pipeline.journal_io import (
    FEW,
    BadSegment,
    Contents,
    Lives,
    OpenPart,
    damaged,
    local_files,
    look_over,
    new_rows,
    sift,
    spark_target,
)
from pairmq.pipeline.report import Report
from pairmq.pipeline.session import KEPT, LARGE, ONE_COMPILER, QUICK, SMALL, session, usable_cores
from pairmq.pipeline.transforms import Settings, Unfinished, Unread
from pairmq.pipeline.transforms._rows import SLACK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

try:
    from py4j.protocol import Py4JError
except ImportError:  # the client of Spark Connect comes without it
    _SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException,)
else:
    _SPARK_ERRORS = (PySparkException, Py4JError)

_DAY = 86_400.0  # s
_PARTS = "spark.sql.shuffle.partitions"
_LISTED = "spark.sql.sources.parallelPartitionDiscovery.threshold"
_ROWS_A_PARTITION = 500_000  # so that what one task keeps of them stays within some hundred MiB
_BRIEF = 1_000_000  # rows for which it does not pay to compile everything for speed
_QUICK = 1_000_000  # rows whose messages the heap holds
_NAMED = 20  # messages of each fault in the report
_COUNTS = ("rows", "missing", "dropped", "misdated")  # of each process


def run(
    journal: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: Settings,
    *,
    spark: SparkSession | None,
    cores: int | None,
    format: str | None,
    progress: Progress,
) -> Report:
    """Make all tables of a journal; see `pairmq.pipeline.run`."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        mine: SparkSession | None = None
        source: Place
        target: Place
        if is_url(journal) or is_url(out):
            # Spark has to be there before the journal's size is known: only by it the two are reached.
            mine = stack.enter_context(session(spark, cores=cores, settings=LARGE))
            source, target = reached(journal, mine), reached(out, mine)
        else:
            source, target = local(journal), local(out)
        check_places(source, target)
        contents = look_over(source)
        work = stack.enter_context(work_folder(target, "pairmq pipeline run"))
        fit = sized(contents, cores or usable_cores())
        if mine is None:
            mine = stack.enter_context(session(spark, cores=cores, settings=fit))
        elif mine.conf.get(KEPT, None) is not None:
            mine.conf.set(_PARTS, fit[_PARTS])
        if format is not None:
            check_format(mine, format, target)
        try:
            found = _made(mine, work, contents, settings, progress)
        except (*_SPARK_ERRORS, OSError, pa.ArrowException):
            # Footers may be sound where pages are not: only now is it worth reading everything to see which.
            bad = damaged(contents)
            if not bad:
                raise
            contents = contents.without(bad)
            found = _made(mine, work, contents, settings, progress)
        report = Report(
            version=importlib.metadata.version("pairmq"),
            spark=mine.version,
            patience=settings.patience,
            segments=len(contents.segments),
            bad=contents.bad,
            unfinished=contents.parts,
            seconds=time.monotonic() - began,
            **found,
        )
        if format is not None:
            _write_format(mine, work, target / format, format)
        put_tables_in_place(work, target, report.to_dict())
    return report


def check_format(spark: SparkSession, name: str, out: Place) -> None:
    """See that the session has the package of a format, before the work of making the tables is done."""
    try:
        spark.read.format(name).load(spark_target(out / "_none")).schema  # noqa: B018  # analyses it
    except _SPARK_ERRORS as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):  # otherwise there is nothing at this place, as it should be
            raise ConfigurationError(
                f"this Spark can't write the format {name!r}: start it with the package of the format, by spark-submit "
                "--packages or spark.jars.packages in the spark-defaults.conf of SPARK_CONF_DIR"
            ) from None


def _write_format(spark: SparkSession, work: Place, folder: Place, name: str) -> None:
    """Write the finished tables in another format, each by one commit of that format where it has any."""
    for table in transforms.TABLES:
        made = read_written(spark, table.schema, work / name_of(table.name))
        made.write.format(name).mode("overwrite").save(spark_target(folder / table.name))


def sized(contents: Contents, cores: int) -> dict[str, str]:
    """Return the settings of a local session that depend on the journal's size.

    Rows are sent into so many parts that memory stays the same for a journal of any size. For a small one Spark's ways
    to be fast cost more than they save.
    """
    rows = sum(segment.rows for segment in contents.segments)
    if rows <= FEW:
        return SMALL
    quick = rows <= _QUICK
    parts = str(max(cores if quick else 4 * cores, rows // _ROWS_A_PARTITION))
    compiled = ONE_COMPILER if rows <= _BRIEF else {}
    # A job that lists files takes longer than to list them, of a local journal.
    return {**(QUICK if quick else LARGE), **compiled, _PARTS: parts, _LISTED: str(len(contents.segments))}


def unread_of(bad: Iterable[BadSegment]) -> tuple[Unread, ...]:
    """Return the processes and days whose rows are not read: all days if a file's folder does not name one.

    A file that was renamed may have the rows of any process. One that is foreign by its name and its columns has none.
    """
    found = []
    for each in bad:
        if each.process is not None or not each.foreign:
            began = None if each.day is None else each.day.timestamp()
            found.append(Unread(each.process, began, None if began is None else began + _DAY))
    return tuple(found)


def unfinished_of(parts: Iterable[OpenPart], missing: Mapping[str, float]) -> tuple[Unfinished, ...]:
    """Return the processes whose latest rows are not in a segment yet, or are missing."""
    known = {(each.process, each.changed_at) for each in parts}
    return tuple(Unfinished(*each) for each in sorted(known | set(missing.items())))


def missing_of(lives: Lives, bad: Iterable[BadSegment], parts: Iterable[OpenPart]) -> dict[str, float]:
    """Return the processes whose latest rows are missing, and when they were written, but for what is known of."""
    return lives.missing({*(each.process for each in bad), *(each.process for each in parts)})


def check_places(journal: Place, out: Place) -> None:
    """See that nothing else is where a table is to be, and that no table is where segments are looked for."""
    if not isinstance(out, Path):
        return
    if isinstance(journal, Path) and out.resolve().is_relative_to(journal.resolve()):
        raise ConfigurationError(
            f"{out} is in the journal {journal}, where tables would be taken for segments: give another directory"
        )
    try:
        for table in transforms.TABLES:
            check_place(out / table.name)
    except OSError as error:
        raise ConfigurationError(f"can't write tables to {out}: {error.strerror}") from None


def put_tables_in_place(work: Place, out: Place, document: Mapping[str, Any]) -> None:
    """Put the tables of a work folder in their places, then the run file."""
    names = tuple(table.name for table in transforms.TABLES)
    publish(work, out, names, json.dumps(document, indent=1) + "\n")


def rehearse(spark: SparkSession, enough: Event) -> None:
    """Make the tables of no rows, each by itself, so that Java has loaded what a run needs.

    Once it is ``enough``, it ends as soon as those tables are made that have begun.
    """

    def go_on(*_: object) -> None:
        if enough.is_set():
            raise _Enough

    with (
        tempfile.TemporaryDirectory(prefix="pairmq-", ignore_cleanup_errors=True) as name,
        contextlib.suppress(_Enough),
    ):
        go_on()
        work = Path(name)
        known = _pieces(spark, Contents((), ()), Settings(), work)
        pieces = [each if each.group == COUNTS else replace(each, group=None, only_with={}) for each in known]
        write_pieces(spark, pieces, {}, lambda piece: work / piece, go_on)


class _Enough(Exception):
    pass


def _made(
    spark: SparkSession, work: Place, contents: Contents, settings: Settings, progress: Progress
) -> dict[str, Any]:
    """Write facts and tables in one go: a table may be ready while facts that it does not need are still being made."""
    missing = missing_of(Lives.of(contents.segments), contents.bad, contents.parts)
    unfinished = unfinished_of(contents.parts, missing)
    known = replace(settings, unread=unread_of(contents.bad), unfinished=unfinished)
    pieces = _pieces(spark, contents, known, work)
    write_pieces(spark, pieces, {}, lambda name: work / name_of(name), progress)
    return fields_of_report(work, missing)


def _pieces(spark: SparkSession, contents: Contents, settings: Settings, work: Place) -> tuple[Piece, ...]:
    level = spark.conf.get(KEPT, None)
    kept = None if level is None else getattr(StorageLevel, level)
    sifted, aside = sift(contents.segments, {}), work / "_rows"
    rows = new_rows(spark, sifted, aside)
    return (*fact_pieces(rows, kept, local_files(sifted, aside)), *table_pieces(settings))


def name_of(piece: str) -> str:
    """Give the name of a folder in a work folder: a table's own, of what is in between hidden from their readers."""
    return piece if piece in _TABLES else f"_{piece}"


_TABLES = frozenset(table.name for table in transforms.TABLES)


def fields_of_report(
    work: Place, missing: Iterable[str], counted: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Any]:
    """Give what the report says of the tables: its fields by name.

    It is read from their files: five queries of Spark's would take longer. What files of the reconciliation were
    counted before are known by their names.
    """
    known = {name: Counter(each) for name, each in (counted or {}).items()}
    files = {table.name: parquet_files(work / name_of(table.name)) for table in transforms.TABLES}
    judged = files[transforms.RECONCILIATION.name]
    for path in judged:
        if path.name not in known:
            known[path.name] = Counter()
            for batch in _batches([path], ["verdict"]):
                found = pc.value_counts(batch["verdict"]).to_pylist()
                known[path.name].update({each["values"]: each["counts"] for each in found})
    verdicts = sum((known[path.name] for path in judged), Counter[str]())
    faults = [verdict.value for verdict in transforms.FAULTS if verdicts[verdict.value]]
    at_fault = (path for path in judged if known[path.name].keys() & faults)
    counts, ended, clocks = Counter(dict.fromkeys(_COUNTS, 0)), Counter[str](), dict[str, float]()
    instants: list[float] = []
    unseen = set(missing)
    wanted = (*_COUNTS, "ended", "first_at", "last_at", "process", "clock_error")
    for row in _rows(files[transforms.PROCESSES.name], wanted):
        counts.update({name: row[name] or 0 for name in _COUNTS})
        ended[row["ended"]] += 1
        if row["ended"] == "closed":
            unseen.discard(row["process"])
        instants += (row[name].timestamp() for name in ("first_at", "last_at") if row[name] is not None)
        if (row["clock_error"] or 0.0) > SLACK:
            clocks[row["process"]] = row["clock_error"]
    observed = _rows(files[transforms.OBSERVATION.name], ("pair", "entity", "absent"))
    return {
        **counts,
        "clocks": dict(sorted(clocks.items())),
        "missing_programs": sorted(unseen),
        "absent": sorted((row["pair"], row["entity"]) for row in observed if row["absent"]),
        "first_at": min(instants, default=None),
        "last_at": max(instants, default=None),
        "tables": {table.name: written_rows(work / name_of(table.name)) for table in transforms.TABLES},
        "processes": dict(ended),
        "verdicts": dict(verdicts),
        "faults": _first_of(at_fault, faults),
    }


def _batches(paths: Iterable[Place], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(opened(path)) as file:
            yield from file.iter_batches(columns=list(columns))


def _rows(paths: Iterable[Place], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    for batch in _batches(paths, columns):
        yield from batch.to_pylist()


def _first_of(paths: Iterable[Place], verdicts: Sequence[str]) -> dict[str, list[tuple[str, str | None, str]]]:
    """The first few messages with each of some verdicts, in some files of the table."""
    names = ("pair", "entity", "message_id")
    first: dict[str, list[tuple[Any, ...]]] = {verdict: [] for verdict in verdicts}
    for batch in _batches(paths, ["verdict", "accepted_at", "evidence.first_sent_at", *names]):
        for verdict, earlier in first.items():
            rows = batch.filter(pc.equal(batch["verdict"], verdict)).to_pylist()
            found = (
                ((row["evidence"] or {}).get("first_sent_at") or row["accepted_at"], *(row[name] for name in names))
                for row in rows
            )
            first[verdict] = heapq.nsmallest(_NAMED, (*earlier, *found), key=_sent_at)
    return {verdict: [row[1:] for row in rows] for verdict, rows in first.items()}


def _sent_at(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a message is sorted by; those of which no send is known come first."""
    return row[0] is not None, row[0] or 0, row[3]

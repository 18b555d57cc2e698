"""A run: what is written, what is left as it was, what ends it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import json
import os
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from command_line import run as main
from journal_by_hand import START, Journal, segment_table
from pairmq.model import ConfigurationError
from pairmq.pipeline import _making, batch, run, transforms
from pairmq.pipeline._storage import RUN_FILE, check_place, put_in_place
from pairmq.pipeline.journal_io import look_over
from pairmq.pipeline.session import FEW_ROWS, ONE_PART
from pairmq.pipeline.transforms import TABLES, Unread
from rich_journal import write_rich_journal


def kept(folder, told):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"segment-{told.process}-000000.parquet"
    pq.write_table(segment_table(told), path)
    return path


def foreign():
    """A sound Parquet file that is no segment."""
    written = io.BytesIO()
    pq.write_table(pa.table({"price": [1.0]}), written)
    return written.getvalue()


FOREIGN = foreign()


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """A journal in which one message is lost; a part and a damaged segment may tell of two others."""
    folder = tmp_path_factory.mktemp("lossy") / "journal"
    told = Journal().opened().sent(1, "a").delivered(3, "a").sent(1000, "m").sent(1600, "gone").sent(2100, "b")
    kept(folder, told.delivered(2101, "b").closed(5000))
    part = folder / "_open" / "host-7-20260202T000001Z-00000000-000000.part"
    part.parent.mkdir()
    part.touch()
    os.utime(part, (0, START + 1100))
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    earlier = Journal("earlier", start=began).opened().sent(1, "c").sent(2, "hidden").delivered(3, "c").sent(900, "d")
    kept(folder / "date=2026-01-01", earlier.delivered(901, "d").closed(1000))
    path = kept(folder / "date=2026-01-01", Journal("damaged", start=began).opened().sent(1, "x").closed(1000))
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)
    path.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def command(spark, lossy):
    """What the command says of it, and how it ends."""
    out, written = lossy.parent / "tables", io.StringIO()
    with contextlib.redirect_stdout(written):
        status = main(["pipeline", "run", "--journal", str(lossy), "--out", str(out), "--json"])
    return status, json.loads(written.getvalue()), out


def test_the_command_ends_with_status_1_where_something_accepted_is_lost(command):
    status, said, _ = command
    assert status == 1
    assert said["verdict"] == "lost"
    # What the part may tell of is not called lost, nor is anything of the day of which a segment could not be read.
    assert said["messages"] == {"delivered": 4, "lost": 1, "unproven": 2}
    assert [each["changed_at"] for each in said["journal"]["unfinished_parts"]] == [START + 1100]
    assert said["faults"]["lost"] == [{"pair": "east>west", "entity": "orders", "message_id": "gone"}]


def test_a_segment_with_damaged_pages_is_left_out_and_the_run_goes_on(command):
    (bad,) = command[1]["journal"]["bad_segments"]
    assert bad["path"].endswith("segment-damaged-000000.parquet")
    assert bad["problem"].startswith("it is damaged inside")


def test_every_table_is_there_and_nothing_else(command):
    names = {path.name for path in command[2].iterdir()}
    assert names == {table.name for table in TABLES} | {"run.json", "_lock"}
    assert list(command[1]["tables"]) == [table.name for table in TABLES]  # the same document, run by run


def test_small_facts_of_many_rows_take_few_stages(spark, tmp_path, monkeypatch):
    """As with ten million rows: those of small facts are too many to be interpreted, and all others are in parts."""
    monkeypatch.setattr(_making, "_BESIDE", {0: FEW_ROWS, 1_000_000: ONE_PART})
    parted = spark.newSession()
    for name, value in {"autoBroadcastJoinThreshold": "10m", "optimizer.disableHints": "false"}.items():
        parted.conf.set(f"spark.sql.{name}", value)
    parted.conf.set("spark.sql.shuffle.partitions", "2")
    write_rich_journal(tmp_path / "journal")
    before = spark.sparkContext._jsc.sc().dagScheduler().nextStageId()
    run(tmp_path / "journal", tmp_path / "tables", spark=parted, patience=60.0)
    assert spark.sparkContext._jsc.sc().dagScheduler().nextStageId() - before <= 40


@pytest.mark.long
def test_an_empty_journal_makes_empty_tables(spark, tmp_path):
    (tmp_path / "journal").mkdir()
    report = run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert (report.rows, report.verdict, report.lost) == (0, "good", 0)
    for table in TABLES:
        assert pq.read_table(tmp_path / "tables" / table.name).num_rows == 0


def test_a_run_that_fails_leaves_the_tables_as_they_were(spark, tmp_path, monkeypatch):
    kept(tmp_path / "journal", Journal().opened().closed(1))
    old = tmp_path / "tables" / "episodes" / "old.parquet"
    old.parent.mkdir(parents=True)
    old.write_text("of an earlier run")

    def failing(*_):
        raise KeyboardInterrupt

    # One table is made, and the next one fails.
    made, fails = (next(step for step in _making.STEPS if step.name == name) for name in ("processes", "episodes"))
    monkeypatch.setattr(_making, "STEPS", [made, replace(fails, made=failing, only_with={})])
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert old.read_text() == "of an earlier run"
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"episodes", "_lock"}


@pytest.mark.long
def test_nothing_is_called_lost_on_a_day_of_which_a_segment_is_not_read(spark, tmp_path):
    day = tmp_path / "journal" / "date=2026-02-02"
    day.mkdir(parents=True)
    sender = Journal().opened().sent(1, "a").sent(2, "m").sent(900, "b").closed(1000)
    consumer = Journal("consumer").opened().delivered(3, "a").delivered(901, "b").closed(1000)
    for number, told in enumerate((sender, consumer)):
        pq.write_table(segment_table(told), day / f"segment-{told.process}-{number:06d}.parquet")
    (day / "segment-other-000007.parquet").write_bytes(b"PAR1, and no more")
    report = run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert report.verdicts == {"delivered": 2, "unproven": 1}


@pytest.mark.parametrize(
    ("place", "content", "unread"),
    [
        ("date=2026-02-02/segment-p-000001.parquet", b"PAR1", Unread("p", START, START + 86_400)),
        ("segment-p-000001.parquet", b"PAR1", Unread("p", None, None)),
        ("date=2026-02-02/renamed.parquet", b"PAR1", Unread(None, START, START + 86_400)),
        ("old/renamed.parquet", b"PAR1", Unread(None, None, None)),
        ("prices.parquet", FOREIGN, None),
        ("date=2026-02-02/segment-p-000001.parquet", FOREIGN, Unread("p", START, START + 86_400)),
    ],
)
def test_what_a_bad_file_may_have_held_is_known_by_its_name_and_folder(tmp_path, place, content, unread):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert batch.unread_of(look_over(tmp_path).bad) == (() if unread is None else (unread,))


# What each may have held is said above; `lossy` has a message that is lost, and one that a damaged segment may tell of.
@pytest.mark.long
@pytest.mark.parametrize(
    ("content", "verdicts"),
    [
        pytest.param(b"PAR1, and no more", {"delivered": 2, "unproven": 1}, id="damaged"),
        pytest.param(FOREIGN, {"delivered": 2, "lost": 1}, id="foreign"),
    ],
)
def test_a_bad_file_under_another_name_may_have_held_anything_of_the_journal(spark, tmp_path, content, verdicts):
    (tmp_path / "journal").mkdir()
    sender = Journal().opened().sent(1, "a").sent(2, "m").sent(900, "b").closed(1000)
    consumer = Journal("consumer").opened().delivered(3, "a").delivered(901, "b").closed(1000)
    for told in (sender, consumer):
        pq.write_table(segment_table(told), tmp_path / "journal" / f"segment-{told.process}-000000.parquet")
    (tmp_path / "journal" / "renamed.parquet").write_bytes(content)
    report = run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert report.verdicts == verdicts


def test_a_directory_whose_name_reads_like_a_pattern_takes_tables(spark, tmp_path):
    out = tmp_path / "tables[1] {a,b} *?"
    piece = _making.Piece("ids", StructType([StructField("id", LongType())]), (), lambda _: spark.range(3), "snappy")
    _making.write_pieces(spark, [piece], {}, lambda name: out / name, lambda *_: None)
    assert (_making.read_written(spark, piece.schema, out / "ids").count(), os.listdir(tmp_path)) == (3, [out.name])


def test_a_rehearsal_makes_tables_until_there_is_enough_of_it(spark, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made, enough, write = [], threading.Event(), _making._Work.write

    def written(self, group, frames, folder_of):
        kept = write(self, group, frames, folder_of)
        made.extend(piece.name for piece in group)
        if transforms.PROCESSES.name in made:
            enough.set()
        return kept

    monkeypatch.setattr(_making._Work, "write", written)
    batch.rehearse(spark, enough)
    assert {"notes", "messages", "processes"} <= {*made}
    assert "reconciliation" not in made
    assert [*tmp_path.iterdir()] == []
    made.clear()
    batch.rehearse(spark, enough)
    assert made == []


def test_pieces_of_a_group_have_folders_of_their_own(spark, tmp_path):
    at = StructType([StructField("at", TimestampType()), StructField("id", LongType())])
    ids = StructType([StructField("id", LongType())])
    group = [
        _making.Piece("none", ids, (), lambda _: spark.range(0), "zstd", "group"),
        _making.Piece("ids", ids, (), lambda _: spark.range(3), "zstd", "group"),
        _making.Piece(
            "at", at, (), lambda _: spark.range(2).selectExpr("timestamp_micros(id) AS at", "id"), "zstd", "group"
        ),
    ]
    _making.write_pieces(spark, group, {}, lambda name: tmp_path / name, lambda *_: None)
    frames = {piece.name: _making.read_written(spark, piece.schema, tmp_path / piece.name) for piece in group}
    assert {name: frame.count() for name, frame in frames.items()} == {"none": 0, "ids": 3, "at": 2}
    assert {path.name: pq.read_table(path).column_names for path in tmp_path.iterdir()} == {
        "none": ["id"],
        "ids": ["id"],
        "at": ["at", "id"],
    }
    assert frames["at"].filter("at = timestamp_micros(1)").count() == 1


def test_what_has_no_rows_is_written_and_not_planned(tmp_path):
    (tmp_path / "notes").mkdir()
    pq.write_table(pa.table({"kind": ["StateChanged"]}), tmp_path / "notes" / "part-00000.parquet")
    notes = _making.Piece("notes", StructType(), (), pytest.fail, "snappy")
    schema = StructType([StructField("id", LongType())])
    moved = {"notes": pc.field("kind") == "MessageMoved"}
    piece = _making.Piece("syphon", schema, ("notes",), pytest.fail, "zstd", only_with=moved)
    _making.write_pieces(NoSpark(None), [piece], {}, lambda name: tmp_path / name, lambda *_: None, done=[notes])
    written = pq.read_table(tmp_path / "syphon")
    assert (written.num_rows, written.column_names) == (0, ["id"])


def test_a_piece_that_nothing_can_make_is_an_error_and_no_endless_wait(spark, tmp_path):
    piece = _making.Piece("ids", StructType(), ("nowhere",), lambda _: spark.range(3), "snappy")
    with pytest.raises(AssertionError, match="no step makes what ids needs"):
        _making.write_pieces(spark, [piece], {}, lambda name: tmp_path / name, lambda *_: None)


class NoSpark:
    """A session of which only the interruptions are watched."""

    def __init__(self, interrupted):
        self.interrupted = interrupted

    def addTag(self, tag): ...

    def removeTag(self, tag): ...

    def interruptTag(self, tag):
        self.interrupted()


def interrupt(name, number, total):
    if number == 1:
        raise KeyboardInterrupt


def two_pieces(make):
    return [_making.Piece(name, StructType(), (), lambda _: make(), "snappy") for name in ("one", "other")]


def test_an_interrupted_call_leaves_no_job_behind(spark, tmp_path):
    tracker = spark.sparkContext.statusTracker()

    def interrupt_once_it_works(name, number, total):
        while number == 1 and not tracker.getActiveJobsIds():
            time.sleep(0.01)
        interrupt(name, number, total)

    # Of many tasks, as one alone looks up from its work but seldom.
    endless = two_pieces(lambda: spark.range(0, 10**6, 1, 10**5).selectExpr("max(hash(id)) AS most"))
    with pytest.raises(KeyboardInterrupt):
        _making.write_pieces(spark, endless, {}, lambda name: tmp_path / name, interrupt_once_it_works)
    # What keeps Spark's books learns of the end of a job a little later than who waits for it.
    until = time.monotonic() + 100
    while tracker.getActiveJobsIds():
        assert time.monotonic() < until, "a job goes on"
        time.sleep(0.05)


def test_what_begins_after_the_first_interruption_is_interrupted_as_well(tmp_path):
    interruptions, begun = itertools.count(1), threading.Event()

    def interrupted():
        if next(interruptions) == 3:
            begun.set()

    with pytest.raises(KeyboardInterrupt):
        _making.write_pieces(NoSpark(interrupted), two_pieces(begun.wait), {}, lambda name: tmp_path / name, interrupt)
    assert begun.is_set()


def test_a_second_interruption_waits_for_nothing(tmp_path):
    def again():
        raise KeyboardInterrupt

    for_ever = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        _making.write_pieces(NoSpark(again), two_pieces(for_ever.wait), {}, lambda name: tmp_path / name, interrupt)
    for_ever.set()  # or the tests would never end


def test_two_runs_do_not_write_to_one_directory(tmp_path):
    (tmp_path / "journal").mkdir()
    (tmp_path / "tables").mkdir()
    lock = os.open(tmp_path / "tables" / "_lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="another run"):
            run(tmp_path / "journal", tmp_path / "tables")
    finally:
        os.close(lock)


def test_a_directory_takes_the_place_of_another_and_the_old_one_is_gone(tmp_path):
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    put_in_place(tmp_path / "new", tmp_path / "place")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["place", "place/new"]


@pytest.fixture
def linked(tmp_path):
    """An output directory whose table ``order`` is a link to a directory elsewhere."""
    for name in ("elsewhere", "tables"):
        (tmp_path / name).mkdir()
    (tmp_path / "elsewhere" / "old.parquet").touch()
    (tmp_path / "tables" / "order").symlink_to(tmp_path / "elsewhere")
    return tmp_path / "tables"


def test_a_table_that_is_a_link_is_refused_before_anything_is_made(tmp_path, linked, monkeypatch):
    monkeypatch.setattr(batch, "session", lambda *_, **__: pytest.fail("Spark was started"))
    (tmp_path / "journal").mkdir()
    with pytest.raises(ConfigurationError, match=r"tables/order is a symbolic link"):
        run(tmp_path / "journal", linked)


def test_a_link_is_never_followed_or_replaced(tmp_path, linked):
    (tmp_path / "new").mkdir()
    with pytest.raises(ConfigurationError, match=r"tables/order is a symbolic link"):
        put_in_place(tmp_path / "new", linked / "order")
    assert (tmp_path / "new").is_dir()
    assert (linked / "order").is_symlink()
    assert (tmp_path / "elsewhere" / "old.parquet").exists()


def test_a_link_to_nothing_is_refused_as_well(tmp_path, linked):
    (tmp_path / "elsewhere" / "old.parquet").unlink()
    (tmp_path / "elsewhere").rmdir()
    with pytest.raises(ConfigurationError, match="is a symbolic link"):
        check_place(linked / "order")


def test_a_file_in_the_place_of_a_table_is_refused(tmp_path):
    (tmp_path / "order").touch()
    with pytest.raises(ConfigurationError, match="is not a directory"):
        check_place(tmp_path / "order")


@pytest.mark.parametrize("place", ["journal", "journal/tables", "link/tables"])
@pytest.mark.parametrize("options", [(), ("--follow", "--once")])
def test_tables_are_not_written_into_the_journal(tmp_path, place, options, capsys):
    (tmp_path / "journal").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    arguments = ["--journal", str(tmp_path / "journal"), "--out", str(tmp_path / place)]
    assert main(["pipeline", "run", *arguments, *options]) == 2
    assert "is in the journal" in capsys.readouterr().err
    assert not any((tmp_path / "journal").iterdir())


@pytest.mark.parametrize(
    ("journal", "out", "problem"),
    [
        ("", "tables", "invalid path ''"),
        ("journal", "", "invalid path ''"),
        ("journal", "a\0b", "invalid path"),
        ("journal", "x" * 300, "File name too long"),
    ],
)
def test_a_path_that_can_not_be_is_bad_usage(tmp_path, monkeypatch, journal, out, problem, capsys):
    (tmp_path / "journal").mkdir()
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--follow", "--once")):
        assert main(["pipeline", "run", "--journal", journal, "--out", out, *options]) == 2
        assert problem in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


def test_a_patience_without_an_end_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="patience is inf"):
        run(tmp_path, tmp_path.parent / "tables", patience=float("inf"))


@pytest.mark.long
def test_an_output_directory_that_is_a_link_is_written_through(tmp_path, spark):
    (tmp_path / "journal").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tables").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert (tmp_path / "tables").is_symlink()
    expected = {table.name for table in TABLES} | {"_lock", "run.json"}
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == expected


def test_without_an_exchange_of_names_the_old_one_is_moved_aside_first(tmp_path, monkeypatch):
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr("pairmq.pipeline._storage._exchanged", lambda *_: False)
    put_in_place(tmp_path / "new", tmp_path / "place")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["place", "place/new"]


def test_on_a_full_disk_the_file_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(transforms, "TABLES", ())
    (tmp_path / RUN_FILE).symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*run\.json"):
        batch.put_tables_in_place(tmp_path, tmp_path / "tables", {})


def test_a_directory_that_is_no_journal_is_bad_usage(tmp_path, capsys):
    arguments = ["--journal", str(tmp_path / "nowhere"), "--out", str(tmp_path / "tables")]
    assert main(["pipeline", "run", *arguments]) == 2
    assert "is not a directory" in capsys.readouterr().err

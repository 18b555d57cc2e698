"""A run: what is written, what is left as it was, what ends it."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import fields, replace

import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from journal_by_hand import Journal, segment_table
from pairmq.cli import _pipeline_run
from pairmq.cli._app import run as main
from pairmq.model import ConfigurationError
from pairmq.pipeline import _making, run
from pairmq.pipeline._swap import put_in_place
from pairmq.pipeline.report import Report
from pairmq.pipeline.transforms import TABLES


def kept(folder, told):
    folder.mkdir(exist_ok=True)
    pq.write_table(segment_table(told), folder / f"{told.process}.parquet")


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """A journal in which one message is lost, and a segment whose pages are damaged."""
    folder = tmp_path_factory.mktemp("lossy") / "journal"
    told = Journal().opened().sent(1, "a").sent(2, "gone").sent(900, "b").delivered(3, "a").delivered(901, "b")
    kept(folder, told.closed(1000))
    kept(folder, Journal("damaged").opened().sent(1, "x").closed(1000))
    path = folder / "damaged.parquet"
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)
    path.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def command(spark, lossy):
    """What the command says of it, and how it ends."""
    import contextlib
    import io

    out, written = lossy.parent / "tables", io.StringIO()
    with contextlib.redirect_stdout(written):
        status = main(["pipeline", "run", "--journal", str(lossy), "--out", str(out), "--json"])
    return status, json.loads(written.getvalue()), out


def test_the_command_ends_with_status_1_where_something_accepted_is_lost(command):
    status, said, _ = command
    assert status == 1
    assert said["verdict"] == "lost"
    assert said["messages"] == {"delivered": 2, "lost": 1}
    assert said["faults"]["lost"] == [{"pair": "east>west", "entity": "orders", "message_id": "gone"}]


def test_a_segment_with_damaged_pages_is_set_aside_and_the_run_goes_on(command):
    (bad,) = command[1]["journal"]["bad_segments"]
    assert bad["path"].endswith("damaged.parquet")
    assert bad["problem"].startswith("it is damaged inside")


def test_every_table_is_there_and_nothing_else(command):
    names = {path.name for path in command[2].iterdir()}
    assert names == {table.name for table in TABLES} | {"run.json", "_lock"}


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

    steps = [replace(step, make=failing) if step.name == "episodes" else step for step in _making.STEPS]
    monkeypatch.setattr(_making, "STEPS", steps)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "journal", tmp_path / "tables", spark=spark)
    assert old.read_text() == "of an earlier run"
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {"episodes", "_lock"}


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


def test_a_directory_whose_name_reads_like_a_pattern_takes_tables(spark, tmp_path):
    out = tmp_path / "tables[1] {a,b} *?"
    piece = _making.Piece("ids", StructType([StructField("id", LongType())]), (), lambda _: spark.range(3), "snappy")
    frames = _making.write_pieces(spark, [piece], {}, lambda name: out / name, lambda *_: None)
    assert (frames["ids"].count(), os.listdir(tmp_path)) == (3, [out.name])


def test_a_piece_that_nothing_can_make_is_an_error_and_no_endless_wait(spark, tmp_path):
    piece = _making.Piece("ids", StructType(), ("nowhere",), lambda _: spark.range(3), "snappy")
    with pytest.raises(AssertionError, match="nothing makes what ids needs"):
        _making.write_pieces(spark, [piece], {}, lambda name: tmp_path / name, lambda *_: None)


def test_a_message_id_cannot_steer_the_terminal(capsys):
    faults = {"lost": [("east>west", "orders", "\x1b]0;owned\x07")]}
    blank = dict.fromkeys((field.name for field in fields(Report)), 0)
    known = {"bad": (), "processes": {}, "verdicts": {"lost": 1}, "faults": faults, "tables": {}}
    _pipeline_run._show(Report(**blank | known), "out")  # type: ignore[arg-type]
    assert "lost: \\x1b]0;owned\\x07 of orders" in capsys.readouterr().out


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


def test_without_an_exchange_of_names_the_old_one_is_moved_aside_first(tmp_path, monkeypatch):
    for name in ("new", "place"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    monkeypatch.setattr("pairmq.pipeline._swap._exchanged", lambda *_: False)
    put_in_place(tmp_path / "new", tmp_path / "place")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["place", "place/new"]


def test_a_directory_that_is_no_journal_is_bad_usage(tmp_path, capsys):
    arguments = ["--journal", str(tmp_path / "nowhere"), "--out", str(tmp_path / "tables")]
    assert main(["pipeline", "run", *arguments]) == 2
    assert "is no directory" in capsys.readouterr().err

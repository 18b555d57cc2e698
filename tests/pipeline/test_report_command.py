"""The command: exit statuses, what it prints, what it refuses; and the end of the demo."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from command_line import run as main
from tables_by_hand import message, process, write_tables


@pytest.fixture
def tables(tmp_path):
    return write_tables(tmp_path / "tables", reconciliation=[message("a", at=1)], processes=[process(last=9)])


@pytest.fixture
def lossy(tmp_path):
    return write_tables(tmp_path / "lossy", reconciliation=[message("a", "lost", at=1)], processes=[process(last=9)])


def test_it_names_the_page_and_ends_with_status_0_where_nothing_is_lost(tables, capsys):
    assert main(["pipeline", "report", "--out", str(tables)]) == 0
    said = capsys.readouterr().out
    assert "Nothing accepted was lost." in said
    assert str(tables / "report.html") in said
    assert (tables / "report.json").exists()


def test_it_ends_with_status_1_where_something_accepted_is_lost(lossy, capsys):
    assert main(["pipeline", "report", "--out", str(lossy)]) == 1
    assert "1 accepted message is lost." in capsys.readouterr().out


def test_a_fault_that_is_no_loss_ends_with_status_0(tmp_path):
    rows = [message("a", "out of order", at=1)]
    out = write_tables(tmp_path / "tables", reconciliation=rows, processes=[process(last=9)])
    assert main(["pipeline", "report", "--out", str(out)]) == 0


def test_the_page_goes_where_it_is_asked_to_go_and_nowhere_else(tables, tmp_path, capsys):
    assert main(["pipeline", "report", "--out", str(tables), "--to", str(tmp_path / "x.html"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "x.json").read_text())
    assert (tmp_path / "x.html").exists()
    assert not (tables / "report.html").exists()


@pytest.mark.parametrize("place", ["page.json", "", "nowhere/page.html", "run.json/page.html"])
def test_a_place_that_can_hold_no_page_is_refused(tables, place, capsys):
    assert main(["pipeline", "report", "--out", str(tables), "--to", str(tables / place)]) == 2
    assert "can't write the report" in capsys.readouterr().err


def test_a_report_that_can_not_be_written_leaves_the_old_one(tables, monkeypatch, capsys):
    (tables / "report.html").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert main(["pipeline", "report", "--out", str(tables)]) == 2
    assert "No space left" in capsys.readouterr().err
    assert (tables / "report.html").read_text() == "old"
    assert not list(tables.glob(".report*"))


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_directory_without_a_run_is_refused(tmp_path, name, capsys):
    (tmp_path / "file").touch()
    assert main(["pipeline", "report", "--out", str(tmp_path / name)]) == 2
    assert "no run is in" in capsys.readouterr().err


@pytest.mark.parametrize("document", ["", "[]", "{}", '{"journal": [], "messages": {}}', "\x00", "[" * 100_000])
def test_a_run_document_that_is_none_is_refused(tables, document, capsys):
    (tables / "run.json").write_text(document)
    assert main(["pipeline", "report", "--out", str(tables)]) == 2
    assert "is not a document of a run" in capsys.readouterr().err


def test_a_missing_table_is_named(tables, capsys):
    (tables / "episodes").rename(tables / "other")
    assert main(["pipeline", "report", "--out", str(tables)]) == 2
    assert "lacks the table episodes" in capsys.readouterr().err


def test_a_damaged_table_is_named(tables, capsys):
    (tables / "reconciliation" / "part-0.parquet").write_bytes(b"PAR1, and no more")
    assert main(["pipeline", "report", "--out", str(tables)]) == 2
    assert "reconciliation" in capsys.readouterr().err


@pytest.mark.parametrize(("times", "status"), [(1, 0), (99, 2)])
def test_a_table_that_is_replaced_meanwhile_is_read_again(tables, monkeypatch, capsys, times, status):
    read, opened = pq.ParquetFile, []

    def gone_at_first(file, **options):
        if Path(file).parent.name == "episodes":
            opened.append(file)
            if len(opened) <= times:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(file))
        return read(file, **options)

    monkeypatch.setattr(pq, "ParquetFile", gone_at_first)
    assert main(["pipeline", "report", "--out", str(tables)]) == status
    assert ("a run is writing there; try again" in capsys.readouterr().err) == (status == 2)


def test_the_demo_says_what_its_report_lacks_before_it_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["demo", "--pipeline"]) == 2
    told = capsys.readouterr()
    assert "Spark needs Java" in told.err
    assert "sent" not in told.out


@pytest.mark.parametrize("kept", ["date=2026-02-02/segment-p-000000.parquet", "_open/p-000000.part"])
def test_a_demo_does_not_report_on_earlier_runs(monkeypatch, tmp_path, capsys, kept):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
    (tmp_path / kept).parent.mkdir()
    (tmp_path / kept).touch()
    assert main(["demo", "--pipeline", "--journal", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert f"{tmp_path} holds a journal already" in " ".join(told.err.split())
    assert "sent" not in told.out


def test_open_without_a_report_is_bad_usage(capsys):
    assert main(["demo", "--open"]) == 2
    assert "--pipeline" in capsys.readouterr().err


@pytest.mark.long
def test_the_demo_ends_with_the_report_of_what_just_happened(spark, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status = main(["demo", "--messages", "200", "--rate", "200", "--seed", "7", "--pipeline", "--json"])
    told = capfd.readouterr()
    verdict = json.loads(told.out)
    (page,) = tmp_path.glob("pairmq-demo-*/report.html")
    assert (status, verdict["lost"]) == (0, 0)
    assert f"report: {page}" in told.err
    content = json.loads(page.with_suffix(".json").read_text())
    assert content["messages"]["count"] == 200
    assert set(content["messages"]["by_verdict"]) <= {"delivered", "duplicated, explained"}
    assert content["availability"]["accepted_backlog"] == verdict["accepted_backlog"] > 0
    assert {each["entity"] for each in content["outages"]["longest"]} == {"orders", "prices"}
    assert content["unknowns"] == []

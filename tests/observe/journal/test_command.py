"""``pairmq journal``: what people and programs see of a journal."""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import run
from journal_events import EPOCH, sent, warned
from pairmq.model import ConfigurationError
from pairmq.observe.journal import Journal, JournalObserver, JournalOptions, segments


@pytest.fixture(autouse=True)
def _same_logger() -> Iterator[None]:
    """A command line sets the log up for itself; the tests after it must not notice."""
    logger = logging.getLogger("pairmq")
    before = logger.level, list(logger.handlers)
    yield
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.fixture
def directory(tmp_path):
    one = Journal(tmp_path, JournalOptions(flush_interval=0.01))
    for event in (sent(1), warned("look\x1b[31m here"), sent(2, entity=sent().entity)):
        one.on_event(event)
    assert one.close(30)
    return tmp_path


def test_show_prints_a_row_a_line(directory, capsys):
    assert run(["journal", "show", str(directory)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert any(line.startswith("2023-11-14T22:13:21.000Z SendCompleted orders 0000") for line in lines)


def test_show_writes_instants_as_instants(tmp_path, capsys):
    """They were numbers of six digits, right to a quarter of an hour."""
    one = Journal(tmp_path)
    one.on_event(sent(scheduled_enqueue_at=EPOCH + 61.5))
    assert one.close(30)
    run(["journal", "show", str(tmp_path), "--kind", "SendCompleted"])
    assert " scheduled_enqueue_at=2023-11-14T22:14:21.500Z" in capsys.readouterr().out


def test_show_lets_no_control_character_through(directory, capsys):
    run(["journal", "show", str(directory), "--kind", "Warned"])
    assert "\x1b" not in capsys.readouterr().out


def test_show_picks_kinds_and_entities(directory, capsys):
    run(["journal", "show", str(directory), "--kind", "SendCompleted", "--entity", "orders", "--json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["sequence"] for row in found] == [1, 2]
    run(["journal", "show", str(directory), "--entity", "others"])
    assert capsys.readouterr().out == ""


def test_show_names_an_unknown_kind(directory, capsys):
    assert run(["journal", "show", str(directory), "--kind", "Sent"]) == 2
    assert "no kind of event is named Sent: known are SendCompleted," in capsys.readouterr().err


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e300])
def test_numbers_that_can_not_be_are_shown(directory, capsys, number):
    """Another program may have written them; JSON has none of them but the last."""
    path = segments(directory)[0]
    table = pq.read_table(path, partitioning=None)
    for column in ("at", "elapsed"):
        index = table.schema.get_field_index(column)
        table = table.set_column(index, table.schema.field(column), pa.repeat(number, len(table)))
    pq.write_table(table.replace_schema_metadata(), path)
    assert run(["journal", "show", str(directory)]) == 0
    assert any(line.startswith(f"{number} ") for line in capsys.readouterr().out.splitlines())
    for command in ("show", "stat"):
        assert run(["journal", command, str(directory)]) in (0, 1)
        capsys.readouterr()
        assert run(["journal", command, str(directory), "--json"]) in (0, 1)
        assert not {"NaN", "Infinity"} & set(re.findall(r"\w+", capsys.readouterr().out))


@pytest.mark.parametrize("name", ["._segment-p-000000.parquet", "_segment-p-000000.parquet"])
def test_what_other_programs_put_beside_segments_is_not_read(directory, capsys, name):
    (segments(directory)[0].parent / name).write_bytes(b"no Parquet")
    for command in ("show", "stat"):
        assert run(["journal", command, str(directory)]) == 0


def test_stat_counts(directory, capsys):
    assert run(["journal", "stat", str(directory), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kinds"] == {"JournalOpened": 1, "JournalClosed": 1, "SendCompleted": 2, "Warned": 1}
    assert (found["rows"], found["whole"], found["open_parts"]) == (5, True, 0)
    (span,) = found["processes"]
    assert (span["missing"], span["ended"]) == (0, True)


def test_stat_says_what_is_missing(directory, capsys):
    (lost,) = [path for path in segments(directory) if path.parent.name == "date=2023-11-14"]
    lost.unlink()
    assert run(["journal", "stat", str(directory)]) == 1
    assert " 3 " in capsys.readouterr().out


def test_stat_names_rows_before_the_first_one_of_a_process(directory, capsys):
    (kept,) = [path for path in segments(directory) if path.parent.name == "date=2023-11-14"]
    for path in segments(directory):
        if path != kept:
            path.unlink()  # with the rows that open and close the journal
    assert run(["journal", "stat", str(directory)]) == 0
    assert capsys.readouterr().err.startswith("not here: 1 row from the beginning of 1 process, ")


def test_stat_of_an_empty_directory_reports_it(tmp_path, capsys):
    assert run(["journal", "stat", str(tmp_path)]) == 0
    assert "no segments yet" in capsys.readouterr().out


def test_recover_reports_what_it_did(directory, capsys):
    assert run(["journal", "recover", str(directory)]) == 0
    assert capsys.readouterr().out == "recovered 0 rows of 0 parts\n"


def test_recover_reports_what_it_could_not_do(directory, capsys):
    (directory / "_open" / "host-1-000000.part").write_bytes(b"something else")
    assert run(["journal", "recover", str(directory)]) == 1
    assert "it has no head" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("command", ["show", "stat", "recover"])
def test_a_url_in_the_place_of_the_directory_is_not_repeated(capsys, command):
    assert run(["journal", command, "redis://user:planted@host"]) == 2
    err = capsys.readouterr().err
    assert "is a URL" in err
    assert "planted" not in err


def test_no_directory_is_named_after_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in (Journal, JournalObserver):
        with pytest.raises(ConfigurationError, match="is a URL") as caught:
            make("redis://user:planted@host")
        assert "planted" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["show", "stat", "recover"])
def test_a_directory_that_is_not_there_is_refused(tmp_path, capsys, command):
    assert run(["journal", command, str(tmp_path / "nothing")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_a_foreign_file_ends_it_clearly(directory, capsys):
    (directory / "date=2023-11-14" / "segment-x-000001.parquet").write_text("not Parquet")
    assert run(["journal", "show", str(directory)]) == 1
    assert "is not a segment" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("command", ["show", "stat", "recover"])
def test_without_pyarrow_no_file_is_blamed(tmp_path, capsys, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delattr("pairmq.observe.journal")
    monkeypatch.delitem(sys.modules, "pairmq.observe.journal")
    assert run(["journal", command, str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said == "error: the journal needs pyarrow: install it with: pip install 'pairmq[journal]'\n"

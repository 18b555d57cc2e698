"""Following a journal gives the tables of a batch run over the same files, however these come."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import random
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from busy_journal import busy_journals, write_segments
from command_line import run as main
from journal_by_hand import START, Journal, segment_table
from pairmq.model import ConfigurationError, Price
from pairmq.pipeline import run
from pairmq.pipeline._making import fact_pieces
from pairmq.pipeline.follow import Stop, _intake, _settled, follow
from pairmq.pipeline.follow._follow import STATE, STATE_VERSION, state_of
from pairmq.pipeline.follow._intake import Intake
from pairmq.pipeline.follow._ledger import Entry, File, Ledger
from pairmq.pipeline.report import Report
from pairmq.pipeline.transforms import TABLES
from pairmq.pipeline.transforms.facts import SMALL

pytestmark = pytest.mark.timeout(900)  # seconds: a refresh takes 5, and a minute where others want the processor

SEED = 7
PATIENCE = 60.0


def rows_of_table(folder, name):
    """Its rows in an order that no rounding of a sum changes."""
    rows = [tuple(row.items()) for row in pq.read_table(folder / name).to_pylist()]
    return sorted(rows, key=lambda row: [str(value) for _, value in row if not isinstance(value, float)])


def same(one, other):
    return math.isclose(one, other, rel_tol=1e-9) if isinstance(one, float) else one == other


def assert_same_tables(one, other, name):
    ours, theirs = (rows_of_table(folder, name) for folder in (one, other))
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs, strict=True):
        assert [name for (name, a), (_, b) in zip(mine, its, strict=True) if not same(a, b)] == [], (mine, its)


# The same tables, however the files come


def arrive(path, day):
    """Put a file in place at one stroke, as the journal's writer does."""
    day.mkdir(parents=True, exist_ok=True)
    path.rename(day / path.name)
    return day / path.name


def example() -> str:
    """The program of the document."""
    text = (Path(__file__).parents[2] / "docs/how-to/follow-a-journal.md").read_text("utf-8")
    (found,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(found)


@dataclasses.dataclass
class Followed:
    """A journal that was followed in looks, each of another caller, and the tables of a batch run beside it."""

    folder: Path
    printed: str = ""
    """By the example of the document."""
    asked: Report | None = None
    """What the follower returned that was asked to end."""
    command: tuple[int, str] = (0, "")
    """The command's status, and what it printed."""
    runs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """What ``run.json`` said after each look."""
    empty: set[str] = dataclasses.field(default_factory=set)
    """The tables that had no row after the first one."""
    settled: set[Any] = dataclasses.field(default_factory=set)
    """The messages that were settled after the second one, each with its facts."""


def settle_early(patch):
    """Settle all that was delivered, in small pieces, so that late rows concern many of them."""
    patch.setattr(_settled, "MARGIN", -1e9)
    patch.setattr(_settled, "IN_A_PIECE", 25)


def settled_of(out):
    """The settled messages: their ids, and all of their facts."""
    rows = [row for path in (out / STATE).glob("settled/*/messages.parquet") for row in pq.read_table(path).to_pylist()]
    return [(row["message_id"], tuple(row.items())) for row in rows]


@pytest.fixture(scope="module")
def followed(spark, tmp_path_factory):
    """First came a torn file; then it was repaired, and others came in several lots; then the rest, and copies."""
    folder = tmp_path_factory.mktemp("follow")
    journal, aside, out = folder / "journal", folder / "aside", folder / "tables"
    day = journal / "date=2026-02-02"
    day.mkdir(parents=True)
    paths = write_segments(aside, busy_journals(SEED), SEED)
    torn, *others = paths
    early, late = others[:9], others[9:]
    made = Followed(folder)

    def look(following):
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.chdir(folder):
            result = following()
        made.runs.append(json.loads((out / "run.json").read_text()))
        return result, written.getvalue()

    def ask_at_once():
        stop = Stop()
        ask = lambda _: stop.ask()  # noqa: E731
        return follow(journal, out, spark=spark, patience=PATIENCE, every=3600.0, stop=stop, on_refresh=ask)

    (day / torn.name).write_bytes(torn.read_bytes()[:1000])
    _, made.printed = look(lambda: exec(compile(example(), "follow-a-journal.md", "exec"), {}))  # what it says is ours
    made.empty = {table.name for table in TABLES if not pq.read_table(out / table.name).num_rows}
    (day / torn.name).write_bytes(torn.read_bytes())
    arrived = [arrive(path, day) for path in early]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_intake, "AT_ONCE", sum(path.stat().st_size for path in arrived) // 2)
        settle_early(patch)
        made.asked, _ = look(ask_at_once)
    made.settled = set(settled_of(out))
    shutil.copy(arrived[0], journal / "copy.parquet")
    both = pa.concat_tables(pq.read_table(path, partitioning=None) for path in (arrived[1], late[0]))
    pq.write_table(both, day / "made-anew-of-two.parquet")
    for path in late:
        arrive(path, day)
    arguments = ["--journal", "journal", "--out", "tables", "--patience", f"{PATIENCE:g}s"]
    with pytest.MonkeyPatch.context() as patch:
        settle_early(patch)
        made.command = look(lambda: main(["pipeline", "run", "--follow", *arguments, "--until-idle", "0s", "--json"]))
    run(journal, folder / "batch", spark=spark, patience=PATIENCE)
    return made


@pytest.mark.parametrize("name", [table.name for table in TABLES])
def test_a_table_is_the_one_that_a_batch_run_makes_of_the_same_files(followed, name):
    assert_same_tables(followed.folder / "tables", followed.folder / "batch", name)


def test_messages_were_settled_or_the_comparison_would_show_nothing_of_them(followed):
    assert followed.settled
    assert len(settled_of(followed.folder / "tables")) > len(followed.settled)


def stopped(*_):
    raise KeyboardInterrupt


@pytest.mark.usefixtures("verdicts_alone")
def test_a_late_row_about_a_settled_message_changes_its_verdict(spark, tmp_path, monkeypatch):
    settle_early(monkeypatch)
    (tmp_path / "journal").mkdir()
    sender, reader, late = Journal("sender").opened(), Journal("reader").opened(), Journal("late").opened()
    for number in range(6):
        sender.sent(float(number), f"m{number}")
        reader.delivered(number + 0.5, f"m{number}", sequence_number=str(number))
    late.delivered(400.0, "m2").closed(500.0)
    for journal in (sender.closed(600.0), reader.closed(600.0)):
        pq.write_table(segment_table(journal), tmp_path / "journal" / f"{journal.process}.parquet")
    follow(tmp_path / "journal", tmp_path / "tables", spark=spark, once=True)
    assert len(settled_of(tmp_path / "tables")) == 6
    pq.write_table(segment_table(late), tmp_path / "journal" / "late.parquet")
    with monkeypatch.context() as patch:  # its pieces are half written: as after a kill they are deleted
        patch.setattr(_settled, "write_piece", stopped)
        with pytest.raises(KeyboardInterrupt):
            follow(tmp_path / "journal", tmp_path / "tables", spark=spark, once=True)
    assert len(list((tmp_path / "tables" / STATE / "settled").iterdir())) == 2
    report = follow(tmp_path / "journal", tmp_path / "tables", spark=spark, once=True)
    assert dict(report.verdicts) == {"delivered": 5, "duplicated, unexplained": 1}
    assert [name for _, _, name in report.faults["duplicated, unexplained"]] == ["m2"]
    assert len(list((tmp_path / "tables" / STATE / "settled").iterdir())) == 1
    assert len(settled_of(tmp_path / "tables")) == 6
    assert {dict(facts)["deliveries"] for name, facts in settled_of(tmp_path / "tables") if name == "m2"} == {2}


@pytest.fixture(scope="module")
def with_other_settings(spark, followed):
    """The same followed on by other rules, and a batch run by these."""
    settings = {"spark": spark, "patience": 5.0, "prices": {"secondary": Price(per_million=Decimal(3))}}
    folder = followed.folder
    shutil.copytree(folder / "tables", folder / "tables-by-others")
    with pytest.MonkeyPatch.context() as patch:
        settle_early(patch)
        follow(folder / "journal", folder / "tables-by-others", once=True, **settings)
    run(folder / "journal", folder / "batch-by-others", **settings)
    return folder


def test_after_a_change_of_settings_the_tables_are_those_that_a_batch_run_makes_with_them(with_other_settings):
    for table in TABLES:
        assert_same_tables(*(with_other_settings / f"{way}-by-others" for way in ("tables", "batch")), table.name)


def test_every_table_has_rows(followed):
    # Or the comparison above would compare nothing with nothing.
    assert all(pq.read_table(followed.folder / "batch" / table.name).num_rows for table in TABLES)


def test_the_run_file_says_what_that_of_a_batch_run_says_and_how_far_it_follows(followed):
    ours, theirs = (json.loads((followed.folder / name / "run.json").read_text()) for name in ("tables", "batch"))
    assert ours.pop("following") is True
    assert ours.pop("follow").keys() >= {"commit", "complete_until"}
    del ours["seconds"], theirs["seconds"]
    assert ours == theirs


def test_a_file_that_could_not_be_read_is_named_until_it_can(followed):
    first, second, third = (run["journal"]["bad_segments"] for run in followed.runs)
    assert [bad["problem"].partition(":")[0] for bad in first] == ["it is truncated or not a Parquet file"]
    assert (second, third) == ([], [])


def test_each_row_is_taken_once(followed):
    total = sum(len(journal.rows) for journal in busy_journals(SEED))
    assert sum(run["follow"]["new_rows"] for run in followed.runs) == total
    assert followed.runs[-1]["journal"]["rows"] == total


def test_what_is_kept_is_one_part_however_many_lots_came(followed):
    assert len(list((followed.folder / "tables" / STATE / "facts").iterdir())) == 1
    assert len(list((followed.folder / "tables" / STATE / "ledger").iterdir())) == 1


def test_the_tables_are_complete_until_the_last_row_of_the_first_process_that_is_not_closed(followed):
    # One process has not closed its journal, and lacks rows between its last two.
    (opened,) = (journal for journal in busy_journals(SEED) if journal.rows[-1]["kind"] != "JournalClosed")
    complete_until = followed.runs[-1]["follow"]["complete_until"]
    assert complete_until == pytest.approx(opened.rows[-2]["at"], abs=1e-5)
    assert complete_until < START + 2000


def test_the_example_of_the_document_runs(followed):
    first = followed.runs[0]
    assert followed.printed == f"{first['verdict']} None\n"


def test_of_a_journal_without_rows_all_tables_are_empty(followed):
    assert followed.runs[0]["journal"]["rows"] == 0
    assert followed.empty == {table.name for table in TABLES}


def test_it_ends_when_it_is_asked(followed):
    second = followed.runs[1]
    assert (followed.asked.verdict, followed.asked.rows) == (second["verdict"], second["journal"]["rows"])


def test_the_command_ends_with_status_1_where_something_accepted_is_lost(followed):
    status, printed = followed.command
    (said,) = [json.loads(line) for line in printed.splitlines()]
    assert (status, said["verdict"]) == (1, "lost")
    assert said == followed.runs[-1]


@pytest.mark.long
def test_a_follower_calls_nothing_lost_while_it_knows_of_files_that_it_has_not_taken(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(_intake, "AT_ONCE", 1)  # a file in each batch, and the tables after each
    (tmp_path / "journal").mkdir()
    sender = Journal("1").opened().sent(1, "first").sent(1000, "m").sent(2000, "last").closed(5000)
    consumer = Journal("2").opened().delivered(2, "first").delivered(2001, "last").closed(5000)
    other = Journal("3").opened().delivered(1001, "m").closed(5000)
    for told in (sender, consumer, other):
        pq.write_table(segment_table(told), tmp_path / "journal" / f"segment-{told.process}-000000.parquet")
    found = []
    follow(
        tmp_path / "journal", tmp_path / "out", spark=spark, patience=300.0, once=True, every=1e-6,
        on_refresh=lambda refreshed: found.append(dict(refreshed.report.verdicts)),
    )  # fmt: skip
    assert found == [{"delivery not observed": 3}, {"delivered": 2, "unproven": 1}, {"delivered": 3}]


# Which files are new


@pytest.fixture
def journal(tmp_path):
    folder = tmp_path / "journal"
    folder.mkdir()
    return folder


@pytest.fixture
def news(journal, tmp_path):
    """Looks for files as after a restart, and notes them."""

    def look():
        ledger = Ledger(tmp_path / "state")
        found = ledger.news(journal)
        ledger.commit(Entry(ledger.next_number, ledger.next_number, None, files=tuple(found)))
        return [Path(each.path).relative_to(journal).as_posix() for each in found]

    return look


def test_files_are_new_once_and_work_in_progress_is_not(news, journal):
    odd = "x/b [1] {ü}%20\n.parquet"
    for name in ("a.parquet", odd, "_open/c.parquet", ".d.parquet", "_e=1/f.parquet", "g.part"):
        (journal / name).parent.mkdir(exist_ok=True)
        (journal / name).touch()
    assert news() == ["a.parquet", odd]
    assert news() == []


def test_a_file_that_comes_late_with_an_old_time_is_new(news, journal):
    (journal / "a.parquet").touch()
    news()
    (journal / "b.parquet").touch()
    os.utime(journal / "b.parquet", (1_000_000, 1_000_000))
    assert news() == ["b.parquet"]


def test_a_file_that_was_changed_is_new_again(news, journal):
    (journal / "a.parquet").touch()
    news()
    (journal / "a.parquet").write_text("more")
    assert news() == ["a.parquet"]
    assert news() == []


# What is taken of files, without tables


@pytest.fixture
def intake(spark, tmp_path, monkeypatch):
    """With the small facts alone: what is taken is the same for each."""
    monkeypatch.setattr(_intake, "fact_pieces", lambda rows, **files: fact_pieces(rows, **files)[: len(SMALL)])
    return opened(spark, tmp_path)


def opened(spark, tmp_path):
    return Intake(spark, Ledger(tmp_path / "state"))


def look(intake, journal, **options):
    for lot in intake.look(journal, **options):
        intake.take(lot)


def table(process="p", rows=6):
    told = Journal(process)
    for number in range(rows):
        told.sent(float(number), f"m{number}")
    return segment_table(told)


def found(*paths):
    return [File(str(path), 0, 0) for path in paths]


def segments(tmp_path):
    return Ledger(tmp_path / "state").segments


def test_a_file_that_is_looked_at_again_changes_nothing(intake, journal, tmp_path):
    pq.write_table(table(), journal / "a.parquet")
    for _ in range(2):  # as after a kill before it was noted
        intake.take(found(journal / "a.parquet"))
    ledger = Ledger(tmp_path / "state")
    assert (ledger.next_number, segments(tmp_path), ledger.seen) == (1, 1, {"p": ((0, 5),)})


def test_a_file_that_is_gone_before_it_is_read_is_taken_when_it_is_back(intake, journal, tmp_path):
    intake.take(found(journal / "gone.parquet"))
    ledger = Ledger(tmp_path / "state")
    assert (ledger.waiting, ledger.facts()) == ([File(str(journal / "gone.parquet"), gone=True)], [])
    pq.write_table(table(), journal / "gone.parquet")
    look(intake, journal)
    ledger = Ledger(tmp_path / "state")
    assert (ledger.waiting, ledger.seen, segments(tmp_path)) == ([], {"p": ((0, 5),)}, 1)


def test_a_bad_file_that_is_deleted_is_bad_no_more(intake, journal, tmp_path):
    (journal / "bad.parquet").write_bytes(b"PAR1")
    look(intake, journal)
    (waiting,) = Ledger(tmp_path / "state").waiting
    assert "truncated" in waiting.problem
    (journal / "bad.parquet").unlink()
    look(intake, journal)
    (waiting,) = Ledger(tmp_path / "state").waiting
    assert waiting == File(str(journal / "bad.parquet"), gone=True)


def test_nothing_is_committed_while_nothing_changes(intake, journal, tmp_path):
    (journal / "bad.parquet").write_bytes(b"PAR1")
    intake.take(found(journal / "gone.parquet"))
    for at_all in (False, False, True):
        look(intake, journal, at_all=at_all)
    assert Ledger(tmp_path / "state").next_number == 2


def test_a_bad_file_that_was_fixed_counts_and_one_that_was_read_before_does_not_count_again(intake, journal, tmp_path):
    pq.write_table(table("p", 6), journal / "good.parquet")
    (journal / "bad.parquet").write_bytes(b"PAR1")
    look(intake, journal)
    pq.write_table(table("p", 9), journal / "good.parquet")
    pq.write_table(table("q", 2), journal / "bad.parquet")
    look(intake, journal)
    ledger = Ledger(tmp_path / "state")
    assert (segments(tmp_path), ledger.waiting) == (2, [])
    assert ledger.seen == {"p": ((0, 8),), "q": ((0, 1),)}


def test_a_file_with_damaged_pages_is_left_out_and_the_others_are_taken(intake, journal, tmp_path):
    for process in ("p", "q"):
        pq.write_table(table(process), journal / f"{process}.parquet")
    data = bytearray((journal / "q.parquet").read_bytes())
    data[100:400] = bytes(300)
    (journal / "q.parquet").write_bytes(data)
    look(intake, journal)
    ledger = Ledger(tmp_path / "state")
    assert ledger.seen == {"p": ((0, 5),)}
    assert [each.problem.partition(":")[0] for each in ledger.waiting] == ["it is damaged inside"]


def test_files_are_taken_in_lots_and_what_is_left_at_the_next_start(spark, intake, journal, tmp_path, monkeypatch):
    for name in "abc":
        pq.write_table(table(name), journal / f"{name}.parquet")
    monkeypatch.setattr(_intake, "AT_ONCE", 2 * (journal / "a.parquet").stat().st_size + 1)
    first, second = intake.look(journal)
    assert [len(lot) for lot in (first, second)] == [2, 1]
    intake.take(first)
    again = opened(spark, tmp_path)
    assert again.look(journal) == [second]
    look(again, journal)
    ledger = Ledger(tmp_path / "state")
    assert [len(entry.seen) for entry in ledger.chain] == [2, 1]
    assert ledger.waiting == []


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_rows_are_taken_once_whatever_overlaps_in_whatever_order(spark, intake, journal, tmp_path, seed):
    rng = random.Random(seed)
    whole = table(rows=30)
    for batch in range(4):
        paths = []
        for number in range(3):
            begin = rng.randrange(30)
            paths.append(journal / f"{batch}-{number}.parquet")
            pq.write_table(whole.slice(begin, rng.randint(1, 12)), paths[-1])
        intake.take(found(*paths))
    expected = {row["seq"] for path in journal.iterdir() for row in pq.read_table(path).to_pylist()}
    seen = Ledger(tmp_path / "state").seen["p"]
    assert {number for first, last in seen for number in range(first, last + 1)} == expected


# Who may go on with what


def test_a_state_is_gone_on_with(tmp_path, journal):
    assert state_of(tmp_path, journal, restart=False) == state_of(tmp_path, journal, restart=False)


def test_the_state_of_another_journal_is_refused(tmp_path, journal):
    state_of(tmp_path, journal, restart=False)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigurationError, match=r"is of the journal in .*/journal, not of .*/other; --restart"):
        state_of(tmp_path, tmp_path / "other", restart=False)


def altered(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_an_upgrade_that_keeps_the_rules_goes_on_with_the_state(tmp_path, journal):
    altered(state_of(tmp_path, journal, restart=False) / "follow.json", pairmq="0.0.9")
    state_of(tmp_path, journal, restart=False)


@pytest.mark.parametrize("version", [STATE_VERSION - 1, STATE_VERSION + 1, None])
def test_a_state_by_other_rules_is_refused_with_advice(tmp_path, journal, version):
    altered(state_of(tmp_path, journal, restart=False) / "follow.json", state=version, pairmq="0.0.9")
    with pytest.raises(
        ConfigurationError, match=rf"PairMQ 0\.0\.9 in another format \(version {version} .*; --restart"
    ):
        state_of(tmp_path, journal, restart=False)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_state_is_refused(tmp_path, journal, text):
    (state_of(tmp_path, journal, restart=False) / "follow.json").write_text(text)
    with pytest.raises(ConfigurationError, match="is damaged"):
        state_of(tmp_path, journal, restart=False)


def test_a_state_is_made_anew_when_that_is_asked_for(tmp_path, journal):
    folder = state_of(tmp_path, journal, restart=False)
    (folder / "ledger").mkdir()
    (folder / "follow.json").write_text("{}")
    assert [path.name for path in state_of(tmp_path, journal, restart=True).iterdir()] == ["follow.json"]


# One at a time


@pytest.mark.long
def test_a_batch_run_is_refused_while_a_follower_is_at_work_and_names_it(spark, tmp_path, journal):
    refused = []

    def meanwhile(_):
        with pytest.raises(ConfigurationError) as told:
            run(journal, tmp_path / "out", spark=spark)
        refused.append(str(told.value))

    follow(journal, tmp_path / "out", spark=spark, once=True, on_refresh=meanwhile)
    assert "another run is writing tables to" in refused[0]
    assert "--follow, process" in refused[0]


# The command's options


@pytest.mark.parametrize("options", [["--once"], ["--every", "1min"], ["--until-idle", "1s"], ["--restart"]])
def test_options_of_following_are_refused_without_it(tmp_path, capsys, options):
    assert main(["pipeline", "run", "--journal", str(tmp_path), "--out", str(tmp_path / "out"), *options]) == 2
    assert "are for --follow" in capsys.readouterr().err

"""The real command, killed with SIGKILL in the midst of all that it does while a real process keeps its journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pairmq.pipeline import run
from pairmq.pipeline.transforms import TABLES

LIMIT = 600.0
"""Seconds until something must have happened: Spark starts in 5 s, and in a minute where others want the processor."""

# Small data gains nothing from what Spark compiles for each query, which would take most of the time.
SETTINGS = """\
spark.sql.adaptive.enabled false
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
"""


def unnamed(out: Path) -> list[Path]:
    """The folders of facts that are being written: no entry of the ledger names them yet."""
    entries = [json.loads(path.read_text())["entry"] for path in (out / "_follow" / "ledger").glob("0*.json")]
    named = {entry["facts"] for entry in entries}
    return [path for path in (out / "_follow" / "facts").glob("0*") if path.name not in named and any(path.iterdir())]


def taking(out: Path) -> bool:
    return any(path.name[:6] == path.name[7:13] for path in unnamed(out))


def merging(out: Path) -> bool:
    return any(path.name[:6] != path.name[7:13] for path in unnamed(out))


def making_tables(out: Path) -> bool:
    return any(out.glob("_work-*/tables-*/*/_temporary"))


def putting_in_place(out: Path) -> bool:
    """Whether the first table is there and the last one waits for its turn, so that they are of two rounds."""
    waiting = out.glob(f"_work-*/tables-*/{TABLES[-1].name}")
    return not unnamed(out) and any(not (path.parent / TABLES[0].name).exists() for path in waiting)


def settling(out: Path) -> bool:
    """Whether settled messages are being put aside."""
    entries = [json.loads(path.read_text())["entry"] for path in (out / "_follow" / "ledger").glob("0*.json")]
    named = {name for entry in entries for name in entry["settled"]}
    return any(path.name not in named and any(path.iterdir()) for path in (out / "_follow" / "settled").iterdir())


KILLS = (taking, merging, making_tables, putting_in_place, settling)
"""Every life takes a start of Spark, and every table a while, so that these tests are part of `make test-long`."""


class Follower:
    """The command, as a shell would start it."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "conf").mkdir(exist_ok=True)
        (folder / "conf" / "spark-defaults.conf").write_text(SETTINGS)
        self.said = folder / "said"
        arguments = ["--journal", str(folder / "journal"), "--out", str(folder / "out"), "--patience", "5s"]
        environment = os.environ | {"SPARK_CONF_DIR": str(folder / "conf"), "SPARK_LOCAL_DIRS": str(folder / "local")}
        with self.said.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pairmq", "pipeline", "run", "--follow", *arguments, *options],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_when(self, moment: Callable[[Path], bool], out: Path) -> None:
        """Kill it and its virtual machine at the instant at which something holds."""
        limit = time.monotonic() + LIMIT
        while not holds(moment, out):
            assert self.process.poll() is None, f"it ended by itself: {self.said.read_text()}"
            assert time.monotonic() < limit, f"{moment.__name__} never was: {self.said.read_text()}"
            time.sleep(0.001)
        self.end()

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def holds(moment: Callable[[Path], bool], out: Path) -> bool:
    try:
        return moment(out)
    except OSError:
        return False  # what was looked at is gone: the instant is over


@pytest.fixture(scope="module")
def killed(spark, tmp_path_factory):
    """A journal that was written while its follower was killed again and again, and what a batch run makes of it."""
    folder = tmp_path_factory.mktemp("kills")
    script = Path(__file__).parents[1] / "support" / "journal_writer.py"
    (folder / "journal").mkdir()
    writer = subprocess.Popen([sys.executable, str(script), str(folder / "journal"), str(folder / "ended")])
    follower = None
    try:
        for moment in KILLS:
            follower = Follower(folder, "--every", "500ms")
            follower.kill_when(moment, folder / "out")
        (folder / "ended").touch()
        assert writer.wait(LIMIT) == 0
        follower = Follower(folder, "--once", "--json")
        status = follower.process.wait(LIMIT)
        assert status == 0, follower.said.read_text()
    finally:
        writer.kill()
        writer.wait()
        if follower is not None and follower.process.poll() is None:
            follower.end()
    report = run(folder / "journal", folder / "batch", spark=spark, patience=5.0)
    return folder, report


pytestmark = [pytest.mark.long, pytest.mark.timeout(LIMIT * (len(KILLS) + 2))]


@pytest.mark.parametrize("name", [table.name for table in TABLES])
def test_after_kills_a_table_is_the_one_that_a_batch_run_makes_of_the_whole_journal(spark, killed, name):
    from pyspark.testing import assertDataFrameEqual

    schema = next(table for table in TABLES if table.name == name).schema
    ours, theirs = (spark.read.schema(schema).parquet(f"file://{killed[0] / way / name}") for way in ("out", "batch"))
    assertDataFrameEqual(ours, theirs)


def test_after_kills_no_row_is_missing_and_none_counts_twice(killed):
    folder, report = killed
    ours = json.loads((folder / "out" / "run.json").read_text())
    assert ours["journal"]["rows"] == report.rows
    assert ours["journal"]["missing_rows"] == 0
    assert ours["messages"] == dict(report.verdicts) == {"delivered": (report.rows - 2) // 2}


def test_what_killed_runs_left_is_gone(killed):
    out = killed[0] / "out"
    assert {path.name for path in out.iterdir()} == {table.name for table in TABLES} | {"run.json", "_lock", "_follow"}
    assert len(list((out / "_follow" / "facts").iterdir())) == 1
    (entry,) = (json.loads(path.read_text())["entry"] for path in (out / "_follow" / "ledger").iterdir())
    assert {path.name for path in (out / "_follow" / "settled").iterdir()} == set(entry["settled"])

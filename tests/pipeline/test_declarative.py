"""The tables as a Spark Declarative Pipeline, run as a user runs it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from command_line import run as main
from pairmq.model import ConfigurationError, Price
from pairmq.pipeline import run
from pairmq.pipeline.declarative import Configuration, write_project
from pairmq.pipeline.declarative._graph import source_of
from pairmq.pipeline.declarative._project import read_configuration
from pairmq.pipeline.journal_io import look_over
from rich_journal import write_rich_journal
from spark_programs import LIMIT, assert_same_tables, configured, ended, environment

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "src" / "pairmq" / "pipeline" / "declarative" / "project"
PRICES = "[primary]\nper_million = 0.80\nbase = 10\n\n[secondary]\nper_million = 0.05\n"
CHARGED = {"primary": Price(Decimal("0.80"), Decimal(10)), "secondary": Price(Decimal("0.05"))}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A pipeline's folder as the command writes it."""
    folder = tmp_path_factory.mktemp("declarative")
    (folder / "prices.toml").write_text(PRICES)
    asked = ["--journal", str(folder / "a journal"), "--out", str(folder / "the tables"), "--patience", "60s"]
    prices = ["--prices", str(folder / "prices.toml")]
    assert main(["pipeline", "spec", str(folder / "project"), *asked, *prices]) == 0
    return folder


def pipeline(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run it, as the command says."""
    # A local server of Spark Connect listens to port 15002 and no other; in a test of Spark's own, to any free one.
    known = environment(folder / "project", SPARK_TESTING="1")
    return ended(["spark-pipelines", "run", "--spec", folder / "project" / "spark-pipeline.yml"], known, folder)


@pytest.mark.long
@pytest.mark.timeout(3 * LIMIT)
def test_run_again_the_pipeline_makes_the_tables_of_the_journal_that_has_grown(spark, project):
    # The second run has the first one's tables in its catalog, and must neither stumble over them nor read them.
    configured(project / "project")
    for longer in (False, True):
        write_rich_journal(project / "a journal", longer=longer)
        made = pipeline(project)
        assert made.returncode == 0, made.stderr[-5000:]
    run(project / "a journal", project / "local", spark=spark, patience=60.0, prices=CHARGED)
    assert_same_tables(spark, project / "the tables", project / "local")


def test_the_spec_that_ships_says_what_a_configuration_says_by_itself():
    shipped = yaml.safe_load((PROJECT / "spark-pipeline.yml").read_text())
    assert read_configuration(shipped["configuration"].get) == Configuration("/var/lib/pairmq/journal")


def test_what_was_asked_for_stands_in_the_spec(tmp_path):
    asked = Configuration("s3a://bucket/it's a: journal", 1.5, Price(Decimal("0.80")), Price(base=Decimal(10)))
    project = write_project(tmp_path / "project", asked, tmp_path / "tables")
    written = yaml.safe_load((project.folder / "spark-pipeline.yml").read_text())
    assert read_configuration(written["configuration"].get) == asked


def test_the_tables_and_the_catalog_are_where_they_were_asked_for(tmp_path):
    write_project(tmp_path / "a project", Configuration("/journal"), tmp_path / "the tables")
    lines = (tmp_path / "a project" / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert settings["spark.sql.warehouse.dir"] == str(tmp_path / "the tables")
    catalog = tmp_path / "a project" / "catalog"
    assert settings["spark.driver.extraJavaOptions"] == f'"-Dderby.system.home={catalog}"'


def test_a_spec_that_is_there_is_left_as_it_is(tmp_path, capsys):
    (tmp_path / "spark-pipeline.yml").write_text("mine")
    assert main(["pipeline", "spec", str(tmp_path), "--journal", "journal", "--out", "tables"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["spark-pipeline.yml"]


def test_on_a_full_disk_the_file_that_can_not_be_written_is_named(tmp_path, monkeypatch):
    def fail(path, *arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(ConfigurationError, match=r"spark-pipeline\.yml: No space left on device"):
        write_project(tmp_path / "project", Configuration("/journal"), tmp_path / "tables")


@pytest.mark.parametrize("name", ['a "quoted" name', "a\nline", "back\\slash"])
def test_a_path_that_sparks_settings_can_not_hold_is_refused(tmp_path, name):
    with pytest.raises(ConfigurationError, match="can't hold"):
        write_project(tmp_path / "project", Configuration("/journal"), tmp_path / name)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "set spark.pairmq.journal"),
        ({"spark.pairmq.patience": "soon"}, "patience is 'soon'"),
        ({"spark.pairmq.patience": "-1"}, "at least 0"),
        ({"spark.pairmq.primary.base": "NaN"}, "primary.base is 'NaN'"),
        ({"spark.pairmq.secondary.per_million": "1e999999"}, "secondary.per_million is"),
    ],
)
def test_a_value_that_can_not_be_is_named(settings, told):
    known = settings and {"spark.pairmq.journal": "/journal", **settings}
    with pytest.raises(ConfigurationError, match=told):
        read_configuration(known.get)


def test_behind_a_url_every_row_of_a_journal_is_read_once(spark, tmp_path):
    journal = write_rich_journal(tmp_path / "journal")
    for torn in look_over(journal).bad:
        torn.path.unlink()
    kept = sorted((row["process"], row["seq"]) for path in journal.rglob("*.parquet") for row in rows_in(path))
    segment = next(journal.rglob("*.parquet"))
    shutil.copy(segment, segment.with_name("copied.parquet"))
    rows = source_of(f"file:{journal}").rows(spark)
    assert sorted((row.process, row.seq) for row in rows.select("process", "seq").collect()) == kept


def rows_in(path: Path) -> list[dict[str, object]]:
    return pq.ParquetFile(path).read(["process", "seq"]).to_pylist()


def test_the_wheel_has_the_whole_project(tmp_path):
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {path.name for path in PROJECT.iterdir() if path.is_file()}
    assert names == {"spark-pipeline.yml", "spark-defaults.conf", "definitions.py"}
    assert {f"pairmq/pipeline/declarative/project/{name}" for name in names} <= set(zipfile.ZipFile(wheel).namelist())

"""Journals and tables at URLs, in a store that is not `file:`, and renames nothing but Spark's own temporary files.

The store is Hadoop's raw local file system under another scheme, compiled here: the URL names a local directory.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from command_line import run as main
from pairmq.model import ConfigurationError
from pairmq.pipeline import _storage, run
from pairmq.pipeline._storage import is_url, local, reached
from pairmq.pipeline.follow import follow
from pairmq.pipeline.journal_io import spark_path
from pairmq.pipeline.reporting import report
from pairmq.pipeline.transforms import TABLES
from rich_journal import LOST, write_rich_journal
from spark_programs import assert_same_tables

_STORE = """
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;

public class Store extends RawLocalFileSystem {
  private static final URI HERE = URI.create("store://bucket");
  @Override public URI getUri() { return HERE; }
  @Override public String getScheme() { return "store"; }
  @Override public boolean rename(Path from, Path to) throws IOException {
    // Spark's committer moves what its tasks have written; a store's own committer would not.
    if (from.toString().contains("/_temporary/")) return super.rename(from, to);
    throw new IOException("this store renames nothing: " + from);
  }
  // Hadoop's own asks the system for rights, by a URI that has to be a file's.
  private FileStatus plain(FileStatus of) {
    return new FileStatus(of.getLen(), of.isDirectory(), 1, 1 << 25, of.getModificationTime(), of.getPath());
  }
  @Override public FileStatus getFileStatus(Path path) throws IOException { return plain(super.getFileStatus(path)); }
  @Override public FileStatus[] listStatus(Path path) throws IOException {
    FileStatus[] found = super.listStatus(path);
    for (int i = 0; i < found.length; i++) found[i] = plain(found[i]);
    return found;
  }
}
"""


@pytest.fixture(scope="module")
def store(spark):
    """Makes the store known to Java; gives the URL of a local directory."""
    jvm = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_STORE)
    files = compiler.getClassLoader().loadClass("Store").getDeclaredConstructor(None).newInstance(None)
    here, conf = jvm.java.net.URI.create("store://bucket/"), spark._jsc.hadoopConfiguration()
    files.initialize(here, conf)
    # Java finds no class that was made here by its name: the store is put among those that are open already.
    entered = next(
        each
        for each in files.getClass().getSuperclass().getSuperclass().getDeclaredMethods()
        if each.getName() == "addFileSystemForTesting"
    )
    entered.setAccessible(True)
    values = spark._sc._gateway.new_array(jvm.java.lang.Object, 3)
    values[0], values[1], values[2] = here, conf, files
    entered.invoke(None, values)
    return lambda folder: f"store://bucket{folder}"


@pytest.fixture(scope="module")
def made(spark, store, tmp_path_factory):
    """A journal at a URL, and tables at another, in a format of Spark's, too."""
    # Signs that are patterns to Spark, or escapes in a URL.
    folder = tmp_path_factory.mktemp("a store {x} [1] é%20#")
    write_rich_journal(folder / "journal")
    found = run(store(folder / "journal"), store(folder / "tables"), spark=spark, patience=60.0, format="orc")
    return folder, found


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "tables" / "runs").iterdir())


def test_the_tables_are_those_of_a_local_journal(spark, made):
    folder, found = made
    run(folder / "journal", folder / "local", spark=spark, patience=60.0)
    (one,) = runs(folder)
    assert_same_tables(spark, one, folder / "local")
    ours, theirs = (json.loads((each / "run.json").read_text()) for each in (one, folder / "local"))
    (bad,) = ours["journal"].pop("bad_segments")
    theirs["journal"].pop("bad_segments")
    assert bad["path"].startswith("store://bucket/")
    assert found.bad[0].path.name == "segment-sender-000001.parquet"
    del ours["seconds"], theirs["seconds"]
    assert ours == theirs


def test_nothing_else_is_left_in_the_run(made):
    folder, _ = made
    (one,) = runs(folder)
    assert [path.name for path in one.iterdir() if path.name.startswith("_")] == []
    assert {path.name for path in (folder / "tables").iterdir()} == {"orc", "runs"}


def test_the_report_is_made_of_the_latest_run_that_came_to_its_end(spark, store, made):
    folder, _ = made
    torn = folder / "tables" / "runs" / "20990101T000000000000-00000000"
    for text in (None, '{"journal": '):
        shutil.rmtree(torn, ignore_errors=True)
        torn.mkdir()
        if text is not None:
            (torn / "run.json").write_text(text)
        written = report(store(folder / "tables"))
        assert written.lost == 1
    shutil.rmtree(torn)
    (page, document) = (folder / "tables" / name for name in ("report.html", "report.json"))
    assert LOST in page.read_text()
    assert json.loads(document.read_text())["messages"]["by_verdict"]["lost"] == 1


def test_the_command_reports_what_is_at_a_url_to_a_local_file(store, made, tmp_path, capsys):
    folder, _ = made
    assert main(["pipeline", "report", "--out", store(folder / "tables"), "--to", str(tmp_path / "page.html")]) == 1
    assert (tmp_path / "page.html").exists()


def test_a_url_without_a_run_is_named(store, tmp_path):
    with pytest.raises(ConfigurationError, match="no run is in store://bucket/"):
        report(store(tmp_path))


def test_a_journal_that_is_not_there_is_named(spark, store, tmp_path):
    with pytest.raises(ConfigurationError, match=r"store://bucket/.* is not a directory"):
        run(store(tmp_path / "journal"), tmp_path / "tables", spark=spark)


def test_a_url_that_spark_can_not_reach_is_named(spark, tmp_path):
    with pytest.raises(ConfigurationError, match=r"can't reach nowhere://bucket/journal: .*nowhere"):
        run("nowhere://bucket/journal", tmp_path / "tables", spark=spark)


def test_a_run_that_fails_leaves_nothing(spark, store, tmp_path):
    write_rich_journal(tmp_path / "journal")

    def fail(*_):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError):
        run(store(tmp_path / "journal"), store(tmp_path / "tables"), spark=spark, progress=fail)
    assert list((tmp_path / "tables" / "runs").iterdir()) == []


@pytest.mark.parametrize("places", [("store://bucket/journal", "tables"), ("journal", "store://bucket/tables")])
def test_following_is_refused_at_a_url(places):
    with pytest.raises(ConfigurationError, match=r"store://bucket/.* can't be followed"):
        follow(*places)


# Runs that were followed by others


def ended(out: Path, name: str, seconds_ago: float | None) -> Path:
    """A run's folder, as it was left."""
    folder = out / "runs" / name
    (folder / "order").mkdir(parents=True)
    if seconds_ago is not None:
        (folder / "run.json").write_text("{}")
        os.utime(folder / "run.json", (time.time() - seconds_ago,) * 2)
    return folder


def test_runs_are_deleted_some_time_after_the_one_that_follows_them(spark, store, tmp_path):
    out = reached(store(tmp_path / "out"), spark)
    oldest = ended(tmp_path / "out", "20200101T000000000000-00000001", 9000)
    older = ended(tmp_path / "out", "20200101T000000000000-00000002", _storage.GRACE + 60)
    old = ended(tmp_path / "out", "20200101T000000000000-00000003", 1800)
    died = ended(tmp_path / "out", "20200101T000000000000-00000004", None)
    foreign = ended(tmp_path / "out", "notes", None)
    with _storage.work_folder(out, "test") as work:
        running = ended(tmp_path / "out", f"{work.name[:21]}-00000000", None)
        _storage.publish(work, out, (), "{}")
        assert _storage.latest_run(out) == work
    kept = set((tmp_path / "out" / "runs").iterdir())
    assert kept == {older, old, foreign, running, tmp_path / "out" / "runs" / work.name}
    assert not oldest.exists()
    assert not died.exists()


def test_a_store_of_objects_is_read_at_any_place(spark, store, tmp_path):
    data = bytes(range(256)) * 5000
    path = reached(store(tmp_path), spark) / "file"
    with path.open_output() as file:
        file.write(data)
    with path.open_input() as file:
        file.seek(-1000, os.SEEK_END)
        assert file.read() == data[-1000:]
        file.seek(300)
        assert file.read(10) == data[300:310]


# Formats


def test_the_tables_are_also_written_in_a_format_of_sparks(spark, made):
    folder, _ = made
    assert {path.name for path in (folder / "tables" / "orc").iterdir()} == {table.name for table in TABLES}
    written = spark.read.orc(spark_path(folder / "tables" / "orc" / "reconciliation"))
    assert written.filter("verdict = 'lost'").count() == 1


@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_format_that_spark_lacks_is_refused_before_anything_is_made(spark, tmp_path, capsys, name):
    (tmp_path / "journal").mkdir()
    arguments = ["--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "tables"), "--format", name]
    assert main(["pipeline", "run", *arguments]) == 2
    assert f"this Spark can't write the format '{name}'" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "tables").iterdir()] == ["_lock"]


# What is a URL


@pytest.mark.parametrize(
    ("place", "path"),
    [("/a/b", "/a/b"), ("a:b", "a:b"), ("file:///a/b", "/a/b"), ("file:/a/b", "/a/b"), ("c/s3a://x", "c/s3a:/x")],
)
def test_a_local_place_is_a_path(place, path):
    assert not is_url(place)
    assert local(place) == Path(path)


@pytest.mark.parametrize("place", ["s3a://bucket/a", "hdfs:///a", "abfss://c@a.dfs.core.windows.net/x", "viewfs:/a"])
def test_any_other_place_is_a_url(place):
    assert is_url(place)

"""Shipping segments to a store: each once, whole or not at all, whatever is interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from command_line import run
from journal_events import sent
from pairmq.model import ConfigurationError
from pairmq.observe.journal import Journal, JournalOptions, ShipmentError, read_rows, segments, ship

DAY = 86_400.0


class Torn(LocalFileSystem):
    """A store whose connection ends in the middle of an upload, once after so many."""

    protocol = ("torn",)
    cachable = False
    uploads_left = 0

    def put_file(self, lpath: str, rpath: str, *args: Any, **more: Any) -> None:
        if Torn.uploads_left > 0:
            Torn.uploads_left -= 1
            return super().put_file(lpath, rpath, *args, **more)
        Path(rpath).write_bytes(Path(lpath).read_bytes()[:100])
        raise ConnectionResetError("the connection ended")


@pytest.fixture(autouse=True, scope="module")
def _known() -> None:
    fsspec.register_implementation("torn", Torn, clobber=True)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal with rows of three days."""
    folder = tmp_path / "journal"
    journal = Journal(folder, JournalOptions(flush_interval=0.01))
    for day in range(3):
        journal.on_event(sent(day, at=1_700_000_000.0 + day * DAY))
    assert journal.close(30)
    return folder


def sizes(folder: Path) -> dict[str, int]:
    """The segments' sizes by their paths: each day has names of its own."""
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in segments(folder)}


def uploaded(store: Path) -> list[dict[str, Any]]:
    """What a reader of the store finds."""
    return list(read_rows(store))


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty folder; one grows files under their names, in the other an upload appears at its end."""
    return f"file://{tmp_path}/store" if request.param == "file" else f"memory://{uuid.uuid4().hex}"


def names(store: str) -> list[str]:
    files, root = fsspec.core.url_to_fs(store)
    return sorted(str(path).rpartition("/")[2] for path in files.find(root))


def test_each_segment_is_uploaded_once(directory: Path, store: str) -> None:
    there = segments(directory)
    first, second = ship(directory, store), ship(directory, store)
    assert (first.segments, first.present, first.failed) == (there, 0, {})
    assert (second.segments, second.present, second.bytes) == ([], len(there), 0)
    assert names(store) == sorted(path.name for path in there)
    assert first.bytes == sum(path.stat().st_size for path in there)


def test_what_was_uploaded_reads_like_the_journal(directory: Path, tmp_path: Path) -> None:
    ship(directory, f"file://{tmp_path}/store")
    assert uploaded(tmp_path / "store") == uploaded(directory)


@pytest.mark.parametrize("place", ["journal", "link", "journal/../journal"])
def test_a_journal_is_not_shipped_to_itself(directory: Path, tmp_path: Path, place: str) -> None:
    """Each segment would count as uploaded, and be deleted."""
    (tmp_path / "link").symlink_to(directory)
    there = segments(directory)
    url = f"file://{tmp_path}/{place.replace('journal', directory.name)}"
    with pytest.raises(ConfigurationError, match="the journal's own directory"):
        ship(directory, url, delete=True)
    assert segments(directory) == there


def test_an_interrupted_upload_is_invisible_and_the_next_shipment_continues(directory: Path, tmp_path: Path) -> None:
    store = f"torn://{tmp_path}/store"
    Torn.uploads_left = 1
    with pytest.raises(ShipmentError, match=r"can't upload segment-.*: the connection ended") as failed:
        ship(directory, store)
    assert len(failed.value.done.segments) == 1
    assert len(segments(tmp_path / "store")) == 1
    Torn.uploads_left = 100
    again = ship(directory, store)
    assert (len(again.segments), again.present) == (len(segments(directory)) - 1, 1)
    assert uploaded(tmp_path / "store") == uploaded(directory)
    ship(directory, store)
    assert names(f"file://{tmp_path}/store") == sorted(path.name for path in segments(directory))


def test_a_shorter_file_of_the_name_is_replaced(directory: Path, tmp_path: Path) -> None:
    there = segments(directory)[0]
    target = tmp_path / "store" / there.relative_to(directory)
    target.parent.mkdir(parents=True)
    target.write_bytes(there.read_bytes()[:50])
    assert there in ship(directory, f"file://{tmp_path}/store").segments
    assert target.read_bytes() == there.read_bytes()


def test_delete_deletes_what_the_store_has_and_nothing_else(directory: Path, tmp_path: Path) -> None:
    before = uploaded(directory)
    Torn.uploads_left = 2
    with pytest.raises(ShipmentError) as failed:
        ship(directory, f"torn://{tmp_path}/store", delete=True)
    assert failed.value.done.deleted == 2
    assert sorted(row["seq"] for folder in (directory, tmp_path / "store") for row in read_rows(folder)) == [
        row["seq"] for row in sorted(before, key=lambda row: row["seq"])
    ]
    Torn.uploads_left = 100
    ship(directory, f"torn://{tmp_path}/store", delete=True)
    assert (segments(directory), uploaded(tmp_path / "store")) == ([], before)


def test_what_is_still_written_is_left(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", JournalOptions(flush_interval=0.01))
    journal.on_event(sent(1))
    try:
        assert journal.flush(30)
        assert ship(tmp_path / "journal", f"file://{tmp_path}/store", delete=True).segments == []
    finally:
        assert journal.close(30)
    assert len(uploaded(tmp_path / "journal")) == 3


def test_a_segment_that_can_not_be_read_stops_no_other(directory: Path, tmp_path: Path) -> None:
    bad = segments(directory)[0]
    bad.unlink()
    bad.mkdir()  # the superuser may read every file
    done = ship(directory, f"file://{tmp_path}/store")
    assert list(done.failed) == [bad]
    assert len(done.segments) == len(segments(directory)) - 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("store", "the store is not a URL: give one such as s3://bucket/journal"),
        ("s3://", "the store is not a URL"),
        ("nowhere://bucket", "can't use a store at nowhere://: Protocol not known: nowhere"),
        ("dropbox://key@bucket/journal", "can't use a store at dropbox://: .*dropbox"),
    ],
)
def test_a_bad_store_is_one_clear_error(directory: Path, url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        ship(directory, url)


def test_no_bucket_is_made(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(files: MemoryFileSystem, here: str, there: str) -> None:
        files.pipe_file(there, Path(here).read_bytes())

    def make(*_: Any, **__: Any) -> None:
        raise AssertionError("in an object store this makes a bucket")

    monkeypatch.setattr(MemoryFileSystem, "put_file", upload)
    monkeypatch.setattr(MemoryFileSystem, "makedirs", make)
    assert ship(directory, f"memory://{uuid.uuid4().hex}/journal").segments == segments(directory)


def test_a_login_in_the_url_is_in_no_error(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("me:secret is refused")

    monkeypatch.setattr(Torn, "ls", refuse)
    with pytest.raises(ShipmentError, match=r"can't list date=.*: … is refused"):
        ship(directory, "torn://me:secret@host/store")


def test_the_command_ships_and_says_what_it_did(directory: Path, tmp_path: Path, capsys) -> None:
    command = ["journal", "ship", str(directory), f"file://{tmp_path}/store"]
    assert run(command) == 0
    count = len(segments(directory))
    assert capsys.readouterr().out.startswith(f"shipped {count} segments, 0.")
    assert run([*command, "--delete"]) == 0
    assert f"shipped 0 segments, 0.0 MB; the store had {count}; deleted {count} here" in capsys.readouterr().out


def test_the_command_reports_a_store_that_fails(directory: Path, tmp_path: Path, capsys) -> None:
    Torn.uploads_left = 1
    assert run(["journal", "ship", str(directory), f"torn://{tmp_path}/store", "--json"]) == 1
    ended = capsys.readouterr()
    told = json.loads(ended.out)
    assert (len(told["segments"]), told["problem"]) == (1, ended.err.removeprefix("error: ").strip())
    assert "the connection ended; the next shipment continues" in ended.err


@pytest.mark.real_server  # it kills programs of its own
def test_killed_shipments_lose_and_double_nothing(directory: Path, tmp_path: Path) -> None:
    source = segments(directory)[0]
    for number in range(120):
        shutil.copyfile(source, source.with_name(f"segment-copy-{number:06d}.parquet"))
    store = tmp_path / "store"
    command = [sys.executable, "-m", "pairmq", "journal", "ship", str(directory), f"file://{store}", "--delete"]
    everything = sizes(directory)
    kills = 0
    while segments(directory):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as shipping:
            before = len(segments(directory))
            while shipping.poll() is None and before - len(segments(directory)) < 30:
                time.sleep(0.002)
            if shipping.poll() is None:
                shipping.send_signal(signal.SIGKILL)
                kills += 1
        assert sizes(store).items() <= everything.items()
    assert kills
    assert sizes(store) == everything

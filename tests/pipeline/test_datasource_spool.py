"""The spool keeps what it was given, in order and under its own numbers, whichever process dies or comes second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from pairmq.model import ConfigurationError, Delivery, Message
from pairmq.pipeline.datasource._rows import Place, to_batch
from pairmq.pipeline.datasource._spool import Segment, Spool, SpoolError, SpoolInUse, read_segment


def rows(*names: str):
    return to_batch([Delivery(Message(b"x", message_id=name), None) for name in names], Place("primary", "q", "q"))


def names(directory, segment: Segment) -> list[str]:
    return [name for batch in read_segment(directory, segment) for name in batch.column("message_id").to_pylist()]


@pytest.fixture
def spool(tmp_path):
    opened = Spool(tmp_path / "spool", "q", patience=0)
    yield opened
    opened.close()


def reopened(spool: Spool) -> Spool:
    spool.close()
    return Spool(spool._directory, "q", patience=0)


def test_what_was_appended_is_read_from_the_disk(spool, tmp_path):
    segment = spool.append(rows("a", "b"), 0)
    assert spool.segments() == [segment]
    assert names(tmp_path / "spool", segment) == ["a", "b"]


def test_segments_are_numbered_without_gaps(spool):
    assert [spool.append(rows("a"), 0).number for _ in range(3)] == [0, 1, 2]


def test_a_number_is_never_given_twice_even_when_all_segments_are_gone(spool):
    spool.append(rows("a"), 0)
    spool.append(rows("b"), 0)
    spool.discard(2)
    again = reopened(spool)
    assert (again.first, again.append(rows("c"), 0).number) == (2, 2)
    again.close()


def test_a_new_query_begins_with_what_is_there(spool):
    for name in "abc":
        spool.append(rows(name), 0)
    spool.discard(1)
    again = reopened(spool)
    assert again.first == 1
    again.close()


def test_what_a_kill_kept_from_being_deleted_does_not_come_to_a_new_query(spool, monkeypatch):
    spool.append(rows("a"), 0)
    spool.append(rows("b"), 0)
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.unlink", lambda self, missing_ok=False: None)
        spool.discard(1)
    again = reopened(spool)
    assert ([segment.number for segment in again.segments()], again.first) == ([0, 1], 1)
    again.close()


def test_what_was_never_finished_is_deleted_when_the_spool_is_opened(spool, tmp_path):
    torn = tmp_path / "spool" / ".000000000000-5.arrow.part"
    torn.write_bytes(b"half")
    again = reopened(spool)
    assert not torn.exists()
    assert again.segments() == []
    again.close()


def test_a_segment_that_can_not_be_written_leaves_nothing(spool, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        spool.append(rows("a"), 0)
    assert not [name for name in os.listdir(tmp_path / "spool") if "arrow" in name]


def test_a_spool_keeps_its_id(spool):
    again = reopened(spool)
    assert again.id == spool.id
    again.close()


def test_a_second_owner_is_locked_out_with_the_name_of_the_first(spool, tmp_path):
    with pytest.raises(SpoolInUse, match=f"in use by process {os.getpid()}"):
        Spool(tmp_path / "spool", "q", patience=0)


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    program = f"""
        import os, signal
        from pathlib import Path
        from pairmq.pipeline.datasource._spool import Spool
        spool = Spool(Path({str(tmp_path / "spool")!r}), "q")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    Spool(tmp_path / "spool", "q", patience=0).close()


def test_a_spool_of_another_source_is_refused(spool, tmp_path):
    spool.close()
    with pytest.raises(ConfigurationError, match="holds messages of q, not of r"):
        Spool(tmp_path / "spool", "r", patience=0)
    reopened(spool).close()  # and its lock is free


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 9, "id": "x", "source": "q"}'])
def test_a_spool_that_is_damaged_or_of_another_version_is_refused(spool, tmp_path, text):
    spool.close()
    (tmp_path / "spool" / "spool.json").write_text(text)
    with pytest.raises(ConfigurationError, match=r"damaged|another version"):
        Spool(tmp_path / "spool", "q", patience=0)


def test_segments_without_a_spool_are_no_new_spool(spool, tmp_path):
    spool.append(rows("a"), 0)
    spool.close()
    (tmp_path / "spool" / "spool.json").unlink()
    with pytest.raises(ConfigurationError, match=r"no spool\.json"):
        Spool(tmp_path / "spool", "q", patience=0)


def test_a_segment_that_is_not_there_is_an_error_that_says_why(tmp_path):
    with pytest.raises(SpoolError, match="every executor must see"):
        list(read_segment(tmp_path, Segment(3, 1)))


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_a_segment_that_was_cut_short_is_an_error(spool, tmp_path, kept):
    segment = spool.append(rows("a", "b"), 0)
    path = tmp_path / "spool" / segment.name
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(SpoolError, match="can't be read"):
        list(read_segment(tmp_path / "spool", segment))


def test_a_segment_with_other_rows_than_its_name_says_is_an_error(spool, tmp_path):
    segment = spool.append(rows("a", "b"), 0)
    (tmp_path / "spool" / segment.name).rename(tmp_path / "spool" / Segment(0, 3).name)
    with pytest.raises(SpoolError, match="does not hold 3 rows"):
        list(read_segment(tmp_path / "spool", Segment(0, 3)))


def test_no_other_user_may_read_messages_in_the_spool(spool, tmp_path):
    segment = spool.append(rows("a"), 0)
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0
    assert (tmp_path / "spool" / segment.name).stat().st_mode & 0o077 == 0

"""What a follower has taken: exact in rows, whole in commits, the same after a kill at any instant."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal_by_hand import Journal, segment_table
from pairmq.pipeline._storage import sync
from pairmq.pipeline.follow._follow import STATE, state_of
from pairmq.pipeline.follow._ledger import Entry, File, Ledger
from pairmq.pipeline.journal_io import Lives, joined, look_at, new_rows, sift, size, without

NUMBERS = st.frozensets(st.integers(0, 40), max_size=30)


def ranges(numbers):
    return joined((number, number) for number in numbers)


def numbers(found):
    return {number for first, last in found for number in range(first, last + 1)}


@given(NUMBERS, NUMBERS)
def test_ranges_are_joined_and_taken_from_each_other_as_sets_are(one, other):
    assert numbers(joined(ranges(one), ranges(other))) == one | other
    assert numbers(without(ranges(one), ranges(other))) == one - other
    assert size(ranges(one)) == len(one)


@given(NUMBERS, NUMBERS)
def test_a_set_has_as_few_ranges_as_it_can(one, other):
    found = joined(ranges(one), ranges(other))
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(found))


# Which rows of files are new


def told(process="p", rows=10):
    journal = Journal(process)
    for number in range(rows):
        journal.sent(float(number), f"m{number}")
    return segment_table(journal)


@pytest.fixture
def file(tmp_path):
    def write(table, name):
        pq.write_table(table, tmp_path / name)
        return tmp_path / name

    return write


def sifted(*paths, seen=None):
    return sift(look_at(paths).segments, seen or {})


def keys(spark, found):
    return sorted((row.process, row.seq) for row in new_rows(spark, found).select("process", "seq").collect())


def test_a_file_that_overlaps_nothing_passes_whole(file):
    path = file(told(), "a")
    found = sifted(path, seen={"p": ((10, 20),), "q": ((0, 9),)})
    assert (found.whole, found.partly, found.new) == ((path,), (), {"p": ((0, 9),)})


def test_of_a_file_whose_rows_were_all_taken_nothing_is_read(file):
    found = sifted(file(told(), "a"), seen={"p": ((0, 20),)})
    assert (found.whole, found.partly, found.count) == ((), (), 0)


def test_of_a_file_that_overlaps_only_the_rows_that_were_not_taken_are_read(spark, file):
    found = sifted(file(told(), "a"), seen={"p": ((0, 2), (5, 5), (8, 30))})
    assert keys(spark, found) == [("p", 3), ("p", 4), ("p", 6), ("p", 7)]


def test_rows_that_two_files_of_one_batch_have_are_read_once(spark, file):
    found = sifted(file(told().slice(0, 7), "a"), file(told().slice(4), "b"), file(told().slice(4), "copy of b"))
    assert keys(spark, found) == [("p", number) for number in range(10)]


def test_a_file_with_gaps_shows_them_exactly(spark, file):
    gapped = pa.concat_tables([told().slice(0, 3), told().slice(6)])
    found = sifted(file(gapped, "a"))
    assert found.new == {"p": ((0, 2), (6, 9))}
    late = sifted(file(told(), "b"), seen=found.new)
    assert keys(spark, late) == [("p", 3), ("p", 4), ("p", 5)]


def test_a_file_of_several_processes_shows_the_rows_of_each(spark, file):
    both = pa.concat_tables([told("p", 3), told("q", 2)])
    found = sifted(file(both, "a"), seen={"p": ((0, 1),)})
    assert found.new == {"p": ((2, 2),), "q": ((0, 1),)}
    assert keys(spark, found) == [("p", 2), ("q", 0), ("q", 1)]


def test_a_row_that_one_file_has_twice_is_read_once(spark, file):
    twice = pa.concat_tables([told().slice(0, 2), told().slice(1, 3)])
    assert keys(spark, sifted(file(twice, "a"))) == [("p", number) for number in range(4)]


# Commits


def entry(number, *, facts=None, seen=None):
    return Entry(number, number, facts, seen or {"p": ((number * 10, number * 10 + 9),)})


def committed(folder, *entries):
    ledger = Ledger(folder)
    for each in entries:
        part = ledger.new_folder(each.first, each.last)
        (part / "some-fact").mkdir()
        (part / "some-fact" / "0.parquet").touch()
        ledger.commit(Entry(each.first, each.last, part.name, each.seen))
    return ledger


def names(ledger):
    return [path.name for path in ledger.facts()]


def test_a_ledger_that_is_opened_again_is_the_same(tmp_path):
    waiting = File("/x/[odd] ü.parquet", problem="it is cut short")
    ledger = committed(tmp_path, entry(0))
    lives = Lives({"q": 3.5}, {"p": 4.5})
    read = File("/x/ü.parquet", 4, 5, is_segment=True)
    ledger.commit(Entry(1, 1, None, {"q": ((0, 4), (6, 6))}, lives=lives, files=(read, waiting)))
    again = Ledger(tmp_path)
    assert (again.chain, again.seen, again.lives) == (ledger.chain, ledger.seen, lives)
    assert (again.files, again.waiting, again.segments) == (ledger.files, [waiting], 1)
    assert again.seen == {"p": ((0, 9),), "q": ((0, 4), (6, 6))}


def test_facts_that_no_entry_names_are_those_of_a_dead_writer_and_are_deleted(tmp_path):
    kept = names(committed(tmp_path, entry(0)))
    left = Ledger(tmp_path).new_folder(1, 1)
    assert names(Ledger(tmp_path)) == kept
    assert not left.exists()


def test_an_entry_that_was_being_written_is_not_there(tmp_path):
    committed(tmp_path, entry(0))
    (tmp_path / "ledger" / ".000001-000001.json").write_text('{"first": 1, "la')
    assert Ledger(tmp_path).next_number == 1


def test_a_merge_leaves_one_entry_that_has_seen_the_same(tmp_path):
    ledger = committed(tmp_path, entry(0), entry(1), entry(2))
    folder = ledger.new_folder(0, 2)
    ledger.merge(folder)
    for each in (ledger, Ledger(tmp_path)):
        assert [(one.first, one.last) for one in each.chain] == [(0, 2)]
        assert (names(each), each.seen, each.next_number) == ([folder.name], {"p": ((0, 29),)}, 3)
    assert [path.name for path in (tmp_path / "facts").iterdir()] == [folder.name]


@pytest.mark.parametrize("left", [0, 1, 2, 3])
def test_a_merge_that_is_killed_before_it_has_swept_counts_nothing_twice(tmp_path, monkeypatch, left):
    ledger = committed(tmp_path, entry(0), entry(1), entry(2))
    monkeypatch.setattr(ledger, "_sweep", lambda: None)
    ledger.merge(ledger.new_folder(0, 2))
    for number in range(left):  # the sweep had come so far
        (tmp_path / "ledger" / f"{number:06d}-{number:06d}.json").unlink()
    again = Ledger(tmp_path)
    assert (names(again), again.seen) == (names(ledger), {"p": ((0, 29),)})
    committed(tmp_path, entry(3))
    assert Ledger(tmp_path).seen == {"p": ((0, 39),)}


def test_a_merge_that_is_killed_before_its_entry_stands_changes_nothing(tmp_path):
    before = committed(tmp_path, entry(0), entry(1))
    before.new_folder(0, 1)
    again = Ledger(tmp_path)
    assert (again.chain, names(again)) == (before.chain, names(before))


def test_pieces_of_settled_messages_that_a_merge_names_are_kept_and_others_deleted(tmp_path):
    ledger = committed(tmp_path, entry(0))
    kept, left = ledger.new_piece(), ledger.new_piece()
    ledger.merge(ledger.new_folder(0, 0), [kept])
    assert (ledger.settled(), kept.exists(), left.exists()) == ([kept], True, False)
    left = ledger.new_piece()
    again = Ledger(tmp_path)
    assert (again.settled(), kept.exists(), left.exists()) == ([kept], True, False)
    kept.rmdir()
    with pytest.raises(ValueError, match=f"{re.escape(str(kept))}.* is missing"):
        Ledger(tmp_path)


def test_an_entry_that_is_missing_is_noticed(tmp_path):
    committed(tmp_path, entry(0), entry(1), entry(2))
    (tmp_path / "ledger" / "000001-000001.json").unlink()
    with pytest.raises(ValueError, match="commit 1 is missing"):
        Ledger(tmp_path)


SOUND = Entry(0, 0, None, {"p": ((0, 9),)}).to_json()


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", "{}", "\x00", SOUND[:-9], SOUND.replace("9", "8", 1)])
def test_a_damaged_entry_is_named(tmp_path, text):
    committed(tmp_path, entry(0))
    path = tmp_path / "ledger" / "000000-000000.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        Ledger(tmp_path)


def test_an_entry_whose_facts_are_gone_is_noticed(tmp_path):
    (facts,) = committed(tmp_path, entry(0)).facts()
    shutil.rmtree(facts)
    with pytest.raises(ValueError, match=f"{re.escape(str(facts))}.* is missing"):
        Ledger(tmp_path)


def test_on_a_full_disk_the_entry_that_can_not_be_written_is_named(tmp_path):
    ledger = committed(tmp_path, entry(0))
    full = tmp_path / "ledger" / ".000001-000001.json.part"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(str(full))) as raised:
        ledger.commit(entry(1))
    assert (raised.value.errno, ledger.next_number, Ledger(tmp_path).next_number) == (errno.ENOSPC, 1, 1)


def test_on_a_full_disk_the_identity_that_can_not_be_written_is_named(tmp_path):
    full = tmp_path / STATE / ".follow.json.part"
    full.parent.mkdir()
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match=re.escape(str(full))) as raised:
        state_of(tmp_path, tmp_path / "journal", restart=False)
    assert raised.value.errno == errno.ENOSPC


def test_a_disk_that_fails_under_names_is_reported_with_the_directory(tmp_path, monkeypatch):
    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=re.escape(f"{tmp_path}'")):
        sync(tmp_path)


def test_an_entry_is_plain_json(tmp_path):
    committed(tmp_path, entry(0))
    (path,) = (tmp_path / "ledger").iterdir()
    assert json.loads(path.read_text())["entry"]["seen"] == {"p": [[0, 9]]}

"""Which files of a directory are segments, and why the others are not."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journal_by_hand import START, Journal, segment_table
from journal_events import sent
from pairmq.model import ConfigurationError
from pairmq.model.records import COLUMNS, SCHEMA_VERSION
from pairmq.observe.journal import Journal as JournalWriter
from pairmq.observe.journal import metadata, segments
from pairmq.observe.journal import read_rows as journal_rows
from pairmq.pipeline.journal_io import Lives, damaged, look_at, look_over, new_rows, sift
from pairmq.pipeline.transforms.facts import digests_of_file


def read_rows(spark, contents):
    return new_rows(spark, sift(contents.segments, {}))


def journal(process: str = "p", rows: int = 3) -> Journal:
    told = Journal(process).opened()
    for number in range(rows - 1):
        told.sent(number + 1.0, f"m{number}")
    return told


@pytest.fixture
def folder(tmp_path):
    """A journal with one good segment."""
    day = tmp_path / "date=2026-02-02"
    day.mkdir()
    pq.write_table(segment_table(journal()), day / "good.parquet")
    return day


def problem(folder, name="bad.parquet"):
    contents = look_over(folder.parent)
    assert [segment.path.name for segment in contents.segments] == ["good.parquet"]
    (bad,) = contents.bad
    assert bad.path.name == name
    return bad.problem


def test_a_segment_shows_whose_rows_it_has(folder):
    (segment,) = look_over(folder.parent).segments
    assert (segment.process, segment.first_seq, segment.last_seq, segment.rows) == ("p", 0, 2, 3)


def test_a_truncated_segment_is_left_out(folder):
    whole = (folder / "good.parquet").read_bytes()
    (folder / "bad.parquet").write_bytes(whole[: len(whole) // 2])
    assert "truncated" in problem(folder)


def footer_changed(folder, change):
    """A copy of the good segment in whose footer, behind its pages, a byte is another."""
    whole = bytearray((folder / "good.parquet").read_bytes())
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    place, value = change(bytes(whole), footer)
    whole[place] = value
    (folder / "bad.parquet").write_bytes(whole)


def test_a_segment_whose_footer_has_a_invalid_text_is_left_out(folder):
    pq.write_table(segment_table(journal("NAME")), folder / "good.parquet")
    footer_changed(folder, lambda whole, footer: (whole.index(b"NAME", footer), 0xFF))
    assert problem(folder).startswith("its footer is damaged: 'utf-8' codec")


def test_a_segment_whose_footer_contradicts_itself_is_left_out(folder):
    def another_type(whole, footer):
        # Thrift: the column's type, a list of encodings, and the column's name.
        place = whole.index(b"\x18\x07process", whole.index(b"\x26", footer))
        return whole.rindex(b"\x15\x0c", footer, place) + 1, 0x7D

    footer_changed(folder, another_type)
    assert problem(folder) == "its footer is damaged: the type of the column process differs from the schema's"


def test_who_was_seen_writing_after_the_last_row_of_its_own_is_missing(tmp_path):
    def kept(name, others, rows=3):
        table = segment_table(journal(name, rows)).replace_schema_metadata({b"pairmq.others": others})
        pq.write_table(table, tmp_path / f"{name}.parquet")

    late = START + 600
    kept("p", json.dumps({"q": late, "gone": START, "r": START + 100, "part": late, "wild": 9e12, "odd": "x"}).encode())
    kept("q", json.dumps({"gone": late}).encode())
    for name, others in (("r", b"[7]"), ("s", b"{"), ("t", b"\xff")):
        kept(name, others)
    lives = Lives.of(look_over(tmp_path).segments)
    assert lives.missing({"part", None}) == {"gone": late, "q": late}
    pq.write_table(
        pa.concat_tables([segment_table(journal("u")), segment_table(journal("v"))]), tmp_path / "two.parquet"
    )
    assert Lives.of(look_over(tmp_path).segments).missing(()) == {}


def test_an_empty_file_is_left_out(folder):
    (folder / "bad.parquet").touch()
    assert "truncated" in problem(folder)


def test_foreign_parquet_is_left_out(folder):
    pq.write_table(pa.table({"price": [1.0], "at": [2.0]}), folder / "bad.parquet")
    assert problem(folder) == "it is not a segment of a journal: it has no column kind"


def test_a_column_of_another_type_is_left_out(folder):
    table = segment_table(journal())
    index = table.schema.get_field_index("seq")
    pq.write_table(table.set_column(index, "seq", table["seq"].cast(pa.string())), folder / "bad.parquet")
    assert problem(folder) == "its column seq is string, not int64"


def test_a_segment_of_a_later_version_is_left_out(folder):
    table = segment_table(journal())
    later = table.replace_schema_metadata({"pairmq.schema_version": str(SCHEMA_VERSION + 1)})
    pq.write_table(later, folder / "bad.parquet")
    assert problem(folder).startswith("a newer PairMQ wrote it")


@pytest.mark.parametrize("version", [b"", b"two", b"-1", b"9" * 5000, b"\xff", "\u00b2".encode()])
def test_an_invalid_version_is_left_out(folder, version):
    odd = segment_table(journal()).replace_schema_metadata({b"pairmq.schema_version": version})
    pq.write_table(odd, folder / "bad.parquet")
    assert problem(folder).startswith("its footer is damaged: the schema version is b'")


def test_a_column_whose_name_is_no_text_is_left_out(folder):
    whole = (folder / "good.parquet").read_bytes()
    (folder / "bad.parquet").write_bytes(whole.replace(b"subscription", b"subscr\xffption"))
    assert "can't decode byte" in problem(folder)


@pytest.mark.parametrize("metadata", [None, {b"pandas": b'{"index'}, {b"\xff": b"\xff"}])
def test_a_segment_that_another_tool_made_anew_is_read(folder, metadata):
    pq.write_table(segment_table(journal("q")).replace_schema_metadata(metadata), folder / "anew.parquet")
    contents = look_over(folder.parent)
    assert (len(contents.segments), contents.bad) == (2, ())


def test_a_segment_of_an_earlier_version_lacks_columns_and_is_read(folder):
    table = segment_table(journal("q")).drop_columns(["time_to_live", "received_at"])
    pq.write_table(table, folder / "early.parquet")
    contents = look_over(folder.parent)
    assert (len(contents.segments), contents.bad) == (2, ())


def test_small_facts_of_an_earlier_version_are_those_of_a_segment_with_nulls(folder):
    """Columns that repeat, too: Arrow refuses to read a dictionary of one that is not there."""
    optional = [column.name for column in COLUMNS if column.nullable]
    table = segment_table(Journal("q").opened())
    empty = [name for name in optional if table[name].null_count == table.num_rows]
    pq.write_table(table, folder / "now.parquet")
    pq.write_table(table.drop_columns(empty), folder / "early.parquet")
    (now,), (early,) = (list(digests_of_file(folder / name)) for name in ("now.parquet", "early.parquet"))
    assert early == now


def test_a_linked_folder_is_read_once(folder, tmp_path):
    """Also where a link leads back to a folder above."""
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    (elsewhere / "_open").mkdir(parents=True)
    (elsewhere / "_open" / "r-000001.part").touch()
    pq.write_table(segment_table(journal("q")), elsewhere / "segment-q-000000.parquet")
    for place in ("host", "host-again"):
        (tmp_path / place).symlink_to(elsewhere)
    (folder / "above").symlink_to(tmp_path)
    contents = look_over(tmp_path)
    assert [segment.process for segment in contents.segments] == ["p", "q"]
    assert [part.process for part in contents.parts] == ["r"]


def test_a_folder_that_can_not_be_listed_is_an_error_that_names_it(folder, monkeypatch):
    listed = os.scandir

    def refused(path):
        if str(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigurationError, match=r"can't read .*date=2026-02-02: Permission denied; give"):
        look_over(folder.parent)


@pytest.mark.parametrize("name", ["_open/part.parquet", ".hidden.parquet", "_tmp.parquet", "notes.txt"])
def test_work_in_progress_and_other_files_are_no_ones_business(folder, name):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("no Parquet")
    contents = look_over(folder.parent)
    assert (len(contents.segments), contents.bad) == (1, ())


def test_an_empty_directory_is_an_empty_journal(tmp_path):
    assert look_over(tmp_path).segments == ()


def test_a_missing_directory_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere is not a directory"):
        look_over(tmp_path / "nowhere")


def test_a_segment_with_sound_ends_and_damaged_pages_is_found_by_reading_it(folder):
    whole = bytearray((folder / "good.parquet").read_bytes())
    whole[100:400] = bytes(300)
    (folder / "bad.parquet").write_bytes(whole)
    contents = look_over(folder.parent)
    assert contents.bad == ()
    (bad,) = damaged(contents)
    assert bad.path.name == "bad.parquet"
    assert bad.problem.startswith("it is damaged inside")


@pytest.fixture
def changed(folder):
    """A segment in which an id is another than was written: without checksums it would be read."""
    path = folder / "changed.parquet"
    pq.write_table(segment_table(journal("q")), path, compression="none", write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b"m0", b"n0"))
    return path


def test_a_segment_with_a_changed_value_is_damaged(changed):
    (bad,) = damaged(look_over(changed.parent.parent))
    assert bad.path == changed
    with pytest.raises(OSError, match="checksum"):
        list(digests_of_file(changed))


@pytest.fixture
def written(tmp_path):
    """A segment as a journal writes it."""
    one = JournalWriter(tmp_path)
    for number in range(20):
        one.on_event(sent(number))
    assert one.close(60)
    (path,) = (path for path in segments(tmp_path) if metadata(path)["rows"] == "20")
    return path


def test_a_bit_that_is_another_in_a_segment_is_noticed_wherever_it_is(written):
    """Without a checksum of the footer every thirtieth of its bits took a column away, or its values, unnoticed."""
    whole, rows = written.read_bytes(), pq.read_table(written, partitioning=None)
    length = int.from_bytes(whole[-8:-4], "little")
    footer = len(whole) - 8 - length
    # Every column's name among them.
    places = {*range(4, footer, 499), *range(footer - 8, len(whole), 53), *range(len(whole) - 8, len(whole))}
    places |= {whole.index(column.name.encode(), footer) for column in COLUMNS}
    seals = Counter[bool]()
    for place in sorted(places):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        written.write_bytes(changed)
        contents = look_at([written])
        noticed = bool(contents.bad or damaged(contents))
        seals[noticed] += place >= footer
        # Before the footer are bytes that say nothing of a value, such as a page's offset to itself.
        assert noticed or (place < footer and pq.read_table(written, partitioning=None).equals(rows)), place
    assert seals[True] > 100


def test_a_segment_with_a_changed_footer_is_an_error_that_names_it(written):
    whole = written.read_bytes()
    written.write_bytes(whole[:-400] + bytes([whole[-400] ^ 1]) + whole[-399:])
    with pytest.raises(OSError, match=r"its footer is damaged: the checksum is another") as found:
        list(journal_rows(written.parent.parent))
    assert found.value.filename == str(written)


def test_spark_reads_no_changed_value(spark, changed):
    with pytest.raises(Exception, match=r"CRC|checksum"):
        read_rows(spark, look_over(changed.parent.parent)).collect()


def test_an_empty_journal_has_no_rows(spark, tmp_path):
    assert read_rows(spark, look_over(tmp_path)).collect() == []


def test_rows_that_two_segments_have_are_read_once_in_whatever_order(spark, folder):
    whole = segment_table(journal("q", rows=5))
    pq.write_table(whole.slice(3), folder / "a-later.parquet")
    pq.write_table(whole.slice(0, 4), folder / "b-earlier.parquet")
    pq.write_table(segment_table(journal()), folder / "copy of good.parquet")
    rows = read_rows(spark, look_over(folder.parent)).select("process", "seq").collect()
    assert sorted((row.process, row.seq) for row in rows) == [
        *(("p", n) for n in range(3)),
        *(("q", n) for n in range(5)),
    ]


def test_a_path_with_signs_that_are_patterns_elsewhere_is_read(spark, tmp_path):
    odd = tmp_path / "a [1] {x} journal"
    odd.mkdir()
    pq.write_table(segment_table(journal()), odd / "good.parquet")
    assert read_rows(spark, look_over(odd)).count() == 3

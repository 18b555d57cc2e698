"""What goes into a journal comes out of its segments, whatever it is."""

from __future__ import annotations

import json
import random
import time

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal_events import EPOCH, OWN, rows, sent, texts, until, warned
from pairmq.model import Entity, EntityKind, EntityState, events, records
from pairmq.model.events import Cause, SendOutcome, Settlement, Side
from pairmq.observe.journal import metadata, read_rows, recover, segments
from pairmq.observe.journal._columns import batch_of
from pairmq.observe.journal._segments import widened
from patient_examples import examples

AT = {"at": EPOCH, "pair": "east>west"}
TOPIC = Entity("prices", EntityKind.TOPIC)

ONE_OF_EACH: tuple[events.Event, ...] = (
    sent(1, session_id="s", time_to_live=1.5),
    sent(2, outcome=SendOutcome.BACKLOG, backlog_queue="east/x/0", attempts=3, maybe_duplicate=True, state=None),
    events.AttemptFailed(
        **AT, entity=TOPIC, message_id="m", queue=None, kind="busy", error="slow\ndown", maybe_applied=True, late=True
    ),
    events.MessageMoved(
        **AT, queue="q", entity=TOPIC, message_id="m", waited=2.5, maybe_duplicate=False, redelivered=True
    ),
    events.MessageDelivered(
        **AT,
        entity=TOPIC,
        subscription="all",
        dead_letter=False,
        message_id=None,
        delivery_count=2,
        sequence_number="7-0",
        settlement=Settlement.DEAD_LETTERED,
        received_at=EPOCH - 1,
        reason="broken",
    ),
    events.MessageDeadLettered(**AT, queue="q", entity=None, message_id=None, reason="malformed", description="Bad."),
    events.StateChanged(
        **AT,
        entity=Entity("orders"),
        previous=EntityState.HEALTHY,
        current=EntityState.FAILING,
        cause=Cause.SEND_FAILED,
        epoch=1,
        lasted=3.5,
        late=2,
    ),
    events.PingCompleted(**AT, entity=TOPIC, ok=False, elapsed=0.5, error="no"),
    events.RotationChanged(**AT, queue="q", in_use=False, left=9, error="gone"),
    events.DestinationChanged(**AT, entity=TOPIC, open=True),
    events.SyphonFailed(**AT, queue="q", error="x", retry_after=0.5),
    events.BacklogQueueChecked(**AT, queue="q", created=False, differences=("one", "two, with a comma")),
    events.BacklogQueueChecked(**AT, queue="q", created=True),
    events.OperationsCounted(
        **AT, side=Side.SECONDARY, seconds=60.0, sends=1, receives=2, settlements=3, pings=4, admin=5
    ),
    events.ReceiverChanged(**AT, entity=TOPIC, side=Side.PRIMARY, open=False, error="connection refused"),
    warned("ünïcode \N{SNOWMAN} and a\x00nul"),
    events.PairOpened(**AT, primary="redis://a", secondary="amqp://b", version="1", options='{"a": 1}'),
    events.PairEnded(**AT, fault="lost", unknown=3),
    events.EventsDropped(**AT, count=5, since=EPOCH),
)


def round_trip(given: list[events.Event]) -> list[events.Event]:
    """Through columns and the whole table, without files."""
    table = widened([batch_of(given, 10)], "p")
    found = table.to_pylist()
    assert [row["seq"] for row in found] == list(range(10, 10 + len(given)))
    return [records.event_of(row) for row in found]


def test_one_of_every_kind_is_there():
    assert {type(event).__name__ for event in ONE_OF_EACH} == set(records.KINDS) - set(OWN)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_an_event_comes_back_from_a_batch_of_its_kind(event):
    assert round_trip([event] * 3) == [event] * 3


@given(st.lists(st.sampled_from(ONE_OF_EACH), min_size=1, max_size=40))
def test_a_mixed_batch_keeps_its_order(mixed):
    assert round_trip(mixed) == mixed


def test_events_come_back_from_the_segments(journal, tmp_path):
    one = journal()
    for event in ONE_OF_EACH:
        one.on_event(event)
    assert one.close(30)
    assert [records.event_of(row) for row in rows(tmp_path)] == list(ONE_OF_EACH)


def test_a_journal_is_bracketed_by_its_own_rows(journal, tmp_path):
    one = journal(sample_healthy=0.5)
    one.on_event(warned())
    assert one.close(30)
    found = sorted(read_rows(tmp_path), key=lambda row: row["seq"])
    assert [row["kind"] for row in found] == ["JournalOpened", "Warned", "JournalClosed"]
    assert found[0]["sample_healthy"] == 0.5
    assert {row["process"] for row in found} == {one.process}


def test_a_journal_without_events_leaves_no_segments(journal, tmp_path):
    assert journal().close(30)
    assert segments(tmp_path) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
@given(
    st.lists(
        st.one_of(st.none(), st.uuids(version=4).map(lambda one: one.hex), st.text(max_size=40), st.just("a b" * 11)),
        min_size=1,
        max_size=20,
    )
)
def test_the_keys_of_a_batch_are_those_of_its_ids(ids):
    given = [
        events.MessageDeadLettered(**AT, queue="q", entity="e", message_id=one, reason="r", description="d")
        for one in ids
    ]
    table = widened([batch_of(given, 0)], "p")
    assert table["message_key"].to_pylist() == [records.message_key(one) for one in ids]
    assert table["message_id"].to_pylist() == ids


def test_ids_of_pairmq_are_hashed_as_one_by_one():
    dice = random.Random(1)
    ids = [f"{dice.getrandbits(128):032x}" for _ in range(500)]
    given = [sent(number, message_id=one) for number, one in enumerate(ids)]
    table = widened([batch_of(given, 0)], "p")
    assert table["message_key"].to_pylist() == [records.message_key(one) for one in ids]
    assert table["message_id"].to_pylist() == ids


@pytest.mark.parametrize(
    ("event", "column", "stored"),
    [
        (warned("half a letter: \ud800"), "text", "half a letter: ?"),
        (sent(1, size=2**70), "size", 2**63 - 1),
        (sent(1, attempts="three"), "attempts", None),
        (sent(1, sender=7), "sender", "7"),
    ],
)
def test_a_value_that_no_column_can_hold_costs_no_other_row(journal, tmp_path, event, column, stored):
    one = journal()
    for each in (warned("before"), event, warned("after")):
        one.on_event(each)
    assert one.close(30)
    assert rows(tmp_path)[1].get(column) == stored
    assert len(rows(tmp_path)) == 3


def test_a_segment_holds_no_body(journal, tmp_path):
    names = {column.name for column in records.COLUMNS}
    assert not {name for name in names if "body" in name or "propert" in name}


def test_all_segments_have_one_schema(journal, tmp_path):
    one = journal(max_rows=1)
    for event in ONE_OF_EACH:
        one.on_event(event)
        assert one.flush(30)
    assert one.close(30)
    found = {pa.parquet.read_schema(path).remove_metadata() for path in segments(tmp_path)}
    assert len(found) == 1
    assert [(field.name, field.nullable) for field in next(iter(found))] == [
        (column.name, column.nullable) for column in records.COLUMNS
    ]


def test_a_segment_names_the_others_that_have_made_one_and_are_writing_the_next(journal, tmp_path):
    begins, writes, other = journal(), journal(max_rows=2), journal(max_rows=1)
    for event in (warned("a"), warned("b")):  # JournalOpened is a row, too
        writes.on_event(event)
        assert writes.flush(30)
    begins.on_event(warned("d"))
    assert begins.flush(30)
    before = time.time()
    other.on_event(warned("e"))
    assert other.close(30)
    # A running journal makes its segments beside its events.
    until(lambda: len({metadata(path)["process"] for path in segments(tmp_path)}) == 2)
    noted = {metadata(path)["process"]: json.loads(metadata(path)["others"]) for path in segments(tmp_path)}
    assert len(noted) == 2
    (named,) = (others for others in noted.values() if others)
    ((name, at),) = named.items()
    assert noted[name] == {}
    assert before - 60 < at <= time.time()


def test_nothing_is_left_to_recover_after_a_close(journal, tmp_path):
    one = journal()
    one.on_event(warned())
    assert one.close(30)
    assert list((tmp_path / "_open").iterdir()) == []
    assert recover(tmp_path).parts == 0
    assert texts(tmp_path) == ["look"]


def test_a_text_that_was_changed_in_a_segment_is_an_error_that_names_it(journal, tmp_path):
    one = journal(compression="none")
    one.on_event(warned("look"))
    assert one.close(30)
    (segment,) = (path for path in segments(tmp_path) if b"look" in path.read_bytes())
    whole = segment.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    segment.write_bytes(whole[:footer].replace(b"look", b"loop") + whole[footer:])
    with pytest.raises(OSError, match=r"it is damaged inside: .*checksum") as damaged:
        texts(tmp_path)
    assert damaged.value.filename == str(segment)

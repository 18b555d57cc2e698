"""A journal may keep a part of the healthy sends; whatever an outage touched it keeps whole."""

from __future__ import annotations

import itertools
import random

import pytest

from journal_events import EPOCH, rows, sent, warned
from pairmq.model import Entity, EntityState
from pairmq.model.events import Cause, Event, SendOutcome, StateChanged
from pairmq.model.records import event_of, message_key
from pairmq.observe.journal import Journal, JournalOptions

DICE = random.Random(7)
IDS = [f"{DICE.getrandbits(128):032x}" for _ in range(2000)]


@pytest.fixture
def kept(tmp_path):
    """What is kept of events at a rate, by a journal of its own."""
    folders = (tmp_path / str(number) for number in itertools.count())

    def keep(rate: float, *given: Event) -> list[Event]:
        folder = next(folders)
        one = Journal(folder, JournalOptions(sample_healthy=rate))
        for event in given:
            one.on_event(event)
        assert one.close(60)
        return [event_of(row) for row in rows(folder)]

    return keep


def changed(current: EntityState, at: float, entity: str = "orders", pair: str = "east>west") -> StateChanged:
    return StateChanged(
        at=at,
        pair=pair,
        entity=Entity(entity),
        previous=EntityState.DRAINING,
        current=current,
        cause=Cause.DRAINED,
        epoch=1,
        lasted=1.0,
    )


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_about_the_part_that_was_asked_for_is_kept(kept, rate):
    found = kept(rate, *(sent(number, message_id=one) for number, one in enumerate(IDS)))
    assert abs(len(found) / len(IDS) - rate) < 0.04


def test_every_process_keeps_the_same_messages(kept):
    first = kept(0.3, *(sent(number, message_id=one) for number, one in enumerate(IDS)))
    second = kept(0.3, *(sent(number, message_id=one) for number, one in reversed(list(enumerate(IDS)))))
    assert sorted(first, key=repr) == sorted(second, key=repr)


def test_a_higher_rate_keeps_what_a_lower_one_does(kept):
    low = kept(0.2, *(sent(number, message_id=one) for number, one in enumerate(IDS)))
    high = kept(0.4, *(sent(number, message_id=one) for number, one in enumerate(IDS)))
    assert set(low) < set(high)


def test_the_key_of_a_message_decides(kept):
    below = [one for one in IDS if message_key(one) % 2**64 < 2**62]
    assert {row.message_id for row in kept(0.25, *(sent(message_id=one) for one in IDS))} == set(below)


NOT_HEALTHY = [
    {"outcome": SendOutcome.BACKLOG, "backlog_queue": "q"},
    {"outcome": SendOutcome.REFUSED, "error": "SendRefused"},
    {"outcome": SendOutcome.UNKNOWN, "error": "SendUnknown"},
    {"attempts": 2},
    {"maybe_duplicate": True},
    {"state": EntityState.FAILING},
    {"state": EntityState.FAILED_OVER},
    {"state": EntityState.DRAINING},
    {"state": None},
]


@pytest.mark.parametrize("trouble", NOT_HEALTHY, ids=str)
def test_a_send_with_any_trouble_is_always_kept(kept, trouble):
    assert len(kept(0.0, sent(1, **trouble))) == 1


def test_whatever_is_no_send_is_always_kept(kept):
    assert len(kept(0.0, warned(), changed(EntityState.FAILING, EPOCH))) == 2


def test_a_send_that_was_under_way_when_the_state_changed_is_kept(kept):
    """It ended in a healthy entity, and may have been what an outage held up."""
    began_before = sent(0, at=EPOCH + 10, elapsed=5.0)
    began_after = sent(1, at=EPOCH + 10, elapsed=0.001)
    recovered = changed(EntityState.HEALTHY, EPOCH + 9)
    assert kept(0.0, recovered, began_before, began_after) == [recovered, began_before]


def test_the_trouble_of_one_entity_is_not_another_s(kept):
    others = (changed(EntityState.HEALTHY, EPOCH + 9, "prices"), changed(EntityState.HEALTHY, EPOCH + 9, pair="a>b"))
    slow = sent(0, at=EPOCH + 10, elapsed=5.0)
    assert kept(0.0, *others, slow) == list(others)


def test_numbers_have_no_gaps_where_sampling_left_rows_out(journal, tmp_path):
    one = journal(sample_healthy=0.5)
    for number, message_id in enumerate(IDS):
        one.on_event(sent(number, message_id=message_id))
    assert one.close(30)
    found = [row["seq"] for row in rows(tmp_path)]
    assert found == list(range(1, len(found) + 1))
    assert len(found) < len(IDS)

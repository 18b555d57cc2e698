"""What is kept of a pair's events, and that it is bounded."""

from __future__ import annotations

from typing import Any

from pairmq.dashboard._history import MOST_CHANGES, MOST_ENTITIES, MOST_LINES, History, Tone, sentence_of
from pairmq.model import Entity, EntityState
from pairmq.model.events import (
    BacklogQueueChecked,
    Cause,
    DestinationChanged,
    Event,
    MessageDeadLettered,
    PairEnded,
    PingCompleted,
    ReceiverChanged,
    RotationChanged,
    Side,
    StateChanged,
    SyphonFailed,
    Warned,
)

ORDERS = Entity("orders")


def event(kind: type[Event], at: float = 100.0, **values: Any) -> Any:
    return kind(at=at, pair="east>west", **values)


def changed(
    previous: EntityState,
    current: EntityState,
    cause: Cause = Cause.INTERVAL_OVER,
    at: float = 100.0,
    entity: Entity = ORDERS,
    **values: Any,
) -> StateChanged:
    values = {"lasted": 10.0, "epoch": 1, **values}
    return event(StateChanged, at, entity=entity, previous=previous, current=current, cause=cause, **values)


def history_of(*events: Event) -> History:
    history = History()
    for each in events:
        history.on_event(each)
    return history


def test_the_state_before_the_first_change_is_known_for_as_long_as_it_lasted():
    history = history_of(changed(EntityState.HEALTHY, EntityState.FAILING, at=100.0, lasted=40.0))
    assert list(history.pasts[ORDERS].changes) == [(60.0, EntityState.HEALTHY, False), (100.0, "failing", False)]


def test_a_hold_lasts_until_the_next_change():
    held = changed(EntityState.FAILED_OVER, EntityState.FAILED_OVER, Cause.HELD)
    history = history_of(held)
    assert history.pasts[ORDERS].held
    history.on_event(changed(EntityState.FAILED_OVER, EntityState.FAILED_OVER, Cause.FORCED))
    assert not history.pasts[ORDERS].held


def test_a_ping_is_forgotten_once_the_entity_is_back():
    history = history_of(event(PingCompleted, entity=ORDERS, ok=False, elapsed=1.0, error="refused"))
    assert history.pasts[ORDERS].ping is not None
    history.on_event(changed(EntityState.FAILED_OVER, EntityState.DRAINING, Cause.PING_RECOVERED))
    assert history.pasts[ORDERS].ping is None


def test_a_queue_is_out_until_it_comes_back():
    history = history_of(event(RotationChanged, queue="b/0", in_use=False, left=1, error="reset"))
    assert list(history.out) == ["b/0"]
    history.on_event(event(RotationChanged, queue="b/0", in_use=True, left=2))
    assert not history.out


def test_changes_of_one_entity_are_bounded():
    flips = (EntityState.HEALTHY, EntityState.FAILING)
    history = history_of(*(changed(flips[n % 2], flips[1 - n % 2], at=float(n)) for n in range(1000)))
    assert len(history.pasts[ORDERS].changes) == MOST_CHANGES
    assert history.pasts[ORDERS].changes[-1].at == 999.0


def test_entities_are_bounded_and_the_ones_that_changed_last_are_kept():
    names = [Entity(f"queue-{number}") for number in range(MOST_ENTITIES + 10)]
    history = history_of(*(changed(EntityState.HEALTHY, EntityState.FAILING, entity=each) for each in names))
    assert len(history.pasts) == MOST_ENTITIES
    assert names[0] not in history.pasts
    assert names[-1] in history.pasts


def test_an_entity_that_changes_again_is_kept_before_those_that_do_not():
    names = [Entity(f"queue-{number}") for number in range(MOST_ENTITIES)]
    history = history_of(*(changed(EntityState.HEALTHY, EntityState.FAILING, entity=each) for each in names))
    history.on_event(changed(EntityState.FAILING, EntityState.HEALTHY, entity=names[0]))
    history.on_event(changed(EntityState.HEALTHY, EntityState.FAILING, entity=ORDERS))
    assert names[0] in history.pasts
    assert names[1] not in history.pasts


def test_the_list_is_bounded_and_the_newest_stands_first():
    history = history_of(*(event(Warned, float(n), subject="x", text=f"warning {n}") for n in range(1000)))
    lines = list(history.lines())
    assert len(lines) == MOST_LINES
    assert lines[0].sentence.text == "warning 999"


def test_what_is_said_again_only_counts():
    failed = [event(SyphonFailed, float(n), queue=f"b/{n % 5}", error="refused", retry_after=1.0) for n in range(500)]
    history = history_of(event(Warned, subject="x", text="look here"), *failed)
    lines = list(history.lines())
    assert [line.count for line in lines] == [500, 1]
    assert (lines[0].at, lines[0].last_at) == (0.0, 499.0)


def test_dead_letters_are_counted_however_many_lines_they_are():
    one = event(MessageDeadLettered, queue="b/0", entity="gone", message_id="1", reason="not-found", description="no")
    history = history_of(one, one, one)
    assert history.dead_lettered == 3


def test_pings_are_no_lines_of_the_list():
    assert sentence_of(event(PingCompleted, entity=ORDERS, ok=False, elapsed=1.0, error="refused")) is None


def test_a_change_says_why_and_how_many():
    told = sentence_of(changed(EntityState.FAILED_OVER, EntityState.DRAINING, Cause.PING_RECOVERED, diverted=12))
    assert told is not None
    assert (told.subject, told.tone) == ("orders", Tone.PLAIN)
    assert told.text == "is draining, was failed over: ping recovered (12 diverted)"


def test_a_hold_of_an_entity_that_is_failed_over_already_is_reported():
    told = sentence_of(changed(EntityState.FAILED_OVER, EntityState.FAILED_OVER, Cause.HELD))
    assert told is not None
    assert told.text == "was held in failover by an operator"


def test_every_event_that_a_person_should_see_has_a_sentence():
    events = [
        event(RotationChanged, queue="b/0", in_use=False, left=0, error="reset"),
        event(RotationChanged, queue="b/0", in_use=True, left=1),
        event(DestinationChanged, entity=ORDERS, open=False, error="refused"),
        event(DestinationChanged, entity=ORDERS, open=True),
        event(BacklogQueueChecked, queue="b/0", created=True),
        event(PairEnded, fault="the secondary is gone"),
        event(PairEnded),
    ]
    tones = [told.tone for told in map(sentence_of, events) if told is not None]
    assert tones == [Tone.BAD, Tone.GOOD, Tone.WARN, Tone.GOOD, Tone.PLAIN, Tone.BAD, Tone.WARN]


def test_what_looks_like_a_login_is_in_no_sentence():
    error = "can't reach amqp://user:hunter2@broker:5672/; SharedAccessKey=hunter2"
    for each in (
        event(SyphonFailed, queue="b/0", error=error, retry_after=1.0),
        event(RotationChanged, queue="b/0", in_use=False, left=0, error=error),
        event(DestinationChanged, entity=ORDERS, open=False, error=error),
        event(Warned, subject=error, text=error),
        event(PairEnded, fault=error),
        event(MessageDeadLettered, queue="q", entity=error, message_id="1", reason=error, description=error),
    ):
        told = sentence_of(each)
        assert told is not None
        assert "hunter2" not in told.text + told.subject


def reader(side: Side, at: float, *, is_open: bool) -> ReceiverChanged:
    return event(ReceiverChanged, at, entity=ORDERS, side=side, open=is_open, error=None if is_open else "refused")


def test_consumers_are_unavailable_only_while_they_can_read_neither_broker():
    past = (history := history_of(reader(Side.PRIMARY, 100.0, is_open=False))).pasts[ORDERS]
    assert (past.lost, past.unread(130.0)) == ({Side.PRIMARY: 100.0}, 0.0)
    history.on_event(reader(Side.SECONDARY, 110.0, is_open=False))
    assert past.unread(115.0) == 5.0
    history.on_event(reader(Side.SECONDARY, 120.0, is_open=True))
    history.on_event(reader(Side.PRIMARY, 125.0, is_open=True))
    assert (past.lost, past.unread(200.0)) == ({}, 10.0)
    assert [line.sentence.text for line in history.lines()] == [
        "a consumer reads the primary again",
        "a consumer reads the secondary again",
        "a consumer can't read the secondary: refused",
        "a consumer can't read the primary: refused",
    ]

"""The judge, on histories made by hand: it finds each verdict, and finds nothing where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from history_by_hand import AWAY, LANE, ORDERS, OTHER, QUEUE, REFUSED, Book, instant
from pairmq.core import Diversion, divert
from pairmq.model import Message
from pairmq.model.events import Cause, MessageMoved, RotationChanged, SendCompleted, SendOutcome
from pairmq.testing.history import CUT, Copy, Handling, Life, Reading, Result, Sent, WriteResult
from pairmq.testing.simulator import ProcessPlan, Verdict


def diverted(book: Book, number: int = 1, **fields: Any) -> tuple[Sent, Copy]:
    """A message that lies in the backlog, under the syphon's lock."""
    sent = book.send(number, **fields)
    copy = book.write(sent, to=QUEUE)
    assert copy is not None
    book.hand(copy)
    book.end(sent, Result.BACKLOG, queue=QUEUE)
    return sent, copy


def brought_home(book: Book, number: int = 1) -> tuple[Sent, Copy]:
    sent, copy = diverted(book, number)
    book.write(sent, by="s/1")
    book.gone(copy)
    return sent, copy


def drained_over_anothers(book: Book, *, after: float) -> None:
    """A syphon with one queue calls the backlog empty while another process's second queue holds a message."""
    book.setup(processes=(ProcessPlan("a"), ProcessPlan("s", syphon=True, backlog_queue_count=1)))
    sent = book.send()
    book.write(sent, to=OTHER)
    book.end(sent, Result.BACKLOG, queue=OTHER)
    book.at += after
    book.change("s/1", "draining", "healthy", Cause.DRAINED)


# What is as it should be.


def accepted(book: Book) -> None:
    sent = book.send()
    book.write(sent)
    book.end(sent, Result.PRIMARY)


def failed_over(book: Book) -> None:
    brought_home(book)


def doubted(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    copy = book.write(sent, to=QUEUE)
    assert copy is not None
    book.end(sent, Result.BACKLOG, duplicate=True, queue=QUEUE)
    book.hand(copy)
    book.write(sent, by="s/1")
    book.gone(copy)


def unknown(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    book.end(sent, Result.UNKNOWN)


def killed_between(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, by="s/1")
    book.lives["s/1"].killed, book.lives["s/1"].ended_at = True, book.at
    book.lives["s/2"] = Life("s", 2, True, "", 0.0, book.at, book.tick(), opened_at=book.at)
    book.history.lives.append(book.lives["s/2"])
    book.hand(copy, "s/2")
    book.write(sent, by="s/2")
    book.gone(copy)


def poison(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, WriteResult(False, False, "refused", "malformed"), by="s/1")
    book.gone(copy, "dead-lettered", "malformed")


def of_a_queue_that_was_missing_for_long(book: Book) -> None:
    sent, copy = diverted(book)
    book.trouble("probe", result=REFUSED, at=("primary", ORDERS))
    book.at += 90.0
    book.write(sent, REFUSED, by="s/1")
    book.at += 90.0
    book.write(sent, REFUSED, by="s/1")
    book.gone(copy, "dead-lettered", "not-found")


def deleted_by_somebody(book: Book) -> None:
    _, copy = diverted(book)
    book.gone(copy, "deleted")


def failing_and_back(book: Book) -> None:
    sent = book.send()
    book.write(sent, AWAY)
    book.change("a/1", "healthy", "failing", Cause.SEND_FAILED)
    book.write(sent)
    book.change("a/1", "failing", "healthy", Cause.SEND_SUCCEEDED)
    book.end(sent, Result.PRIMARY)


def in_a_lane(book: Book, number: int = 1, **fields: Any) -> tuple[Sent, Copy]:
    """A message that a lane accepted, which consumers read."""
    if not book.history.consumed:
        book.setup(options={**book.history.scenario.setup.options, "continuity": ("orders",)})
        book.history.consumed = frozenset({ORDERS})
    sent = book.send(number, **fields)
    copy = book.write(sent, to=LANE)
    assert copy is not None
    book.end(sent, Result.BACKLOG, queue=LANE)
    return sent, copy


def handled_from_a_lane(book: Book) -> None:
    book.handle(in_a_lane(book)[1])


def handled_again_after_a_lock_was_lost(book: Book) -> None:
    _, copy = in_a_lane(book)
    book.stroke("lock-lost", broker="secondary", entity=LANE.path)
    book.handle(copy, settled=False)
    book.stroke("lock-lost", broker="secondary", entity=LANE.path)
    book.handle(copy)


def released_to_a_consumer_while_the_primary_is_unavailable(book: Book) -> None:
    _, copy = in_a_lane(book)
    book.hand(copy)
    copy.released.append(book.tick())
    book.handle(copy)


def handled_from_both_sides_after_a_doubt(book: Book) -> None:
    sent, copy = in_a_lane(book)
    book.hand(copy)
    home = book.write(sent, CUT, by="s/1", stored=True)
    assert home is not None
    copy.released.append(book.tick())
    book.handle(copy)
    book.handle(home)


def chosen_before_another_send_let_go_of_it(book: Book) -> None:
    """The link of the second one takes so long to open that the third, which chose another queue, writes first."""
    sends = [book.send(number) for number in (1, 2, 3)]
    book.write(sends[0], CUT._replace(doubtful=False), to=OTHER)
    for sent, queue in ((sends[2], QUEUE), (sends[1], OTHER)):
        copy = book.write(sent, to=queue)
        assert copy is not None
        book.hand(copy)
        book.end(sent, Result.BACKLOG, queue=queue)
    book.write(sends[0], to=QUEUE)
    book.end(sends[0], Result.BACKLOG, queue=QUEUE)


@pytest.mark.parametrize(
    "story",
    [
        accepted,
        failed_over,
        doubted,
        unknown,
        killed_between,
        poison,
        of_a_queue_that_was_missing_for_long,
        deleted_by_somebody,
        failing_and_back,
        handled_from_a_lane,
        handled_again_after_a_lock_was_lost,
        released_to_a_consumer_while_the_primary_is_unavailable,
        handled_from_both_sides_after_a_doubt,
        chosen_before_another_send_let_go_of_it,
    ],
    ids=lambda story: story.__name__,
)
def test_what_is_as_it_should_be_is_not_complained_of(story):
    book = Book()
    story(book)
    assert book.verdicts() == []


# What is not.


def accepted_and_never_stored(book: Book) -> None:
    sent = book.send()
    book.write(sent, stored=False)
    book.end(sent, Result.PRIMARY)


def confirmed_by_the_primary_and_stored_only_by_a_write_in_doubt(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    book.write(sent, stored=False)
    book.end(sent, Result.PRIMARY, duplicate=True)


def confirmed_by_a_backlog_queue_and_stored_only_in_another(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, to=OTHER, stored=True)
    book.write(sent, to=QUEUE, stored=False)
    book.end(sent, Result.BACKLOG, duplicate=True, queue=QUEUE)


def completed_before_it_was_sent(book: Book) -> None:
    _, copy = diverted(book)
    book.gone(copy)


def completed_before_it_was_confirmed(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, CUT, by="s/1", stored=True)
    book.gone(copy)


def dead_lettered_in_an_outage(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, AWAY, by="s/1")
    book.gone(copy, "dead-lettered", "unavailable")


def dead_lettered_for_a_full_queue(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, WriteResult(False, False, "refused", "quota"), by="s/1")
    book.gone(copy, "dead-lettered", "quota")


def dead_lettered_for_a_queue_that_was_missing_for_a_moment(book: Book) -> None:
    sent, copy = diverted(book)
    book.trouble("probe", result=REFUSED, at=("primary", ORDERS))
    book.at += 170.0
    book.write(sent, REFUSED, by="s/1")
    book.gone(copy, "dead-lettered", "not-found")


def dead_lettered_for_a_queue_that_was_found_meanwhile(book: Book) -> None:
    first, first_copy = diverted(book)
    book.write(first, REFUSED, by="s/1")
    book.at += 2.0
    book.write(first, by="s/1")
    book.gone(first_copy)
    second, second_copy = diverted(book, 2)
    book.at += 170.0
    book.write(second, REFUSED, by="s/1")
    book.gone(second_copy, "dead-lettered", "not-found")


def dead_lettered_for_a_queue_that_was_missing_long_ago(book: Book) -> None:
    book.trouble("probe", result=REFUSED, at=("primary", ORDERS))
    sent, copy = diverted(book)
    book.at += 400.0
    book.write(sent, REFUSED, by="s/1")
    book.gone(copy, "dead-lettered", "not-found")


def expired_in_the_backlog(book: Book) -> None:
    _, copy = diverted(book, time_to_live=1.0)
    book.gone(copy, "expired")


def said_to_be_expired(book: Book) -> None:
    _, copy = diverted(book, time_to_live=1000.0)
    book.gone(copy, "dead-lettered", "TTLExpiredException")


def sent_by_nobody(book: Book) -> None:
    book.history.copies.append(Copy(1, None, "primary", ORDERS, Message(b"forged"), None, 1.0, book.tick()))


def altered(book: Book) -> None:
    sent = book.send(time_to_live=5.0)
    book.write(sent, message=replace(sent.message, time_to_live=None))
    book.end(sent, Result.PRIMARY)


def refused_and_stored(book: Book) -> None:
    sent = book.send()
    book.write(sent, AWAY, stored=True)
    book.end(sent, Result.REFUSED)


def refused_and_in_doubt(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT)
    book.end(sent, Result.REFUSED)


def refused_and_sent_elsewhere(book: Book) -> None:
    sent = book.send()
    book.write(sent, REFUSED)
    book.write(sent, to=QUEUE)
    book.end(sent, Result.BACKLOG, queue=QUEUE)


def called_refused(book: Book, error: str, attempts: int) -> None:
    book.note(
        "a/1",
        SendCompleted,
        entity=ORDERS,
        message_id="id-1",
        outcome=SendOutcome.REFUSED,
        backlog_queue=None,
        attempts=attempts,
        elapsed=1.0,
        maybe_duplicate=False,
        size=1,
        error=error,
    )


def cancelled_and_called_refused(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    book.end(sent, Result.CANCELLED)
    called_refused(book, "Cancelled", attempts=1)


def sent_without_an_id_and_called_refused(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)  # under the id that the pair gives it
    sent.message = replace(sent.message, message_id=None)
    book.end(sent, Result.UNKNOWN)
    called_refused(book, "SendRefused", attempts=1)


def cancelled_before_any_attempt_and_called_refused(book: Book) -> None:
    book.end(book.send(), Result.CANCELLED)
    called_refused(book, "Cancelled", attempts=0)


def sent_again_after_its_confirmation(book: Book) -> None:
    sent = book.send()
    book.write(sent)
    book.write(sent)
    book.end(sent, Result.PRIMARY)


def brought_home_twice(book: Book) -> None:
    sent, copy = diverted(book)
    book.write(sent, by="s/1")
    book.write(sent, by="s/1")
    book.gone(copy)


def moved_from_a_postponed_copy_and_from_the_one_it_replaces(book: Book) -> None:
    sent, copy = diverted(book)
    postponed = book.write(sent, to=QUEUE, by="s/1", message=copy.message)
    assert postponed is not None
    book.write(sent, by="s/1")
    book.gone(copy)
    book.hand(postponed)
    book.write(sent, by="s/1")
    book.gone(postponed)
    book.lives["s/1"].killed = True


def delivered_again_for_no_reason(book: Book) -> None:
    _, copy = diverted(book)
    book.hand(copy)


def a_doubt_that_the_receipt_hides(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    book.write(sent)
    book.end(sent, Result.PRIMARY)


def a_doubt_that_never_was(book: Book) -> None:
    sent = book.send()
    book.write(sent, AWAY)
    book.write(sent)
    book.end(sent, Result.PRIMARY, duplicate=True)


def a_copy_without_a_mark(book: Book) -> None:
    sent = book.send()
    book.write(sent, CUT, stored=True)
    plain = divert(sent.message, Diversion(ORDERS, instant(book.at), "sender", 1))
    book.write(sent, to=QUEUE, message=plain)
    book.end(sent, Result.BACKLOG, duplicate=True, queue=QUEUE)


def sent_under_a_lock_that_had_run_out(book: Book) -> None:
    sent, copy = diverted(book)
    copy.ran_out.append((book.tick(), book.at))
    book.at += 10
    book.write(sent, by="s/1")
    book.gone(copy)


def overtaken(book: Book) -> None:
    first, first_copy = diverted(book, 1)
    second, second_copy = diverted(book, 2)
    book.write(second, by="s/1")
    book.write(first, by="s/1")
    book.gone(first_copy)
    book.gone(second_copy)


def another_backlog_queue_each_time(book: Book) -> None:
    for number, queue in enumerate((QUEUE, OTHER), 1):
        sent = book.send(number)
        book.write(sent, to=queue)
        book.end(sent, Result.BACKLOG, queue=queue)


def came_home_and_stayed(book: Book) -> None:
    sent, _ = diverted(book)
    book.write(sent, by="s/1")


def not_drained(book: Book) -> None:
    book.history.undrained = ("a queue holds 1 message",)


def a_queue_that_nobody_makes_again(book: Book) -> None:
    book.gap(200.0)


def late(book: Book) -> None:
    sent = book.send(timeout=1.0)
    book.at += 2
    book.write(sent)
    book.end(sent, Result.PRIMARY)


def without_an_end(book: Book) -> None:
    book.send()


def hung_close(book: Book) -> None:
    book.lives["a/1"].closing_at, book.lives["a/1"].closed_at = 100.0, 200.0


def a_close_that_never_ended(book: Book) -> None:
    book.lives["a/1"].closing_at = 100.0


def tasks_left_behind(book: Book) -> None:
    life = book.lives["a/1"]
    life.closing_at, life.closed_at, life.left = 100.0, 101.0, ("pump",)


def locks_left_behind(book: Book) -> None:
    _, copy = diverted(book)
    life = book.lives["s/1"]
    life.closing_at, life.closed_at, life.locks_left = book.at, book.at + 1, (copy.number,)


def a_way_that_does_not_exist(book: Book) -> None:
    book.change("a/1", "healthy", "failed-over", Cause.FORCED)
    book.change("a/1", "failed-over", "healthy", Cause.SEND_SUCCEEDED)


def a_failure_without_a_send(book: Book) -> None:
    book.change("a/1", "healthy", "failing", Cause.SEND_FAILED)


def clean_from_the_start(book: Book) -> None:
    sent = book.send()
    book.write(sent, AWAY, by="a/1")
    book.change("s/1", "healthy", "failed-over", Cause.FORCED)
    book.end(sent, Result.REFUSED)


def drained_over_a_message(book: Book) -> None:
    diverted(book)
    book.at += 100
    book.change("s/1", "draining", "healthy", Cause.DRAINED)


def the_same_queue_again(book: Book) -> None:
    sent = book.send()
    book.write(sent, AWAY, to=QUEUE)
    book.write(sent, to=QUEUE)
    book.end(sent, Result.BACKLOG, queue=QUEUE)


def in_the_backlog_and_never_to_fit(book: Book) -> None:
    book.setup(primary_lacks=("time_to_live",))
    diverted(book, time_to_live=5.0)


def in_the_backlog_and_too_large(book: Book) -> None:
    book.setup(most_bytes=(5, 100))
    diverted(book)


def drained_over_a_message_of_another_process(book: Book) -> None:
    drained_over_anothers(book, after=200.0)


def crashed(book: Book) -> None:
    book.history.crashes.append((1.0, "a task raised AssertionError"))


def completed_and_never_handled(book: Book) -> None:
    _, copy = in_a_lane(book)
    book.gone(copy)


def completed_at_the_primary_and_never_handled(book: Book) -> None:
    book.history.consumed = frozenset({ORDERS})
    sent = book.send()
    copy = book.write(sent)
    assert copy is not None
    book.gone(copy)
    book.end(sent, Result.PRIMARY)


def handled_altered(book: Book) -> None:
    sent, copy = in_a_lane(book)
    book.handle(copy, message=replace(sent.message, subject="another"))


def handled_and_never_sent(book: Book) -> None:
    found = Message(b"forged", message_id="forged-1")
    book.history.handlings.append(Handling(None, ORDERS, "a/1", "secondary", "1", found, book.at, book.tick(), True))


def released_after_it_was_handled(book: Book) -> None:
    _, copy = in_a_lane(book)
    book.handle(copy, settled=False)
    copy.released.append(book.tick())
    book.handle(copy)


def moved_after_it_was_handled(book: Book) -> None:
    sent, copy = in_a_lane(book)
    book.handle(copy)
    home = book.write(sent, by="a/1")
    assert home is not None
    book.handle(home)


def of_another_side_than_it_says(book: Book) -> None:
    book.handle(in_a_lane(book)[1], said="primary")


def a_lane_that_is_not_read(book: Book) -> None:
    _, copy = in_a_lane(book)
    book.history.readings.append(Reading("a/1", ORDERS, 0.0))
    book.at += 40.0
    book.handle(copy)


WRONG: list[tuple[Verdict, Callable[[Book], None]]] = [
    (Verdict.LOST, accepted_and_never_stored),
    (Verdict.LOST, confirmed_by_the_primary_and_stored_only_by_a_write_in_doubt),
    (Verdict.LOST, confirmed_by_a_backlog_queue_and_stored_only_in_another),
    (Verdict.LOST, completed_before_it_was_sent),
    (Verdict.LOST, completed_before_it_was_confirmed),
    (Verdict.LOST, dead_lettered_in_an_outage),
    (Verdict.LOST, dead_lettered_for_a_full_queue),
    (Verdict.LOST, dead_lettered_for_a_queue_that_was_missing_for_a_moment),
    (Verdict.LOST, dead_lettered_for_a_queue_that_was_found_meanwhile),
    (Verdict.LOST, dead_lettered_for_a_queue_that_was_missing_long_ago),
    (Verdict.LOST, expired_in_the_backlog),
    (Verdict.LOST, said_to_be_expired),
    (Verdict.LOST, completed_and_never_handled),
    (Verdict.LOST, completed_at_the_primary_and_never_handled),
    (Verdict.PHANTOM, handled_altered),
    (Verdict.PHANTOM, handled_and_never_sent),
    (Verdict.PHANTOM, sent_by_nobody),
    (Verdict.PHANTOM, altered),
    (Verdict.PHANTOM, refused_and_stored),
    (Verdict.PHANTOM, refused_and_in_doubt),
    (Verdict.PHANTOM, refused_and_sent_elsewhere),
    (Verdict.PHANTOM, cancelled_and_called_refused),
    (Verdict.PHANTOM, sent_without_an_id_and_called_refused),
    (Verdict.PHANTOM, cancelled_before_any_attempt_and_called_refused),
    (Verdict.DUPLICATE, sent_again_after_its_confirmation),
    (Verdict.DUPLICATE, brought_home_twice),
    (Verdict.DUPLICATE, released_after_it_was_handled),
    (Verdict.DUPLICATE, moved_after_it_was_handled),
    (Verdict.DUPLICATE, moved_from_a_postponed_copy_and_from_the_one_it_replaces),
    (Verdict.DUPLICATE, delivered_again_for_no_reason),
    (Verdict.DUPLICATE, a_doubt_that_the_receipt_hides),
    (Verdict.DUPLICATE, a_doubt_that_never_was),
    (Verdict.DUPLICATE, a_copy_without_a_mark),
    (Verdict.DUPLICATE, sent_under_a_lock_that_had_run_out),
    (Verdict.ORDER, overtaken),
    (Verdict.ORDER, another_backlog_queue_each_time),
    (Verdict.NOT_DRAINED, came_home_and_stayed),
    (Verdict.NOT_DRAINED, not_drained),
    (Verdict.NOT_DRAINED, a_queue_that_nobody_makes_again),
    (Verdict.LATE, a_lane_that_is_not_read),
    (Verdict.DEADLINE, late),
    (Verdict.DEADLINE, without_an_end),
    (Verdict.CLOSE, hung_close),
    (Verdict.CLOSE, a_close_that_never_ended),
    (Verdict.CLOSE, tasks_left_behind),
    (Verdict.CLOSE, locks_left_behind),
    (Verdict.STATE, a_way_that_does_not_exist),
    (Verdict.STATE, a_failure_without_a_send),
    (Verdict.STATE, clean_from_the_start),
    (Verdict.STATE, drained_over_a_message),
    (Verdict.STATE, the_same_queue_again),
    (Verdict.STATE, in_the_backlog_and_never_to_fit),
    (Verdict.STATE, in_the_backlog_and_too_large),
    (Verdict.STATE, drained_over_a_message_of_another_process),
    (Verdict.STATE, of_another_side_than_it_says),
    (Verdict.CRASH, crashed),
]


@pytest.mark.parametrize(("verdict", "story"), WRONG, ids=lambda each: getattr(each, "__name__", None))
def test_each_verdict_is_found(verdict, story):
    book = Book()
    story(book)
    found = {each.verdict for each in book.violations()}
    assert verdict in found, book.verdicts()
    assert len(found) == 1 or verdict in (Verdict.STATE, Verdict.DUPLICATE), book.verdicts()


@pytest.mark.parametrize(("after", "complaints"), [("draining", 0), ("healthy", 1)])
def test_a_change_of_health_makes_no_backlog_clean(after, complaints):
    book = Book()
    book.change("s/1", "draining", "failed-over", Cause.FORCED)
    book.change("s/1", "failed-over", after, Cause.MARKED_HEALTHY)
    assert len(book.verdicts()) == complaints, book.verdicts()


@pytest.mark.parametrize("error", ["BacklogUnavailable", "PrimaryUnavailable"])
@pytest.mark.parametrize(("faulty", "complaints"), [(True, 0), (False, 1)])
def test_a_send_is_refused_only_while_something_is_wrong(error, faulty, complaints):
    book = Book()
    if faulty:
        book.stroke("refuse", 60.0, broker="primary")
    sent = book.send(timeout=30.0)
    book.at += 29.9
    book.end(sent, Result.REFUSED)
    sent.error = error
    assert len(book.verdicts()) == complaints, book.verdicts()


def test_every_verdict_has_a_story():
    assert {verdict for verdict, _ in WRONG} == set(Verdict)


# The same facts with an excuse.


def test_a_look_at_the_record_a_minute_ago_excuses_what_another_process_has_diverted_since():
    book = Book()
    drained_over_anothers(book, after=50.0)
    assert book.verdicts() == []


def test_an_emptied_secondary_excuses_what_is_not_known_of_another_process():
    book = Book()
    book.history.emptied.append(book.at)
    drained_over_anothers(book, after=200.0)
    assert book.verdicts() == []


def test_a_queue_that_was_made_again_may_be_tried_again():
    book = Book()
    sent = book.send()
    book.gap(50.0, until=book.at + 0.25)
    book.write(sent, REFUSED, to=QUEUE)
    book.write(sent, to=QUEUE)
    book.end(sent, Result.BACKLOG, queue=QUEUE)
    assert book.verdicts() == []
    book.history.gaps.clear()
    assert len(book.verdicts()) == 1


def test_a_role_that_moved_excuses_another_delivery():
    book = Book()
    _, copy = diverted(book)
    book.history.reconnects.append((book.tick(), "s/1", "secondary"))
    book.hand(copy)
    assert book.verdicts() == []


def test_a_fault_excuses_the_order():
    book = Book()
    first, first_copy = diverted(book, 1)
    second, second_copy = diverted(book, 2)
    book.stroke("slow", 10.0, broker="primary")
    book.write(second, by="s/1")
    book.write(first, by="s/1")
    book.gone(first_copy)
    book.gone(second_copy)
    assert book.verdicts() == []


@pytest.mark.parametrize(("session", "complaints"), [("s", 0), ("another", 1)])
def test_a_message_in_doubt_excuses_that_others_overtake_its_session(session, complaints):
    book = Book(ordering="session")
    doubtful, doubtful_copy = diverted(book, 1, session_id=session)
    book.stroke("slow", 0.2, broker="primary")
    book.write(doubtful, WriteResult(False, True, "unavailable", "connection"), by="s/1")
    first, first_copy = diverted(book, 2, session_id="s")
    second, second_copy = diverted(book, 3, session_id="t")
    for sent in (second, doubtful, first):
        book.write(sent, by="s/1")
    for copy in (doubtful_copy, first_copy, second_copy):
        book.gone(copy)
    assert len([text for text in book.verdicts() if "2 was sent before 3" in text]) == complaints


def test_a_completion_that_failed_excuses_another_delivery():
    book = Book()
    _, copy = diverted(book)
    book.trouble()
    book.hand(copy)
    assert book.verdicts() == []


def test_a_write_in_doubt_that_the_network_delivers_twice_excuses_both_copies():
    book = Book()
    sent, parked = diverted(book)
    copy = book.write(sent, CUT, by="s/1", stored=True)
    assert copy is not None
    book.history.copies.append(replace(copy, number=copy.number + 1, tick=book.tick(), at=book.at))
    book.write(sent, by="s/1")
    book.gone(parked)
    book.note("s/1", MessageMoved, **moved_in_doubt())
    assert book.verdicts() == []


def moved_in_doubt() -> dict[str, Any]:
    flags = {"maybe_duplicate": True, "redelivered": False, "completed": True}
    return {"queue": QUEUE.path, "entity": ORDERS, "message_id": "id-1", "waited": 1.0, **flags}


def test_a_lost_lock_excuses_another_delivery():
    book = Book()
    _, copy = diverted(book)
    book.stroke("lock-lost", broker="secondary", entity=QUEUE.path)
    book.hand(copy)
    assert book.verdicts() == []


def test_a_queue_out_of_use_excuses_another_one():
    book = Book()
    for number, queue in enumerate((QUEUE, OTHER), 1):
        sent = book.send(number)
        book.write(sent, to=queue)
        book.end(sent, Result.BACKLOG, queue=queue)
        book.note("a/1", RotationChanged, queue=queue.path, in_use=False, left=1, error="away")
    assert book.verdicts() == []


def test_time_excuses_an_expired_message_where_it_counts():
    book = Book(ttl_policy="elapse")
    _, copy = diverted(book, time_to_live=5.0)
    book.at += 10
    book.gone(copy, "dead-lettered", "TTLExpiredException")
    assert book.verdicts() == []


def test_a_wrong_clock_excuses_what_runs_out_at_once_in_a_lane():
    book = Book(ttl_policy="elapse")
    book.lives["a/1"].skew = 200.0
    _, copy = in_a_lane(book, time_to_live=3.0)
    book.history.readings.append(Reading("a/1", ORDERS, 0.0))
    book.gone(copy, "dead-lettered", "TTLExpiredException")
    book.at += 40.0
    assert book.verdicts() == []


def test_a_message_that_was_too_large_may_be_called_refused_although_its_batch_was_cancelled():
    """No broker had to see it for that; those behind it were still under way."""
    book = Book()
    book.end(book.send(), Result.CANCELLED)
    called_refused(book, "MessageTooLarge", attempts=0)
    assert book.verdicts() == []


def test_a_message_with_a_disclaimed_field_may_be_called_refused_although_its_batch_was_cancelled():
    book = Book()
    book.end(book.send(time_to_live=4.5), Result.CANCELLED)
    called_refused(book, "SendRefused", attempts=0)
    assert book.verdicts() == []


def test_a_killed_process_excuses_a_send_without_an_end():
    book = Book()
    book.send()
    book.lives["a/1"].killed = True
    assert book.verdicts() == []

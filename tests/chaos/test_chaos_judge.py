"""The judge of chaos runs, on ledgers written by hand: each lie is found, and nothing is found where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pairmq.model import Entity, EntityState, Message
from pairmq.model.events import Cause, SendCompleted, SendOutcome, StateChanged
from pairmq.testing.chaos import Settings, planned
from pairmq.testing.chaos.report import recoveries_of, report_of
from pairmq.testing.history import CONFIRMED, WriteResult
from pairmq.testing.simulator import Verdict

if TYPE_CHECKING:
    from conftest import Pen  # for readers: pytest gives it by its fixture

BACKLOG = "chaos/x-servicebus-transfer/0"
CUT = WriteResult(False, True, "cut", "killed")
AWAY = WriteResult(False, False, "unavailable", "connection")
REFUSED = WriteResult(False, False, "refused", "not-found")


def failing() -> StateChanged:
    return StateChanged(
        at=0.0,
        pair="p",
        entity=Entity("orders"),
        previous=EntityState.HEALTHY,
        current=EntityState.FAILING,
        cause=Cause.SEND_FAILED,
        epoch=1,
        lasted=1.0,
    )


# What is as it should be.


def accepted(pen: Pen) -> None:
    pen.accepted(1)


def diverted_and_brought_home(pen: Pen) -> None:
    pen.diverted(1)
    pen.brought_home(1)


def in_doubt_and_said_so(pen: Pen) -> None:
    pen.diverted(1, doubt=CUT)
    pen.brought_home(1)


def unknown_and_there(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT, stored=1)
    pen.reported(1, "unknown")


def unknown_and_not_there(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT, stored=0)
    pen.reported(1, "unknown")


def refused_and_not_there(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, REFUSED)
    pen.reported(1, "refused", error="EntityNotFound")


def sender_killed_in_its_send(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, None, stored=1)
    pen.line("run", "killed", life="client-b/1")


def syphon_killed_between_send_and_complete(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, life="client-a-1")
    pen.line("run", "killed", life="client-a/1")
    pen.line("client-a-2", "life", process="client-a", number=2, syphon=True)
    pen.handed(1, count=2, life="client-a-2")
    pen.write(1, life="client-a-2")
    pen.completed(1, life="client-a-2")


def late_because_its_process_slept(pen: Pen) -> None:
    pen.send(1, timeout=1.0)
    pen.at += 3
    pen.line("client-b-1", "lag", due=pen.at - 2.9, woken=pen.at)
    pen.write(1)
    pen.reported(1, "accepted by the primary")


def late_because_its_process_slept_twice(pen: Pen) -> None:
    """Its time was over in the one sleep, and it came to say so after the other."""
    pen.send(1, timeout=1.0)
    for _ in range(2):
        pen.at += 2
        pen.line("client-b-1", "lag", due=pen.at - 1.9, woken=pen.at)
    pen.write(1)
    pen.reported(1, "accepted by the primary")


def overtaken_in_a_fault(pen: Pen) -> None:
    pen.line("run", "strike", number=0, fault="pause", seconds=5.0, side="primary", client="")
    pen.at += 4
    overtaken(pen)
    pen.line("run", "cured", number=0)


def overtaken_after_a_delivery_that_reached_nobody(pen: Pen) -> None:
    pen.diverted(1)
    pen.diverted(2)
    pen.handed(2)
    pen.handed(1, count=2)
    for number in (2, 1):
        pen.write(number, life="client-a-1")
        pen.completed(number)
        pen.moved(number, redelivered=number == 1)


def brought_home_from_both_copies_of_one_that_was_postponed(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, to=BACKLOG, life="client-a-1")
    pen.completed(1)
    for copy in (1, 2):
        fields = {"broker": "secondary", "path": BACKLOG}
        pen.line("client-a-1", "got", **fields, messages=[(f"copy-{copy}", 1, copy)])
        pen.write(1, life="client-a-1")
        pen.line("client-a-1", "settle", **fields, how="complete", reason="", messages=[(f"copy-{copy}", 1)])
        pen.moved(1, redelivered=True)


def stored_in_doubt_side_by_side(pen: Pen) -> None:
    for number in (1, 2):
        pen.send(number)
    for result in (CUT, CONFIRMED):
        for number in (1, 2):
            pen.write(number, result, to=BACKLOG, marked=result is CONFIRMED)
    for number in (1, 2):
        pen.reported(number, "accepted by a backlog queue", queue=BACKLOG, duplicate=True)
        pen.handed(number)
    for number in (2, 1):
        pen.write(number, life="client-a-1")
        pen.completed(number)
        pen.moved(number)


def refused_while_the_secondary_is_away_too(pen: Pen) -> None:
    pen.line("run", "strike", number=0, fault="kill", seconds=0.1, side="secondary", client="")
    pen.at += 5
    pen.line("run", "cured", number=0)
    pen.at += 5
    pen.send(1)
    pen.reported(1, "refused", error="BacklogUnavailable: no backlog queue takes messages")


def refused_in_a_blip_of_both(pen: Pen) -> None:
    pen.line("run", "strike", number=0, fault="stall", seconds=1.0, side="both", client="client-b")
    pen.send(1)
    pen.at += 6
    pen.line("run", "cured", number=0)
    pen.reported(1, "refused", error="BacklogUnavailable: no backlog queue takes messages")


def a_queue_tried_again_after_an_attempt_that_only_sleep_made_long(pen: Pen) -> None:
    pen.send(1)
    _cut_at_the_backlog(pen, 1.5)
    pen.line("client-b-1", "lag", due=pen.at - 1.2, woken=pen.at)
    pen.line("client-b-1", "tried", attempt=1, results=[CUT])
    pen.write(1, to=BACKLOG)
    pen.reported(1, "accepted by a backlog queue", queue=BACKLOG, duplicate=True)
    pen.brought_home(1)


def _cut_at_the_backlog(pen: Pen, seconds: float) -> None:
    fields = {"broker": "secondary", "path": BACKLOG, "syphon": False, "messages": [1], "marked": [False]}
    pen.line("client-b-1", "try", attempt=1, **fields)
    pen.at += seconds


def failing_after_a_send_that_failed(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, AWAY)
    pen.event("client-b-1", failing())
    pen.write(1)
    pen.reported(1, "accepted by the primary")


def a_last_line_that_a_kill_cut_off(pen: Pen) -> None:
    pen.accepted(1)
    with (pen.directory / "client-b-1.jsonl").open("a") as ledger:
        ledger.write('{"t": 2000.0, "k": "send", "mess')
    pen.line("run", "killed", life="client-b/1")


def forgotten_by_its_broker_that_never_confirmed_it(pen: Pen) -> None:
    """A master that is replaced may take with it what it had delivered already."""
    pen.send(1)
    pen.write(1, CUT, to=BACKLOG)
    pen.handed(1)
    pen.write(1, marked=True)
    pen.reported(1, "accepted by the primary", duplicate=True)
    pen.at += 700
    drained = replace(failing(), previous=EntityState.DRAINING, current=EntityState.HEALTHY, cause=Cause.DRAINED)
    pen.event("client-a-1", drained)


GOOD: list[Callable[[Pen], None]] = [
    accepted,
    diverted_and_brought_home,
    in_doubt_and_said_so,
    unknown_and_there,
    unknown_and_not_there,
    refused_and_not_there,
    sender_killed_in_its_send,
    syphon_killed_between_send_and_complete,
    late_because_its_process_slept,
    late_because_its_process_slept_twice,
    overtaken_in_a_fault,
    overtaken_after_a_delivery_that_reached_nobody,
    brought_home_from_both_copies_of_one_that_was_postponed,
    stored_in_doubt_side_by_side,
    refused_while_the_secondary_is_away_too,
    refused_in_a_blip_of_both,
    a_queue_tried_again_after_an_attempt_that_only_sleep_made_long,
    failing_after_a_send_that_failed,
    a_last_line_that_a_kill_cut_off,
    forgotten_by_its_broker_that_never_confirmed_it,
]


@pytest.mark.parametrize("story", GOOD, ids=lambda story: story.__name__)
def test_what_is_as_it_should_be_is_not_complained_of(pen: Pen, story: Callable[[Pen], None]) -> None:
    story(pen)
    assert pen.violations() == []


# What is not.


def accepted_and_nowhere(pen: Pen) -> None:
    pen.accepted(1)
    pen.primary.clear()


def diverted_and_nowhere(pen: Pen) -> None:
    pen.diverted(1)


def completed_and_never_sent(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.completed(1)


def completed_before_it_was_confirmed(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, CUT, life="client-a-1", stored=1)
    pen.completed(1)


def dead_lettered_in_an_outage(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, AWAY, life="client-a-1")
    pen.completed(1, "dead-letter")
    pen.dead[1] = BACKLOG


def dead_lettered_for_good_and_nowhere(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, REFUSED, life="client-a-1")
    pen.completed(1, "dead-letter")


def dead_lettered_for_what_an_operator_mends(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, REFUSED, life="client-a-1")
    pen.completed(1, "dead-letter")
    pen.dead[1] = BACKLOG


def dead_lettered_by_the_broker(pen: Pen) -> None:
    pen.diverted(1)
    pen.dead[1] = BACKLOG


def sent_by_nobody(pen: Pen) -> None:
    pen.primary.append(Message(b"a stranger", message_id="stranger"))


def a_number_that_was_never_sent(pen: Pen) -> None:
    pen.stored(7)


def refused_and_there(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, AWAY, stored=1)
    pen.reported(1, "refused", error="SendRefused")


def at_the_primary_that_no_write_may_have_stored(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, AWAY, stored=1)
    pen.reported(1, "cancelled by its caller")


def refused_although_in_doubt(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT)
    pen.reported(1, "refused", error="SendRefused")


def altered(pen: Pen) -> None:
    pen.accepted(1)
    pen.primary[0] = replace(pen.primary[0], subject="something else")


def brought_home_without_having_been_handed(pen: Pen) -> None:
    pen.diverted(1)
    pen.write(1, life="client-a-1")


def more_copies_than_writes(pen: Pen) -> None:
    pen.accepted(1)
    pen.stored(1)


def three_copies_of_two_writes(pen: Pen) -> None:
    in_doubt_and_said_so(pen)
    pen.stored(1)


def a_second_copy_that_nobody_speaks_of(pen: Pen) -> None:
    pen.diverted(1)
    pen.handed(1)
    pen.write(1, CUT, life="client-a-1", stored=1)
    pen.write(1, life="client-a-1")
    pen.completed(1)
    pen.moved(1)


def sent_again_after_its_confirmation(pen: Pen) -> None:
    pen.send(1)
    pen.write(1)
    pen.write(1)
    pen.reported(1, "accepted by the primary", duplicate=False)


def brought_home_twice(pen: Pen) -> None:
    pen.diverted(1)
    pen.brought_home(1)
    pen.write(1, life="client-a-1", stored=0)


def a_doubt_that_the_receipt_hides(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT, stored=0)
    pen.write(1)
    pen.reported(1, "accepted by the primary")


def a_copy_in_the_backlog_without_its_mark(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT, stored=0)
    pen.write(1, to=BACKLOG)
    pen.reported(1, "accepted by a backlog queue", queue=BACKLOG, duplicate=True)
    pen.brought_home(1)


def overtaken(pen: Pen) -> None:
    pen.diverted(1)
    pen.diverted(2)
    pen.handed(1)
    pen.handed(2)
    for number in (2, 1):
        pen.write(number, life="client-a-1")
        pen.completed(number)
        pen.moved(number)


def still_in_the_backlog(pen: Pen) -> None:
    pen.diverted(1)
    pen.backlog[1] = BACKLOG


def not_drained_in_time(pen: Pen) -> None:
    pen.undrained = ("a queue holds 1 message",)


def late(pen: Pen) -> None:
    pen.send(1, timeout=1.0)
    pen.at += 3
    pen.write(1)
    pen.reported(1, "accepted by the primary")


def a_write_beyond_its_limit(pen: Pen) -> None:
    pen.send(1, timeout=60.0)
    pen.line(
        "client-b-1", "try", attempt=1, broker="primary", path="orders", syphon=False, messages=[1], marked=[False]
    )
    pen.at += 10
    pen.line("client-b-1", "tried", attempt=1, results=[CONFIRMED])
    pen.stored(1)
    pen.reported(1, "accepted by the primary")


def without_an_end(pen: Pen) -> None:
    pen.send(1)


def a_close_that_hangs(pen: Pen) -> None:
    pen.line("client-b-1", "closing")
    pen.at += 60
    pen.line("client-b-1", "closed")


def a_failover_out_of_nothing(pen: Pen) -> None:
    pen.event("client-b-1", failing())


def refused_without_need(pen: Pen) -> None:
    pen.send(1)
    pen.reported(1, "refused", error="BacklogUnavailable: no backlog queue takes messages")


def refused_behind_a_blip_that_it_outlasted(pen: Pen) -> None:
    pen.send(1)
    pen.line("run", "strike", number=0, fault="blip", seconds=1.0, side="both", client="")
    pen.at += 1
    pen.line("run", "cured", number=0)
    pen.at += 4
    pen.reported(1, "refused", error="BacklogUnavailable: no backlog queue takes messages")


def refused_in_a_blip_of_another_client(pen: Pen) -> None:
    pen.line("run", "strike", number=0, fault="stall", seconds=1.0, side="both", client="client-a")
    pen.send(1)
    pen.at += 6
    pen.line("run", "cured", number=0)
    pen.reported(1, "refused", error="BacklogUnavailable: no backlog queue takes messages")


def a_queue_tried_again_that_had_its_time(pen: Pen) -> None:
    pen.send(1)
    _cut_at_the_backlog(pen, 1.1)
    pen.line("client-b-1", "tried", attempt=1, results=[CUT])
    pen.write(1, to=BACKLOG)
    pen.reported(1, "accepted by a backlog queue", queue=BACKLOG, duplicate=True)
    pen.brought_home(1)


def an_exception_that_no_transport_may_raise(pen: Pen) -> None:
    pen.line("client-b-1", "crash", text="send at the primary orders raised ValueError: what")


WRONG: list[tuple[Verdict, Callable[[Pen], None]]] = [
    (Verdict.LOST, accepted_and_nowhere),
    (Verdict.LOST, diverted_and_nowhere),
    (Verdict.LOST, completed_and_never_sent),
    (Verdict.LOST, completed_before_it_was_confirmed),
    (Verdict.LOST, dead_lettered_in_an_outage),
    (Verdict.LOST, dead_lettered_for_good_and_nowhere),
    (Verdict.LOST, dead_lettered_for_what_an_operator_mends),
    (Verdict.LOST, dead_lettered_by_the_broker),
    (Verdict.PHANTOM, sent_by_nobody),
    (Verdict.PHANTOM, a_number_that_was_never_sent),
    (Verdict.PHANTOM, refused_and_there),
    (Verdict.PHANTOM, at_the_primary_that_no_write_may_have_stored),
    (Verdict.PHANTOM, refused_although_in_doubt),
    (Verdict.PHANTOM, altered),
    (Verdict.PHANTOM, brought_home_without_having_been_handed),
    (Verdict.DUPLICATE, more_copies_than_writes),
    (Verdict.DUPLICATE, three_copies_of_two_writes),
    (Verdict.DUPLICATE, a_second_copy_that_nobody_speaks_of),
    (Verdict.DUPLICATE, sent_again_after_its_confirmation),
    (Verdict.DUPLICATE, brought_home_twice),
    (Verdict.DUPLICATE, a_doubt_that_the_receipt_hides),
    (Verdict.DUPLICATE, a_copy_in_the_backlog_without_its_mark),
    (Verdict.ORDER, overtaken),
    (Verdict.NOT_DRAINED, still_in_the_backlog),
    (Verdict.NOT_DRAINED, not_drained_in_time),
    (Verdict.DEADLINE, late),
    (Verdict.DEADLINE, a_write_beyond_its_limit),
    (Verdict.DEADLINE, without_an_end),
    (Verdict.CLOSE, a_close_that_hangs),
    (Verdict.STATE, a_failover_out_of_nothing),
    (Verdict.STATE, refused_without_need),
    (Verdict.STATE, refused_behind_a_blip_that_it_outlasted),
    (Verdict.STATE, refused_in_a_blip_of_another_client),
    (Verdict.STATE, a_queue_tried_again_that_had_its_time),
    (Verdict.CRASH, an_exception_that_no_transport_may_raise),
]


@pytest.mark.parametrize(("verdict", "story"), WRONG, ids=lambda each: getattr(each, "__name__", None))
def test_each_planted_contradiction_is_found(pen: Pen, verdict: Verdict, story: Callable[[Pen], None]) -> None:
    story(pen)
    found = pen.violations()
    assert {violation.verdict for violation in found} == {verdict}, [str(violation) for violation in found]


def test_a_session_that_did_not_return_when_all_was_healed_is_found(pen: Pen) -> None:
    canaries = pen.canaries(1)
    for number in canaries:
        pen.accepted(number)
    pen.diverted(canaries.stop)
    pen.brought_home(canaries.stop)
    (found,) = pen.violations()
    assert found.verdict is Verdict.NOT_DRAINED
    assert "for session-1-0 is accepted by a backlog queue" in found.text


def test_order_is_not_judged_where_several_consumers_took_the_copies(pen: Pen) -> None:
    pen.plan = planned(("rabbitmq", "redis"), Settings(consumers=2), ((), ()))
    overtaken(pen)
    assert pen.violations() == []


def test_every_verdict_has_a_contradiction() -> None:
    assert {verdict for verdict, _ in WRONG} == set(Verdict) - {Verdict.LATE}  # which needs exact clocks


def test_an_event_that_calls_a_cancelled_send_refused_is_found(pen: Pen) -> None:
    pen.send(1)
    pen.write(1, CUT, stored=0)
    pen.reported(1, "cancelled by its caller")
    event = SendCompleted(
        at=0.0,
        pair="p",
        entity=Entity("orders"),
        message_id="id-1",
        outcome=SendOutcome.REFUSED,
        backlog_queue=None,
        attempts=1,
        elapsed=1.0,
        maybe_duplicate=False,
        size=9,
    )
    pen.event("client-b-1", event)
    assert {violation.verdict for violation in pen.violations()} == {Verdict.PHANTOM}


def test_a_fault_lasts_from_the_first_write_after_it_to_the_first_confirm(pen: Pen) -> None:
    pen.accepted(1)
    pen.line("run", "strike", number=0, fault="kill", seconds=1.0, side="primary", client="")
    pen.at += 5  # in which no one writes
    pen.send(2)
    pen.write(2, CUT)
    pen.at += 2
    pen.write(2)
    pen.line("run", "cured", number=0)
    pen.line("run", "strike", number=1, fault="kill", seconds=1.0, side="secondary", client="")
    history = pen.history()
    recoveries = recoveries_of(history)
    assert list(recoveries) == ["kill primary"]
    assert recoveries["kill primary"] == pytest.approx([2.3])
    report = report_of(pen.plan, history, [])
    assert "\n      2.30\n" in report.text(timeline=True)
    assert "\n      2.30\n" not in report.text()

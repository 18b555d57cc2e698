"""What may not be said where the journal may lack a row: each fault beside the hole that takes its proof away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from facts_by_hand import tables_of
from journal_by_hand import DRAINING, FAILED_OVER, HEALTHY, START, Journal, rows_of
from pairmq.model.events import Cause
from pairmq.model.records import message_key
from pairmq.pipeline.transforms import Settings, Verdict

PATIENCE = 300.0
DAY = 86_400.0


class Scene:
    """Some processes on days of their own, so that many scenes are judged by one query."""

    def __init__(self, number: int = 0) -> None:
        self.pair = f"scene {number}"
        self.start = START + number * 2 * DAY
        self.journals: list[Journal] = []

    def process(self, name: str, *, host: str = "here", sample: float = 1.0) -> Journal:
        journal = Journal(f"{name} of {self.pair}", pair=self.pair, start=self.start)
        self.journals.append(journal.opened(host=host, sample=sample))
        return journal


@dataclass(frozen=True)
class Case:
    says: str
    write: Callable[[Scene], None]
    verdict: Verdict
    late: str | None


CASES: list[Case] = []


def case(says: str, verdict: Verdict, late: str | None = None):
    """Enter a case: what it shows, and what is said of the message ``m`` in it."""

    def enter(write):
        CASES.append(Case(says, write, verdict, late))
        return write

    return enter


@pytest.fixture(scope="module")
def judged(spark):
    """The row of the message ``m`` of each case; the journal goes on for two days after the last one."""
    scenes = [Scene(number) for number in range(len(CASES) + 1)]
    for scene, each in zip(scenes, CASES, strict=False):
        each.write(scene)
    scenes[-1].process("end").closed(DAY)
    journals = [journal for scene in scenes for journal in scene.journals]
    made = tables_of(rows_of(spark, *journals).cache(), Settings(patience=PATIENCE))
    return {row.pair: row for row in made["reconciliation"].collect() if row.message_id == "m"}


def drained(journal: Journal, *, up: float, until: float) -> Journal:
    """An entity that came up again and whose backlog was seen empty."""
    journal.changed(up, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    return journal.changed(until, DRAINING, HEALTHY, Cause.DRAINED, lasted=until - up)


# Left the backlog.


def left_the_backlog(scene: Scene) -> None:
    """``m`` is diverted, and its backlog queue is seen empty by a syphon in second 40."""
    scene.process("sender").sent(10, "m", "backlog").closed(1000)
    drained(scene.process("syphon"), up=20, until=40).closed(1000)


@case("nothing hides how it left the backlog", Verdict.LOST)
def _(scene):
    left_the_backlog(scene)


@case("another syphon held it when the backlog was seen empty, and was killed within the patience", Verdict.UNPROVEN)
def _(scene):
    left_the_backlog(scene)
    scene.process("other syphon").moved(160, "another")


@case("another syphon was killed when whatever it had held was to be told long since", Verdict.LOST)
def _(scene):
    left_the_backlog(scene)
    scene.process("other syphon").moved(460, "another")


@case("its queue was made anew, and a syphon that may have held it was killed within the patience", Verdict.UNPROVEN)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog").closed(1000)
    scene.process("syphon").checked(50, created=True).closed(1000)
    scene.process("other syphon").moved(160, "another")


# Second copies.


def twice(scene: Scene, *, sample: float = 1.0, name: str = "m") -> None:
    """``m`` is accepted once in second 1000, and completed twice, in seconds 1010 and 1020."""
    scene.process("sender", sample=sample).sent(1000, name).closed(2000)
    scene.process("consumer").delivered(1010, name).delivered(1020, name).closed(2000)


@case("completed twice, and the journal is whole", Verdict.DUPLICATED_UNEXPLAINED)
def _(scene):
    twice(scene)


@case("completed twice, and a sender was killed before that", Verdict.DUPLICATED_UNPROVEN)
def _(scene):
    twice(scene)
    scene.process("killed").sent(800, "another")


@case("completed twice, and rows of a syphon are missing after that", Verdict.DUPLICATED_UNPROVEN)
def _(scene):
    twice(scene)
    scene.process("syphon").moved(1015, "another").skip().moved(1200, "yet another").closed(2000)


@case("completed twice, and a sender was killed long before that", Verdict.DUPLICATED_UNEXPLAINED)
def _(scene):
    twice(scene)
    scene.process("killed").sent(100, "another")


@case("completed twice, and rows are missing long after that", Verdict.DUPLICATED_UNEXPLAINED)
def _(scene):
    twice(scene)
    scene.process("other").sent(1700, "another").skip().closed(2000)


@case("completed twice, and nothing shows how it was moved from the backlog", Verdict.DUPLICATED_UNPROVEN)
def _(scene):
    scene.process("sender").sent(1000, "m", "backlog").closed(2000)
    scene.process("consumer").delivered(1010, "m").delivered(1020, "m").closed(2000)


# Refused.


@case("refused, delivered, and the journal is whole", Verdict.PHANTOM)
def _(scene):
    scene.process("sender").sent(1000, "m", "refused").closed(2000)
    scene.process("consumer").delivered(1010, "m").closed(2000)


@case("refused, delivered, and a sender that may have sent it again was killed", Verdict.NOT_JOURNALLED)
def _(scene):
    scene.process("sender").sent(1000, "m", "refused").closed(2000)
    scene.process("consumer").delivered(1010, "m").closed(2000)
    scene.process("killed").sent(1004, "another")


# Order.


def overtaken(scene: Scene) -> None:
    """``m`` is delivered behind a message that was sent later."""
    scene.process("sender").sent(1000, "m").sent(1001, "later").closed(2000)
    scene.process("consumer").delivered(1002, "later").delivered(1003, "m").closed(2000)


@case("overtaken, and the journal is whole", Verdict.OUT_OF_ORDER, "fault")
def _(scene):
    overtaken(scene)


@case("overtaken, and another consumer that may have had its first copy was killed", Verdict.DELIVERED, "unproven")
def _(scene):
    overtaken(scene)
    scene.process("killed").delivered(1001, "another")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[each.says for each in CASES])
def test_a_fault_is_said_only_where_no_hole_may_hide_the_row_that_would_show_otherwise(judged, number):
    row, wanted = judged[f"scene {number}"], CASES[number]
    assert (row.verdict, row.late) == (wanted.verdict, wanted.late)


# What reaches to the end of the journal has a query of its own.


def verdicts(spark, *scenes: Scene) -> dict[str, str]:
    journals = [journal for scene in scenes for journal in scene.journals]
    made = tables_of(rows_of(spark, *journals).cache(), Settings(patience=PATIENCE))
    return {row.message_id: row.verdict for row in made["reconciliation"].collect()}


def consumed(scene: Scene) -> None:
    """A queue of which every message is consumed but ``m``, which arrives in second 1000."""
    scene.process("sender").sent(1, "first").sent(1000, "m").sent(2000, "last").closed(5000)
    scene.process("consumer").delivered(2, "first").delivered(2001, "last").closed(5000)


def test_a_process_was_killed_if_its_machine_goes_on_without_it_or_is_silent_for_a_day(spark):
    scene = Scene()
    scene.process("last", host="a").closed(2 * DAY)
    scene.process("lags", host="b").delivered(1 + DAY, "m")
    scene.process("is silent for a day", host="c").delivered(DAY - 1, "m")
    scene.process("has a lively machine", host="d").delivered(2 + DAY, "m")
    scene.process("goes on", host="d").closed(3 + DAY + PATIENCE)
    scene.process("is not the last", host="e").delivered(2 + DAY, "m")
    scene.process("goes on a little", host="e").closed(1 + DAY + PATIENCE)
    made = tables_of(rows_of(spark, *scene.journals).cache(), Settings(patience=PATIENCE))
    ends = {row.process.removesuffix(" of scene 0"): row.ended for row in made["processes"].collect()}
    assert ends == {
        "last": "closed",
        "lags": "open",
        "is silent for a day": "killed",
        "has a lively machine": "killed",
        "goes on": "closed",
        "is not the last": "open",
        "goes on a little": "closed",
    }


@pytest.mark.long
@pytest.mark.parametrize(("until", "verdict"), [(5000, Verdict.UNPROVEN), (DAY + 3, Verdict.LOST)])
def test_nothing_is_lost_while_a_machine_lags_behind(spark, until, verdict):
    scene = Scene()
    consumed(scene)
    scene.process("lags", host="there").delivered(2, "another")
    scene.process("goes on").closed(until)
    assert verdicts(spark, scene)["m"] == verdict


@pytest.mark.long
def test_a_message_that_left_the_backlog_is_not_lost_before_the_patience_is_over(spark):
    scene = Scene()
    scene.process("sender").sent(10, "m", "backlog").closed(40 + PATIENCE - 1)
    drained(scene.process("syphon"), up=20, until=40).closed(50)
    assert verdicts(spark, scene)["m"] == Verdict.DIVERTED


def sampled_at(half: bool) -> str:
    """An id that a process which keeps half of the healthy sends keeps, or leaves out."""
    names = (f"m{number}" for number in range(1000))
    return next(name for name in names if ((message_key(name) or 0) % 2**64 < 2**63) is half)


@pytest.mark.long
def test_a_second_copy_is_unexplained_only_if_no_process_may_have_left_out_its_send(spark):
    kept, left_out = Scene(0), Scene(1)
    twice(kept, sample=0.5, name=sampled_at(True))
    twice(left_out, sample=0.5, name=sampled_at(False))
    found = verdicts(spark, kept, left_out)
    assert found == {
        sampled_at(True): Verdict.DUPLICATED_UNEXPLAINED,
        sampled_at(False): Verdict.DUPLICATED_UNPROVEN,
    }


@pytest.mark.long
def test_a_refused_message_is_no_phantom_if_a_process_may_have_left_out_the_send_that_was_accepted(spark):
    name = sampled_at(False)
    scene = Scene()
    scene.process("sender", sample=0.5).sent(1000, name, "refused").closed(2000)
    scene.process("consumer").delivered(1010, name).closed(2000)
    assert verdicts(spark, scene) == {name: Verdict.NOT_JOURNALLED}

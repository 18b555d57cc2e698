"""What became of each message, on journals that a person can follow.

All cases are judged in one query, each with a pair and a day of its own: a query costs more than its few rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from facts_by_hand import tables_of
from journal_by_hand import DRAINING, FAILED_OVER, HEALTHY, START, TOPIC, Journal, rows_of
from pairmq.model.events import Cause, Side
from pairmq.pipeline.transforms import RECONCILIATION, Settings, Verdict
from pairmq.pipeline.transforms.verdicts import RULES

PATIENCE = 60.0
DAY = 86_400.0
LONG = 10 * 365 * DAY


class Scene:
    """The processes of one case."""

    def __init__(self, number: int) -> None:
        self.pair = f"case {number}"
        self.start = START + number * DAY
        self.journals: list[Journal] = []

    def process(self, name: str) -> Journal:
        journal = Journal(f"{name} of {self.pair}", pair=self.pair, start=self.start).opened()
        self.journals.append(journal)
        return journal


@dataclass(frozen=True)
class Case:
    says: str
    write: Callable[[Scene], None]
    expected: dict[str, object]


CASES: list[Case] = []


def case(says: str, **expected: object):
    """Enter a case: what it shows, and for each message its verdict, or some columns of its row."""

    def enter(write):
        CASES.append(Case(says, write, expected))
        return write

    return enter


@pytest.fixture(scope="module")
def judged(spark):
    """The rows of the table by case and message; those of the topic are named ``news_`` and their id."""
    journals = []
    for number, each in enumerate(CASES):
        scene = Scene(number)
        each.write(scene)
        journals += scene.journals
    found: dict[str, dict[str, object]] = {}
    made = tables_of(rows_of(spark, *journals).cache(), Settings(patience=PATIENCE))
    for row in spark.sql(RECONCILIATION.in_full("{judged}"), judged=made["reconciliation"]).collect():
        name = {"orders": "", "news": "news_", None: "nowhere_"}[row.entity] + row.message_id
        found.setdefault(row.pair, {})[name] = row
    return found


@case("refused and never seen", m=Verdict.REFUSED)
def _(scene):
    scene.process("sender").sent(1, "m", "refused", error="MessageTooLarge").closed(9)


@case("refused, and moved back all the same", m=Verdict.PHANTOM)
def _(scene):
    scene.process("sender").sent(1, "m", "refused").moved(2, "m").closed(9)


@case("refused, but delivered", m=Verdict.PHANTOM)
def _(scene):
    scene.process("sender").sent(1, "m", "refused").delivered(2, "m").closed(9)


@case("refused first, then accepted", m=Verdict.DELIVERED)
def _(scene):
    scene.process("sender").sent(1, "m", "refused").sent(2, "m").delivered(3, "m").closed(9)


@case("unknown, and not seen", m=Verdict.UNKNOWN)
def _(scene):
    scene.process("sender").sent(1, "m", "unknown").closed(9)


@case("unknown, and delivered", m=Verdict.UNKNOWN_DELIVERED)
def _(scene):
    scene.process("sender").sent(1, "m", "unknown").delivered(2, "m").closed(9)


@case("its sender died after a failed attempt", m=Verdict.UNKNOWN)
def _(scene):
    scene.process("sender").failed(1, "m")


@case("diverted, and the journal ends", m=Verdict.DIVERTED)
def _(scene):
    scene.process("sender").sent(1, "m", "backlog").closed(9)


OUTBOX = "case/x-pairmq-outbox"


@case("from an outbox", m={"verdict": Verdict.UNKNOWN_DELIVERED, "backlog_queue": OUTBOX})
def _(scene):
    told = scene.process("sender").sent(1, "m", "outbox", backlog_queue=OUTBOX)
    told.moved(1.25, "m", queue=OUTBOX, waited=0.25).delivered(2, "m").closed(9)


@case("poison", m={"verdict": Verdict.DEAD_LETTERED, "reason": "not-found"})
def _(scene):
    scene.process("sender").sent(1, "m", "backlog").set_aside(2, "m", "not-found").closed(9)


@case("its time to live ran out in the backlog", m=Verdict.EXPIRED)
def _(scene):
    told = scene.process("sender").sent(1, "m", "backlog", time_to_live=1.0)
    told.set_aside(3, "m", "TTLExpiredException").closed(9)


@case("somebody else's broken message", nowhere_m=Verdict.DEAD_LETTERED)
def _(scene):
    scene.process("syphon").set_aside(3, "m", "malformed-envelope", entity=None).closed(9)


@case("delivered once", m=Verdict.DELIVERED)
def _(scene):
    scene.process("sender").sent(1, "m").delivered(2, "m").closed(9)


@case("delivered, and nobody told of its send", m=Verdict.NOT_JOURNALLED)
def _(scene):
    scene.process("consumer").delivered(2, "m").closed(9)


# Lost.


def consumed(scene: Scene, *, lost: float = 10.0, gap: float = PATIENCE + 1) -> None:
    """A queue of which every message is consumed but ``m``, which arrives in second ``lost``."""
    sender, consumer = scene.process("sender"), scene.process("consumer")
    sender.sent(1, "first").sent(lost, "m").sent(lost + gap, "last").closed(1000)
    consumer.delivered(2, "first").delivered(lost + gap + 1, "last").closed(1000)


ALL_BUT_M = {"first": Verdict.DELIVERED, "last": Verdict.DELIVERED}


@case("later messages overtook it by more than the patience", m={"verdict": Verdict.LOST, "hole": False}, **ALL_BUT_M)
def _(scene):
    consumed(scene)


@case("later messages overtook it by less", m=Verdict.IN_FLIGHT, **ALL_BUT_M)
def _(scene):
    consumed(scene, gap=PATIENCE - 1)


@case("it is scheduled, and due too late to be missed", m=Verdict.IN_FLIGHT, **ALL_BUT_M)
def _(scene):
    sender, consumer = scene.process("sender"), scene.process("consumer")
    sender.sent(1, "first").sent(10, "m", scheduled_enqueue_at=scene.start + 100).sent(120, "last").closed(1000)
    consumer.delivered(2, "first").delivered(121, "last").closed(1000)


@case("it was scheduled, and due long ago", m=Verdict.LOST, **ALL_BUT_M)
def _(scene):
    sender, consumer = scene.process("sender"), scene.process("consumer")
    sender.sent(1, "first").sent(10, "m", scheduled_enqueue_at=scene.start + 20).sent(120, "last").closed(1000)
    consumer.delivered(2, "first").delivered(121, "last").closed(1000)


@case("it was diverted, and moved back before it was due", m=Verdict.IN_FLIGHT, **ALL_BUT_M)
def _(scene):
    sender, consumer = scene.process("sender"), scene.process("consumer")
    sender.sent(1, "first").sent(10, "m", "backlog", scheduled_enqueue_at=scene.start + 100).moved(12, "m")
    sender.sent(120, "last").closed(1000)
    consumer.delivered(2, "first").delivered(121, "last").closed(1000)


@case("no delivery is journalled", a=Verdict.NOT_OBSERVED, b=Verdict.NOT_OBSERVED)
def _(scene):
    scene.process("sender").sent(1, "a").sent(200, "b").closed(1000)


@case("it arrived before the consumer kept a journal", m=Verdict.NOT_OBSERVED, a=Verdict.DELIVERED, b=Verdict.DELIVERED)
def _(scene):
    scene.process("sender").sent(1, "m").sent(200, "a").sent(300, "b").closed(1000)
    scene.process("consumer").delivered(201, "a").delivered(301, "b").closed(1000)


@case(
    "undelivered with a time to live",
    short=Verdict.EXPIRED,
    long=Verdict.LOST,
    a=Verdict.DELIVERED,
    b=Verdict.DELIVERED,
)
def _(scene):
    told = scene.process("sender").sent(1, "a").sent(10, "short", time_to_live=5.0)
    told.sent(11, "long", time_to_live=LONG).sent(100, "b").delivered(101, "a").delivered(102, "b").closed(1000)


UNPROVEN = {"verdict": Verdict.UNPROVEN, "hole": True}


@case("another consumer was killed when it may have read it", m=UNPROVEN, **ALL_BUT_M)
def _(scene):
    consumed(scene)
    scene.process("killed").delivered(12, "first", "abandoned")


@case("rows are missing where its delivery may have been told", m=UNPROVEN, **ALL_BUT_M)
def _(scene):
    consumed(scene)
    scene.process("other").skip().closed(15)


@case("the first rows of another consumer are missing, and may have told its delivery", m=UNPROVEN, **ALL_BUT_M)
def _(scene):
    consumed(scene)
    started = datetime.fromtimestamp(scene.start, UTC)
    headless = scene.process(f"host-7-{started:%Y%m%dT%H%M%SZ}-00000000").closed(15)
    del headless.rows[0]  # the first segment


@case("a consumer was killed with a segment of rows that was not finished", m=UNPROVEN, **ALL_BUT_M)
def _(scene):
    consumed(scene, lost=120.0)
    scene.process("killed")


@case("events were dropped where its delivery may have been told", m=UNPROVEN, **ALL_BUT_M)
def _(scene):
    consumed(scene)
    scene.process("other").dropped(15, 3, since=9.0).closed(15)


@case("a consumer was killed long before it arrived", m=Verdict.LOST, **ALL_BUT_M)
def _(scene):
    consumed(scene, lost=400.0)
    scene.process("killed")


def drained(journal: Journal, *, up: float, until: float) -> Journal:
    """An entity that came up again and whose backlog was seen empty."""
    journal.changed(up, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    return journal.changed(until, DRAINING, HEALTHY, Cause.DRAINED, lasted=until - up)


@case(
    "it left the backlog without a word; what was diverted after the recovery may be there",
    m=Verdict.LOST,
    moved=Verdict.NOT_OBSERVED,
    later=Verdict.DIVERTED,
)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog").sent(11, "moved", "backlog").sent(25, "later", "backlog").closed(
        99
    )
    drained(scene.process("syphon").moved(30, "moved"), up=20, until=40).closed(99)


LANE = "east/x-pairmq-lane/orders"


@case("its lane was emptied, and no consumer keeps a journal", m=Verdict.UNPROVEN)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog", backlog_queue=LANE).closed(99)
    drained(scene.process("syphon"), up=20, until=40).closed(99)


@case("its lane was emptied, and consumers handled other messages of it", m=Verdict.LOST, another=Verdict.DELIVERED)
def _(scene):
    sender = scene.process("sender").sent(10, "m", "backlog", backlog_queue=LANE)
    sender.sent(11, "another", "backlog", backlog_queue=LANE).closed(99)
    scene.process("consumer").delivered(12, "another", side=Side.SECONDARY).closed(99)
    drained(scene.process("syphon"), up=20, until=40).closed(99)


@case("its backlog queue was made anew", m=Verdict.LOST, later=Verdict.DIVERTED)
def _(scene):
    scene.process("sender").checked(1, created=True).sent(10, "m", "backlog").sent(60, "later", "backlog").closed(99)
    scene.process("syphon").checked(50, created=True).closed(99)


@case("it left the backlog, and a syphon was killed", m=UNPROVEN, another=Verdict.NOT_JOURNALLED)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog").closed(99)
    drained(scene.process("syphon"), up=20, until=40).closed(99)
    scene.process("killed").moved(25, "another")


@case("a syphon was killed before it was diverted", m=Verdict.LOST)
def _(scene):
    scene.process("killed")
    scene.process("sender").sent(200, "m", "backlog").closed(999)
    drained(scene.process("syphon"), up=220, until=240).closed(999)


@case(
    "set aside with a destination that nobody could read",
    m={"verdict": Verdict.DEAD_LETTERED, "reason": "malformed-envelope"},
    nowhere_m=Verdict.DEAD_LETTERED,
)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog").closed(99)
    drained(scene.process("syphon"), up=20, until=40).set_aside(41, "m", "malformed-envelope", entity=None).closed(99)


# Duplicates.

EXPLAINED = {"verdict": Verdict.DUPLICATED, "surplus": 1, "reasons": 1}


def twice(told: Journal) -> None:
    told.delivered(50, "m").delivered(60, "m").closed(99)


@case("twice after an attempt in doubt", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").failed(1, "m", applied=True).sent(2, "m", maybe_duplicate=True))


@case("twice after a send with an unknown outcome", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m", "unknown").sent(2, "m"))


@case("twice, sent twice by the caller", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m").sent(2, "m"))


@case("twice by a syphon that got it again", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m", "backlog").moved(2, "m", redelivered=True))


@case("twice by a syphon that could not complete it", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m", "backlog").moved(2, "m", completed=False))


@case("twice by a broker that repeated it", m=EXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m").delivered(2, "m", "abandoned", delivery_count=2))


@case("twice after a completion that was not confirmed", m=EXPLAINED)
def _(scene):
    scene.process("sender").sent(1, "m").delivered(2, "m", error="lock lost").delivered(3, "m").closed(9)


@case("twice for no reason", m=Verdict.DUPLICATED_UNEXPLAINED)
def _(scene):
    twice(scene.process("sender").sent(1, "m"))


@case("twice, and another sender was killed", m=Verdict.DUPLICATED_UNPROVEN, another=Verdict.REFUSED)
def _(scene):
    twice(scene.process("sender").sent(1, "m"))
    scene.process("killed").sent(1, "another", "refused")


@case("three times with one reason", m={"verdict": Verdict.DUPLICATED_UNEXPLAINED, "surplus": 2, "reasons": 1})
def _(scene):
    twice(scene.process("sender").failed(1, "m", applied=True).sent(2, "m").delivered(3, "m"))


# Topics, ids, dead-letter queues.


@case(
    "each subscription gets its own copy, and no second one",
    news_m=Verdict.DELIVERED,
    news_n=Verdict.DUPLICATED_UNEXPLAINED,
)
def _(scene):
    told = scene.process("sender").sent(1, "m", entity=TOPIC).sent(1, "n", entity=TOPIC)
    for name in ("audit", "billing"):
        told.delivered(5, "m", entity=TOPIC, subscription=name).delivered(5, "n", entity=TOPIC, subscription=name)
    told.delivered(6, "n", entity=TOPIC, subscription="audit").closed(9)


@case(
    "a topic may have no subscription for a message",
    news_a=Verdict.DELIVERED,
    news_m=Verdict.NOT_OBSERVED,
    news_b=Verdict.DELIVERED,
)
def _(scene):
    told = scene.process("sender").sent(1, "a", entity=TOPIC).sent(10, "m", entity=TOPIC).sent(200, "b", entity=TOPIC)
    told.delivered(5, "a", entity=TOPIC, subscription="s").delivered(201, "b", entity=TOPIC, subscription="s").closed(
        999
    )


@case("one id in two entities is two messages", m=Verdict.DELIVERED, news_m=Verdict.DELIVERED)
def _(scene):
    told = scene.process("sender").sent(1, "m").sent(2, "m", entity=TOPIC)
    told.delivered(5, "m").delivered(6, "m", entity=TOPIC, subscription="s").closed(9)


@case("read from a dead-letter queue", m=Verdict.DEAD_LETTERED)
def _(scene):
    scene.process("sender").sent(1, "m").delivered(5, "m", dead_letter=True).closed(9)


@case("dead-lettered by its consumer", m={"verdict": Verdict.DEAD_LETTERED, "reason": "no such customer"})
def _(scene):
    scene.process("sender").sent(1, "m").delivered(5, "m", "dead-lettered", reason="no such customer").closed(9)


@case("delivered, and never completed", m=Verdict.UNSETTLED)
def _(scene):
    scene.process("sender").sent(1, "m").delivered(5, "m", "abandoned").closed(9)


# Order.

FAULT = {"verdict": Verdict.OUT_OF_ORDER, "late": "fault"}
DESIGNED = {"verdict": Verdict.DELIVERED, "late": "designed"}
IN_ORDER = {"verdict": Verdict.DELIVERED, "late": None}


def overtaken(scene: Scene, ordering: str) -> None:
    """One message is diverted, and overtaken by one that was sent after the recovery."""
    told = scene.process("sender").pair_opened(0, options=f'{{"ordering": "{ordering}"}}')
    told.sent(3, "a", "backlog").sent(10, "b").delivered(11, "b").moved(12, "a").delivered(13, "a").closed(99)


@case("a new send overtakes the backlog", a=DESIGNED, b=IN_ORDER)
def _(scene):
    overtaken(scene, "none")


@case("a new send overtakes the backlog where order is promised", a=FAULT, b=IN_ORDER)
def _(scene):
    overtaken(scene, "session")


@case("messages of one backlog queue overtake each other", a=FAULT, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a", "backlog").sent(2, "b", "backlog")
    told.moved(10, "b").moved(11, "a").delivered(12, "b").delivered(13, "a").closed(99)


@case("messages of two backlog queues overtake each other", a=DESIGNED, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a", "backlog").sent(2, "b", "backlog", backlog_queue="another")
    told.moved(10, "b", queue="another").moved(11, "a").delivered(12, "b").delivered(13, "a").closed(99)


@case("sends that were in flight together", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1.0, "a", elapsed=0.5).sent(1.2, "b", elapsed=0.5)
    told.delivered(2, "b").delivered(3, "a").closed(9)


@case("a sender that schedules a message asks for others to overtake it", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a", scheduled_enqueue_at=scene.start + 5).sent(2, "b")
    told.delivered(3, "b").delivered(6, "a").closed(9)


@case("two senders", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a", sender="s1").sent(2, "b", sender="s2")
    told.delivered(3, "b").delivered(4, "a").closed(9)


@case("two senders of one session", a=FAULT, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a", sender="s1", session_id="x").sent(2, "b", sender="s2", session_id="x")
    told.delivered(3, "b").delivered(4, "a").closed(9)


@case("the broker's positions count, not the consumers' clocks", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    scene.process("sender").sent(1, "a").sent(2, "b").closed(9)
    scene.process("one").delivered(9, "a", sequence_number="1700000000000-9").closed(99)
    scene.process("two").delivered(3, "b", sequence_number="1700000000000-10").closed(99)


@case("without positions two receivers of one consumer show no order", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a").sent(2, "b")
    told.delivered(3, "b", receiver="r2").delivered(4, "a", receiver="r1").closed(9)


@case("each receiver of a consumer has an order of its own", a=FAULT, b=IN_ORDER, c=IN_ORDER)
def _(scene):
    told = scene.process("sender").sent(1, "a").sent(2, "b").sent(3, "c")
    told.delivered(4, "b", receiver="r1").delivered(5, "c", receiver="r2").delivered(6, "a", receiver="r1").closed(9)


@case("without positions two consumers show no order", a=IN_ORDER, b=IN_ORDER)
def _(scene):
    scene.process("sender").sent(1, "a").sent(2, "b").closed(9)
    scene.process("one").delivered(9, "a").closed(99)
    scene.process("two").delivered(3, "b").closed(99)


@case(
    "the evidence names who did it",
    m={
        "sent_by": "sender of {pair}",
        "moved_by": "syphon of {pair}",
        "delivered_by": "consumer of {pair}",
        "backlog_queue": "east/x-servicebus-transfer/0",
    },
)
def _(scene):
    scene.process("sender").sent(10, "m", "backlog").closed(99)
    scene.process("syphon").moved(30, "m").closed(99)
    scene.process("consumer").delivered(31, "m").closed(99)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[each.says for each in CASES])
def test_the_journal_is_judged_as_it_should_be(judged, number):
    pair, expected = f"case {number}", CASES[number].expected
    assert set(judged[pair]) == set(expected)
    for message, wanted in expected.items():
        columns = wanted if isinstance(wanted, dict) else {"verdict": wanted}
        found = {name: judged[pair][message][name] for name in columns}
        assert found == {
            name: value.format(pair=pair) if isinstance(value, str) else value for name, value in columns.items()
        }, message


def test_every_verdict_has_a_case():
    shown = set()
    for each in CASES:
        for wanted in each.expected.values():
            shown.add(wanted.get("verdict") if isinstance(wanted, dict) else wanted)
    assert shown - {None} == {rule.verdict for rule in RULES}

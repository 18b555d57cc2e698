"""What chaos has shown of holes, order and second copies, as scenes that a person can follow."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import duck
from facts_by_hand import tables_of
from journal_by_hand import QUEUE, START, Journal, rows_of, segment_table
from pairmq.model.events import DestinationChanged
from pairmq.pipeline.transforms import Settings

PATIENCE = 300.0
DAY, HOUR, MINUTE = 86_400.0, 3600.0, 60.0


class Scene:
    """Some processes on a day of their own; the last row of all is two days later, so that all of them have ended."""

    def __init__(self, number: int) -> None:
        self.pair = f"scene {number}"
        self.start = START + number * 3 * DAY
        self.journals: list[Journal] = []

    def process(self, name: str) -> Journal:
        self.journals.append(Journal(f"{name} of {self.pair}", pair=self.pair, start=self.start).opened())
        return self.journals[-1]


def consumers_were_away(scene: Scene, *, killed: bool) -> None:
    """Messages wait for an hour; the first consumer that comes takes one of them, and its row is nowhere."""
    sender = scene.process("sender").sent(1, "seen").sent(HOUR, "waits").sent(1.5 * HOUR, "waits too")
    sender.closed(3 * HOUR)
    scene.process("consumer").delivered(2, "seen").closed(3)
    back = scene.process("back").pinged(2 * HOUR, ok=True)
    if not killed:
        back.closed(2 * HOUR + 1)
    scene.process("next").delivered(2 * HOUR + 5, "waits too").closed(3 * HOUR)


def two_at_once(scene: Scene) -> None:
    """A consumer of a broker without positions gets two messages by one call: which was ahead is not told."""
    consumer = scene.process("consumer")
    for number in (3, 0, 5, 1, 4, 2):
        consumer.delivered(10 + number, f"m{number}", received_at=scene.start + 9)
    consumer.closed(20)
    sender = scene.process("sender")
    for number in range(6):
        sender.sent(1 + number, f"m{number}")
    sender.closed(20)


def first_delivery_untold(scene: Scene) -> None:
    """A consumer lets go of a message, and gets it again after a later one."""
    scene.process("sender").sent(1, "early").sent(5, "later").closed(20)
    scene.process("consumer").delivered(7, "later").delivered(8, "early", delivery_count=2).closed(20)


def two_consumers(scene: Scene) -> None:
    """One gives a message back, and the other one gets it: nobody knows how it stood to what either of them got."""
    scene.process("sender").sent(1, "early").sent(5, "later").closed(30)
    scene.process("one").delivered(8, "later").delivered(9, "early", "abandoned").closed(30)
    scene.process("two").delivered(12, "early", delivery_count=2).closed(30)


def overtaken_in_its_backlog_queue(scene: Scene, *, closed: bool) -> None:
    """Two messages are diverted to one queue and are moved back the other way round."""
    scene.process("sender").sent(1, "early", "backlog").sent(5, "later", "backlog").closed(30)
    syphon = scene.process("syphon")
    if closed:
        syphon.add(DestinationChanged, 7, entity=QUEUE, open=False, error="gone")
        syphon.add(DestinationChanged, 8, entity=QUEUE, open=True)
    syphon.moved(9, "later").moved(10, "early").closed(30)
    consumer = scene.process("consumer")
    consumer.delivered(11, "later", sequence_number="1").delivered(12, "early", sequence_number="2").closed(30)


def syphon_in_doubt(scene: Scene) -> None:
    """A syphon's first two writes were in doubt, and it says so when the third one is confirmed."""
    scene.process("sender").sent(1, "m", "backlog").closed(30)
    scene.process("syphon").moved(9, "m", maybe_duplicate=True).closed(30)
    consumer = scene.process("consumer")
    for number in range(3):
        consumer.delivered(10 + number, "m", sequence_number=str(number))
    consumer.closed(30)


SCENES = {
    "a consumer was killed when it came back": lambda scene: consumers_were_away(scene, killed=True),
    "no consumer was killed": lambda scene: consumers_were_away(scene, killed=False),
    "two at once": two_at_once,
    "the first delivery is not told": first_delivery_untold,
    "two consumers": two_consumers,
    "its destination was closed": lambda scene: overtaken_in_its_backlog_queue(scene, closed=True),
    "nothing failed": lambda scene: overtaken_in_its_backlog_queue(scene, closed=False),
    "a syphon in doubt": syphon_in_doubt,
}
NAMES = {Scene(number).pair: name for number, name in enumerate(SCENES)}


@pytest.fixture(scope="module")
def journals():
    """What the processes of all scenes have written."""
    found = []
    for number, write in enumerate(SCENES.values()):
        scene = Scene(number)
        write(scene)
        found += scene.journals
    end = Scene(len(SCENES))
    end.process("end").closed(DAY)
    return [*found, *end.journals]


@pytest.fixture(scope="module")
def judged(spark, journals):
    """The row of each message of each scene, by scene and message."""
    made = tables_of(rows_of(spark, *journals).cache(), Settings(patience=PATIENCE))
    return {(NAMES[row.pair], row.message_id): row for row in made["reconciliation"].collect()}


def test_another_engine_finds_the_same(judged, journals, tmp_path):
    pq.write_table(segment_table(*journals), tmp_path / "scenes.parquet")
    with duck.opened([str(tmp_path / "scenes.parquet")], patience=PATIENCE) as connection:
        rows = list(duck.asked(connection, duck.VERDICTS, patience=PATIENCE))
    found = {(NAMES[row["pair"]], row["message_id"]): (row["verdict"], row["late"]) for row in rows}
    assert found == {message: (row.verdict, row.late) for message, row in judged.items()}


def test_a_message_is_not_lost_whose_consumer_was_killed_long_after_it_arrived(judged):
    assert judged["a consumer was killed when it came back", "waits"].verdict == "unproven"


def test_a_message_is_lost_that_was_left_out_when_consumers_came_back(judged):
    """Nothing is missing then. That a process of another day was killed hides nothing of this one."""
    assert judged["no consumer was killed", "waits"].verdict == "lost"


def test_messages_that_a_consumer_got_at_once_are_not_behind_each_other(judged):
    assert {judged["two at once", f"m{number}"].late for number in range(6)} == {None}


def test_a_message_whose_first_delivery_is_not_reported_is_not_late(judged):
    assert judged["the first delivery is not told", "early"].late is None


def test_a_message_that_another_process_got_again_stands_where_the_first_one_got_it(judged):
    assert judged["two consumers", "early"].late == "fault"


def test_what_was_put_back_because_its_destination_was_closed_is_overtaken_by_design(judged):
    assert judged["its destination was closed", "early"].late == "designed"


def test_what_is_overtaken_in_its_backlog_queue_while_nothing_failed_is_out_of_order(judged):
    assert judged["nothing failed", "early"].verdict == "out of order"


def test_a_syphon_that_was_in_doubt_explains_all_copies(judged):
    assert judged["a syphon in doubt", "m"].verdict == "duplicated, explained"

"""What a follower keeps is gone on with by later versions of PairMQ: its meaning changes only on purpose."""

from __future__ import annotations

import hashlib
import json

from facts_by_hand import facts_of
from journal_by_hand import DRAINING, FAILED_OVER, HEALTHY, TOPIC, Journal, rows_of
from pairmq.model.events import Cause, Side
from pairmq.pipeline.follow._follow import STATE_VERSION
from pairmq.pipeline.transforms import FACTS

COLUMNS = {
    1: "0d8a1a3c71b3fda0",
    2: "b88323d90346f3c6",
    3: "322f7a49ff6047a5",
    4: "322f7a49ff6047a5",
    5: "2f45784f3e709067",
    6: "b3737578c397e514",
    7: "b3737578c397e514",
    8: "9d3bbd5244f08b02",
    9: "5bd162f9e3f7f817",
    10: "3bb8fbb51a025f58",
    11: "3bb8fbb51a025f58",
    12: "3bb8fbb51a025f58",
}
"""What the columns of all facts hash to in each version of the state. A new line goes with a new `STATE_VERSION`."""

VALUES = {
    1: "965a10ba4468ff8c",
    2: "f26a4026a624a9ae",
    3: "984e066a1f9424f1",
    4: "4593c05dc41df938",
    5: "f5e6741a02e4e83e",
    6: "522ce9743d1cc83f",
    7: "522ce9743d1cc83f",
    8: "90b7524d43d5b601",
    9: "3d8f86b4bfa50291",
    10: "b1c1a2f6a7fde890",
    11: "b1c1a2f6a7fde890",
    12: "b1c1a2f6a7fde890",
}
"""Likewise, what the facts of `a_journal` hash to, by which a changed rule is noticed. It has to stay as it is."""


def a_journal() -> list[Journal]:
    """Rows whose facts no version may make otherwise: with instants that add up exactly in any order."""
    host = Journal("host").opened().pair_opened(0.5).checked(0.75, created=True)
    host.sent(1, "a", session_id="x").sent(2, "b", time_to_live=60.0).sent(3, "c", "refused")
    host.sent(4, "d", "unknown").sent(5, "t", entity=TOPIC, scheduled_enqueue_at=host.rows[0]["at"] + 9)
    host.failed(6, "e", applied=True).sent(7, "e", maybe_duplicate=True).skip(2)
    host.changed(100, HEALTHY, FAILED_OVER, Cause.FORCED).sent(101, "f", "backlog").pinged(110, ok=True)
    host.changed(111, FAILED_OVER, DRAINING, Cause.PING_RECOVERED).moved(112, "f", waited=11.0).set_aside(113, "g")
    host.rotated(114, in_use=False, left=1).changed(120, DRAINING, HEALTHY, Cause.DRAINED, lasted=9.0)
    host.counted(130, Side.PRIMARY, sends=7, receives=1).pair_ended(131).dropped(132, 3, since=131.5).closed(140)
    reader = Journal("reader").opened(sample=0.25).delivered(8, "b", sequence_number="17").delivered(9, "a")
    reader.delivered(10, "e", sequence_number="1700000000000-3").delivered(11, "e", receiver="r1")
    reader.delivered(12, "t", entity=TOPIC, subscription="audit").delivered(13, "d", "abandoned", receiver="r1")
    reader.delivered(14, "d", delivery_count=2, receiver="r2").delivered(15, "g", dead_letter=True).closed(3700)
    for row in host.rows:
        row["elapsed"] = None if row["elapsed"] is None else 0.5
    return [host, reader]


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def test_changed_columns_of_facts_have_a_new_version() -> None:
    assert COLUMNS.get(STATE_VERSION) == digest([[fact.name, fact.schema.jsonValue()] for fact in FACTS])


def test_changed_rules_of_facts_have_a_new_version(spark) -> None:
    rows = rows_of(spark, *a_journal())
    values = {
        name: sorted(json.dumps(row.asDict(), sort_keys=True) for row in fact.collect())
        for name, fact in facts_of(rows).items()
    }
    assert VALUES.get(STATE_VERSION) == digest(values), f"these are the facts now: {json.dumps(values, indent=1)}"

"""A clock that is years off: its rows neither count nor fill years with minutes."""

from __future__ import annotations

import math

from facts_by_hand import tables_of
from journal_by_hand import START, Journal, rows_of, second
from pairmq.pipeline.transforms import Settings

YEAR = 365 * 86_400.0
SETTINGS = Settings(patience=60.0)
NEVER = {"zero": 0.0, "least": -1e300, "most": 1e300, "inf": math.inf, "nan": math.nan, "too late": 5e9}


def test_a_row_of_an_instant_that_can_not_be_counts_for_nothing_but_is_reported(spark):
    """Each instant has a process of its own, so that one run of Spark tells of all."""
    told = Journal().opened().sent(1, "a").sent(2, "b", "backlog").delivered(3, "a").closed(200)
    wild = []
    for name, at in NEVER.items():
        wild.append(Journal(name).opened().sent(1, name, "backlog").closed(200))
        wild[-1].rows[1]["at"] = at
    made = tables_of(rows_of(spark, told, *wild), SETTINGS)
    rows = {row.process: row for row in made["processes"].collect()}
    assert {name: (row.rows, row.misdated, row.missing) for name, row in rows.items()} == {
        "sender": (5, 0, 0),
        **dict.fromkeys(NEVER, (2, 1, 1)),
    }
    assert {second(rows[name].last_at) for name in NEVER} == {200}
    assert [row.depth for row in made["backlog"].collect()] == [1, 1, 1, 1]
    assert {row.message_id for row in made["reconciliation"].collect()} == {"a", "b"}


def test_the_backlog_is_reported_for_the_days_of_which_the_journal_has_rows(spark):
    late = Journal().opened().sent(10, "a", "backlog").closed(70)
    early = Journal("early", start=START - 5 * YEAR).opened().sent(10, "b", "backlog").closed(20)
    rows = tables_of(rows_of(spark, late, early), SETTINGS)["backlog"].orderBy("minute").collect()
    minutes = [second(row.minute) for row in rows]
    assert len(rows) == 1440 + 2
    assert (minutes[0], minutes[1439], minutes[1440:]) == (-5 * YEAR, -5 * YEAR + 86_400 - 60, [0, 60])
    assert [row.depth for row in rows] == [1] * 1440 + [2, 2]
    assert rows[-1].oldest_age == 5 * YEAR + 120


def test_a_sender_whose_clock_is_ahead_makes_no_message_overdue(spark):
    """It looks as if a message had arrived long after others that are on their way still."""
    sender = Journal().opened().sent(1, "first").sent(100, "on its way").closed(150)
    ahead = Journal("ahead", start=START + 3600).opened().sent(120, "ahead").closed(130)
    reader = Journal("reader").opened().delivered(2, "first").delivered(121, "ahead").closed(150)
    made = tables_of(rows_of(spark, sender, ahead, reader).cache(), SETTINGS)
    verdicts = {row.message_id: row.verdict for row in made["reconciliation"].collect()}
    assert verdicts["on its way"] == "in flight"

"""A journal with something for every table: an outage, its drain, a lost message, a queue out of use, a kill."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from journal_by_hand import DRAINING, FAILED_OVER, FAILING, HEALTHY, TOPIC, Journal, segment_table
from pairmq.model.events import Cause, Side

LOST = "gone"
"""The id of the message that is lost, given a patience of less than ten minutes."""


def write_rich_journal(folder: Path, *, longer: bool = False) -> Path:
    """Write it.

    Args:
        folder: made where it is missing.
        longer: with an hour more, in which the lost message turns up.
    """
    sender = Journal().opened().pair_opened(0.0, options='{"ordering": "session"}').checked(0.5, created=True)
    sender.sent(1, "a").sent(2, LOST).failed(10, "b", applied=True).changed(10, HEALTHY, FAILING, Cause.SEND_FAILED)
    sender.changed(20, FAILING, FAILED_OVER, Cause.INTERVAL_OVER, lasted=10).pinged(21, ok=False)
    sender.sent(22, "b", "backlog", maybe_duplicate=True, session_id="s").sent(23, "c", "refused")
    sender.rotated(24, in_use=False, left=1).rotated(84, in_use=True, left=2).pinged(85, ok=True)
    sender.changed(86, FAILED_OVER, DRAINING, Cause.PING_RECOVERED, lasted=66).moved(90, "b", waited=68.0)
    sender.set_aside(91, "poison").changed(95, DRAINING, HEALTHY, Cause.DRAINED, lasted=9)
    sender.counted(96, Side.PRIMARY, sends=4, receives=2, pings=2, settlements=1)
    sender.counted(96, Side.SECONDARY, sends=1, receives=1, settlements=1)
    sender.sent(1000, "d").sent(1001, "news-1", entity=TOPIC).pair_ended(1002).closed(1003)
    consumer = Journal("consumer").opened().delivered(3, "a").delivered(92, "b").delivered(93, "b", delivery_count=2)
    consumer.delivered(1004, "d").delivered(1005, "news-1", entity=TOPIC, subscription="s1").closed(3000)
    killed = Journal("killed").opened(1999).sent(2000, "e").skip(2).sent(2010, "f", "unknown")
    told = [sender, consumer, killed]
    if longer:
        told.append(Journal("late").opened(4000).delivered(4600, LOST).sent(4601, "g").closed(4602))
    day = folder / "date=2026-02-02"
    day.mkdir(parents=True, exist_ok=True)
    for journal in told:
        pq.write_table(segment_table(journal), day / f"segment-{journal.process}-000000.parquet")
    (day / "segment-sender-000001.parquet").write_bytes(b"PAR1, and no more")
    return folder

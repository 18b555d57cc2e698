"""A small journal in which everything happens that the pipeline has a table for, cut into segments."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from journal_by_hand import DRAINING, FAILED_OVER, FAILING, HEALTHY, TOPIC, Journal, segment_table
from pairmq.model import EntityState
from pairmq.model.events import Cause, Side

_OUTAGE = (600.0, 1200.0)


def busy_journals(seed: int, messages: int = 150) -> list[Journal]:
    """The rows of two senders, a syphon and a consumer through an outage; a few messages have some fault."""
    rng = random.Random(seed)  # a test's own
    senders, syphon, consumer = [Journal("sender-0"), Journal("sender-1")], Journal("syphon"), Journal("consumer")
    everyone = [*senders, syphon, consumer]
    for journal in everyone:
        journal.opened(sample=0.5 if journal is senders[1] else 1.0).pair_opened(0.1).checked(0.2, created=True)
        journal.counted(60.0, Side.PRIMARY, sends=7, receives=3).counted(60.0, Side.SECONDARY, sends=1)
    for sender in senders:
        _outage(sender)
    consumer.receiver(_OUTAGE[0] + 1, Side.PRIMARY, opened=False).receiver(_OUTAGE[1] + 2, Side.PRIMARY, opened=True)
    consumer.receiver(_OUTAGE[0] + 9, Side.SECONDARY, opened=False).receiver(
        _OUTAGE[0] + 19, Side.SECONDARY, opened=True
    )
    for number in range(messages):
        _message(rng, rng.choice(senders), syphon, consumer, number)
    senders[0].dropped(1900.0, 4, since=1890.0)
    senders[1].skip(3).sent(1950.0, "after a gap")
    for journal in everyone:
        journal.rows.sort(key=lambda row: row["at"])
        _number(journal)
    for journal in (senders[0], syphon, consumer):
        journal.closed(2000.0)
    return everyone


def write_segments(folder: Path, journals: Sequence[Journal], seed: int, pieces: int = 4) -> list[Path]:
    """Write each process's rows as segments of random size; gives all of them in random order."""
    import pyarrow.parquet as pq

    rng = random.Random(seed)  # a test's own
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for journal in journals:
        table = segment_table(journal)
        cuts = [0, *sorted(rng.sample(range(1, table.num_rows), pieces - 1)), table.num_rows]
        for number, (begin, end) in enumerate(pairwise(cuts)):
            paths.append(folder / f"segment-{journal.process}-{number:06d}.parquet")
            pq.write_table(table.slice(begin, end - begin), paths[-1])
    rng.shuffle(paths)
    return paths


def _outage(sender: Journal) -> None:
    began, ended = _OUTAGE

    def changed(at: float, previous: EntityState, current: EntityState, cause: Cause) -> None:
        sender.changed(at, previous, current, cause, lasted=100.0)

    sender.failed(began, "m0", applied=True)
    changed(began, HEALTHY, FAILING, Cause.SEND_FAILED)
    changed(began + 10, FAILING, FAILED_OVER, Cause.INTERVAL_OVER)
    sender.rotated(began + 20, in_use=False, left=1).rotated(began + 50, in_use=True, left=2)
    sender.pinged(began + 60, ok=False).pinged(ended - 1, ok=True)
    changed(ended, FAILED_OVER, DRAINING, Cause.PING_RECOVERED)
    changed(ended + 100, DRAINING, HEALTHY, Cause.DRAINED)


def _message(rng: random.Random, sender: Journal, syphon: Journal, consumer: Journal, number: int) -> None:
    at, name = rng.uniform(1, 1800), f"m{number}"
    values: dict[str, Any] = {"sender": sender.process, "session_id": rng.choice([None, "s1", "s2"]), "elapsed": 0.01}
    fate = number % 25
    if fate == 0:
        sender.sent(at, name, "refused", **values)
    elif fate == 1:
        sender.sent(at, name, "unknown", **values)
        consumer.delivered(at + 2, name)
    elif fate == 2:
        consumer.delivered(at, f"foreign-{number}")
    elif fate == 3:
        sender.sent(at, name, **values, entity=TOPIC)
        for subscription in ("a", "b"):
            consumer.delivered(at + 2, name, entity=TOPIC, subscription=subscription)
    elif fate == 4:
        sender.sent(at, name, **values)  # and lost
    elif _OUTAGE[0] + 10 < at < _OUTAGE[1]:
        sender.sent(at, name, "backlog", **values)
        if fate == 5:
            syphon.set_aside(_OUTAGE[1] + 5, name, entity=None)
            return
        moved = _OUTAGE[1] + rng.uniform(1, 90)
        syphon.moved(moved, name, waited=moved - at)
        consumer.delivered(moved + rng.uniform(0.1, 5), name, sequence_number=str(number + 1))
    else:
        sender.sent(at, name, **values)
        consumer.delivered(at + rng.uniform(0.1, 5), name, sequence_number=str(number + 1))
        if fate == 6:
            consumer.delivered(at + 6, name)


def _number(journal: Journal) -> None:
    """Number the rows in their order, as the writer would have, and keep the gap before the last one."""
    last = len(journal.rows) - 1
    gap = max(row["seq"] for row in journal.rows) - last
    for number, row in enumerate(journal.rows):
        row["seq"] = number + (gap if number == last else 0)
    journal._next = last + gap + 1

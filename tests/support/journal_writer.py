"""A process that keeps a real journal until a file tells it to end: ``python journal_writer.py DIRECTORY STOP-FILE``.

Every message that it says it sent it says it consumed, so that all of them are delivered in the end.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

from pairmq.model import Entity, EntityState
from pairmq.model.events import MessageDelivered, SendCompleted, SendOutcome, Settlement
from pairmq.observe.journal import Journal, JournalOptions

ORDERS = Entity("orders")
PAUSE = 0.05  # s between two messages


def main(directory: str, stop_file: str) -> None:
    """Write until the file is there."""
    journal = Journal(directory, JournalOptions(max_age=3.0, flush_interval=0.05))
    for number in itertools.count():
        name = f"m{number}"
        journal.on_event(_sent(name, number))
        journal.on_event(_delivered(name, number))
        if Path(stop_file).exists():
            break
        time.sleep(PAUSE)
    assert journal.close(60)


def _sent(name: str, number: int) -> SendCompleted:
    return SendCompleted(
        at=time.time(),
        pair="east>west",
        entity=ORDERS,
        message_id=name,
        outcome=SendOutcome.PRIMARY,
        backlog_queue=None,
        attempts=1,
        elapsed=0.001,
        maybe_duplicate=False,
        size=100,
        sender="s1",
        sequence=number,
        state=EntityState.HEALTHY,
    )


def _delivered(name: str, number: int) -> MessageDelivered:
    return MessageDelivered(
        at=time.time(),
        pair="east>west",
        entity=ORDERS,
        subscription=None,
        dead_letter=False,
        message_id=name,
        settlement=Settlement.COMPLETED,
        delivery_count=1,
        sequence_number=str(number),
        received_at=time.time(),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

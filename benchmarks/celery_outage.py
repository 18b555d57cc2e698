"""How many of the tasks that are sent in an outage of RabbitMQ run in it: by a pair with continuity, and by alternates.

Two real RabbitMQ servers and one worker (prefork, two processes). A client sends a task every 20 ms. The first server
is killed (kill -9) and started again after 20 s, with its data; 5 s later the client stops. Five applications that
differ in their broker settings only: those of `celery_failover`, and a pair with ``continuity``, whose worker reads
both brokers.

Reported of each: the calls of ``delay()`` that returned in the outage, how many of their tasks had run when the server
was started again, and the longest pause of the worker in the outage; and of all tasks that ``delay()`` returned for how
many never ran, and how many ran more than once. Of a pair with continuity each of these is looked up in the journals of
client and worker, and counts as explained where they say why: a receipt or a move with ``maybe_duplicate``, a
completion that its broker did not confirm, or a message that was redelivered.

Exit status 1 when of the tasks that the pair with continuity accepted in the outage less than 99 % ran in it, one
never ran, or one ran more than once without an explanation.

Run it with: make bench-one NAME=celery_outage
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery_failover import PHASE, Client, Workers, contenders

from pairmq.observe.journal import read_rows, recover
from pairmq_rabbitmq.testing import RabbitServer, start_together

OUTAGE = 20.0
OURS = "PairMQ, continuity"
LEAST = 0.99
_LOOK = 0.1  # s
_TELLING = ("MessageDelivered", "MessageMoved", "SendCompleted")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an application's tasks.

    Args:
        sent: calls of ``delay()`` that returned in the outage.
        raised: calls that raised an error, in all.
        ran: of those sent, the tasks that had run before the server was started again.
        pause: seconds of the outage in which no task ran, the longest time at a stretch.
        never_ran: tasks that ``delay()`` returned for, at any time, and that did not run.
        ran_twice: tasks that ran more than once.
        unexplained: of these, where the journals of a pair with continuity do not say why; None for the others.
    """

    sent: int
    raised: int
    ran: int
    pause: float
    never_ran: int
    ran_twice: int
    unexplained: int | None = None

    @property
    def share(self) -> float:
        """Tasks run in the outage of those sent in it."""
        return self.ran / self.sent if self.sent else 0.0


def applications(east: RabbitServer, west: RabbitServer) -> dict[str, dict[str, Any]]:
    """The applications' settings by name."""
    known = contenders(east, west)
    pair = east.url.replace("amqp://", "pairmq://")
    table = {"secondary": west.url, "failover_interval": 1, "ping_primary_interval": 1, "continuity": ["celery"]}
    settings = {"broker_read_url": pair, "broker_write_url": pair, "broker_transport_options": {"pairmq": table}}
    return {**known, OURS: settings}


def measure(settings: dict[str, Any], east: RabbitServer, west: RabbitServer, outage: float) -> Outcome:
    """Take one application through an outage."""
    east.reset()
    west.reset()
    with tempfile.TemporaryDirectory(prefix="celery-outage-") as folder:
        table = settings.get("broker_transport_options", {}).get("pairmq")
        journal = Path(folder) / "journal" if table is not None and "continuity" in table else None
        if journal is not None:
            options = {"pairmq": {**table, "journal": str(journal)}}
            settings = {**settings, "broker_transport_options": options}
        workers = Workers(settings, Path(folder))
        with workers.closing():
            workers.start()
            client = Client(settings)
            client.start()
            while len(workers.ran()) < 50:
                time.sleep(_LOOK)
            before = len(client.returned)
            east.kill(settle=False)
            pause = _longest_pause(workers, outage)
            sent = client.returned[before:]
            ran = len(workers.ran().keys() & set(sent))
            east.start()
            time.sleep(PHASE)
            client.stop()
            expected = set(client.returned)
            workers.standstill(expected)
            all_ran = workers.ran()
            runs = workers.runs()
        unexplained = None if journal is None else _unexplained(journal, runs)
    return Outcome(
        sent=len(sent),
        raised=client.raised,
        ran=ran,
        pause=pause,
        never_ran=len(expected - all_ran.keys()),
        ran_twice=sum(times > 1 for times in all_ran.values()),
        unexplained=unexplained,
    )


def _unexplained(journal: Path, runs: dict[int, list[tuple[str, bool]]]) -> int:
    """Look up what ran more than once, and print what is known of it."""
    twice = {number: each for number, each in runs.items() if len(each) > 1}
    recover(journal)
    known: dict[str, list[dict[str, Any]]] = {message_id: [] for each in twice.values() for message_id, _ in each}
    for row in read_rows(journal, kinds=_TELLING) if twice else ():
        if row.get("message_id") in known:
            known[row["message_id"]].append(row)
    count = 0
    for number, each in twice.items():
        rows = [row for message_id in dict.fromkeys(message_id for message_id, _ in each) for row in known[message_id]]
        why = [
            reason
            for reason, holds in (
                ("a doubtful send or move", any(row.get("maybe_duplicate") for row in rows)),
                (
                    "a completion was not confirmed",
                    any(row.get("error") or row.get("completed") is False for row in rows),
                ),
                ("redelivered", any(redelivered for _, redelivered in each[1:])),
            )
            if holds
        ]
        count += not why
        print(f"task {number} ran {len(each)} times: {', '.join(why) or f'NOT EXPLAINED by {rows}'}", file=sys.stderr)
    return count


def _longest_pause(workers: Workers, seconds: float) -> float:
    """Wait, and measure the longest time in which no task has run."""
    ends_at = time.monotonic() + seconds
    longest, ran, since = 0.0, workers.ran().total(), time.monotonic()
    while time.monotonic() < ends_at:
        time.sleep(_LOOK)
        now, at = workers.ran().total(), time.monotonic()
        longest = max(longest, at - since)
        if now != ran:
            ran, since = now, at
    return longest


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="one of the applications by name; may be given again")
    parser.add_argument("--outage", type=float, default=OUTAGE, help="seconds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq", "kombu"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections die noisily
    outcomes: dict[str, Outcome] = {}
    with RabbitServer() as east, RabbitServer() as west:
        start_together(east, west)
        for name, settings in applications(east, west).items():
            if not options.only or name in options.only:
                outcomes[name] = measure(settings, east, west, options.outage)
                print(f"{name}: {outcomes[name]}", file=sys.stderr)
    if options.json:
        print(json.dumps({name: {**asdict(outcome), "share": outcome.share} for name, outcome in outcomes.items()}))
    else:
        print(f"{'':26}  sent  raised   ran  share  longest pause  never ran  ran twice")
        for name, of in outcomes.items():
            print(
                f"{name:26}  {of.sent:4,}  {of.raised:6,}  {of.ran:4,}  {of.share:5.3f}  {of.pause:11.1f} s"
                f"  {of.never_ran:9,}  {of.ran_twice:9,}"
            )
    ours = outcomes.get(OURS)
    return 0 if ours is None or (ours.share >= LEAST and ours.never_ran == 0 and not ours.unexplained) else 1


if __name__ == "__main__":
    sys.exit(main())

"""What becomes of a Celery application's tasks when its broker is killed and comes back, by pair and by alternates.

Two real RabbitMQ servers and one worker (prefork, two processes). A client sends a task every 20 ms, from before the
kill -9 of the first server until the worker was restarted, as by a deployment, some seconds after that server is back.
Four applications that differ in their broker settings only: one server; both as Celery's alternates, as they come and
with publisher confirms; and a pair of them. Reported of each: how long ``delay()`` took at most, and how often it
raised an error; and of the tasks for which it returned how many did not run before everything stood still for
`PATIENCE` seconds, how many ran twice, and how many are left in a queue without a consumer. The first call is reported
by itself: it connects, and with a pair it makes the backlog queues.

Exit status 1 when a task that PairMQ accepted did not run, or when it refused one.

Run it with: make bench-one NAME=celery_failover
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kombu
import kombu.pools
from _celery_worker import LEDGER, SETTINGS, application
from kombu.exceptions import OperationalError

from pairmq_kombu.transport import close_pairs
from pairmq_rabbitmq.testing import RabbitServer, start_together

INTERVAL, PHASE, PATIENCE = 0.02, 5.0, 20.0
OURS = "PairMQ"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an application's tasks.

    Args:
        returned: calls of ``delay()`` that returned.
        raised: calls that raised an error.
        first_ms: the first call.
        median_ms: the median of all calls.
        longest_ms: the longest of the others.
        never_ran: tasks that ``delay()`` returned for and that did not run.
        ran_twice: tasks that ran more than once.
        left: messages in the queue of either server at the end.
    """

    returned: int
    raised: int
    first_ms: float
    median_ms: float
    longest_ms: float
    never_ran: int
    ran_twice: int
    left: tuple[int, int]


def contenders(east: RabbitServer, west: RabbitServer) -> dict[str, dict[str, Any]]:
    """The applications' settings by name."""
    both = {"broker_url": f"{east.url};{west.url}", "broker_failover_strategy": "round-robin"}
    pair = {"secondary": west.url, "failover_interval": 1, "ping_primary_interval": 1}
    return {
        "one broker": {"broker_url": east.url},
        "alternates": both,
        "alternates, with confirms": {**both, "broker_transport_options": {"confirm_publish": True}},
        OURS: {
            "broker_url": east.url,
            "broker_write_url": east.url.replace("amqp://", "pairmq://"),
            "broker_transport_options": {"pairmq": pair},
        },
    }


class Client:
    """Sends a task every `INTERVAL` seconds, in a thread of its own, until it is stopped.

    Args:
        settings: of the application.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._app = application(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, name="client", daemon=True)
        self.returned: list[int] = []
        self.raised = 0
        self.durations: list[float] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        kombu.pools.reset()
        close_pairs()

    def _send(self) -> None:
        number = 0
        record = self._app.tasks["record"]
        while not self._stop.wait(INTERVAL):
            begun = time.perf_counter()
            try:
                record.delay(number)
                self.returned.append(number)
            except OperationalError:
                self.raised += 1
            self.durations.append(time.perf_counter() - begun)
            number += 1


class Workers:
    """A worker as a user starts it, one at a time.

    Args:
        settings: of the application.
        folder: for the ledger and the log.
    """

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        self._ledger = folder / "ledger"
        self._ledger.touch()
        self._log = (folder / "log").open("w")
        self._environment = {**os.environ, SETTINGS: json.dumps(settings), LEDGER: str(self._ledger)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "celery", "-A", "_celery_worker", "worker", "--concurrency", "2"]
        self._process = subprocess.Popen(  # noqa: S603  # ours
            command, cwd=Path(__file__).parent, env=self._environment, stdout=self._log, stderr=subprocess.STDOUT
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def ran(self) -> Counter[int]:
        """How often each task ran."""
        return Counter(int(line.split()[0]) for line in self._ledger.read_text().splitlines())

    def runs(self) -> dict[int, list[tuple[str, bool]]]:
        """Of each task its runs: the message's id, and whether it was redelivered."""
        found: dict[int, list[tuple[str, bool]]] = {}
        for line in self._ledger.read_text().splitlines():
            number, message_id, redelivered = line.split()
            found.setdefault(int(number), []).append((message_id, redelivered == "True"))
        return found

    def standstill(self, expected: set[int]) -> None:
        """Wait until all that is expected has run, or nothing has for `PATIENCE` seconds."""
        seen, since = -1, time.monotonic()
        while not expected <= (ran := self.ran()).keys() and time.monotonic() < since + PATIENCE:
            if ran.total() != seen:
                seen, since = ran.total(), time.monotonic()
            time.sleep(0.2)

    @contextmanager
    def closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.stop()
            self._log.close()


def measure(settings: dict[str, Any], east: RabbitServer, west: RabbitServer) -> Outcome:
    """Take one application through an outage and a deployment."""
    east.reset()
    west.reset()
    with tempfile.TemporaryDirectory(prefix="celery-failover-") as folder:
        workers = Workers(settings, Path(folder))
        with workers.closing():
            workers.start()
            client = Client(settings)
            client.start()
            while len(workers.ran()) < 50:
                time.sleep(0.1)
            east.kill(settle=False)
            time.sleep(PHASE)
            east.start()
            time.sleep(PHASE)
            workers.stop()
            workers.start()
            time.sleep(PHASE)
            client.stop()
            expected = set(client.returned)
            workers.standstill(expected)
            ran = workers.ran()
    return Outcome(
        returned=len(expected),
        raised=client.raised,
        first_ms=client.durations[0] * 1000,
        median_ms=statistics.median(client.durations) * 1000,
        longest_ms=max(client.durations[1:]) * 1000,
        never_ran=len(expected - ran.keys()),
        ran_twice=sum(times > 1 for times in ran.values()),
        left=(_depth(east), _depth(west)),
    )


def _depth(server: RabbitServer) -> int:
    with kombu.Connection(server.url) as connection:
        try:
            return int(kombu.Queue("celery")(connection.default_channel).queue_declare(passive=True).message_count)
        except connection.channel_errors:
            return 0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="one of the applications by name; may be given again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    for name in ("asyncio", "pairmq", "aio_pika", "aiormq", "kombu"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # connections die noisily
    outcomes: dict[str, Outcome] = {}
    with RabbitServer() as east, RabbitServer() as west:
        start_together(east, west)
        for name, settings in contenders(east, west).items():
            if not options.only or name in options.only:
                outcomes[name] = measure(settings, east, west)
                print(f"{name}: {outcomes[name]}", file=sys.stderr)
    if options.json:
        print(json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}))
    else:
        print(f"{'':26}  returned  raised      first    median    longest  never ran  ran twice  left in east, west")
        for name, of in outcomes.items():
            print(
                f"{name:26}  {of.returned:8,}  {of.raised:6,}  {of.first_ms:6,.0f} ms"
                f"  {of.median_ms:5.1f} ms  {of.longest_ms:6,.0f} ms"
                f"  {of.never_ran:9,}"
                f"  {of.ran_twice:9,}  {of.left[0]:,}, {of.left[1]:,}"
            )
    ours = outcomes.get(OURS)
    return 0 if ours is None or (ours.never_ran == 0 and ours.raised == 0) else 1


if __name__ == "__main__":
    sys.exit(main())

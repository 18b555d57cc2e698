"""Consumers of a queue with continuity while the primary is dead for 20 s, with every product on either side.

Two real servers, a pair with ``continuity`` that sends at a steady rate, eight messages at a time, and hosts the
syphon, and a process of consumers. The primary is killed (kill -9) and started again after 20 s, with its data. All
pairs of two of RabbitMQ, Redis and PostgreSQL; and each once more with the consumers' process killed in the outage
and started again at once.

Reported of each: the messages that were accepted, by the primary and by the lane; how many of those that the lane had
accepted in the outage were handled before the primary was back; the longest time between two handled messages,
from the first one to the last send; how many accepted messages were never handled; how many were handled twice, and of
these how many that nothing explains: no receipt, no settlement in doubt, and no completion that RabbitMQ had not yet
written when it was killed. A process of consumers that was killed needs time to start, which no library can spare: that
is reported beside the longest gap, and the limit does not count it.

Exit status 1 when a message was lost, a second handling is unexplained, or a gap is over failover_interval + 2 s.

Run it with: make bench-one NAME=consumer_outage
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pairmq import Entity, LockLost, Message, Pair, PairOptions, Receipt, Route, SendError, SendRefused, TransportError
from pairmq.model.events import Event, MessageMoved, Side
from pairmq.testing.servers import ServerProcess
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

QUEUE = "orders"
MESSAGES, RATE = 20_000, 400.0
BEFORE, OUTAGE = 10.0, 20.0  # s
CONSUMERS_KILLED = 8.0  # s after the primary
GRACE = 2.0  # s over failover_interval
UNWRITTEN = 1.0  # s in which RabbitMQ has not yet written that a message was completed
STANDSTILL = 90.0  # s: what a killed process held is delivered again when its locks expire, after a minute
AT_ONCE = 50  # messages of one receive
BATCH = 8  # messages of one send
OPTIONS = {"continuity": (QUEUE,), "failover_interval": 2.0, "ping_primary_interval": 1.0}

SERVERS: dict[str, Callable[[], Any]] = {"RabbitMQ": RabbitServer, "Redis": RedisServer, "PostgreSQL": PostgresServer}


class Consumers:
    """A process that handles what it receives, and writes that down: a line for each event, in one write."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def run(self, primary: str, secondary: str) -> None:
        """Consume until the end."""
        self._write("started")
        async with Pair.connect(primary, secondary, options=PairOptions(**OPTIONS)) as pair:
            self._write("opened")
            async with pair.receiver(QUEUE) as receiver:
                while True:
                    try:
                        deliveries = await receiver.receive(AT_ONCE, 10.0)
                    except TransportError:
                        await asyncio.sleep(0.1)
                        continue
                    await asyncio.gather(*map(self._handle, deliveries))

    async def _handle(self, delivery: Any) -> None:
        number, origin = int(delivery.body), delivery.origin.value
        self._write("handled", number, origin)
        try:
            await delivery.complete()
        except (TransportError, LockLost):
            return  # its settlement is in doubt
        self._write("settled", number, origin)

    def _write(self, *words: object) -> None:
        os.write(self._ledger, f"{time.monotonic()} {' '.join(map(str, words))}\n".encode())


class Child:
    """The process of `Consumers`."""

    def __init__(self, primary: str, secondary: str, ledger: Path) -> None:
        self._command = [sys.executable, __file__, "--consume", primary, secondary, str(ledger)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self._process = subprocess.Popen(self._command)  # noqa: S603  # ours

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the messages.

    Args:
        primary: accepted by the primary.
        lane: accepted by the lane, or a backlog queue.
        failed: not accepted.
        in_outage: of those that were diverted in the outage, the share that was handled in it.
        gap: seconds between two handled messages, the longest.
        gap_at: when it began, in seconds after the kill.
        start: seconds from the kill of the consumers' process until its successor ran.
        lost: accepted, and never handled.
        twice: handled more than once.
        unexplained: of these.
    """

    primary: int
    lane: int
    failed: int
    in_outage: float
    gap: float
    gap_at: float
    start: float
    lost: int
    twice: int
    unexplained: int

    @property
    def holds(self) -> bool:
        """Whether it kept what it promises."""
        return not self.lost and not self.unexplained and self.gap - self.start < OPTIONS["failover_interval"] + GRACE


class Trial:
    """One pair through one outage.

    Args:
        east: the primary, which runs and is empty.
        west: the secondary.
        folder: for the ledger.
        options: how much.
    """

    def __init__(self, east: Any, west: Any, folder: Path, options: argparse.Namespace) -> None:
        self._east = east
        self._west = west
        self._ledger = folder / "ledger"
        self._options = options
        self._results: dict[int, Receipt | SendError] = {}
        self._returned: dict[int, float] = {}
        self._moved_again: set[str] = set()
        self._ids: dict[int, str] = {}
        self._killed_at = self._back_at = self._consumers_killed_at = 0.0

    async def run(self, *, kill_consumers: bool) -> Outcome:
        """Send, kill, and count."""
        loop, urls = asyncio.get_running_loop(), (self._east.url, self._west.url)
        child = Child(*urls, self._ledger)
        # A server ends with the thread that started it.
        with ThreadPoolExecutor(1, "hands") as hands:
            try:
                pair = Pair.connect(*urls, options=PairOptions(**OPTIONS, enable_syphon=True))
                async with pair:
                    pair.subscribe(self._note)
                    await pair.primary.admin.create(Entity(QUEUE))
                    if isinstance(self._east, RabbitServer):
                        await loop.run_in_executor(hands, self._east.settle)
                    child.start()
                    while not any(words[1] == "opened" for words in self._lines()):
                        await asyncio.sleep(0.1)
                    await asyncio.sleep(1.0)
                    producing = asyncio.create_task(self._produce(pair))
                    await asyncio.sleep(BEFORE)
                    self._killed_at = time.monotonic()
                    await loop.run_in_executor(hands, self._kill)
                    if kill_consumers:
                        await asyncio.sleep(self._killed_at + CONSUMERS_KILLED - time.monotonic())
                        self._consumers_killed_at = time.monotonic()
                        await loop.run_in_executor(None, child.kill)
                        child.start()
                    await asyncio.sleep(self._killed_at + self._options.outage - time.monotonic())
                    self._back_at = time.monotonic()
                    starting = loop.run_in_executor(hands, self._east.start)
                    await producing
                    ended_at = time.monotonic()
                    await starting
                    await self._all_handled()
            finally:
                child.kill()
                self._east.start()
        errors = Counter(str(each)[:150] for each in self._results.values() if isinstance(each, SendError))
        for error, count in errors.most_common(3):
            print(f"{count} times {error}", file=sys.stderr)
        return self._outcome(ended_at)

    def _kill(self) -> None:
        if isinstance(self._east, RabbitServer):
            self._east.kill(settle=False)
        else:
            self._east.kill()

    async def _produce(self, pair: Pair) -> None:
        sender, began = pair.sender(QUEUE), time.monotonic()
        sends = set()
        for first in range(0, self._options.messages, BATCH):
            due = began + first / self._options.rate
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(self._send(sender, range(first, min(first + BATCH, self._options.messages))))
            sends.add(task)
            task.add_done_callback(sends.discard)
        while sends:
            await asyncio.wait(tuple(sends))

    async def _send(self, sender: Any, numbers: range) -> None:
        results = await sender.send_batch(Message(b"%d" % number, message_id=f"m{number}") for number in numbers)
        self._results.update(zip(numbers, results, strict=True))
        self._returned.update(dict.fromkeys(numbers, time.monotonic()))

    def _note(self, event: Event) -> None:
        if isinstance(event, MessageMoved) and (event.maybe_duplicate or event.redelivered):
            self._moved_again.add(str(event.message_id))

    async def _all_handled(self) -> None:
        accepted = {number for number, result in self._results.items() if isinstance(result, Receipt)}
        seen, since = -1, time.monotonic()
        while time.monotonic() < since + STANDSTILL:
            handled = {int(words[2]) for words in self._lines() if words[1] == "handled"}
            if accepted <= handled:
                return
            if len(handled) != seen:
                seen, since = len(handled), time.monotonic()
            await asyncio.sleep(1.0)

    def _lines(self) -> Iterator[list[str]]:
        if self._ledger.exists():
            yield from (line.split() for line in self._ledger.read_text().splitlines())

    def _outcome(self, ended_at: float) -> Outcome:
        handled: dict[int, list[tuple[float, str]]] = {}
        settled: Counter[int] = Counter()
        unwritten: set[int] = set()
        started: list[float] = []
        for at, word, *of in self._lines():
            if word == "handled":
                handled.setdefault(int(of[0]), []).append((float(at), of[1]))
            elif word == "settled":
                settled[int(of[0])] += 1
                if of[1] == Side.PRIMARY.value and self._killed_at - UNWRITTEN <= float(at) < self._back_at:
                    unwritten.add(int(of[0]))
            elif word == "started":
                started.append(float(at))
        receipts = {number: result for number, result in self._results.items() if isinstance(result, Receipt)}
        diverted = {number for number, receipt in receipts.items() if receipt.route is Route.BACKLOG}
        in_outage = {number for number in diverted if self._returned[number] < self._back_at}
        there = {number for number in in_outage if number in handled and handled[number][0][0] < self._back_at}
        twice = {number for number, all_of in handled.items() if len(all_of) > 1}
        doubtful = {number for number, receipt in receipts.items() if receipt.maybe_duplicate}
        doubtful |= {n for n, result in self._results.items() if isinstance(result, SendError)}
        doubtful |= {number for number in twice if settled[number] < len(handled[number])}
        doubtful |= {number for number in twice if f"m{number}" in self._moved_again}
        if isinstance(self._east, RabbitServer):
            doubtful |= unwritten
        times = sorted(at for all_of in handled.values() for at, _ in all_of if at <= ended_at)
        gap, gap_at = max((later - earlier, earlier) for earlier, later in itertools.pairwise([*times, ended_at]))
        began = [at for at in started if at > self._consumers_killed_at > 0]
        if began:
            opened = [float(words[0]) for words in self._lines() if words[1] == "opened"][-1]
            first = min((at for at in times if at > opened), default=ended_at)
            text = (
                f"consumers: opened {opened - began[0]:.1f} s after their start, handled {first - opened:.1f} s later"
            )
            print(text, file=sys.stderr)
        return Outcome(
            primary=len(receipts) - len(diverted),
            lane=len(diverted),
            failed=sum(isinstance(result, SendRefused) for result in self._results.values()),
            in_outage=len(there) / len(in_outage) if in_outage else 0.0,
            gap=gap,
            gap_at=gap_at - self._killed_at,
            start=began[0] - self._consumers_killed_at if began else 0.0,
            lost=len(receipts.keys() - handled.keys()),
            twice=len(twice),
            unexplained=len(twice - doubtful),
        )


@contextmanager
def running(product: str) -> Iterator[ServerProcess]:
    """A server of a product."""
    with SERVERS[product]() as server:
        yield server


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pairs = {",".join(pair).lower(): pair for pair in itertools.permutations(SERVERS, 2)}
    parser.add_argument("--only", action="append", choices=pairs, type=str.lower, help="may be repeated")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second")
    parser.add_argument("--outage", type=float, default=OUTAGE, help="seconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--consume", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # connections die noisily
    if options.consume:
        primary, secondary, ledger = options.consume
        asyncio.run(Consumers(Path(ledger)).run(primary, secondary))
        return 0
    outcomes: dict[str, Outcome] = {}
    for pair in [pairs[name] for name in options.only or pairs]:
        for kill_consumers in (False, True):
            name = f"{' > '.join(pair)}{', consumers killed' * kill_consumers}"
            with ExitStack() as stack:
                east, west = (stack.enter_context(running(product)) for product in pair)
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="consumer-outage-"))
                trial = Trial(east, west, Path(folder), options)
                outcomes[name] = asyncio.run(trial.run(kill_consumers=kill_consumers))
            print(f"{name}: {outcomes[name]}", file=sys.stderr)
    if options.json:
        print(json.dumps({name: asdict(outcome) for name, outcome in outcomes.items()}))
    else:
        columns = (
            "pair",
            "to the primary",
            "to the lane",
            "handled in the outage",
            "longest gap",
            "start",
            "lost",
            "twice",
        )
        print(f"| {' | '.join((*columns, 'unexplained'))} |")
        print("|---" * (len(columns) + 1) + "|")
        for name, of in outcomes.items():
            print(
                f"| {name} | {of.primary:,} | {of.lane:,} | {of.in_outage:.1%} | {of.gap:.1f} s"
                f" | {f'{of.start:.1f} s' if of.start else ''} | {of.lost:,} | {of.twice:,} | {of.unexplained:,} |"
            )
    return 0 if all(outcome.holds for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

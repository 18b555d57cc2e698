"""Test the simulation: plant bugs in a copy of the source, one at a time, and see whether a seed finds each.

Run it with: .venv/bin/python scripts/mutants.py [--seeds 100] [--hours 1] [--jobs 2] [--only NAME ...] [--json]
Exit status: 0 when at least 95 % of them were found, 1 when not.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pairmq"
WANTED = 0.95
LIMIT = 900  # s for one mutant

# What runs in each copy: seeds until one fails, safety and liveness in turn.
CHILD = """
import json, sys
from pairmq.testing.simulator import Settings, simulate
for seed in range(int(sys.argv[1])):
    mode = "liveness" if seed % 2 else "safety"
    report = simulate(Settings(seed=seed, hours=float(sys.argv[2]), mode=mode, ordering=sys.argv[3]))
    if not report.ok:
        first = report.violations[0]
        print(json.dumps({"seed": seed, "verdict": first.verdict.value, "text": first.text}))
        break
"""


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Args:
        name: what it does wrong.
        file: below src/pairmq.
        old: text that stands there exactly once.
        new: what is put in its place.
        ordering: of the pairs that are simulated.
    """

    name: str
    file: str
    old: str
    new: str
    ordering: str = "none"


MUTANTS = (
    Mutant(
        "the syphon completes before it sends",
        "runner/_pump.py",
        "        messages = [self._outgoing(item) for item in items]\n        try:\n",
        "        messages = [self._outgoing(item) for item in items]\n"
        "        await self._intake.settle([Settlement(item, _nothing) for item in items])\n        try:\n",
    ),
    Mutant(
        "a receipt forgets that an attempt was in doubt",
        "runner/_job.py",
        "job.attempts, elapsed, job.unknown)",
        "job.attempts, elapsed, False)",
    ),
    Mutant(
        "the copy in the backlog is not marked",
        "runner/_send.py",
        "state.sender_id, state.sequence, job.unknown)",
        "state.sender_id, state.sequence, False)",
    ),
    Mutant(
        "drained is said while a diverted send is in flight",
        "core/machine.py",
        "self._health in _RUNNING and self._diverting == 0 and input.since >= self._settled_at",
        "self._health in _RUNNING",
    ),
    Mutant(
        "a backlog queue that can't be reached counts as empty",
        "runner/_drain.py",
        "                self._empty.not_empty(index)  # a queue that can't be reached is not empty\n"
        "                return None\n",
        "                self._empty.seen_empty(index, began_at)\n                continue\n",
    ),
    Mutant(
        "a pair with a syphon starts clean",
        "core/machine.py",
        "Backlog.DIRTY if tracks_backlog else Backlog.CLEAN",
        "Backlog.CLEAN",
    ),
    Mutant(
        "the syphon waits until its own process has seen the entity come back",
        "runner/_gates.py",
        "gate = self._gates[entity] = Gate(entity)\n",
        "gate = self._gates[entity] = Gate(entity)\n            gate.opened.clear()\n",
    ),
    Mutant(
        "a success while failing forgets the backlog",
        "core/machine.py",
        "        left, self._health = self._health, health\n",
        "        left, self._health = self._health, health\n"
        "        if left is Health.FAILING and health is Health.UP:\n            self._backlog = Backlog.CLEAN\n",
    ),
    Mutant(
        "a late result moves the state",
        "core/machine.py",
        "        row = self._row(symbol if epoch == self._epoch else Symbol.LATE)\n"
        "        self._sending -= 1\n        if epoch != self._epoch:\n",
        "        row = self._rows.get(symbol) or self._row(Symbol.LATE)\n"
        "        self._sending -= 1\n        if symbol not in self._rows:\n",
    ),
    Mutant(
        "a good ping is enough, and no canary follows",
        "core/_transitions.py",
        "        _S.PING_RECOVERED: Row(TRIAL,",
        "        _S.PING_RECOVERED: Row(UP,",
    ),
    Mutant(
        "a flapping entity needs no more pings than before",
        "core/machine.py",
        "min(MOST_PINGS_NEEDED, self._pings_needed * 2) if flaps else 1",
        "1",
    ),
    Mutant(
        "a backlog queue never comes back into use",
        "runner/_backlog.py",
        "        if self.rotation.put_back(index):",
        "        if False and self.rotation.put_back(index):",
    ),
    Mutant(
        "a diverted message forgets its path",
        "core/envelope.py",
        "        PATH: diversion.entity.path,\n",
        "",
    ),
    Mutant(
        "a topic's message comes home as a queue's",
        "core/envelope.py",
        "        added[KIND] = diversion.entity.kind.value",
        "        pass",
    ),
    Mutant(
        "the schedule is not kept",
        "core/envelope.py",
        '        added[SCHEDULED_ENQUEUE] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")',
        "        pass",
    ),
    Mutant(
        "the time-to-live is not restored",
        "core/envelope.py",
        "            time_to_live=_seconds(get(TIME_TO_LIVE)),",
        "            time_to_live=_seconds(get(TIME_TO_LIVE)) and None,",
    ),
    Mutant(
        "the time-to-live runs in the backlog",
        "core/envelope.py",
        "        session_id=None,\n        time_to_live=None,\n",
        "        session_id=None,\n",
    ),
    Mutant(
        "the session is not restored",
        "core/envelope.py",
        "            session_id=get(SESSION_ID),",
        "            session_id=get(SESSION_ID) and None,",
    ),
    Mutant(
        "the syphon uses the backlog when the primary fails",
        "runner/_pump.py",
        "            results = [error] * len(items)\n        gate.most",
        "            results = await self._tail.send_batch([item.delivery.message for item in items])\n"
        "        gate.most",
    ),
    Mutant(
        "a retry after a lost confirmation is not marked",
        "runner/_job.py",
        "        job.unknown = job.unknown or failure.maybe_applied",
        "        job.unknown = False",
    ),
    Mutant(
        "a refused message is tried again",
        "runner/_send.py",
        "                refused = failure.kind is FailureKind.REFUSED\n",
        "                refused = failure.reason is FailureReason.TOO_LARGE\n",
    ),
    Mutant(
        "a cancelled send is reported as refused",
        "runner/_job.py",
        "SendOutcome.REFUSED if isinstance(result, SendRefused) else SendOutcome.UNKNOWN",
        "SendOutcome.UNKNOWN if isinstance(result, SendUnknown) else SendOutcome.REFUSED",
    ),
    Mutant(
        "an unknown outcome is called refused",
        "runner/_job.py",
        "        if job.unknown:\n            chosen",
        "        if False:\n            chosen",
    ),
    Mutant(
        "the results of a batch are shifted by one",
        "runner/_send.py",
        "            return await self._limits.run(sender.send_batch(messages), limit)",
        "            found = list(await self._limits.run(sender.send_batch(messages), limit))\n"
        "            return [found[-1], *found[:-1]]",
    ),
    Mutant(
        "a message is settled before the primary has confirmed it",
        "runner/_pump.py",
        "            if result is None:\n                self._remember(item)",
        "            if result is None or result.maybe_applied:\n                self._remember(item)",
    ),
    Mutant(
        "a gate never opens again",
        "runner/_gates.py",
        "            if await self._answers(gate.entity):\n                self._open(gate)\n                return\n",
        "            if await self._answers(gate.entity):\n                return\n",
    ),
    Mutant(
        "a close does not give back what it holds",
        "runner/_intake.py",
        "                    await receiver.close()",
        "                    pass",
    ),
    Mutant(
        "locks are not renewed",
        "runner/_intake.py",
        "                tried.update(due)\n                await self._renew(due)",
        "                tried.update(due)",
    ),
    Mutant(
        "a message is sent under a lock that has run out",
        "runner/_intake.py",
        "        return [item for item in items if not item.lost]",
        "        return list(items)",
    ),
    Mutant(
        "an outage spends delivery counts",
        "runner/_pump.py",
        "            self._gates.shut(gate, failure)\n",
        "            self._gates.shut(gate, failure)\n"
        "            for item in left:\n"
        "                await self._intake._receiver.abandon(item.delivery)\n",
    ),
    Mutant(
        "poison stays in its queue",
        "runner/_pump.py",
        "            elif result.kind is FailureKind.REFUSED and result.reason not in _NOT_POISON:",
        "            elif False:",
    ),
    Mutant(
        "what an operator can mend is poison",
        "runner/_pump.py",
        "result.kind is FailureKind.REFUSED and result.reason not in _NOT_POISON:",
        "result.kind is FailureKind.REFUSED:",
    ),
    Mutant(
        "a forged destination is delivered to",
        "runner/_pump.py",
        "        return not forbidden and self._options.allows(entity.path)",
        "        return True",
    ),
    Mutant(
        "a sender takes another backlog queue each time",
        "core/rotation.py",
        "        if kept is not None and kept not in self._retry_at:",
        "        if False:",
    ),
    Mutant(
        "a backlog queue that failed stays in use",
        "runner/_send.py",
        "                worst = FailureKind.UNAVAILABLE\n                backlog.take_out(index, failure)",
        "                worst = FailureKind.UNAVAILABLE",
    ),
    Mutant(
        "a completion that fails is forgotten",
        "runner/_intake.py",
        "        if failed:\n            self._unsettled.extend(failed)",
        "        if False:\n            self._unsettled.extend(failed)",
    ),
    Mutant(
        "what came home is not remembered",
        "runner/_pump.py",
        "        self._arrived[item.identity] = None\n",
        "",
    ),
    Mutant(
        "the pump ends with its first error",
        "runner/_pump.py",
        "                if self._stopping.is_set():\n                    return\n                wait",
        "                return\n                wait",
    ),
    Mutant(
        "a backlog queue that is gone is not made again",
        "runner/_pump.py",
        "                    self._missing(error)",
        "                    pass",
    ),
    Mutant(
        "a send may last longer than its deadline",
        "runner/_send.py",
        "        return now + min(self._options.attempt_timeout, left if left < _LAST_STRETCH else left / 2)",
        "        return now + self._options.attempt_timeout",
    ),
    Mutant(
        "a close waits for the sends, however long",
        "runner/_send.py",
        "        self._limits.end_by(self._ends_at)",
        "        pass",
    ),
    Mutant(
        "held messages overtake each other",
        "runner/_pump.py",
        "        line.items.extend(items)\n",
        "        line.items.extendleft(reversed(items))\n",
    ),
    Mutant(
        "a batch comes home backwards",
        "runner/_pump.py",
        "        items = self._not_home(due)\n",
        "        items = self._not_home(due)[::-1]\n",
    ),
    Mutant(
        "pings go on for ever without an answer",
        "core/_transitions.py",
        "        _S.PING_OVERDUE: Row(DOWN, (Do.CANCEL_PING, Do.NEXT_PING)),",
        "        _S.PING_OVERDUE: Row(DOWN, (Do.CANCEL_PING,)),",
    ),
    Mutant(
        "a postponed message is forgotten",
        "runner/_pump.py",
        "            results = await self._intake.limited(self._tail.send_batch(copies))",
        "            results = [None] * len(copies)",
    ),
    Mutant(
        "an expired message is delivered",
        "core/envelope.py",
        "    return message.time_to_live - max(0.0, waited)",
        "    return max(0.001, message.time_to_live - max(0.0, waited))",
    ),
    Mutant(
        "the failover interval never ends",
        "core/_transitions.py",
        "        _S.INTERVAL_OVER: Row(DOWN, (Do.STOP_INTERVAL, Do.START_PINGS), Cause.INTERVAL_OVER),",
        "        _S.INTERVAL_OVER: Row(FAILING, (Do.STOP_INTERVAL, Do.START_INTERVAL)),",
    ),
    Mutant(
        "the first locks are not renewed in time",
        "runner/_intake.py",
        "        await self._asked.wait()\n",
        "",
    ),
    Mutant(
        "what is in hand is taken for another message when it comes again",
        "runner/_intake.py",
        "        item.delivery, item.locked_until = delivery, self._lock_ends_at(self._clock.now())\n"
        "        return True",
        "        return False",
    ),
    Mutant(
        "a place among the sends in flight is not given back",
        "runner/_send.py",
        "                self._admission.leave(len(pending))",
        "                self._admission.leave(sum(isinstance(job.result, Receipt) for job in pending))",
    ),
    Mutant(
        "a count tells of its end instead of its beginning",
        "runner/_drain.py",
        "            self._empty.seen_empty(index, began_at)\n        return",
        "            self._empty.seen_empty(index, self._clock.now())\n        return",
    ),
    Mutant(
        "a closing send waits for one more attempt",
        "runner/_send.py",
        "                deadline = min(deadline, self._ends_at)  # the pair began",
        "                pass  # the pair began",
    ),
    Mutant(
        "a failure in the middle of a batch is taken for success",
        "runner/_send.py",
        "            if failure is None:\n                self._endings.accept(state, job, started, queue)",
        "            if failure is None or None in failures:\n"
        "                self._endings.accept(state, job, started, queue)",
    ),
    Mutant(
        "a session returns to the primary over its backlog",
        "runner/_ordered.py",
        "        if facts.clean:\n            place.wait = None",
        "        if True:\n            place.wait = None",
        ordering="session",
    ),
    Mutant(
        "a diverted send leaves its session clean",
        "runner/_send.py",
        "key.facts.divert_ended(self._clock.now(), maybe_there=maybe_there)",
        "key.facts.divert_ended(self._clock.now(), maybe_there=False)",
        ordering="session",
    ),
    Mutant(
        "a session's message takes any backlog queue",
        "runner/_send.py",
        "                index = key.queue\n",
        "                index = backlog.rotation.choose(None, self._clock.chance())\n",
        ordering="session",
    ),
    Mutant(
        "a backlog queue that can't be asked counts as drained for a session",
        "runner/_ordered.py",
        "        if look is None:  # who can't be asked may hold messages\n"
        "            return self._divert(place, runner)\n",
        "        if look is None:\n            return runner.route()\n",
        ordering="session",
    ),
    Mutant(
        "a restarted process takes every session for clean",
        "runner/_ordered.py",
        "Key(KeyOrder(now), self._queue(state, session))",
        "Key(KeyOrder(now, fresh=True), self._queue(state, session))",
        ordering="session",
    ),
    Mutant(
        "a session is taken for drained with its last message still in the queue",
        "core/order.py",
        "look.oldest > self._mark",
        "look.oldest >= self._mark",
        ordering="session",
    ),
    Mutant(
        "sends of one session go side by side",
        "runner/_ordered.py",
        "        if not self.turn.done():\n            await asyncio.wait(",
        "        if not self.turn.done():\n            return True\n            await asyncio.wait(",
        ordering="session",
    ),
    Mutant(
        "backlog queues are made for several consumers at once",
        "runner/_backlog.py",
        'single_consumer=options.ordering == "session"',
        "single_consumer=False",
        ordering="session",
    ),
    Mutant(
        "messages of one session go home in one operation",
        "runner/_pump.py",
        "            if item.key in keys or count >= gate.most:",
        "            if count >= gate.most:",
        ordering="session",
    ),
    Mutant(
        "what stands behind a lost lock goes on",
        "runner/_intake.py",
        "        if not self.ordered or self.broken:\n            return\n",
        "        return\n",
        ordering="session",
    ),
    Mutant(
        "an ordered message is put at its queue's tail to make room",
        "runner/_pump.py",
        "if self._intake.ordered or not await self._made_some_room():",
        "if not await self._made_some_room():",
        ordering="session",
    ),
)


@dataclass(frozen=True)
class Found:
    """What came of one mutant."""

    mutant: Mutant
    seed: int | None
    verdict: str
    text: str
    seconds: float


def hunt(mutant: Mutant, seeds: int, hours: float) -> Found:
    """Plant one bug in a copy of the source and run seeds until one finds it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pairmq-mutant-") as folder:
        copy = Path(folder) / "pairmq"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        path = copy / mutant.file
        text = path.read_text("utf-8")
        if text.count(mutant.old) != 1:
            raise SystemExit(f"mutant {mutant.name!r}: its text stands {text.count(mutant.old)} times in {mutant.file}")
        path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-c", CHILD, str(seeds), str(hours), mutant.ordering]
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return Found(mutant, None, "", f"no end within {LIMIT} s", time.monotonic() - began)
    took = time.monotonic() - began
    if ended.returncode:
        return Found(mutant, None, "", f"it does not run: {ended.stderr.strip().splitlines()[-1]}", took)
    if not ended.stdout.strip():
        return Found(mutant, None, "", "", took)
    result = json.loads(ended.stdout)
    return Found(mutant, result["seed"], result["verdict"], result["text"], took)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt all of them, and print a table."""
    parser = argparse.ArgumentParser(description="plant bugs, and see whether the simulation finds them")
    parser.add_argument("--seeds", type=int, default=100, help="seeds for each (100)")
    parser.add_argument("--hours", type=float, default=1.0, help="virtual hours a seed (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at the same time")
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--json", action="store_true", help="results on stdout as JSON")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.only or any(part in each.name for part in options.only)]
    results = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for found in pool.map(lambda mutant: hunt(mutant, options.seeds, options.hours), chosen):
            results.append(found)
            seed = "  -" if found.seed is None else f"{found.seed:3}"
            line = f"{seed}  {found.verdict:22} {found.seconds:5.0f} s  {found.mutant.name}"
            print(line if found.seed is not None else f"{line}  NOT FOUND {found.text}", file=sys.stderr, flush=True)
    share = sum(found.seed is not None for found in results) / max(1, len(results))
    if options.json:
        keys = ("seed", "verdict", "text", "seconds")
        print(
            json.dumps([{"name": f.mutant.name, **{key: getattr(f, key) for key in keys}} for f in results], indent=1)
        )
    print(f"{len(results)} planted, {share:.1%} found within {options.seeds} seeds", file=sys.stderr)
    return 0 if share >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())

"""Carries out a plan: servers, proxies, client processes, the faults as they come, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pairmq.model import Delivery, Source, TransportError
from pairmq.testing.chaos._books import (
    RUN,
    Found,
    backlog_queues,
    history_of,
    make_queues,
    pending,
    read_out,
    with_consumed,
)
from pairmq.testing.chaos._ledger import OPENED, Ledger, number_of
from pairmq.testing.chaos.broker import ChaosBroker
from pairmq.testing.chaos.network import BLIP_FAULTS, BOTH, NETWORK_FAULTS, Network
from pairmq.testing.chaos.plan import CLIENT_KILL, ENTITIES, PAIR, SIDES, Plan, Strike
from pairmq.testing.chaos.report import ChaosReport, judged, report_of
from pairmq.transport import Receiver

_MODULE = "pairmq.testing.chaos.client"
_CLOSE = 40.0  # s that a process may take to close its pair and end, on a busy machine


class ClientProcess:
    def __init__(self, spec: dict[str, Any], directory: Path, ledger: Ledger) -> None:
        self.name: str = spec["name"]
        self.life = 0
        self._spec = spec
        self._directory = directory
        self._ledger = ledger
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin another life; without effect while one goes on."""
        if self.running:
            return
        self._reap()
        self.life += 1
        path = self._directory / f"{self.name}-{self.life}.jsonl"
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C goes to the terminal's whole group, and is for the run: a client that has only begun to start
                # does not ignore it yet, would end, and look as if it had crashed. All end with their standard input.
                process_group=0,
            )
        answers: queue.Queue[str | None] = queue.Queue()
        self._answers = answers
        threading.Thread(target=_listen, args=(process, answers), daemon=True).start()
        self._write(json.dumps({**self._spec, "life": self.life, "ledger": str(path)}))

    def kill(self) -> None:
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()
            self._ledger.write("killed", life=f"{self.name}/{self.life}")

    def stop(self) -> None:
        """Ask it to close its pair and end; one that does not is killed, and that is a violation."""
        process = self._process
        if process is None or not self.running:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_CLOSE)
        except subprocess.TimeoutExpired:
            self._ledger.write("crash", text=f"{self.name}/{self.life} did not end within {_CLOSE:g} s of SIGTERM")
            process.kill()
            process.wait()

    def ask(self, word: str) -> None:
        self._write(word)

    def answer(self, word: str, until: float) -> dict[str, Any] | None:
        """Wait for the answer to a word until an instant of the monotonic clock; None when none came."""
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._answers.get(timeout=left)
            except queue.Empty:
                return None
            if line is None:
                return None
            answer: dict[str, Any] = json.loads(line)
            if answer["done"] == word:
                return answer
        return None

    def close(self) -> None:
        """End it, however; idempotent."""
        self.kill()
        self._reap()

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        status = process.wait()
        # SIGTERM ends a process that has not yet installed its handler.
        if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
            self._ledger.write("crash", text=f"{self.name}/{self.life} ended with status {status}: see {self.name}.log")
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                answers.put(line)
    answers.put(None)


_NETWORK = frozenset(kind.name for kind in (*NETWORK_FAULTS, *BLIP_FAULTS))
_START = 180.0  # s that the clients may take to open their pairs, on a busy machine
_LOOK = 0.3  # s between two looks at the backlog


def carry_out(
    plan: Plan,
    brokers: tuple[ChaosBroker, ChaosBroker],
    directory: Path,
    say: Callable[[str], None] = lambda _: None,
    *,
    journal: Path | None = None,
) -> ChaosReport:
    """Carry out a plan on real servers, and judge what came of it.

    A KeyboardInterrupt ends the faults early; all is healed, drained and judged all the same. A second one is raised.
    """
    with ExitStack() as stack:
        run = _Run(plan, brokers, directory, say, stack, journal)
        found = run.run()
    history = history_of(plan, directory, found)
    return report_of(plan, history, judged(history, found), interrupted=run.interrupted)


@dataclass(eq=False)
class _Run:
    plan: Plan
    pair: tuple[ChaosBroker, ChaosBroker]
    directory: Path
    say: Callable[[str], None]
    stack: ExitStack
    journal: Path | None

    def __post_init__(self) -> None:
        self._brokers = dict(zip(SIDES, self.pair, strict=True))
        self._ledger = self.stack.enter_context(Ledger(self.directory / f"{RUN}.jsonl"))
        # A server ends with the thread that started it, so each has one of its own for as long as the run.
        self._hands = {side: self.stack.enter_context(ThreadPoolExecutor(1, f"hands-{side}")) for side in SIDES}
        for other in ("", BOTH):
            self._hands[other] = self.stack.enter_context(ThreadPoolExecutor(1, f"hands-{other or 'clients'}"))
        self._over = threading.Event()
        self._began = 0.0
        self.interrupted = False
        self._network: Network | None = None
        self._clients: dict[str, ClientProcess] = {}

    def run(self) -> Found:
        brokers = self._brokers
        for side, broker in brokers.items():
            self.stack.callback(self._by_hand, side, broker.close)
        starting = [self._hands[side].submit(broker.start) for side, broker in brokers.items()]
        for each in starting:
            each.result()
        urls = [brokers[side].url for side in SIDES]
        asyncio.run(make_queues(self.plan, urls[0], urls[1]))
        addresses = {side: broker.addresses for side, broker in brokers.items()}
        names = (*self.plan.clients, *self.plan.consumers)
        self._network = self.stack.enter_context(Network(addresses, names, self.plan.settings.distant))
        self._make_clients()
        self._ledger.write("begin")
        for client in self._clients.values():
            client.start()
        starting_ends = time.monotonic() + _START
        for client in self._clients.values():
            if client.answer(OPENED, starting_ends) is None:
                raise RuntimeError(f"{client.name} did not start within {_START:g} s: see {client.name}.log")
        self._began = time.monotonic()
        walks = [self._hands[side].submit(self._walk, side) for side in ("", BOTH, *SIDES)]
        try:
            self._over.wait(self.plan.settings.seconds)
        except KeyboardInterrupt:
            self.interrupted = True
            self.say("interrupted: healing, draining and judging what there is")
        self._over.set()
        for walk in walks:
            walk.result()
        self._heal()
        undrained = self._drain()
        return self._read(undrained)

    def _make_clients(self) -> None:
        plan, network = self.plan, self._network
        assert network is not None
        for place, name in enumerate((*plan.clients, *plan.consumers)):
            spec = {
                "name": name,
                "place": place,
                "syphon": place == 0,
                **{side: network.url(side, name, self._brokers[side].url) for side in SIDES},
                "options": plan.options_of(name),
                "eager": plan.settings.eager,
                "entities": list(ENTITIES),
                "rate": plan.settings.rate,
                "timeouts": list(plan.timeouts),
                "seed": plan.settings.seed,
                "patience": plan.settings.patience,
                "consumes": name in plan.consumers,
                "journal": "" if self.journal is None else str(self.journal),
            }
            client = self._clients[name] = ClientProcess(spec, self.directory, self._ledger)
            self.stack.callback(client.close)

    def _by_hand(self, side: str, what: Callable[..., object], *arguments: object) -> None:
        self._hands[side].submit(what, *arguments).result()

    # Faults.

    def _walk(self, side: str) -> None:
        """Do one thing after another to one broker, or to the clients, until all is done or over."""
        try:
            self._strike_all(side)
        except BaseException:
            self._over.set()  # don't wait for the end of a run that can't be judged
            raise

    def _strike_all(self, side: str) -> None:
        for number, strike in enumerate(self.plan.strikes):
            if strike.side != side:
                continue
            if self._over.wait(max(0.0, self._began + strike.at - time.monotonic())):
                return
            self.say(f"{time.monotonic() - self._began:7.2f} s  {strike}")
            self._ledger.write("strike", number=number, **_fields(strike))
            try:
                self._apply(strike)
                self._over.wait(strike.seconds)
            except (RuntimeError, OSError) as error:
                # A busy server may not apply a fault in time: then there was another one, or none.
                self.say(f"{strike.kind} could not be done: {error}")
            finally:
                self._cure(strike)
                self._ledger.write("cured", number=number)

    def _apply(self, strike: Strike) -> None:
        assert self._network is not None
        if strike.kind in _NETWORK:
            self._network.apply(strike.kind, strike.side, strike.client)
        elif strike.side:
            self._brokers[strike.side].apply(strike.kind)
        elif strike.kind == CLIENT_KILL.name:
            self._clients[strike.client].kill()
        else:
            self._clients[strike.client].stop()

    def _cure(self, strike: Strike) -> None:
        assert self._network is not None
        if strike.kind in _NETWORK:
            self._network.cure(strike.kind, strike.side, strike.client)
        elif strike.side:
            self._brokers[strike.side].cure(strike.kind)
        else:
            self._clients[strike.client].start()

    # The end.

    def _heal(self) -> None:
        assert self._network is not None
        for side, broker in self._brokers.items():
            self._by_hand(side, broker.heal)
        self._network.heal()
        for client in self._clients.values():
            client.start()
        self._ledger.write("healed")
        self.say("everything is healed")

    def _drain(self) -> list[str]:
        """Wait until everything is as it should be; gives what is not."""
        patience = self.plan.settings.patience
        undrained = self._asked("quiet", time.monotonic() + patience)
        undrained += self._emptied(patience)
        undrained += self._asked("canary", time.monotonic() + patience)
        for client in self._clients.values():
            client.stop()
        undrained += self._emptied(_LOOK)
        for client in self._clients.values():
            client.close()
        self._ledger.write("drained", undrained=undrained)
        self.say("; ".join(undrained) or "everything is drained")
        return undrained

    def _asked(self, word: str, until: float) -> list[str]:
        problems: list[str] = []
        senders = [self._clients[name] for name in self.plan.clients]
        for client in senders:
            client.ask(word)
        for client in senders:
            answer = client.answer(word, until)
            if answer is None:
                problems.append(f"{client.name} did not answer {word!r}")
            elif word == "canary":
                problems += [
                    f"{client.name} says that {path} is {state}"
                    for path, state in answer["states"].items()
                    if state != "healthy"
                ]
        return problems

    def _emptied(self, patience: float) -> list[str]:
        """Wait, so long from the last progress, for empty backlog queues; returns those that are not."""
        fewest, ends_at = math.inf, 0.0
        while held := self._held():
            if sum(held.values()) < fewest:
                fewest, ends_at = sum(held.values()), time.monotonic() + patience
            elif time.monotonic() > ends_at:
                return [f"{path} holds {count} messages" for path, count in held.items()]
            time.sleep(_LOOK)
        return []

    def _held(self) -> dict[str, int]:
        """What the backlog queues hold, by the larger word of the server itself and of its transport."""
        broker = self._brokers["secondary"]
        try:
            pending_by_path = asyncio.run(pending(self.plan, broker.url))
        except TransportError as error:
            return {f"the secondary does not report what it holds ({error}), each queue of it": 1}
        counts: dict[str, Future[int]] = {
            path: self._hands["secondary"].submit(broker.count, path) for path in backlog_queues(self.plan)
        }
        held = {path: max(pending_by_path[path], count.result()) for path, count in counts.items()}
        return {path: count for path, count in held.items() if count}

    def _read(self, undrained: Sequence[str]) -> Found:
        primary, secondary = (self._brokers[side] for side in SIDES)
        counts = {path: self._hands["primary"].submit(primary.count, path).result() for path in ENTITIES}
        taken, found = asyncio.run(self._read_out(primary.url, secondary.url))
        differing = tuple(
            f"{path} held {counts[path]} messages by the server's own count, and {len(deliveries)} could be read"
            for path, deliveries in taken.items()
            if counts[path] != len(deliveries)
        )
        arrived = with_consumed(self.directory, taken)
        for path, messages in arrived.items():
            self._ledger.write("arrived", path=path, messages=[number_of(message) for message in messages])
        self._ledger.write("left", backlog=found.backlog, dead=found.dead)
        return replace(found, primary=arrived, undrained=(*undrained, *differing))

    async def _read_out(self, primary: str, secondary: str) -> tuple[dict[str, list[Delivery]], Found]:
        if self.journal is None:
            return await read_out(self.plan, primary, secondary)
        from pairmq.observe.journal import journal_deliveries, recover
        from pairmq.testing.chaos._journal import NotedJournal

        journal = NotedJournal(self.journal, self._ledger)

        def journalled(receiver: Receiver, source: Source) -> Receiver:
            return journal_deliveries(receiver, journal, source=source, pair=PAIR)

        try:
            return await read_out(self.plan, primary, secondary, journalled)
        finally:
            await asyncio.to_thread(journal.finish)
            # What the killed left becomes segments, so that the journal can be read as it stands.
            await asyncio.to_thread(recover, self.journal)


def _fields(strike: Strike) -> dict[str, object]:
    return {"fault": strike.kind, "seconds": strike.seconds, "side": strike.side, "client": strike.client}

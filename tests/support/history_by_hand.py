"""A history of a simulation, written by hand for the judge."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pairmq.core import Diversion, divert
from pairmq.model import Entity, EntityState, Message
from pairmq.model.events import Cause, StateChanged
from pairmq.testing.history import (
    CONFIRMED,
    Attempt,
    Copy,
    Handling,
    Handover,
    Life,
    Note,
    Result,
    Sent,
    WriteResult,
)
from pairmq.testing.judge import order_judged
from pairmq.testing.simulator import Fault, ProcessPlan, Scenario, SenderPlan, Setup, Violation
from pairmq.testing.simulator._history import Gap, History, Trouble
from pairmq.testing.simulator._judge import judged
from pairmq.testing.simulator._judge_pair import Facts

ORDERS = Entity("orders")
QUEUE = Entity("primary/x-servicebus-transfer/0")
OTHER = Entity("primary/x-servicebus-transfer/1")
LANE = Entity("primary/x-pairmq-lane/orders")
REFUSED = WriteResult(False, False, "refused", "not-found")
AWAY = WriteResult(False, False, "unavailable", "connection")


def instant(seconds: float) -> datetime:
    """An instant of the simulation's clock on the brokers' wall."""
    return datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) + timedelta(seconds=seconds)


class Book:
    """Writes a history, fact by fact; each takes a tenth of a second."""

    def __init__(self, **options: Any) -> None:
        setup = Setup(
            (ProcessPlan("a"), ProcessPlan("s", syphon=True)),
            (SenderPlan("a1", "a", "orders"),),
            ("orders",),
            {"backlog_queue_count": 2, "attempt_timeout": 1.0, "failover_interval": 1.0, **options},
        )
        self.history = History(Scenario(1, 3600.0, "safety", setup))
        self.history.ended_at = 3600.0
        self.at = 100.0
        self.lives = {
            "a/1": Life("a", 1, False, "", 0.0, 0.0, self.tick(), opened_at=0.0),
            "s/1": Life("s", 1, True, "", 0.0, 0.0, self.tick(), opened_at=0.0),
        }
        self.history.lives.extend(self.lives.values())

    def setup(self, **changes: Any) -> None:
        """Change who there is, before anything is written."""
        scenario = self.history.scenario
        self.history.scenario = replace(scenario, setup=replace(scenario.setup, **changes))

    def tick(self) -> int:
        self.at = round(self.at + 0.1, 3)
        return self.history.tick()

    def send(self, number: int = 1, timeout: float = 10.0, **fields: Any) -> Sent:
        message = Message(b"m%08d" % number, message_id=f"id-{number}", **fields)
        tick = self.tick()
        self.history.sent[number] = Sent(number, "a/1", "a1", ORDERS, message, self.at, tick, timeout)
        return self.history.sent[number]

    def end(self, sent: Sent, result: Result, *, duplicate: bool = False, queue: Entity | None = None) -> None:
        sent.end_tick = self.tick()
        sent.result, sent.ended_at, sent.maybe_duplicate = result, self.at, duplicate
        sent.queue = None if queue is None else queue.path

    def write(
        self,
        sent: Sent,
        result: WriteResult | None = CONFIRMED,
        *,
        to: Entity = ORDERS,
        by: str = "a/1",
        stored: bool | None = None,
        message: Message | None = None,
    ) -> Copy | None:
        """An attempt; it is stored if it is confirmed, unless told otherwise."""
        broker = "primary" if to == ORDERS else "secondary"
        syphon = by.startswith("s")
        attempt = Attempt(
            len(self.history.attempts), by, broker, to, syphon, (sent.number,), self.at + 0.1, self.tick()
        )
        self.history.attempts.append(attempt)
        copy = None
        if stored if stored is not None else result is CONFIRMED:
            form = message or sent.message
            if to != ORDERS and message is None:
                doubt = any(each.results and each.results[0].doubtful for each in self.history.attempts[:-1])
                form = divert(form, Diversion(ORDERS, instant(self.at), "sender", attempt.number, doubt))
            tick = self.tick()
            number = 1000 + len(self.history.copies)
            copy = Copy(number, sent.number, broker, to, form, attempt.number, self.at, tick)
            self.history.copies.append(copy)
        attempt.results = None if result is None else (result,)
        attempt.end_tick = self.tick()
        attempt.ended_at = self.at
        return copy

    def hand(self, copy: Copy, to: str = "s/1") -> None:
        tick = self.tick()
        copy.handovers.append(Handover(self.at, tick, to))

    def gone(self, copy: Copy, how: str = "completed", reason: str = "") -> None:
        copy.gone_tick = self.tick()
        copy.gone, copy.gone_at, copy.reason = how, self.at, reason

    def handle(self, copy: Copy, *, settled: bool = True, said: str = "", message: Message | None = None) -> None:
        """A consumer is given a copy, handles it and completes it."""
        tick = self.tick()
        position = f"{copy.number}.{len(copy.handovers)}"
        copy.handovers.append(Handover(self.at, tick, "a/1", True, position))
        assert copy.message_number is not None
        form = message or self.history.sent[copy.message_number].message
        tick, side = self.tick(), said or copy.broker
        handling = Handling(copy.message_number, ORDERS, "a/1", side, position, form, self.at, tick, settled)
        self.history.handlings.append(handling)
        if settled:
            self.gone(copy)
        handling.ended_at = self.at

    def note(self, life: str, kind: type, **fields: Any) -> None:
        tick = self.tick()
        self.history.notes.append(Note(self.at, tick, life, kind(at=self.at, pair="p", **fields)))

    def change(self, life: str, previous: str, current: str, cause: Cause, lasted: float = 1.0) -> None:
        # At the instant of the attempt that caused it.
        tick = self.history.tick()
        event = StateChanged(
            at=self.at,
            pair="p",
            entity=ORDERS,
            previous=EntityState(previous),
            current=EntityState(current),
            cause=cause,
            epoch=1,
            lasted=lasted,
        )
        self.history.notes.append(Note(self.at, tick, life, event))

    def trouble(
        self,
        operation: str = "settle",
        life: str = "s/1",
        result: WriteResult = AWAY,
        at: tuple[str, Entity] = ("secondary", QUEUE),
    ) -> None:
        tick = self.tick()
        self.history.troubles.append(Trouble(self.at, tick, life, at[0], at[1].path, operation, result))

    def stroke(self, kind: str, duration: float = 0.0, **where: str) -> None:
        tick = self.tick()
        self.history.strokes.append((self.at, tick, Fault(self.at, kind, duration, **where)))

    def gap(self, at: float, until: float | None = None) -> None:
        """A backlog queue is missing for a while."""
        self.history.gaps.append(Gap(at, "secondary", QUEUE, until=until))

    def violations(self) -> list[Violation]:
        return judged(self.history)

    def verdicts(self) -> list[str]:
        return [f"{each.verdict}: {each.text}" for each in self.violations()]

    def order_violations(self) -> list[Violation]:
        return list(order_judged(Facts(self.history)))

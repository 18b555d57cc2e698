"""A pen that writes the ledgers of a run by hand, and RabbitMQ servers kept for the whole run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairmq.model import Entity, Message
from pairmq.model.events import Event, MessageMoved
from pairmq.model.records import row_of
from pairmq.testing.chaos import Settings, planned
from pairmq.testing.chaos._books import Found, history_of
from pairmq.testing.chaos._ledger import CANARIES_OF_A_SENDER, first_canary, message_of
from pairmq.testing.chaos.report import judged
from pairmq.testing.history import CONFIRMED, WriteResult
from pairmq.testing.simulator import Violation
from pairmq_rabbitmq.testing import RabbitServer, pool

QUEUE = "chaos/x-servicebus-transfer/0"


class Pen:
    """Writes what the processes of a run would have written, a tenth of a second a line.

    ``client-a`` hosts the syphon, ``client-b`` sends to the queue orders.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.plan = planned(("redis", "redis"), Settings(), ((), ()))
        self.at = 1000.0
        self.primary: list[Message] = []
        self.backlog: dict[int, str] = {}
        self.dead: dict[int, str] = {}
        self.undrained: tuple[str, ...] = ()
        self._attempts = 0
        for name, syphon in (("client-a", True), ("client-b", False)):
            self.line(f"{name}-1", "life", process=name, number=1, syphon=syphon)
            self.line(f"{name}-1", "opened")

    def line(self, file: str, kind: str, **fields: Any) -> None:
        self.at += 0.1
        with (self.directory / f"{file}.jsonl").open("a") as ledger:
            ledger.write(json.dumps({"t": self.at, "k": kind, **fields}) + "\n")

    # What processes do.

    def send(self, number: int, timeout: float = 6.0) -> None:
        self.line("client-b-1", "send", messages=[number], sender="s", entity="orders", timeout=timeout)

    def reported(self, number: int, result: str, **more: Any) -> None:
        self.line("client-b-1", "reported", results=[{"number": number, "result": result, **more}])

    def write(
        self,
        number: int,
        result: WriteResult | None = CONFIRMED,
        to: str = "orders",
        life: str = "client-b-1",
        marked: bool = False,
        stored: int | None = None,
    ) -> None:
        """A write to a broker; ``stored`` copies of it are found at the primary, one where it was confirmed."""
        self._attempts += 1
        side = "primary" if to == "orders" else "secondary"
        fields = {"attempt": self._attempts, "broker": side, "path": to, "messages": [number], "marked": [marked]}
        self.line(life, "try", syphon=life.startswith("client-a"), **fields)
        if result is not None:
            self.line(life, "tried", attempt=self._attempts, results=[result])
        if side == "primary":
            copies = stored if stored is not None else int(result is CONFIRMED)
            self.stored(number, copies)

    def stored(self, number: int, copies: int = 1) -> None:
        """So many copies are found at the primary."""
        self.primary += [message_of(number)] * copies

    @staticmethod
    def canaries(client: int) -> range:
        """The numbers of the first canaries of a client's first life, one for each session."""
        first = first_canary(client, 1)
        return range(first, first + CANARIES_OF_A_SENDER)

    def accepted(self, number: int) -> None:
        self.send(number)
        self.write(number)
        self.reported(number, "accepted by the primary")

    def diverted(self, number: int, doubt: WriteResult | None = None) -> None:
        self.send(number)
        if doubt is not None:
            self.write(number, doubt, stored=1)
        self.write(number, to=QUEUE, marked=doubt is not None)
        self.reported(number, "accepted by a backlog queue", queue=QUEUE, duplicate=doubt is not None)

    def handed(self, number: int, count: int = 1, life: str = "client-a-1") -> None:
        self.line(life, "got", broker="secondary", path=QUEUE, messages=[(f"place-{number}", number, count)])

    def completed(self, number: int, how: str = "complete", life: str = "client-a-1") -> None:
        settled = {"broker": "secondary", "path": QUEUE, "how": how, "reason": ""}
        self.line(life, "settle", **settled, messages=[(f"place-{number}", number)])

    def moved(self, number: int, **flags: bool) -> None:
        said = {"maybe_duplicate": False, "redelivered": False, **flags}
        orders, message_id = Entity("orders"), f"id-{number}"
        event = MessageMoved(at=0.0, pair="p", queue=QUEUE, entity=orders, message_id=message_id, waited=1.0, **said)
        self.event("client-a-1", event)

    def event(self, life: str, event: Event) -> None:
        self.line(life, "event", event=row_of(event))

    def brought_home(self, number: int) -> None:
        self.handed(number)
        self.write(number, life="client-a-1")
        self.completed(number)
        self.moved(number)

    # What comes of it.

    def history(self) -> Any:
        return history_of(self.plan, self.directory, self._found())

    def violations(self) -> list[Violation]:
        self.line("run", "drained")
        return judged(self.history(), self._found())

    def _found(self) -> Found:
        return Found({"orders": self.primary, "invoices": []}, self.backlog, self.dead, self.undrained)


@pytest.fixture
def pen(tmp_path: Path) -> Pen:
    return Pen(tmp_path)


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()

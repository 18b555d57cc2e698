"""The demo of the outbox: a program writes orders and messages in transactions, and is killed; so is the broker.

The program is this module, run as one. At the end the rows that it has committed are compared with the messages that
have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, cast

from pairmq.cli._common import transport_of
from pairmq.cli._demo_servers import OwnServer
from pairmq.cli._output import FAIL, OK, note, put_json, say
from pairmq.cli._signals import Stop
from pairmq.cli._values import CommandFailed, plural
from pairmq.core import PairOptions
from pairmq.model import Entity, Message, Source, TransportError
from pairmq.pair import Pair
from pairmq.plugins import BrokerControl
from pairmq.runner import outbox_queue

_ORDERS = Entity("orders")
_TABLE = "CREATE TABLE pairmq_demo_orders (number integer PRIMARY KEY)"
_ROWS = "SELECT number FROM pairmq_demo_orders"
_ROLLED_BACK = 10  # of so many transactions one is
_SETTLED = 1.0  # s without a new message, after which none comes any more
_RETRY = 0.2  # s


@dataclass(frozen=True)
class OutboxPlan:
    """What is written, and where; ``messages`` includes those of transactions that are rolled back."""

    primary: str
    secondary: str
    messages: int
    rate: float
    backlog_queues: int


@dataclass(eq=False)
class OutboxRun:
    """One run; ``database`` is the secondary if it is a server of this run, else that is a file of SQLite."""

    plan: OutboxPlan
    options: PairOptions
    control: BrokerControl | OwnServer
    database: OwnServer | None
    _: KW_ONLY
    products: dict[str, str] | None
    json: bool
    _arrived: Counter[int] = field(default_factory=Counter, init=False)
    _last_arrival: float = field(default=0.0, init=False)

    async def run(self, stop: Stop) -> int:
        """Write, kill, and count. Raises `CommandFailed`."""
        plan = self.plan
        pair = Pair.connect(transport_of(plan.primary), transport_of(plan.secondary), options=self.options)
        await pair.primary.admin.create(_ORDERS)
        async with pair:
            await self._query(_TABLE, "GRANT SELECT, INSERT ON pairmq_demo_orders TO PUBLIC")
            reading = asyncio.create_task(self._read(pair))
            try:
                await self._write(stop)
                if not stop.asked:
                    await self._settle(pair, stop)
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
            rows = {number for (number,) in await self._query(_ROWS)}
        return self._judge(rows, stop)

    async def _write(self, stop: Stop) -> None:
        """Run the program to its end, through the death of the broker and its own."""
        whole = self.plan.messages
        moments: list[tuple[int, str, Callable[[], Any] | None]] = [
            (whole // 3, "the broker is killed: orders are written as before", self.control.stop),
            (whole // 2, "the program is killed, and started again", None),
            (2 * whole // 3, "the broker is started again: the syphon moves what waits", self.control.restore),
        ]
        done = 0
        while done < whole and not stop.asked:
            async with self._program() as program:
                async for number in _numbers(program, stop):
                    done = number
                    if moments and done >= moments[0][0]:
                        _, text, act = moments.pop(0)
                        note(f"{done} of {whole}: {text}")
                        if act is None:
                            break  # it is killed where it is
                        await act()
                else:
                    if done < whole and not stop.asked:
                        raise CommandFailed("the program that writes orders ended early: its error is above")
        for _, _, act in moments:  # after a signal: what follows asks the broker
            if act == self.control.restore:
                await act()

    @contextlib.asynccontextmanager
    async def _program(self) -> AsyncIterator[asyncio.subprocess.Process]:
        command = (sys.executable, "-m", "pairmq.cli._demo_outbox")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        try:
            cast(asyncio.StreamWriter, process.stdin).write(json.dumps(vars(self.plan)).encode() + b"\n")
            yield process
        finally:
            if process.returncode is None:
                # Not its own `kill`, which may collect the status of one that has just ended before the loop does.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    async def _read(self, pair: Pair) -> None:
        while True:
            try:
                async for delivery in pair.receiver(_ORDERS.path, prefetch=100):
                    self._arrived[int(delivery.body)] += 1
                    self._last_arrival = time.monotonic()
                    await delivery.complete()
            except TransportError:  # the broker is down
                await asyncio.sleep(_RETRY)

    async def _settle(self, pair: Pair, stop: Stop) -> None:
        """Wait until nothing waits in the outbox, and all that it held has arrived."""
        outbox = Source(outbox_queue(pair.primary))
        while not stop.asked:
            rows = {number for (number,) in await self._query(_ROWS)}
            with contextlib.suppress(TransportError):
                counts = await pair.secondary.admin.counts(outbox)
                quiet = time.monotonic() - self._last_arrival >= _SETTLED
                if not counts.pending and quiet and (rows <= self._arrived.keys() or quiet > 10 * _SETTLED):
                    return
            await stop.wait(_RETRY)

    async def _query(self, *statements: str) -> list[tuple[Any, ...]]:
        if self.database is not None:
            return await self.database.query(*statements)
        with contextlib.closing(sqlite3.connect(_file(self.plan.secondary), timeout=60)) as connection, connection:
            return connection.execute(statements[0]).fetchall()

    def _judge(self, rows: set[int], stop: Stop) -> int:
        arrived = self._arrived
        verdict = {
            "rows": len(rows),
            "messages": len(arrived),
            "lost": len(rows - arrived.keys()),
            "invented": len(arrived.keys() - rows),
            "copies": arrived.total() - len(arrived),
        }
        ok = not (verdict["lost"] or verdict["invented"]) and bool(rows)
        if self.json:
            more = {} if self.products is None else {"servers": self.products}
            put_json({"ok": ok, **verdict, "stopped": stop.asked, **more})
        else:
            say(f"{plural(verdict['rows'], 'row')} committed, {plural(verdict['messages'], 'message')} arrived")
            text = f"lost {verdict['lost']}, of no row {verdict['invented']}, second copies {verdict['copies']}"
            say(text, style=OK if ok else FAIL)
        return stop.exit_status if stop.asked else 0 if ok else 1


async def _numbers(program: asyncio.subprocess.Process, stop: Stop) -> AsyncIterator[int]:
    output = cast(asyncio.StreamReader, program.stdout)
    while line := await stop.or_result(output.readline()):
        yield int(line)


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite://").partition("?")[0])


def write_orders(plan: OutboxPlan) -> None:
    """The program: each order and its message are one transaction. One that was killed goes on after the last row."""
    from pairmq.sync import Pair as BlockingPair

    if plan.secondary.startswith("sqlite:"):
        connection: Any = sqlite3.connect(_file(plan.secondary), timeout=60)
        insert = "INSERT INTO pairmq_demo_orders VALUES (?)"
    else:
        # An application's own driver, which PairMQ itself does not need.
        connection = importlib.import_module("psycopg").connect(plan.secondary)
        insert = "INSERT INTO pairmq_demo_orders VALUES (%s)"
    options = PairOptions(backlog_queue_count=plan.backlog_queues, attempt_timeout=30.0)
    with BlockingPair.connect(plan.primary, plan.secondary, options=options) as pair:
        outbox = pair.outbox(_ORDERS.path)
        (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM pairmq_demo_orders").fetchone()
        connection.rollback()
        for number in range(last + 1, plan.messages + 1):
            connection.execute(insert, (number,))
            outbox.send(Message(str(number).encode()), connection=connection)
            if number % _ROLLED_BACK:
                connection.commit()
            else:
                connection.rollback()
            print(number, flush=True)
            time.sleep(1 / plan.rate)


if __name__ == "__main__":
    write_orders(OutboxPlan(**json.loads(sys.stdin.readline())))

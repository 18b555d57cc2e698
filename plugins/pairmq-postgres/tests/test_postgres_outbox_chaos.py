"""Money is moved between accounts, and mirrored by messages, while everything is killed; SQL alone judges.

200 kills, with the figures: .venv/bin/pytest --tier long -s plugins/pairmq-postgres/tests/test_postgres_outbox_chaos.py
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from pairmq import Entity, PairOptions
from pairmq.model import Source
from pairmq.sync import Pair
from pairmq.testing.servers import ServerProcess
from pairmq_postgres.testing import PostgresServer

pairmq_rabbitmq = pytest.importorskip("pairmq_rabbitmq.testing", reason="a primary: pip install pairmq-rabbitmq")
pairmq_redis = pytest.importorskip("pairmq_redis.testing", reason="a primary: pip install pairmq-redis")

pytestmark = pytest.mark.real_server

PROGRAM = Path(__file__).with_name("outbox_program.py")
PATIENCE = 300.0
ACCOUNTS = 8
TABLES = (
    "CREATE TABLE public.account (number int PRIMARY KEY, held bigint NOT NULL)",
    "CREATE TABLE public.mirror (number int PRIMARY KEY, held bigint NOT NULL)",
    "CREATE TABLE public.transfer (number uuid NOT NULL, giver int, taker int, amount bigint)",
    "CREATE TABLE public.applied (number uuid NOT NULL)",
    "INSERT INTO public.account SELECT n, 1000 FROM generate_series(0, 7) AS n",
    "INSERT INTO public.mirror SELECT n, 1000 FROM generate_series(0, 7) AS n",
    "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC",
)
WRONG = """
SELECT 'not applied', count(*) FROM public.transfer t WHERE NOT EXISTS (
    SELECT 1 FROM public.applied a WHERE a.number = t.number)
UNION ALL SELECT 'never committed', count(*) FROM public.applied a WHERE NOT EXISTS (
    SELECT 1 FROM public.transfer t WHERE a.number = t.number)
UNION ALL SELECT 'applied twice', count(*) - count(DISTINCT number) FROM public.applied
UNION ALL SELECT 'sums differ', count(*) FROM public.account a JOIN public.mirror m USING (number)
    WHERE a.held <> m.held
UNION ALL SELECT 'money made or lost', abs(sum(held) - 8000) FROM public.mirror
"""


class Program:
    """One of the programs, started again whenever it was killed."""

    def __init__(self, what: str, urls: tuple[str, str], log: Path) -> None:
        self._command = [sys.executable, str(PROGRAM), *urls, what]
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def kill_and_start(self) -> None:
        self.kill()
        self.start()


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"max_connections": "60"}) as server:  # with fsync
        server.query(*TABLES)
        yield server


@pytest.fixture
def broker(product: str) -> Iterator[ServerProcess]:
    made = pairmq_redis.RedisServer(appendfsync="always") if product == "redis" else pairmq_rabbitmq.RabbitServer()
    with made as server:
        yield server


def wrong(database: PostgresServer) -> dict[str, int]:
    return {what: int(count) for what, count in database.query(WRONG) if count}


@pytest.mark.timeout(3600)  # 200 kills take ten minutes and more on a busy machine
@pytest.mark.parametrize(
    ("product", "kills"),
    [
        ("redis", 15),
        pytest.param("redis", 200, marks=pytest.mark.long),
        pytest.param("rabbitmq", 200, marks=pytest.mark.long),
    ],
)
def test_every_committed_transfer_is_applied_once_when_everything_is_killed(
    database, broker, tmp_path, product: str, kills: int
):
    chance = random.Random(int(os.environ.get("PAIRMQ_TEST_SEED", "7")))
    urls = (broker.url, f"{database.url}?connect_timeout=30&poll_interval=0.2")
    options = PairOptions(backlog_queue_count=1, attempt_timeout=30.0)
    with Pair.connect(*urls, options=options) as pair:
        pair.primary.admin.create(Entity("orders"))
    with contextlib.ExitStack() as stack:
        names = ("transfer", "syphon", "apply", "apply")
        programs = [Program(what, urls, tmp_path / f"{what}.log") for what in names]
        for program in programs:
            stack.callback(program.kill)
        victims: list[tuple[str, Callable[[], None]]] = [
            *((name, program.kill_and_start) for name, program in zip(names, programs, strict=True)),
            (product, lambda: restarted(broker)),
            ("postgresql", lambda: restarted(database)),
        ]
        killed: Counter[str] = Counter()
        for _ in range(kills):
            before = transfers(database)
            time.sleep(chance.uniform(0.1, 1.5))
            until(lambda least=before + 3: transfers(database) > least, "no transfer is committed")
            name, kill = chance.choice(victims)
            kill()
            killed[name] += 1
        programs[0].kill()
        count = transfers(database)
        until(lambda: not wrong(database), lambda: f"after {count} transfers: {wrong(database)}")
        with Pair.connect(*urls, options=options) as pair:  # what was never committed, too
            until(lambda: not left(pair), "messages are left")
    print(f"kills {dict(killed)}, committed transfers {count}")
    assert wrong(database) == {}
    assert count > 3 * kills


def left(pair: Pair) -> int:
    """Messages that have not been consumed."""
    assert pair.outbox_queue is not None
    outbox, orders = (Source(queue) for queue in (pair.outbox_queue, Entity("orders")))
    return (pair.secondary.admin.counts(outbox).pending or 0) + (pair.primary.admin.counts(orders).pending or 0)


def restarted(server) -> None:
    server.kill()
    server.start()


def transfers(database: PostgresServer) -> int:
    ((count,),) = database.query("SELECT count(*) FROM public.transfer")
    return count


def until(condition: Callable[[], bool], text: str | Callable[[], str]) -> None:
    ends_at = time.monotonic() + PATIENCE
    while time.monotonic() < ends_at:
        with contextlib.suppress(psycopg.Error):
            if condition():
                return
        time.sleep(0.2)
    raise AssertionError(text if isinstance(text, str) else text())

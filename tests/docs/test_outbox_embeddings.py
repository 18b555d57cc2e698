"""The examples of the outbox run side by side on one PostgreSQL; RabbitMQ is killed in the middle and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from pairmq import Entity
from pairmq.sync import Pair
from pairmq.testing.servers import free_port
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.testing import RabbitServer

EXAMPLES = Path(__file__).parents[2] / "docs/how-to/examples"
BILLS = 30

pytestmark = pytest.mark.real_server


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer(settings={"fsync": "off"}) as server:
        server.query(
            "CREATE TABLE public.orders (number integer PRIMARY KEY)",
            "GRANT SELECT, INSERT ON public.orders TO PUBLIC",
        )
        yield server


def test_each_embedding_sends_what_its_transactions_commit_while_rabbitmq_is_killed(
    rabbit: RabbitServer, postgres: PostgresServer
):
    environment = os.environ | {
        "PAIRMQ_PRIMARY": rabbit.url,
        "PAIRMQ_SECONDARY": postgres.url,
        "PAIRMQ_ATTEMPT_TIMEOUT": "30s",
    }

    @contextmanager
    def running(*command: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, *command], cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def celery(*numbers: int) -> str:
        command = [sys.executable, "outbox_celery.py", *map(str, numbers)]
        done = subprocess.run(
            command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    options = {"attempt_timeout": 30, "ping_primary_interval": 0.5, "enable_syphon": True}
    with Pair.connect(rabbit.url, postgres.url, **options) as pair, ExitStack() as ended:
        pair.primary.admin.create(Entity("orders"))
        first, second = free_port(), free_port()
        uvicorn = ("-m", "uvicorn", "outbox_fastapi:app", "--log-level", "warning", "--port", str(first))
        for command in (uvicorn, ("outbox_django.py", "runserver", "--noreload", str(second))):
            ended.enter_context(running(*command))
        clients = [ended.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=100))
                   for port in (first, second)]  # fmt: skip
        faststream = ended.enter_context(running("outbox_faststream.py", str(BILLS)))
        assert faststream.stdout is not None

        placed = [celery(1000, 1001)]
        for index, client in enumerate(clients):
            until(lambda client=client: answers(client))
            assert [place(client, 2000 + 100 * index + number) for number in (0, 1, 1)] == [201, 201, 409]
        for line in faststream.stdout:
            if line.startswith("order"):
                rabbit.kill()
                break
        placed.append(celery(1001, 1002))
        for index, client in enumerate(clients):
            assert [place(client, 2000 + 100 * index + number) for number in (2, 2, 3)] == [201, 409, 201]
        rabbit.start()

        assert f"all {BILLS} bills are there" in faststream.stdout.read()
        orders = [2000, 2001, 2002, 2003, 2100, 2101, 2102, 2103]
        assert sorted(arrived(pair, "orders", len(orders))) == orders
        assert len(arrived(pair, "celery", 3)) == 3
        assert "".join(placed) == "order 1001: there is such an order, and no task was sent\n"
        rows = [number for (number,) in postgres.query("SELECT number FROM public.orders ORDER BY number")]
        assert rows == [*range(BILLS), 1000, 1001, 1002, *orders]


def place(client: httpx.Client, number: int) -> int:
    return client.post(f"/orders/{number}").status_code


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code == 404
    except httpx.TransportError:
        return False  # not up yet


def arrived(pair: Pair, queue: str, count: int) -> set[int]:
    """The numbers of so many orders from a queue; a copy, which the kill may leave, has the same message id."""
    found: dict[str | None, bytes] = {}

    def all_found() -> bool:
        with pair.receiver(queue) as receiver:
            for delivery in receiver.receive(50, wait=0.5):
                found[delivery.message.message_id] = delivery.body
                delivery.complete()
        return len(found) >= count

    until(all_found)
    assert not Counter(found.values()).most_common(1)[0][1] > 1
    return {int(body) if body.isdigit() else index for index, body in enumerate(found.values())}


def until(condition: Callable[[], bool]) -> None:
    """Wait, for as long as the test may take."""
    while not condition():
        time.sleep(0.1)

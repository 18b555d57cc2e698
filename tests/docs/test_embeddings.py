"""The examples of the embeddings, run as a reader runs them; RabbitMQ is killed in the middle and started again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from pairmq import Entity
from pairmq.sync import Pair
from pairmq.testing.servers import free_port
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

EXAMPLES = Path(__file__).parents[2] / "docs/how-to/examples"
KILL_AT, DIVERTED, ORDERS = 20, 20, 160

pytestmark = pytest.mark.real_server


@contextmanager
def running(*command: str, rabbit: RabbitServer, redis: RedisServer) -> Iterator[subprocess.Popen[str]]:
    """A program beside the examples, with the brokers in its environment."""
    environment = os.environ | {
        "PAIRMQ_PRIMARY": rabbit.url,
        "PAIRMQ_SECONDARY": redis.url,
        "PAIRMQ_FAILOVER_INTERVAL": "1s",
        "PAIRMQ_PING_PRIMARY_INTERVAL": "1s",
        "PAIRMQ_BACKLOG_RETRY_INTERVAL": "1s",
        "PAIRMQ_ENABLE_SYPHON": "true",
    }
    process = subprocess.Popen(
        [sys.executable, *command], cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def through_an_outage(process: subprocess.Popen[str], rabbit: RabbitServer) -> list[str]:
    """Read what a program prints to its end; RabbitMQ dies when it has placed some orders, and comes back later.

    That is when some orders were diverted: how many it has placed before it feels the kill is chance.
    """
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(f"order {KILL_AT}:"):
            rabbit.kill()
        if line.startswith("order") and diverted(lines) == DIVERTED:
            rabbit.start()
    assert process.wait(60) == 0
    return lines


def diverted(lines: list[str]) -> int:
    return sum(line.startswith("order") and line.endswith(": backlog") for line in lines)


def test_orders_published_by_aio_pika_arrive_though_rabbitmq_is_killed(rabbit: RabbitServer, redis: RedisServer):
    program = ("aio_pika_orders.py", rabbit.url, redis.url, str(ORDERS))
    with running(*program, rabbit=rabbit, redis=redis) as process:
        lines = through_an_outage(process, rabbit)
    assert lines[0] == "order 0: primary"
    assert diverted(lines) >= DIVERTED
    assert lines[-1] == f"all {ORDERS} orders have arrived"


@pytest.mark.long
def test_a_faststream_app_bills_every_order_though_rabbitmq_is_killed(rabbit: RabbitServer, redis: RedisServer):
    with running("faststream_orders.py", str(ORDERS), rabbit=rabbit, redis=redis) as process:
        lines = [line for line in through_an_outage(process, rabbit) if line.startswith(("order", "all"))]
    assert lines[0] == "order 0: primary"
    assert diverted(lines) >= DIVERTED
    assert f"all {ORDERS} bills are there" in lines


@pytest.mark.long
def test_a_fastapi_application_takes_orders_though_rabbitmq_is_killed(rabbit: RabbitServer, redis: RedisServer):
    port = free_port()
    command = ("-m", "uvicorn", "fastapi_orders:app", "--port", str(port), "--log-level", "warning")
    with running(*command, rabbit=rabbit, redis=redis):
        take_orders(f"http://127.0.0.1:{port}", rabbit, redis)


@pytest.mark.long
def test_a_django_project_takes_orders_though_rabbitmq_is_killed(rabbit: RabbitServer, redis: RedisServer):
    port = free_port()
    command = ("django_orders.py", "runserver", "--noreload", str(port))
    with running(*command, rabbit=rabbit, redis=redis):
        take_orders(f"http://127.0.0.1:{port}", rabbit, redis)


def take_orders(url: str, rabbit: RabbitServer, redis: RedisServer) -> None:
    """Place orders through an outage and find all of them; the application is ready until both brokers are dead."""
    with Pair.connect(rabbit.url, redis.url) as pair, httpx.Client(base_url=url, timeout=60) as client:
        pair.primary.admin.create(Entity("orders"))
        until(lambda: status(client) == 200)
        routes = [place(client, number) for number in range(10)]
        rabbit.kill()
        routes += [place(client, number) for number in range(10, 20)]
        assert client.get("/ready").json()["entities"][0]["route"] == "backlog"
        rabbit.start()
        until(lambda: status(client) == 200 and place(client, 20) == "primary")
        assert routes == ["primary"] * 10 + ["backlog"] * 10
        found: set[int] = set()

        def all_found() -> bool:
            with pair.receiver("orders", prefetch=50) as receiver:
                for delivery in receiver.receive(50, wait=1):
                    found.add(int(delivery.body))
                    delivery.complete()
            return len(found) == 21

        until(all_found)
        redis.kill()
        rabbit.kill()
        assert status(client) == 503


def place(client: httpx.Client, number: int) -> str:
    answer = client.post(f"/orders/{number}")
    assert answer.status_code in (202, 503), answer.text
    return answer.text.strip('"')


def status(client: httpx.Client) -> int:
    try:
        return client.get("/ready").status_code
    except httpx.TransportError:
        return 0  # not up yet


def until(condition: Callable[[], bool]) -> None:
    """Wait, for as long as the test may take."""
    while not condition():
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("page", "example"),
    [
        ("use-with-aio-pika.md", "aio_pika_orders.py"),
        ("use-with-faststream.md", "faststream_orders.py"),
        ("use-with-fastapi-and-django.md", "fastapi_orders.py"),
        ("use-with-fastapi-and-django.md", "django_orders.py"),
    ],
)
def test_the_page_prints_the_example_that_runs(page: str, example: str):
    printed = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / page).read_text(), re.DOTALL)
    assert (EXAMPLES / example).read_text() in printed

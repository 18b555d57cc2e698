"""A file through two kills of a primary and one of the syphon, by the programs that users run.

The reader at the end is not ours: pika, or Azure's own client, takes everything out of the primary's queue.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

LINES = int(os.environ.get("PAIRMQ_TEST_KILLS_LINES", "5000"))
PATIENCE = 120 + LINES / 100  # s
PACE = min(1000.0, LINES / 10)  # lines a second; a short file, too, lasts longer than a server takes to start

QUICK = ["--ping-interval=500ms", "--attempt-timeout=2s", "--backlog-queues=4"]
SHORT = [*QUICK, "--failover-interval=1s", "--send-timeout=30s"]


def start(*arguments: str, log: Path, stdin: int | None = None) -> subprocess.Popen[bytes]:
    with log.open("ab") as stderr:
        return subprocess.Popen([sys.executable, *arguments], stdin=stdin, stderr=stderr)


def feed(process: subprocess.Popen[bytes], file: Path) -> threading.Thread:
    """Hand a file to a program's standard input at a steady pace, so that every outage falls into the traffic."""

    def write() -> None:
        lines = file.read_bytes().splitlines(keepends=True)
        started = time.monotonic()
        with process.stdin as pipe:
            for position in range(0, len(lines), 20):
                pipe.writelines(lines[position : position + 20])
                pipe.flush()
                time.sleep(max(0.0, started + position / PACE - time.monotonic()))

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def until(condition: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends_at, f"not in {PATIENCE} s: {what}"
        time.sleep(0.02)


def counted(server: RabbitServer | ServiceBusServer, queue: str) -> int:
    """How many messages wait in a queue."""
    if isinstance(server, RabbitServer):
        return server.queues()[queue][0]
    return server.count(queue)


def drained(server: RabbitServer | ServiceBusServer, queue: str) -> list[str]:
    """The ids of what a foreign reader gets out of a queue."""
    found: list[str] = []
    # That nothing has come in time says little of a server that was slow.
    while counted(server, queue):
        if isinstance(server, RabbitServer):
            found += drained_by_pika(server.url, queue)
        else:
            found += drained_by_azure(server.connection_string, queue)
    return found


def drained_by_pika(url: str, queue: str) -> list[str]:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    found = []
    for method, properties, _ in connection.channel().consume(queue, auto_ack=True, inactivity_timeout=1.0):
        if method is None:
            break
        found.append(properties.message_id)
    connection.close()
    return found


def drained_by_azure(connection_string: str, queue: str) -> list[str]:
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    found = []
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(queue, receive_mode=mode) as receiver,
    ):
        while batch := receiver.receive_messages(1000, max_wait_time=2):
            found += [message.message_id for message in batch]
    return found


@pytest.fixture(
    params=[
        pytest.param("rabbitmq-redis", marks=pytest.mark.long),
        *(pytest.param(f"{each}-{each}", marks=pytest.mark.long) for each in ("rabbitmq", "servicebus")),
    ]
)
def brokers(
    request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]
) -> Iterator[tuple[RabbitServer | ServiceBusServer, str]]:
    """The primary, and the URL of a secondary of the same product or of another one."""
    if request.param == "rabbitmq-rabbitmq":
        east, west = rabbit_servers(2)
        yield east, west.url
    elif request.param == "rabbitmq-redis":
        with RedisServer() as redis:
            yield rabbit_servers(1)[0], redis.url
    else:
        with ServiceBusServer() as east_bus, ServiceBusServer() as west_bus:
            yield east_bus, west_bus.url


@pytest.mark.timeout(2 * PATIENCE)
def test_nothing_is_lost_when_the_primary_is_killed_twice_and_the_syphon_once(
    brokers: tuple[RabbitServer | ServiceBusServer, str], tmp_path: Path
) -> None:
    primary, secondary = brokers
    urls = ["--primary", primary.url, "--secondary", secondary]
    (tmp_path / "in.txt").write_text("".join(f"order {n} für Käufer {n * 7919 % 1000}\n" for n in range(LINES)))
    receipts, doubts = tmp_path / "receipts.jsonl", tmp_path / "doubts.txt"
    send = start(
        *("-m", "pairmq", "send", "--entity=orders", "--create", "--input", "-"),
        *("--id-prefix=line", "--receipts", str(receipts), *urls, *SHORT),
        log=tmp_path / "send.log",
        stdin=subprocess.PIPE,
    )
    feed(send, tmp_path / "in.txt")
    program = str(Path(__file__).with_name("syphon_program.py"))
    syphon_program = [program, str(doubts), *urls, *QUICK, "--receive-wait=2s"]
    syphon = start(*syphon_program, log=tmp_path / "syphon.log")
    try:
        for share in (0.2, 0.6):
            until(lambda share=share: count_lines(receipts) >= LINES * share, f"{share:.0%} are sent")
            primary.kill()
            until(lambda share=share: count_lines(receipts) >= LINES * (share + 0.1), "the backlog takes over")
            primary.start()
        until(lambda: counted(primary, "orders") > LINES // 2, "the drain has begun")
        syphon.kill()
        syphon.wait()
        syphon = start(*syphon_program, log=tmp_path / "syphon.log")
        assert send.wait(PATIENCE) == 0, (tmp_path / "send.log").read_text()
        # A program that has not come to its handlers yet ends by the signal below, and not as it should.
        until(lambda: (tmp_path / "syphon.log").read_text().count("syphon: ") == 2, "the second syphon is at work")
        drain = start(*syphon_program, "--until-empty", log=tmp_path / "drain.log")
        assert drain.wait(PATIENCE) == 0, (tmp_path / "drain.log").read_text()
        syphon.send_signal(signal.SIGTERM)
        assert syphon.wait(20) == 0, (tmp_path / "syphon.log").read_text()
    finally:
        for process in (send, syphon):
            if process.poll() is None:
                process.kill()
                process.wait()

    copies = Counter(drained(primary, "orders"))
    assert set(copies) == {f"line-{n + 1}" for n in range(LINES)}
    sent = [json.loads(line) for line in receipts.read_text().splitlines()]
    assert len(sent) == LINES
    assert {entry["route"] for entry in sent} == {"primary", "backlog"}
    # A second copy only where a receipt says so, or a syphon: of what it had in hand when it or the primary was killed.
    explained = {entry["message_id"] for entry in sent if entry["maybe_duplicate"]} | set(doubts.read_text().split())
    assert {message_id for message_id, count in copies.items() if count > 1} <= explained

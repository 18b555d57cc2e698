"""Order of sessions through a killed primary and a killed syphon, on real servers (SPEC 8)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions, Receipt, Route, SendError
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import QueueProperties
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

SESSIONS = [f"session-{number}" for number in range(8)]
PATIENCE = 120.0  # s
OPTIONS = PairOptions(
    ordering="session",
    failover_interval=0.5,
    ping_primary_interval=0.3,
    attempt_timeout=2.0,
    send_timeout=60.0,
    backlog_queue_count=2,
    backlog_name_template="backlog/{index}",
    backlog_retry_interval=1.0,
)


@pytest.fixture(params=["redis-redis", pytest.param("rabbitmq-redis", marks=pytest.mark.long)])
def brokers(
    request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]
) -> Iterator[tuple[RabbitServer | RedisServer, RedisServer]]:
    with RedisServer() as west:
        if request.param == "redis-redis":
            with RedisServer() as east:
                yield east, west
        else:
            yield rabbit_servers(1)[0], west


class Traffic:
    """One task a session, which sends one message after another and notes each receipt as it comes."""

    def __init__(self, pair: Pair) -> None:
        self.receipts: dict[str, list[Receipt]] = {session: [] for session in SESSIONS}
        self._going_on = True
        sender = pair.sender("orders")
        self._tasks = [asyncio.create_task(self._send(sender, session)) for session in SESSIONS]

    async def _send(self, sender: Any, session: str) -> None:
        number = 0
        while self._going_on:
            number += 1
            message = Message(f"{session} {number}".encode(), session_id=session, message_id=f"{session}/{number}")
            with contextlib.suppress(SendError):
                self.receipts[session].append(await sender.send(message))
            await asyncio.sleep(0.002)

    def latest(self, route: Route) -> bool:
        """Whether the last receipt of every session is of one route."""
        return all(got and got[-1].route is route for got in self.receipts.values())

    def diverted(self) -> int:
        return sum(each.route is Route.BACKLOG for got in self.receipts.values() for each in got)

    async def stop(self) -> None:
        self._going_on = False
        await asyncio.gather(*self._tasks)


async def until(condition: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


@asynccontextmanager
async def syphon(primary: str, secondary: str, log: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pairmq.cli", "syphon", "--primary", primary, "--secondary", secondary]
    command += ["--backlog-queues", "2", "--backlog-name-template", "backlog/{index}", "--ordering", "session"]
    command += ["--attempt-timeout", "1s", "--ping-interval", "300ms"]
    with log.open("ab") as stderr:
        process = subprocess.Popen([*command, "--receive-wait", "2s"], stdout=stderr, stderr=stderr)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def first_copies(pair: Pair) -> dict[str, list[str]]:
    """The message ids of each session in the order in which their first copies stand in the primary."""
    found: dict[str, list[str]] = {session: [] for session in SESSIONS}
    async with pair.receiver("orders", prefetch=500) as receiver:
        while deliveries := await receiver.receive(500, 2.0):
            for delivery in deliveries:
                message = delivery.message
                ids = found[message.session_id or ""]
                if message.message_id not in ids:
                    ids.append(message.message_id or "")
                await delivery.complete()
    return found


@pytest.mark.timeout(3 * PATIENCE)
async def test_sessions_keep_their_order_when_the_primary_and_the_syphon_are_killed(
    brokers: tuple[RabbitServer | RedisServer, RedisServer],
    hands: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    east, west = brokers
    log = tmp_path / "syphon.log"
    await make_queues(west.url)
    async with Pair.connect(east.url, west.url, options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        traffic = Traffic(pair)
        await until(lambda: traffic.latest(Route.PRIMARY), "every session sends")
        await hands(east.kill)
        await until(lambda: traffic.latest(Route.BACKLOG) and traffic.diverted() > 500, "every session diverts")
        await hands(east.restart)
        async with syphon(east.url, west.url, log) as first:
            before = await backlog(pair)
            await until_async(lambda: backlog(pair), lambda left: left < before - 50, "the syphon works")
            first.kill()
        # The locks of the killed syphon go on for a while: the second one must not pass what they hold.
        async with syphon(east.url, west.url, log):
            await until(lambda: traffic.latest(Route.PRIMARY), "every session is back at the primary")
            await traffic.stop()
            assert await backlog(pair) == 0
            copies = await first_copies(pair)
    for session, receipts in traffic.receipts.items():
        wanted = [receipt.message_id for receipt in receipts]
        assert {Route.PRIMARY, Route.BACKLOG} == {receipt.route for receipt in receipts}
        known = set(wanted)
        assert [each for each in copies[session] if each in known] == wanted, session


async def make_queues(url: str) -> None:
    """Make the backlog queues with locks so short that a test can wait for the end of those of a killed syphon."""
    transport = registry.transport(url)
    for index in range(2):
        properties = QueueProperties(lock_duration=4.0, max_delivery_count=None, single_consumer=True)
        await transport.admin.create(Entity(f"backlog/{index}"), properties)
    await transport.close()


async def backlog(pair: Pair) -> int:
    counts = [await pair.secondary.admin.counts(Source(queue)) for queue in pair.backlog_queues]
    return sum(each.pending for each in counts)


async def until_async(ask: Callable[[], Awaitable[int]], enough: Callable[[int], bool], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not enough(await ask()):
            await asyncio.sleep(0.02)

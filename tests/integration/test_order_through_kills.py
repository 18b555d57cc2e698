"""Order of sessions through a killed primary, syphon and secondary, on real servers (SPEC 8)."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pairmq import Entity, Message, Pair, PairOptions, Receipt, Route, SendError
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.transport import QueueProperties
from pairmq_rabbitmq.testing import RabbitCluster, RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = [
    pytest.mark.real_server,
    # Azure's client forgets sockets of connections that failed while they were opened, of which nobody else knows.
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <(socket|function StreamWriter|function _SelectorTransport)"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]

Server = RabbitServer | RedisServer | ServiceBusServer

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


LOCAL = {"redis": RedisServer, "servicebus": ServiceBusServer}


@pytest.fixture(
    params=[
        "redis-redis",
        "redis-rabbitmq",
        "redis-servicebus",
        pytest.param("rabbitmq-redis", marks=pytest.mark.long),
        pytest.param("rabbitmq-rabbitmq", marks=pytest.mark.long),
        pytest.param("servicebus-servicebus", marks=pytest.mark.long),
        pytest.param("servicebus-redis", marks=pytest.mark.long),
    ]
)
def brokers(
    request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]
) -> Iterator[tuple[Server, Server]]:
    products = request.param.split("-")
    kept = iter(rabbit_servers(products.count("rabbitmq")) if "rabbitmq" in products else ())
    with ExitStack() as fresh:
        east, west = (
            next(kept) if product == "rabbitmq" else fresh.enter_context(LOCAL[product]()) for product in products
        )
        yield east, west


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
            await asyncio.sleep(0.01)  # more would only compete with the drain

    def latest(self, route: Route) -> bool:
        """Whether the last receipt of every session is of one route."""
        return all(got and got[-1].route is route for got in self.receipts.values())

    def diverted(self) -> int:
        return sum(each.route is Route.BACKLOG for got in self.receipts.values() for each in got)

    async def stop(self) -> None:
        self._going_on = False
        await asyncio.gather(*self._tasks)


async def until(condition: Callable[[], bool], what: str) -> None:
    async def ask() -> bool:
        return condition()

    await until_asked(ask, bool, what)


async def until_asked(ask: Callable[[], Awaitable[int]], enough: Callable[[int], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not enough(await ask()):
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not within {PATIENCE:g} s: {what}")


@asynccontextmanager
async def syphon(primary: str, secondary: str, log: Path) -> AsyncIterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pairmq", "syphon", "--primary", primary, "--secondary", secondary]
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
    # The transport's own receiver: nothing that a busy machine delays is cut off, and redelivered later.
    receiver, empty = pair.primary.receiver(Source(Entity("orders"))), 0
    while empty < 2:
        deliveries = await receiver.receive(500, 2.0)
        for delivery in deliveries:
            ids = found[delivery.message.session_id or ""]
            if delivery.message.message_id not in ids:
                ids.append(delivery.message.message_id or "")
        assert not any(await receiver.complete_batch(deliveries))
        # That nothing has come in time says little of a server that was slow.
        empty = 0 if deliveries or await at_primary(pair) else empty + 1
    await receiver.close()
    return found


@asynccontextmanager
async def diverting(
    east: Server, west: Server | RabbitCluster, hands: Callable[..., Awaitable[Any]]
) -> AsyncIterator[tuple[Pair, Traffic]]:
    """Sessions whose messages all go to the backlog, of a primary that was killed and has come back."""
    await make_queues(west.url)
    async with Pair.connect(east.url, west.url, options=OPTIONS) as pair:
        await pair.primary.admin.create(Entity("orders"))
        traffic = Traffic(pair)
        # Not all to the primary: a stall of a busy machine may divert some, and no syphon runs yet.
        await until(lambda: all(traffic.receipts.values()), "every session sends")
        await hands(east.kill)
        await until(lambda: traffic.latest(Route.BACKLOG) and traffic.diverted() > 500, "every session diverts")
        await hands(east.restart)
        yield pair, traffic


@pytest.mark.timeout(3 * PATIENCE)
async def test_sessions_keep_their_order_when_the_primary_and_the_syphon_are_killed(
    brokers: tuple[Server, Server],
    hands: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    east, west = brokers
    log = tmp_path / "syphon.log"
    async with diverting(east, west, hands) as (pair, traffic):
        async with syphon(east.url, west.url, log) as first:
            await some_moved_back(pair)
            first.kill()
        # The locks of the killed syphon may go on for a while: the second one must not pass what they hold.
        async with syphon(east.url, west.url, log):
            copies = await all_moved_back(pair, traffic)
    judge(traffic, copies)


@pytest.mark.long
@pytest.mark.timeout(3 * PATIENCE)
async def test_sessions_keep_their_order_when_the_secondary_is_killed_in_mid_drain(
    brokers: tuple[Server, Server],
    hands: Callable[..., Awaitable[Any]],
    tmp_path: Path,
) -> None:
    east, west = brokers
    async with (
        diverting(east, west, hands) as (pair, traffic),
        syphon(east.url, west.url, tmp_path / "syphon.log"),
    ):
        await some_moved_back(pair)
        await hands(west.kill)
        await hands(west.restart)
        copies = await all_moved_back(pair, traffic)
    judge(traffic, copies)


@pytest.mark.timeout(3 * PATIENCE)
async def test_sessions_keep_their_order_when_nodes_of_the_secondary_are_killed(
    hands: Callable[..., Awaitable[Any]], tmp_path: Path
) -> None:
    with RedisServer() as east, RabbitCluster(net_ticktime=8) as west:

        async def kill_the_node_of(queue: str) -> None:
            node = await hands(west.leader_of, queue)
            await hands(node.kill)

        async with diverting(east, west, hands) as (pair, traffic):
            await kill_the_node_of("backlog/0")
            diverted = traffic.diverted()
            await until(lambda: traffic.diverted() > diverted + 100, "sessions divert again")
            await hands(west.start)
            async with syphon(east.url, west.url, tmp_path / "syphon.log"):
                await some_moved_back(pair)
                await kill_the_node_of("backlog/1")
                copies = await all_moved_back(pair, traffic)
        judge(traffic, copies)


async def some_moved_back(pair: Pair) -> None:
    before = await at_primary(pair)
    await until_asked(lambda: at_primary(pair), lambda there: there > before + 50, "the syphon works")


async def all_moved_back(pair: Pair, traffic: Traffic) -> dict[str, list[str]]:
    """End the traffic when every session sends to the primary again; gives the first copies there."""
    await until(lambda: traffic.latest(Route.PRIMARY), "every session is back at the primary")
    await traffic.stop()
    # A look of the last send may still be on its way through a queue of RabbitMQ.
    await until_asked(lambda: backlog(pair), lambda left: left == 0, "the backlog is empty")
    return await first_copies(pair)


def judge(traffic: Traffic, copies: dict[str, list[str]]) -> None:
    """Compare the order of receipts with that of first copies."""
    for session, receipts in traffic.receipts.items():
        wanted = [receipt.message_id for receipt in receipts]
        assert {Route.PRIMARY, Route.BACKLOG} == {receipt.route for receipt in receipts}
        known = set(wanted)
        assert [each for each in copies[session] if each in known] == wanted, session


async def make_queues(url: str) -> None:
    """Make the backlog queues with locks so short that a test can wait for the end of those of a killed syphon."""
    transport = registry.transport(url)
    for index in range(2):
        properties = QueueProperties(lock_duration=5.0, max_delivery_count=None, single_consumer=True)
        await transport.admin.create(Entity(f"backlog/{index}"), properties)
    await transport.close()


async def at_primary(pair: Pair) -> int:
    return (await pair.primary.admin.counts(Source(Entity("orders")))).pending


async def backlog(pair: Pair) -> int:
    counts = [await pair.secondary.admin.counts(Source(queue)) for queue in pair.backlog_queues]
    return sum(each.pending for each in counts)

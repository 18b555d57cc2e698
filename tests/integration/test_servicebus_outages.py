"""A whole pair through everything that can happen to a Service Bus namespace, one named test each.

The namespaces are local servers, each a process of its own with its data on disk; the queue is read at the end by
Azure's own client, which knows nothing of PairMQ.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

from outage_traffic import DOWN, QUEUE, Hands, Traffic, traffic, until
from pairmq import (
    EntityNotFound,
    MessageTooLarge,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    Unauthorized,
)
from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.model.events import AttemptFailed, StateChanged
from pairmq.testing import TcpProxy
from pairmq_rabbitmq.testing import RabbitServer
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


@pytest.fixture(autouse=True)
def _swept() -> Iterator[None]:
    """Collect what the client has left behind here, and not under a test that has nothing to do with it."""
    yield
    gc.collect()


# The client needs half a second for each link that it opens, and looks at what happened every tenth of one.
# On a busy machine, beside a primary that is silent, it has taken more than two seconds to open those to the backlog.
LIMITS: dict[str, Any] = {"attempt_timeout": 5.0, "ping_timeout": 5.0, "send_timeout": 15.0}
TIMEOUTS = (15.0, 0.7, 15.0, 5.0)


@dataclass
class Brokers:
    primary: ServiceBusServer
    secondary: ServiceBusServer | RedisServer | RabbitServer


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[ServiceBusServer, ServiceBusServer]]:
    with ServiceBusServer() as east, ServiceBusServer() as west:
        yield east, west


@pytest.fixture
def brokers(
    request: pytest.FixtureRequest,
    namespaces: tuple[ServiceBusServer, ServiceBusServer],
    rabbit_servers: Callable[[int], list[RabbitServer]],
) -> Iterator[Brokers]:
    """A primary without queues, and a secondary of the same product, or of another one where the test asks for it."""
    east, west = namespaces
    for server in namespaces:
        server.start()
        server.heal()
        server.clear()
    product = getattr(request, "param", "servicebus")
    if product == "servicebus":
        yield Brokers(east, west)
    elif product == "rabbitmq":
        yield Brokers(east, rabbit_servers(1)[0])
    else:
        with RedisServer() as redis:
            yield Brokers(east, redis)


ALL = pytest.mark.parametrize("brokers", ["servicebus", "rabbitmq", "redis"], indirect=True)
"""With a secondary of each product."""


@pytest.fixture
def proxy(brokers: Brokers) -> Iterator[TcpProxy]:
    """The network before the primary's messages; its administration is reached without it."""
    with TcpProxy("127.0.0.1", brokers.primary.port) as between:
        yield between


def taken_by_azure(server: ServiceBusServer) -> list[str]:
    """Take everything out of the primary's queue: message ids, whose bodies say the same."""
    found = []
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(QUEUE, receive_mode=mode) as receiver,
    ):
        # A slow machine may take longer than the wait until the first message is here; and what the server has deleted
        # may be on its way, or in the client's buffer.
        idle = 0
        while idle < 3:
            messages = receiver.receive_messages(500, max_wait_time=0.7)
            idle = 0 if messages or server.count(QUEUE) else idle + 1
            for message in messages:
                assert b"".join(message.body) == message.message_id.encode()
                found.append(message.message_id)
    return found


@asynccontextmanager
async def under_traffic(url: str, brokers: Brokers, hands: Hands, **changed: Any) -> AsyncIterator[Traffic]:
    """A pair under traffic with limits that suit the client."""
    timeouts = changed.pop("timeouts", TIMEOUTS)
    async with traffic(url, brokers.secondary.url, hands, timeouts, **{**LIMITS, **changed}) as under:
        yield under


async def checked(under: Traffic, brokers: Brokers, name: str, least: int = 5) -> list[str]:
    """The end of every test with a failover: all is well again, and the books are right."""
    await under.steady()
    await under.stop()
    await under.drained()
    found: list[str] = await under.hands(taken_by_azure, brokers.primary)
    under.report(name, found)
    under.check_deadlines()
    under.check_failed_over(least)
    under.check_doubts()
    under.check_books(found)
    return found


# --------------------------------------------------------------------------- the server and its network


@ALL
async def test_kill_9(brokers: Brokers, hands: Hands) -> None:
    """What was in flight is in doubt; the data is there again with the server."""
    primary = brokers.primary
    async with under_traffic(primary.url, brokers, hands) as under:
        await under.hit(primary.kill)
        await under.failover()
        await under.outage()
        await under.heal(primary.start)
        await under.recovery()
        await checked(under, brokers, f"kill -9, {type(brokers.secondary).__name__}")
        under.check_kinds(FailureKind.UNAVAILABLE)


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.long)])
async def test_sigstop(brokers: Brokers, hands: Hands, seconds: int) -> None:
    """The kernel takes bytes for it, and nothing ever comes back: all is in doubt."""
    primary = brokers.primary
    async with under_traffic(primary.url, brokers, hands) as under:
        try:
            await under.hit(primary.pause)
            if seconds > 1:
                await under.failover()
            await asyncio.sleep(max(0.0, under.hit_at + seconds - time.monotonic()))
        finally:
            await under.heal(primary.resume)
        if seconds == 1:
            # Shorter than an attempt may take: sends are late, and that is all. Those of 0.7 s fail, though, and a busy
            # machine may keep the next success from coming in time: then there is a failover, and all is moved back.
            await under.some()
            await under.stop()
            await under.drained()
            found = await hands(taken_by_azure, primary)
            under.check_deadlines()
            under.check_doubts()
            under.check_books(found)
            return
        await under.recovery()
        await checked(under, brokers, f"SIGSTOP {seconds} s")
        under.check_kinds(FailureKind.UNAVAILABLE)


async def test_connection_reset(brokers: Brokers, proxy: TcpProxy, hands: Hands) -> None:
    """Reset, and refused from then on."""
    async with under_traffic(proxy.rewrite(brokers.primary.url), brokers, hands) as under:
        await under.hit(lambda: proxy.reset(refuse=True))
        await under.failover()
        await under.outage()
        await under.heal(proxy.restore)
        await under.recovery()
        await checked(under, brokers, "reset")
        under.check_kinds(FailureKind.UNAVAILABLE)


@pytest.mark.parametrize("direction", ["both", "to_client"])
async def test_silent_half_open_tcp(brokers: Brokers, proxy: TcpProxy, hands: Hands, direction: Any) -> None:
    """No byte comes back, in one of the two cases though they arrive."""
    async with under_traffic(proxy.rewrite(brokers.primary.url), brokers, hands) as under:
        await under.hit(lambda: proxy.silence(direction))
        await under.failover()
        await under.outage()
        await under.heal(proxy.restore)
        await under.recovery()
        await checked(under, brokers, f"silence {direction}")
        under.check_kinds(FailureKind.UNAVAILABLE)


async def test_slow_network_does_not_fail_over(brokers: Brokers, proxy: TcpProxy, hands: Hands) -> None:
    """0.2 s in each direction: sends take that long, and that is all."""
    url = proxy.rewrite(brokers.primary.url)
    async with under_traffic(url, brokers, hands, timeouts=(60.0,), attempt_timeout=30.0) as under:
        await under.hit(lambda: proxy.slow(delay=0.2))
        await under.some(100)
        await under.heal(proxy.restore)
        await under.stop()
        found = await hands(taken_by_azure, brokers.primary)
        under.report("slow", found)
        assert under.changes(DOWN) == []
        assert {getattr(s.result, "route", s.result) for s in under.sends} == {Route.PRIMARY}
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)


@pytest.mark.parametrize("product", [pytest.param("rabbitmq", marks=pytest.mark.long), "redis"])
async def test_another_product_fails_over_to_service_bus(
    product: str,
    namespaces: tuple[ServiceBusServer, ServiceBusServer],
    rabbit_servers: Callable[[int], list[RabbitServer]],
    hands: Hands,
) -> None:
    """The other way round: the backlog lies in Service Bus queues, and is moved back."""
    secondary = namespaces[1]
    secondary.start()
    secondary.heal()
    secondary.clear()
    with contextlib.ExitStack() as stack:
        primary: RabbitServer | RedisServer = (
            rabbit_servers(1)[0] if product == "rabbitmq" else stack.enter_context(RedisServer())
        )
        async with traffic(primary.url, secondary.url, hands, TIMEOUTS, **LIMITS) as under:
            if isinstance(primary, RabbitServer):
                # See the RabbitMQ tests: a queue that was just made may not outlive the server.
                await hands(primary.settle)
            await under.hit(primary.kill)
            await under.failover()
            await under.outage(2.0)
            await under.heal(primary.start)
            await under.recovery()
            await under.steady(0.5)
            await under.stop()
            await under.drained()
            found = await under.taken()
            under.report(f"{product} primary, kill -9", found)
            under.check_deadlines()
            under.check_failed_over()
            under.check_doubts()
            under.check_books(found)
            under.check_kinds(FailureKind.UNAVAILABLE)


# --------------------------------------------------------------------------- what the service answers


def one_of_each_place(rows: list[tuple[Any, ...]]) -> list[Any]:
    """The first row of each place at which the service may fail; the others take long together."""
    first = {row[0]: row for row in reversed(rows)}
    return [row if first[row[0]] is row else pytest.param(*row, marks=pytest.mark.long) for row in rows]


UNAVAILABLE = [
    ("send", "com.microsoft:timeout", "error", False),
    ("send", "amqp:internal-error", "error", True),
    ("send", "amqp:resource-limit-exceeded", "error", False),
    ("send", "amqp:connection:forced", "close", False),
    ("send", "amqp:link:detach-forced", "detach", True),
    ("send", "", "silence", False),
    ("send", "", "silence", True),
    ("send", "", "drop", False),
    ("send", "", "drop", True),
    ("attach", "", "silence", False),
    ("attach", "com.microsoft:timeout", "error", False),
    ("cbs", "", "silence", False),
    ("connection", "", "silence", False),
]


@pytest.mark.parametrize(
    ("at", "condition", "action", "applied"),
    one_of_each_place(UNAVAILABLE),
    ids=[f"{at}-{c or a}{', and done' if applied else ''}" for at, c, a, applied in UNAVAILABLE],
)
async def test_what_counts_toward_a_failover(
    brokers: Brokers, hands: Hands, at: str, condition: str, action: str, applied: bool
) -> None:
    """Unavailable by its condition, or by saying nothing: diverted after the interval, and all is moved back."""
    primary = brokers.primary
    rule = {"at": at, "action": action, "entity": "*", "apply": applied}
    if condition:
        rule["condition"] = condition
    async with under_traffic(primary.url, brokers, hands) as under:
        faults: list[Callable[[], object]] = [lambda: primary.fault(rule)]
        if at in ("attach", "cbs"):
            # Only who opens a link meets it.
            faults.append(primary.drop_connections)
        await under.hit(*faults)
        await under.failover()
        # The first diverted sends open the links to the backlog, which takes the client half a second.
        await under.outage(1.2)
        # A connection that was struck dumb stays so, as one does that a router has forgotten.
        await under.heal(primary.heal, *([primary.drop_connections] if at == "connection" else []))
        await under.recovery()
        await checked(under, brokers, f"{at} {condition or action}, applied {applied}")
        under.check_kinds(FailureKind.UNAVAILABLE)


REFUSED = [
    ("send", "amqp:not-found", True, EntityNotFound, FailureReason.NOT_FOUND),
    ("send", "amqp:not-found", False, EntityNotFound, FailureReason.NOT_FOUND),
    ("send", "amqp:unauthorized-access", False, Unauthorized, FailureReason.UNAUTHORIZED),
    ("send", "com.microsoft:entity-disabled", False, SendRefused, FailureReason.DISABLED),
    ("send", "amqp:link:message-size-exceeded", False, MessageTooLarge, FailureReason.TOO_LARGE),
    ("send", "com.microsoft:argument-error", True, SendRefused, FailureReason.MALFORMED),
    ("send", "com.microsoft:argument-out-of-range", False, SendRefused, FailureReason.MALFORMED),
    ("send", "amqp:not-allowed", True, SendRefused, FailureReason.NOT_SUPPORTED),
    ("send", "amqp:not-implemented", False, SendRefused, FailureReason.NOT_SUPPORTED),
    ("attach", "amqp:not-found", True, EntityNotFound, FailureReason.NOT_FOUND),
    ("attach", "amqp:unauthorized-access", False, Unauthorized, FailureReason.UNAUTHORIZED),
    ("attach", "com.microsoft:entity-disabled", True, SendRefused, FailureReason.DISABLED),
    ("cbs", "amqp:unauthorized-access", True, Unauthorized, FailureReason.UNAUTHORIZED),
]


@pytest.mark.parametrize(
    ("at", "condition", "info", "error", "reason"),
    one_of_each_place(REFUSED),
    ids=[f"{at}-{condition}{'' if info else ', no info'}" for at, condition, info, *_ in REFUSED],
)
async def test_what_is_refused_and_never_diverted(
    brokers: Brokers,
    hands: Hands,
    at: str,
    condition: str,
    info: bool,
    error: type[SendRefused],
    reason: FailureReason,
) -> None:
    """Raised to the caller with its reason, promptly, and nothing is diverted; afterwards all goes on.

    An error without an info map leaves the client hanging: PairMQ must not.
    """
    primary = brokers.primary
    rule = {"at": at, "action": "error", "condition": condition, "info": info}
    patient = {"failover_interval": 4.0, "attempt_timeout": 4.0, "send_timeout": 10.0, "timeouts": (10.0,)}
    async with under_traffic(primary.url, brokers, hands, **patient) as under:
        await under.halt()
        faults: list[Callable[[], object]] = [lambda: primary.fault(rule)]
        if at in ("attach", "cbs"):
            faults.append(primary.drop_connections)
        await under.hit(*faults)
        # Time for the news that connections are gone: what is sent before that is unknown, as it has to be.
        await asyncio.sleep(0.2)
        for _ in range(3):
            if not isinstance(await under.one(10.0), SendUnknown):
                break
        results: list[Receipt | SendError] = [await under.one(10.0) for _ in range(3)]
        await under.heal(primary.heal)
        after = await under.one(10.0)
        assert {type(result) for result in results} == {error}, results
        causes = [result.causes[-1] for result in results if isinstance(result, SendError)]
        assert {(c.kind, c.reason, c.maybe_applied) for c in causes if isinstance(c, TransportError)} == {
            (FailureKind.REFUSED, reason, False)
        }
        assert isinstance(after, Receipt)
        assert after.route is Route.PRIMARY
        under.check_never_diverted()
        await under.stop()
        under.check_deadlines()
        under.check_books(await hands(taken_by_azure, primary))


async def test_a_throttled_namespace_is_tried_again_and_nothing_is_diverted(brokers: Brokers, hands: Hands) -> None:
    """`com.microsoft:server-busy` is busy: retried inside the send, and not a reason to fail over."""
    primary = brokers.primary
    rule = {"at": "send", "action": "error", "condition": "com.microsoft:server-busy"}
    async with under_traffic(primary.url, brokers, hands, timeouts=(40.0,), attempt_timeout=15.0) as under:
        await under.hit(lambda: primary.fault(rule))
        await until(lambda: under.of(AttemptFailed))
        await asyncio.sleep(2)
        await under.heal(primary.heal)
        await under.stop()
        assert {e.kind for e in under.of(AttemptFailed)} == {FailureKind.BUSY.value}
        assert under.of(StateChanged) == []
        assert {getattr(s.result, "route", s.result) for s in under.sends} == {Route.PRIMARY}
        under.check_deadlines()
        under.check_books(await hands(taken_by_azure, primary))


async def test_a_throttled_namespace_may_be_left_by_option(brokers: Brokers, hands: Hands) -> None:
    """With ``failover_on_busy`` it is diverted."""
    primary = brokers.primary
    rule = {"at": "send", "action": "error", "condition": "com.microsoft:server-busy"}
    async with under_traffic(primary.url, brokers, hands, failover_on_busy=True) as under:
        await under.hit(lambda: primary.fault(rule))
        await until(lambda: under.pair.state(QUEUE) is DOWN)
        await under.outage()
        await under.heal(primary.heal)
        await under.recovery()
        await checked(under, brokers, "throttled, failover_on_busy")


async def test_queue_deleted(brokers: Brokers, hands: Hands) -> None:
    """In mid-traffic: refused as not found from then on, until somebody makes it anew."""
    primary = brokers.primary
    patient = {"failover_interval": 4.0, "attempt_timeout": 4.0, "send_timeout": 10.0, "timeouts": (10.0,)}
    async with under_traffic(primary.url, brokers, hands, **patient) as under:
        await under.hit(lambda: primary.delete_queue(QUEUE))
        # What was on its way when the link was taken down is unknown, as it has to be.
        await until(lambda: any(isinstance(s.result, EntityNotFound) for s in under.sends))
        await asyncio.sleep(0.5)
        under.hit_at = time.monotonic()
        await under.some(60)
        await under.heal(lambda: primary.create_queue(QUEUE))
        await under.accepted()
        await under.stop()
        found = await hands(taken_by_azure, primary)
        under.report("queue deleted", found)
        under.check_refused(EntityNotFound, FailureReason.NOT_FOUND, one_opens_all=True)
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found, under.hit_at)


async def test_a_send_whose_confirm_is_lost_and_nothing_takes_it_is_unknown(brokers: Brokers, hands: Hands) -> None:
    """Both sides silent: the caller hears that nobody knows, at the deadline, and not later."""
    primary, secondary = brokers.primary, brokers.secondary
    assert isinstance(secondary, ServiceBusServer)
    rule = {"at": "send", "action": "silence", "apply": True}
    async with under_traffic(primary.url, brokers, hands) as under:
        await under.halt()
        await under.hit(lambda: primary.fault(rule), lambda: secondary.fault({"at": "send", "action": "silence"}))
        result = await under.one(3.0)
        assert isinstance(result, SendUnknown)
        await under.heal(primary.heal, secondary.heal)
        await under.stop()
        under.check_deadlines()

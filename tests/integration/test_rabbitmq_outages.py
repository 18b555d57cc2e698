"""A whole pair through everything that can happen to a real RabbitMQ server, one named test each.

All the while messages are sent, a few dozen a second, each under its own time limit. What each test asks is the same:
the failures have the right kind, no send outlives its deadline, each receipt is true, recovery is seen in time, and in
the end the primary's queue holds what was accepted, nothing that was refused, and no second copy without a word about
it. The queue is read by pika, which knows nothing of PairMQ.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from outage_traffic import DOWN, OPTIONS, QUEUE, Hands, Traffic, traffic, until
from pairmq import (
    BacklogUnavailable,
    EntityNotFound,
    Message,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    Unauthorized,
)
from pairmq.model import FailureKind, FailureReason
from pairmq.model.events import (
    AttemptFailed,
    PingCompleted,
    RotationChanged,
    StateChanged,
)
from pairmq.testing import TcpProxy
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server


def taken_by_pika(server_url: str) -> list[str]:
    """Take everything out of the primary's queue: message ids, whose bodies say the same."""
    connection = pika.BlockingConnection(pika.URLParameters(server_url))
    try:
        channel, found = connection.channel(), []
        while True:
            method, properties, body = channel.basic_get(QUEUE, auto_ack=True)
            if method is not None:
                assert body == properties.message_id.encode()
                found.append(properties.message_id)
            # A quorum queue may answer "empty" to a get that comes while it still handles the one before.
            elif not channel.queue_declare(QUEUE, passive=True).method.message_count:
                return found
    finally:
        connection.close()


class ForeignConsumer(threading.Thread):
    """A consumer by pika, in a thread of its own: takes whatever comes to the queue."""

    def __init__(self, url: str) -> None:
        super().__init__(name="foreign consumer", daemon=True)
        self._url = url
        self._ends = threading.Event()
        self.found: list[tuple[pika.BasicProperties, bytes]] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            connection = pika.BlockingConnection(pika.URLParameters(self._url))
            try:
                channel, empty = connection.channel(), 0
                for method, properties, body in channel.consume(QUEUE, auto_ack=True, inactivity_timeout=0.05):
                    if method is not None:
                        self.found.append((properties, body))
                    elif self._ends.is_set():
                        # That nothing has come in time says little of a server that was slow.
                        left = channel.queue_declare(QUEUE, passive=True).method.message_count
                        empty = 0 if left else empty + 1
                        if empty == 3:
                            return
            finally:
                connection.close()
        except Exception as error:
            self.error = error

    def end(self) -> None:
        """Stop when nothing comes any more."""
        self._ends.set()
        self.join(60)
        assert self.error is None
        assert not self.is_alive()

    @property
    def message_ids(self) -> list[str]:
        return [properties.message_id for properties, _ in self.found]


def known_on_disk(server: RabbitServer) -> None:
    """Let the server write down that its queues exist, as it does by itself within some seconds.

    RabbitMQ 3.10 loses a quorum queue, with all that it has confirmed, when it is killed before: the queue's name is
    written late, and without it the queue starts anew and empty after the boot.
    """
    server.erl("[ok = dets:sync(Table) || Table <- dets:all()]")


def left_in_backlog(server: RabbitServer) -> dict[str, int]:
    """What the backlog queues hold once nobody has any of it in hand."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    try:
        channel = connection.channel()
        names = [name for name in server.queues() if "transfer" in name]
        held = {name: channel.queue_declare(name, passive=True).method.message_count for name in names}
        return {name: count for name, count in held.items() if count}
    finally:
        connection.close()


# --------------------------------------------------------------------------- the brokers


@dataclass
class Brokers:
    primary: RabbitServer
    secondary: RabbitServer | RedisServer


@pytest.fixture
def brokers(request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]) -> Iterator[Brokers]:
    """A primary, and a secondary of another product, or of the same one where the test asks for it."""
    if getattr(request, "param", "redis") == "rabbitmq":
        yield Brokers(*rabbit_servers(2))
        return
    with RedisServer() as redis:
        yield Brokers(rabbit_servers(1)[0], redis)


BOTH = pytest.mark.parametrize("brokers", ["rabbitmq", "redis"], indirect=True)
"""With a secondary of either product."""

TWO_RABBITS = pytest.mark.parametrize("brokers", ["rabbitmq"], indirect=True)
"""What is asked of the secondary, too, or may depend on how it keeps messages."""

MOSTLY_REDIS = pytest.mark.parametrize(
    "brokers", ["redis", pytest.param("rabbitmq", marks=pytest.mark.long)], indirect=True
)
"""What fails at the primary whatever the secondary is."""


@pytest.fixture
def proxy(brokers: Brokers) -> Iterator[TcpProxy]:
    """The network before the primary."""
    with TcpProxy("127.0.0.1", brokers.primary.port) as between:
        yield between


async def checked(under: Traffic, brokers: Brokers, name: str, least: int = 5) -> None:
    """The end of every test with a failover: all is well again, and the books are right."""
    await under.steady()
    await under.stop()
    await under.drained()
    under.check_recovered()
    found = await under.hands(taken_by_pika, brokers.primary.url)
    under.report(name, found)
    under.check_deadlines()
    under.check_failed_over(least)
    under.check_doubts()
    under.check_books(found)
    if isinstance(brokers.secondary, RabbitServer):
        await under.pair.close()
        assert await under.hands(left_in_backlog, brokers.secondary) == {}


# --------------------------------------------------------------------------- the server


@BOTH
async def test_kill_9(brokers: Brokers, hands: Hands) -> None:
    """What was in flight is in doubt; a connection that is refused is certain."""
    primary = brokers.primary
    async with traffic(primary.url, brokers.secondary.url, hands) as under:
        await hands(known_on_disk, primary)
        await under.hit(primary.kill)
        await under.failover()
        await under.outage()
        await under.heal(primary.start)
        await under.recovery()
        await checked(under, brokers, f"kill -9, {type(brokers.secondary).__name__}")
        under.check_kinds(FailureKind.UNAVAILABLE)
        under.check_certain(under.hit_at)


@pytest.mark.parametrize("seconds", [1, pytest.param(10, marks=pytest.mark.long)])
async def test_sigstop(brokers: Brokers, hands: Hands, seconds: int) -> None:
    """The kernel takes connections and bytes for it, and nothing ever comes back: all is in doubt."""
    primary = brokers.primary
    async with traffic(primary.url, brokers.secondary.url, hands) as under:
        try:
            await under.hit(primary.pause)
            await under.failover()
            await asyncio.sleep(under.hit_at + seconds - time.monotonic())
        finally:
            await under.heal(primary.resume)
        await under.recovery()
        # The failover comes after some 0.7 s, and may find the server about to go on.
        await checked(under, brokers, f"SIGSTOP {seconds} s", least=0 if seconds == 1 else 5)
        under.check_kinds(FailureKind.UNAVAILABLE)


@MOSTLY_REDIS
async def test_memory_alarm(brokers: Brokers, hands: Hands) -> None:
    """Who is on the way when publishers are blocked is in doubt; from then on it is known, and certain."""
    primary = brokers.primary
    async with traffic(primary.url, brokers.secondary.url, hands) as under:
        await under.hit(primary.block)
        await under.failover()
        await until(lambda: under.heard("alarm"))
        await under.outage()
        await under.heal(primary.unblock)
        await under.recovery()
        await checked(under, brokers, f"memory alarm, {type(brokers.secondary).__name__}")
        under.check_kinds(FailureKind.UNAVAILABLE)
        under.check_certain(under.heard("alarm")[0], "alarm")


@TWO_RABBITS
@pytest.mark.parametrize("said_by", ["queue", "policy"])
async def test_queue_full_with_reject_publish(brokers: Brokers, hands: Hands, said_by: str) -> None:
    """A rejected message is certainly not there, where the queue itself says that it rejects (a policy can't be seen).

    It is back when somebody has taken messages out.
    """
    primary = brokers.primary
    if said_by == "queue":
        declare(primary.url, **{"x-max-length": 100, "x-overflow": "reject-publish"})
    else:
        declare(primary.url)
        primary.set_policy("little", f"^{QUEUE}$", {"max-length": 100, "overflow": "reject-publish"})
    consumer = ForeignConsumer(primary.url)
    try:
        async with traffic(primary.url, brokers.secondary.url, hands, made=True) as under:
            await until(lambda: under.failures("full") and under.pair.state(QUEUE) is DOWN)
            full_at = under.failures("full")[0]
            # On a busy machine time-outs may have brought a failover, and the failure after it another one at once.
            under.hit_at = under.struck_at = min(full_at, under.changes(DOWN)[-1])
            await under.outage(1.5)
            await under.heal(consumer.start)
            await under.recovery()
            await under.steady(0.5)
            await under.stop()
            await under.drained()
            await hands(consumer.end)
            under.report(f"queue full, says {said_by}", consumer.message_ids)
            under.check_deadlines()
            under.check_failed_over()
            under.check_doubts()
            under.check_books(consumer.message_ids)
            under.check_kinds(FailureKind.UNAVAILABLE, "full")
            if said_by == "queue":
                under.check_certain(full_at)
            await under.pair.close()
            assert await hands(left_in_backlog, brokers.secondary) == {}
    finally:
        if consumer.is_alive():
            consumer.end()


# --------------------------------------------------------------------------- the network


async def test_connection_reset(brokers: Brokers, proxy: TcpProxy, hands: Hands) -> None:
    """Reset, and refused from then on: what was in flight is in doubt, all else is certain."""
    async with traffic(proxy.rewrite(brokers.primary.url), brokers.secondary.url, hands) as under:
        await under.hit(lambda: proxy.reset(refuse=True))
        await under.failover()
        await under.outage()
        await under.heal(proxy.restore)
        await under.recovery()
        await checked(under, brokers, "reset")
        under.check_kinds(FailureKind.UNAVAILABLE)
        under.check_certain(under.hit_at)


async def test_a_connection_that_is_reset_and_can_be_made_anew_is_no_outage(
    brokers: Brokers, proxy: TcpProxy, hands: Hands
) -> None:
    """Three times within two seconds: sends are tried again and arrive, and nothing is diverted."""
    url = proxy.rewrite(brokers.primary.url)
    async with traffic(url, brokers.secondary.url, hands, (20.0,), **PATIENT) as under:
        for _ in range(3):
            await under.burst(20)
            await under.hit(proxy.reset)
            await asyncio.sleep(0.7)
        await under.stop()
        found = await hands(taken_by_pika, brokers.primary.url)
        under.report("reset, not refused", found)
        assert under.changes(DOWN) == []
        assert {s.result.route for s in under.sends} == {Route.PRIMARY}
        assert {e.kind for e in under.of(AttemptFailed)} == {FailureKind.UNAVAILABLE.value}
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)


@MOSTLY_REDIS
@pytest.mark.parametrize("direction", ["both", "to_client"])
async def test_silent_half_open_tcp(brokers: Brokers, proxy: TcpProxy, hands: Hands, direction: Any) -> None:
    """No byte comes back, in one of the two cases though they arrive: all is in doubt, and some are there twice."""
    async with traffic(proxy.rewrite(brokers.primary.url), brokers.secondary.url, hands) as under:
        await under.hit(lambda: proxy.silence(direction))
        await under.failover()
        await under.outage()
        await under.heal(proxy.restore)
        await under.recovery()
        await checked(under, brokers, f"silence {direction}, {type(brokers.secondary).__name__}")
        under.check_kinds(FailureKind.UNAVAILABLE)


async def test_slow_network_does_not_fail_over(brokers: Brokers, proxy: TcpProxy, hands: Hands) -> None:
    """0.3 s in each direction, 0.6 s a round trip: sends take that long, and that is all."""
    url = proxy.rewrite(brokers.primary.url)
    # An attempt that has to open its channel first needs three round trips.
    async with traffic(url, brokers.secondary.url, hands, (40.0,), attempt_timeout=20.0) as under:
        await under.hit(lambda: proxy.slow(delay=0.3))
        await under.some(100)
        slow = [s for s in under.sends if s.began > under.hit_at]
        assert len(slow) > 50
        assert min(s.ended - s.began for s in slow) > 0.6
        await under.heal(proxy.restore)
        await under.stop()
        found = await hands(taken_by_pika, brokers.primary.url)
        under.report("slow", found)
        assert under.changes(DOWN) == []
        assert {getattr(s.result, "route", s.result) for s in under.sends} == {Route.PRIMARY}
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)


# --------------------------------------------------------------------------- what the broker refuses


# Time to connect once more on a busy machine: until the broker has said no, nobody can tell this from an outage.
PATIENT: Any = {"failover_interval": 10.0, "attempt_timeout": 5.0}


async def test_queue_deleted(brokers: Brokers, hands: Hands) -> None:
    """In mid-traffic: refused as not found from then on, until somebody makes it anew."""
    primary = brokers.primary
    async with traffic(primary.url, brokers.secondary.url, hands, (20.0,), **PATIENT) as under:
        await under.burst(50)
        await under.hit(lambda: primary.delete_queue(QUEUE))
        await under.some(60)
        await under.heal(lambda: declare(primary.url))
        await under.accepted()
        await under.stop()
        found = await hands(taken_by_pika, primary.url)
        under.report("queue deleted", found)
        under.check_refused(EntityNotFound, FailureReason.NOT_FOUND)
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found, under.hit_at)


async def test_virtual_host_deleted(brokers: Brokers, hands: Hands) -> None:
    """In mid-traffic: the server drops its connections, and refuses new ones."""
    primary = brokers.primary
    primary.add_vhost("shop")
    url = primary.url_for(vhost="shop")
    async with traffic(url, brokers.secondary.url, hands, (20.0,), **PATIENT) as under:
        await under.burst(50)
        await under.hit(lambda: primary.delete_vhost("shop"))
        await under.some(60)
        await under.heal(lambda: primary.add_vhost("shop"), lambda: declare(url))
        await under.accepted()
        await under.stop()
        found = await hands(taken_by_pika, url)
        under.report("virtual host deleted", found)
        under.check_refused(SendRefused, FailureReason.DISABLED)
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found, under.hit_at)


async def test_wrong_password(brokers: Brokers, hands: Hands) -> None:
    """Changed, and the connections dropped between two sends: refused until it is changed back."""
    primary = brokers.primary
    primary.add_user("app", "old")
    url = primary.url_for("app", "old")
    async with traffic(url, brokers.secondary.url, hands, (20.0,), **PATIENT) as under:
        await under.halt()
        await under.hit(lambda: primary.change_password("app", "new"), primary.drop_clients, lambda: emptied(primary))
        under.flow()
        await under.some(60)
        await under.heal(lambda: primary.change_password("app", "old"))
        await under.accepted()
        await under.stop()
        found = await hands(taken_by_pika, primary.url)
        under.report("wrong password", found)
        under.check_refused(Unauthorized, FailureReason.UNAUTHORIZED)
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)


async def test_wrong_password_with_connections_dropped_under_sends(brokers: Brokers, hands: Hands) -> None:
    """Changed in mid-traffic: what was in flight is unknown, what comes after is refused, and it is no outage."""
    primary = brokers.primary
    primary.add_user("app", "old")
    url = primary.url_for("app", "old")
    async with traffic(url, brokers.secondary.url, hands, (20.0,), **PATIENT) as under:
        await hands(primary.change_password, "app", "new")
        await under.burst(200)
        await under.hit(primary.drop_clients, lambda: emptied(primary))
        await until(lambda: sum(s.began >= under.hit_at for s in under.sends) > 60, 60)
        await under.heal(lambda: primary.change_password("app", "old"))
        await under.accepted()
        await under.stop()
        found = await hands(taken_by_pika, primary.url)
        under.report("wrong password, in flight", found)
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)
        in_flight = {type(s.result) for s in under.sends if s.began < under.struck_at}
        assert in_flight <= {Receipt, SendUnknown, Unauthorized}
        under.check_refused(Unauthorized, FailureReason.UNAUTHORIZED)


def declare(url: str, **arguments: Any) -> None:
    """An operator makes the queue."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    connection.channel().queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", **arguments})
    connection.close()


def emptied(server: RabbitServer) -> None:
    """Wait until no client is connected."""
    ends_at = time.monotonic() + 60
    while server.connections():
        assert time.monotonic() < ends_at
        time.sleep(0.1)


# --------------------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three certificates, each signed by itself; clients trust ``right`` and ``name``, which is for another host."""
    directory = tmp_path_factory.mktemp("tls")
    for name, host in (("right", "IP:127.0.0.1"), ("name", "DNS:elsewhere.example"), ("authority", "IP:127.0.0.1")):
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command += ["-addext", f"subjectAltName={host}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    (directory / "trusted.pem").write_bytes(
        (directory / "right.pem").read_bytes() + (directory / "name.pem").read_bytes()
    )
    show(directory, "right")
    return directory


def show(directory: Path, name: str) -> None:
    """Put a certificate where the server finds its own."""
    for suffix in ("pem", "key"):
        (directory / f"shown.{suffix}").write_bytes((directory / f"{name}.{suffix}").read_bytes())


@pytest.fixture(scope="module")
def tls_server(certificates: Path, hands: Hands) -> Iterator[RabbitServer]:
    shown = certificates / "shown.pem"
    with RabbitServer(tls=(shown, certificates / "shown.key", shown)) as server:
        yield server


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_tls_with_a_wrong(
    wrong: str,
    tls_server: RabbitServer,
    certificates: Path,
    rabbit_servers: Callable[[int], list[RabbitServer]],
    hands: Hands,
) -> None:
    """What answers there is not the broker: certainly nothing was sent, and the backlog takes it."""
    tls_server.reset()
    brokers = Brokers(tls_server, rabbit_servers(1)[0])
    url = f"{tls_server.tls_url}?ssl_ca_certs={quote(str(certificates / 'trusted.pem'))}"

    def change_to(name: str) -> None:
        show(certificates, name)
        tls_server.erl("ssl:clear_pem_cache()")

    # Long enough for a handshake on a busy machine.
    async with traffic(url, brokers.secondary.url, hands, failover_interval=1.5) as under:
        # As when a certificate is changed on a server: it takes effect with the next connection.
        await under.hit(lambda: change_to(wrong), tls_server.drop_clients, lambda: emptied(tls_server))
        await under.failover()
        await under.outage()
        await under.heal(lambda: change_to("right"))
        await under.recovery()
        await checked(under, brokers, f"TLS, wrong {wrong}")
        under.check_kinds(FailureKind.UNAVAILABLE, "ertificate")
        under.check_certain(under.hit_at)


# --------------------------------------------------------------------------- the other way round


@pytest.fixture
def redis_first(rabbit_servers: Callable[[int], list[RabbitServer]]) -> Iterator[tuple[RedisServer, RabbitServer]]:
    """A Redis primary and a RabbitMQ secondary."""
    with RedisServer() as redis:
        yield redis, rabbit_servers(1)[0]


@pytest.mark.parametrize("how", ["kill -9", "SIGSTOP"])
async def test_a_redis_primary_fails_over_to_rabbitmq(
    redis_first: tuple[RedisServer, RabbitServer], hands: Hands, how: str
) -> None:
    """As with a RabbitMQ primary."""
    primary, secondary = redis_first
    async with traffic(primary.url, secondary.url, hands) as under:
        try:
            await under.hit(primary.kill if how == "kill -9" else primary.pause)
            await under.failover()
            await under.outage()
        finally:
            await under.heal(primary.start if how == "kill -9" else primary.resume)
        await under.recovery()
        await under.steady(0.5)
        await under.stop()
        await under.drained()
        found = await under.taken()
        under.report(f"Redis primary, {how}", found)
        under.check_deadlines()
        under.check_failed_over()
        under.check_kinds(FailureKind.UNAVAILABLE)
        under.check_doubts()
        under.check_books(found)
        if how == "kill -9":
            under.check_certain(under.hit_at)
        await under.pair.close()
        assert await hands(left_in_backlog, secondary) == {}


@pytest.mark.parametrize("how", ["kill -9", "SIGSTOP"])
async def test_a_rabbitmq_secondary_may_fail_while_its_primary_works(
    redis_first: tuple[RedisServer, RabbitServer], hands: Hands, how: str
) -> None:
    """Nobody notices; who has to divert then is told in time, and the queues come back by themselves."""
    primary, secondary = redis_first
    # Patient sends and attempts: what a busy machine does to others would count as a failure of the primary. A send
    # has time to try each of the three queues.
    limit = 3.0
    async with traffic(primary.url, secondary.url, hands, (4 * limit,), attempt_timeout=limit) as under:
        await hands(known_on_disk, secondary)
        try:
            await under.hit(secondary.kill if how == "kill -9" else secondary.pause)
            await under.some()
            await under.halt()
            assert {s.result.route for s in under.sends if s.began > under.hit_at} == {Route.PRIMARY}
            assert under.of(StateChanged) == []
            under.pair.hold(QUEUE)
            diverted_from = len(under.sends)
            await under.burst(50)
            await under.halt()
        finally:
            await under.heal(secondary.start if how == "kill -9" else secondary.resume)
        # A connection that is refused is certain; a server that says nothing may have taken it into the backlog.
        ends = Counter(type(s.result) for s in under.sends[diverted_from:])
        assert set(ends) <= ({BacklogUnavailable} if how == "kill -9" else {BacklogUnavailable, SendUnknown})
        # Who found that out left word for the others.
        assert len({e.queue for e in under.of(RotationChanged) if not e.in_use}) == OPTIONS.backlog_queue_count
        await until(lambda: sum(1 if e.in_use else -1 for e in under.of(RotationChanged)) == 0)
        back_after = next(at for at, e in reversed(under.events) if isinstance(e, RotationChanged)) - under.healed_at
        # By the second trial, each of which may take as long as its limit.
        most = 2 * OPTIONS.backlog_retry_interval + limit
        assert back_after <= most + under.heart.lag(under.healed_at, under.healed_at + back_after)
        healed_from = len(under.sends)
        await under.burst(50)
        await under.halt()
        assert {s.diverted for s in under.sends[healed_from:]} == {True}
        under.pair.mark_healthy(QUEUE)
        await under.one(4 * limit)
        await under.stop()
        await under.drained()
        found = await under.taken()
        under.report(f"RabbitMQ secondary, {how}, back after {back_after:.2f} s", found)
        assert {e.kind for e in under.of(AttemptFailed)} == {FailureKind.UNAVAILABLE.value}
        under.check_deadlines()
        under.check_doubts()
        under.check_books(found)
        await under.pair.close()
        assert await hands(left_in_backlog, secondary) == {}


@TWO_RABBITS
async def test_a_send_without_time_left_takes_no_backlog_queue_from_the_others(brokers: Brokers, hands: Hands) -> None:
    """At a failover many a send has little time left. That it ends in time says nothing about the backlog queue."""
    with TcpProxy("127.0.0.1", brokers.secondary.port) as between:
        secondary = between.rewrite(brokers.secondary.url)
        async with traffic(brokers.primary.url, secondary, hands, (30.0,), attempt_timeout=10.0) as under:
            await under.halt()
            under.pair.hold(QUEUE)
            await under.burst(10)
            await under.halt()
            await hands(lambda: between.slow(delay=0.1))
            for _ in range(10):
                assert isinstance(await under.one(0.1), SendError)
            assert [e for e in under.of(RotationChanged) if not e.in_use] == []
            assert (await under.one(30.0)).route is Route.BACKLOG
            await hands(between.restore)
            under.pair.mark_healthy(QUEUE)
            await under.stop()
            await under.drained()
            under.check_books(await hands(taken_by_pika, brokers.primary.url))


# --------------------------------------------------------------------------- what others see


@TWO_RABBITS
async def test_a_foreign_consumer_sees_application_messages_only(
    brokers: Brokers, proxy: TcpProxy, hands: Hands
) -> None:
    """Through pings that arrive and pings that are blocked, a failover and a drain: no ping, no header of PairMQ's."""
    primary = brokers.primary
    rich = Message(
        b"rich",
        session_id="customer-7",
        time_to_live=60.0,
        priority=4,
        scheduled_enqueue_at=datetime.now(UTC) + timedelta(seconds=6),
        application_properties={"nested": {"list": [1, {"deep": True}]}, "price": 3},
    )
    consumer = ForeignConsumer(primary.url)
    try:
        url = proxy.rewrite(primary.url)
        pinging = {"ping_primary_interval": 0.3, "ping_timeout": 1.0}
        async with traffic(url, brokers.secondary.url, hands, (4.0,), **pinging) as under:
            consumer.start()
            sender = under.pair.sender(QUEUE)
            # Pings that arrive and are confirmed: what the operator takes away, each of them gives back.
            for _ in range(3):
                under.pair.force_failover(QUEUE)
                await asyncio.sleep(0.05)
                await until(lambda: under.pair.state(QUEUE) is not DOWN)
            assert sum(e.ok for e in under.of(PingCompleted)) >= 3
            # Pings that are written and blocked, then a connection that is gone.
            await under.hit(primary.block)
            await under.failover()
            receipts = [await sender.send(replace(rich, message_id=f"rich-{n}")) for n in range(5)]
            assert {receipt.route for receipt in receipts} == {Route.BACKLOG}
            await asyncio.sleep(1)
            await hands(proxy.reset)
            await until(lambda: sum(not e.ok for e in under.of(PingCompleted)) >= 3)
            await under.heal(primary.unblock)
            await until(lambda: under.pair.state(QUEUE) is not DOWN)
            await asyncio.sleep(0.3)
            await under.stop()
            await under.drained()
            # Their time comes, and they pass some queues of RabbitMQ's.
            await until(lambda: sum(one.startswith("rich-") for one in consumer.message_ids) >= 5)
            await hands(consumer.end)
            found = [message_id for message_id in consumer.message_ids if not message_id.startswith("rich-")]
            under.report("foreign consumer", consumer.message_ids)
            under.check_deadlines()
            under.check_doubts()
            under.check_books(found)
            assert {m for m in consumer.message_ids if m.startswith("rich-")} == {f"rich-{n}" for n in range(5)}
            assert {body for properties, body in consumer.found if properties.message_id.startswith("rich-")} == {
                b"rich"
            }
            names = {name for properties, _ in consumer.found for name in properties.headers or {}}
            assert "nested" in names
            assert [name for name in names if name.startswith(("x-ms-", "x-pairmq-"))] == []
    finally:
        if consumer.is_alive():
            consumer.end()

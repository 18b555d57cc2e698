"""Hundreds of messages with everything that a message can have go through an outage and come back field for field."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from pairmq import Entity, EntityState, Message, Pair, PairOptions, Route
from pairmq.model import PropertyValue
from pairmq.model.events import MessageDeadLettered, MessageMoved
from pairmq.testing import TcpProxy
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

COUNT = 600  # enough for each field beside each other one
OPTIONS = PairOptions(
    failover_interval=0.5,
    ping_primary_interval=1.0,
    ping_timeout=5.0,
    # How soon a message goes through is not asked here, and two busy cores are slow with thousands.
    attempt_timeout=60.0,
    send_timeout=180.0,
    backlog_queue_count=3,
    enable_syphon=True,
)


@pytest.fixture(
    params=[
        "rabbitmq-redis",
        "redis-servicebus",
        pytest.param("rabbitmq-rabbitmq", marks=pytest.mark.long),
        pytest.param("servicebus-servicebus", marks=pytest.mark.long),
    ]
)
def brokers(
    request: pytest.FixtureRequest, rabbit_servers: Callable[[int], list[RabbitServer]]
) -> Iterator[tuple[int, str, str]]:
    """Port and URL of a primary, and the URL of a secondary of the same product or of another one."""
    first, second = request.param.split("-")
    with contextlib.ExitStack() as stack:
        rabbits = rabbit_servers([first, second].count("rabbitmq")) if "rabbitmq" in request.param else []
        made: list[RabbitServer | RedisServer | ServiceBusServer] = []
        for product in (first, second):
            if product == "rabbitmq":
                made.append(rabbits.pop(0))
            elif product == "redis":
                made.append(stack.enter_context(RedisServer(appendfsync="no")))
            else:
                made.append(stack.enter_context(ServiceBusServer(durable=False)))
        yield made[0].port, made[0].url, made[1].url


def properties(n: int) -> dict[str, PropertyValue]:
    """Every type that a property may have, some in each message, in every nesting."""
    at = datetime(2026, 2, 28, 23, 59, 59, n * 331 % 1_000_000, tzinfo=UTC)
    values: list[tuple[str, PropertyValue]] = [
        ("text", f"Käufer {n} ☃ \U0001f40d"),
        ("empty text", ""),
        ("long text", "x" * (n % 1200)),
        ("bytes", bytes((n + k) % 256 for k in range(n % 40))),
        ("true", True),
        ("false", False),
        ("none", None),
        ("small", n % 128 - 64),
        ("least", -(2**63)),
        ("most", 2**63 - 1),
        ("float", math.pi * n - 1e-9),
        ("tiny", 5e-324),
        ("minus zero", -0.0),
        ("decimal", Decimal(n * 37 - 50_000).scaleb(-(n % 9))),
        ("trailing zeros", Decimal("1.500")),
        ("instant", at),
        ("elsewhere", at.astimezone(timezone(timedelta(hours=5, minutes=30)))),
        ("whole second", datetime(2001, 9, 9, 1, 46, 40, tzinfo=UTC)),
        ("long ago", datetime(1815, 12, 10, 12, 0, 0, n % 1000, tzinfo=UTC)),
        ("far ahead", datetime(2222, 2, 22, 22, 22, 22, 222, tzinfo=UTC)),
        ("uuid", UUID(int=n * 0x9E3779B97F4A7C15)),
        ("array", (n, "two", b"3", None, 4.0, Decimal("5.5"), at, UUID(int=n), True)),
        ("empty array", ()),
        ("table", {"a": n, "b": {"c": (at, {"d": UUID(int=n)})}}),
        ("empty table", {}),
        ("mixed", ({"x": Decimal("0.10")}, (b"\x00\xff", (None, (1, (2, {"deep": at})))))),
        ("CC", "nobody"),
        ("BCC", ("nobody", "else")),
        ("x-death", "mine"),
        ("group-id", f"not the session {n}"),
        ("ttl", "not the time-to-live"),
        ("amqp.app_id", "someone"),
        ("ключ", "a name that is no ASCII"),
        ("n" * 128, "a long name"),
    ]
    # A third of them each time, so that each stands beside every other one and none beside all.
    return {name: value for k, (name, value) in enumerate(values) if (n * 7 + k * k) % 3 == 0}


def message(n: int, now: datetime) -> Message:
    """The n-th message: each field is there in some, and in combination with each other one."""

    def sometimes(every: int, value: Any) -> Any:
        return value if n % every == every // 2 else None

    session = sometimes(3, f"session-{n % 17}")
    return Message(
        b"" if n % 50 == 0 else bytes((n * k) % 256 for k in range(1, n % 300 + 2)),
        message_id=f"order {n}" if n % 4 else f"ordre n° {n} – ☃",
        session_id=session,
        time_to_live=sometimes(4, (3600.0, 86_400.5, 1234.567891, 90 * 86_400.0, 600)[n % 5]),
        # Some are due before the outage is over, some while the backlog is moved back, some later.
        scheduled_enqueue_at=sometimes(10, now + timedelta(seconds=n % 12, microseconds=n)),
        content_type=sometimes(2, "application/json; charset=utf-8"),
        content_encoding=sometimes(5, ("gzip", "", "identity")[n % 3]),
        correlation_id=sometimes(3, f"answer to {n}"),
        subject=sometimes(7, "s" * (n % 400)),
        to=sometimes(5, "somewhere/else"),
        reply_to=sometimes(4, f"replies/{n % 5}"),
        reply_to_session_id=sometimes(6, f"reply session {n}"),
        partition_key=session if n % 2 else (None if session else sometimes(5, f"part {n % 3}")),
        priority=sometimes(3, n % 256),
        application_properties=properties(n),
    )


def exact(value: Any) -> Any:
    """A value with its types and digits: 1, True and Decimal("1.0") are equal to Python, and not the same."""
    if isinstance(value, dict):
        return dict, sorted((name, exact(entry)) for name, entry in value.items())
    if isinstance(value, tuple | list):
        return tuple, [exact(entry) for entry in value]
    return type(value).__name__, repr(value)


def described(sent: Message) -> dict[str, Any]:
    """Every field of a message, by its name."""
    values = {entry.name: getattr(sent, entry.name) for entry in fields(sent)}
    return {name: exact(dict(value) if name == "application_properties" else value) for name, value in values.items()}


async def until(condition: Callable[[], object], seconds: float) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        await asyncio.sleep(0.05)


async def test_backlogged_messages_come_back_field_for_field(
    brokers: tuple[int, str, str],
) -> None:
    """Whatever a message has, it has it again when a receiver gets it, once, and not before its time."""
    port, primary, secondary = brokers
    with TcpProxy("127.0.0.1", port) as proxy:
        async with Pair.connect(proxy.rewrite(primary), secondary, options=OPTIONS) as pair:
            events: list[Any] = []
            pair.subscribe(events.append)
            await pair.primary.admin.create(Entity("orders"))
            sender = pair.sender("orders")
            proxy.reset(refuse=True)
            sent = [message(n, datetime.now(UTC)) for n in range(COUNT)]
            receipts = []
            for start in range(0, COUNT, 200):
                receipts += await asyncio.gather(*(sender.send(one) for one in sent[start : start + 200]))
            assert {(receipt.route, receipt.maybe_duplicate) for receipt in receipts} == {(Route.BACKLOG, False)}
            proxy.restore()

            got: dict[str, list[Message]] = {}
            early: list[str | None] = []
            ends_at = time.monotonic() + 200
            async with pair.receiver("orders", prefetch=200) as receiver:
                deliveries = []
                # And then what there is of second copies.
                while (len(got) < COUNT or deliveries) and time.monotonic() < ends_at:
                    deliveries = await receiver.receive(200, 1.0)
                    now = datetime.now(UTC)
                    for delivery in deliveries:
                        one = delivery.message
                        got.setdefault(str(one.message_id), []).append(one)
                        if one.scheduled_enqueue_at is not None and one.scheduled_enqueue_at > now:
                            early.append(one.message_id)
                    await asyncio.gather(*(delivery.complete() for delivery in deliveries))
            await until(lambda: pair.state("orders") is EntityState.HEALTHY, 60)

    assert [e for e in events if isinstance(e, MessageDeadLettered)] == []
    assert set(got) == {one.message_id for one in sent}
    assert early == []
    wrong = [
        (before.message_id, name, value, described(after)[name])
        for before in sent
        for after in got[str(before.message_id)]
        for name, value in described(before).items()
        if described(after)[name] != value
    ]
    assert wrong[:5] == []
    # A second copy is the syphon's, of what it had in hand when something failed, and it says so.
    moved = [e for e in events if isinstance(e, MessageMoved)]
    explained = {e.message_id for e in moved if e.maybe_duplicate or e.redelivered or not e.completed}
    assert {message_id for message_id, copies in got.items() if len(copies) > 1} <= explained

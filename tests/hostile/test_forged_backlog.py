"""Whatever others forge in a backlog queue, the good messages are moved back and forged ones put away with a reason.

A whole pair with its syphon, on simulated brokers in virtual time (SPEC 5.8, 7.4).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pairmq import Entity, EntityKind, Message, Pair, PairOptions
from pairmq.core import ALIASES, Diversion, divert
from pairmq.core import gates as gates_module
from pairmq.model.events import MessageDeadLettered
from pairmq.runner import Clock
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time, run_virtual, virtual_wall
from patient_examples import examples

AT = datetime(2023, 11, 14, tzinfo=UTC)
QUEUE = Entity("east/x-servicebus-transfer/0")
FORBIDDEN = (
    "system/settings",
    "east/x-servicebus-transfer/0",
    "east/X-ServiceBus-Transfer/0",
    "west/x-servicebus-transfer/7",
    "private",
)
"""Queues of the primary that the pair must not deliver to: the system's, backlog queues, one that is not allowed."""


@dataclass
class World:
    """A pair with a syphon and one backlog queue, and what it dead-lettered."""

    east: SimulatedBroker
    west: SimulatedBroker
    pair: Pair
    dead: list[MessageDeadLettered]

    def home(self, path: str, kind: str = "queue") -> list[bytes]:
        return [message.body for message in self.east.messages(path, kind)]

    async def drained(self) -> None:
        while self.west.messages(QUEUE.path):
            await asyncio.sleep(0.1)


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    setup = east.transport()
    for path in ("orders", "prices/eu", *FORBIDDEN):
        await setup.admin.create(Entity(path))
    await setup.admin.create(Entity("news", EntityKind.TOPIC))
    await setup.admin.create_subscription(Entity("news", EntityKind.TOPIC), "all")
    await setup.close()
    defaults: dict[str, Any] = {
        "enable_syphon": True,
        "backlog_queue_count": 1,
        "attempt_timeout": 1.0,
        "allowed_entities": ("orders", "prices/*", "news", "nowhere*", "*/*ransfer/*", "system/*"),
    }
    clock = Clock(virtual_wall, random.Random(1))
    pair = Pair(east.transport(), west.transport(), PairOptions(**{**defaults, **options}), clock=clock)
    made = World(east, west, pair, [])
    pair.subscribe(lambda event: made.dead.append(event) if isinstance(event, MessageDeadLettered) else None)
    async with pair:
        yield made
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def envelope(body: bytes, path: str = "orders", number: int = 0, kind: EntityKind = EntityKind.QUEUE) -> Message:
    """A message as PairMQ parks it."""
    return divert(Message(body, message_id=f"m-{number}"), Diversion(Entity(path, kind), AT, "sender-1", number))


ENVELOPE = dict(envelope(b"").application_properties)

# ------------------------------------------------------------------------------------------------------- forged

paths = st.sampled_from(
    [
        *FORBIDDEN,
        "orders",
        "ORDERS",
        "prices/eu",
        "prices",
        "nowhere",
        "../orders",
        "orders/..",
        "/orders",
        "orders/",
        "a//b",
        "*",
        "?rders",
        "[o]rders",
        "orders\x00",
        "orders\n",
        "orders\u202e",
        "\u2066orders",
        "\u200borders",
        "orders\\..",
        "x" * 260,
        "x" * 300,
        "news",
        "éàü/😀",
        "{primary}/x-servicebus-transfer/{index}",
        "%2e%2e/orders",
        "east/x-servicebus-transfer/٣",
        "east/x-servicebus-transfer/00",
        "",
        " ",
    ]
)
texts = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "+1",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1e9",
        "0.0000001",
        "922337193601",
        "9" * 15,
        "9" * 400,
        "9" * 5000,
        "1_0",
        "٣",
        "\uff11",
        " 1",
        "1\n",
        "true",
        "false",
        "queue",
        "topic",
        "subscription",
        "2025-03-04T05:06:07+00:00",
        "2025-03-04T05:06:07",
        "2025-03-04T05:06:07+01:00",
        "2025-06-30T23:59:60+00:00",
        "10000-01-01T00:00:00+00:00",
        "0001-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59.999999+00:00",
        "2025-W10-2T05:06:07Z",
        "s" * 129,
        "\x00\x1b[2J",
        "\u202e",
    ]
)
wrong_types = st.sampled_from(
    [None, True, 0, 1, 2**63 - 1, 1.5, 1e308, b"", b"\xff\xfe", AT, UUID(int=0), Decimal("1.5"), ("1",), {"a": 1}]
)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
values = paths | texts | wrong_types | any_text


@st.composite
def forged(draw: st.DrawFn) -> Message:
    """A message that somebody else put into the backlog queue, most of them near to what PairMQ writes."""
    properties: dict[str, Any] = dict(ENVELOPE) if draw(st.booleans()) else {}
    properties.update(draw(st.dictionaries(st.sampled_from(sorted(ALIASES)), values, max_size=3)))
    if draw(st.booleans()):
        properties["x-ms-path"] = draw(paths)
    for alias in draw(st.sets(st.sampled_from(sorted(ALIASES)), max_size=2)):
        properties.pop(alias, None)
    properties.update(draw(st.dictionaries(any_text.filter(bool), values, max_size=2)))
    fields = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "message_id": st.just("m-0") | any_text.filter(bool),
                "session_id": any_text.filter(bool),
                "time_to_live": st.floats(60, 1e9),
                "priority": st.integers(0, 255),
                "subject": any_text,
            },
        )
    )
    return Message(b"forged", application_properties=properties, **fields)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(forged(), max_size=12), st.sampled_from(["restore", "elapse"]))
@example([Message(b"forged", application_properties={**ENVELOPE, "x-ms-path": path}) for path in FORBIDDEN], "restore")
@example([Message(b"forged", application_properties=ENVELOPE)] * 3, "restore")
def test_the_good_are_moved_back_and_the_forged_go_nowhere_they_may_not(hostile: list[Message], policy: str) -> None:
    async def scene() -> None:
        async with world(ttl_policy=policy) as w:
            good = [envelope(b"good-%d" % n, number=1000 + n) for n in range(3)]
            middle = len(hostile) // 2
            for message in (good[0], *hostile[:middle], good[1], *hostile[middle:], good[2]):
                w.west.store(QUEUE, message)
            async with asyncio.timeout(3600):  # of virtual time; a schedule is all that may take long
                while any(not later(message) for message in w.west.messages(QUEUE.path)):
                    await asyncio.sleep(1)
            assert [body for body in w.home("orders") if body != b"forged"] == [b"good-0", b"good-1", b"good-2"]
            for path in FORBIDDEN:
                assert w.home(path) == []
            delivered = [*w.home("orders"), *w.home("prices/eu")].count(b"forged")
            delivered += len(w.east.queues[Entity("news", EntityKind.TOPIC)].subscriptions["all"].stored)
            put_away = w.west.dead_letters(QUEUE.path)
            assert delivered + len(put_away) == len(hostile)
            assert all(reason for _, reason in put_away)
            assert all(event.reason and event.description for event in w.dead)

    run_virtual(scene())


def later(message: Message) -> bool:
    return message.scheduled_enqueue_at is not None


@pytest.mark.parametrize("path", FORBIDDEN)
@in_virtual_time
async def test_no_forged_path_leads_to_what_is_not_allowed(path: str) -> None:
    async with world() as w:
        w.west.store(QUEUE, envelope(b"x", path))
        await w.drained()
        assert w.home(path) == []
        assert [event.reason for event in w.dead] == ["destination-not-allowed"]


@in_virtual_time
async def test_a_message_for_a_backlog_queue_makes_one_move_and_no_loop() -> None:
    async with world() as w:
        w.west.store(QUEUE, envelope(b"x", QUEUE.path))
        await w.drained()
        await asyncio.sleep(3600)
        assert [reason for _, reason in w.west.dead_letters(QUEUE.path)] == ["destination-not-allowed"]
        assert len(w.dead) == 1


@in_virtual_time
async def test_an_envelope_in_an_envelope_is_a_message_with_odd_properties() -> None:
    """What `restore` left is never taken for an envelope again."""
    async with world() as w:
        inner = {f"y-{name}": value for name, value in ENVELOPE.items()}
        w.west.store(QUEUE, replace(envelope(b"x"), application_properties={**ENVELOPE, **inner}))
        await w.drained()
        [message] = w.east.messages("orders")
        assert dict(message.application_properties) == inner


@in_virtual_time
async def test_a_thousand_forged_messages_are_put_away_before_a_good_one_at_the_end() -> None:
    async with world() as w:
        for _ in range(1000):
            w.west.store(QUEUE, Message(b"forged", application_properties={"x-ms-path": "x" * 300}))
        w.west.store(QUEUE, envelope(b"good"))
        await w.drained()
        assert w.home("orders") == [b"good"]
        assert len(w.west.dead_letters(QUEUE.path)) == 1000


# ------------------------------------------------------------------------------------- memory for forged paths


@pytest.mark.parametrize("fault", [Fault.UNAUTHORIZED, Fault.DOWN, Fault.BUSY])
@in_virtual_time
async def test_forged_paths_that_wait_cost_a_bounded_memory(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    """An answer that an operator or time can fix keeps the message, but not a gate, a sender and a task for each."""
    monkeypatch.setattr(gates_module, "_MOST", 20)
    async with world(allowed_entities=(), syphon_batch=10) as w:
        names = [f"forged-{number}" for number in range(100)]
        w.east.fail(fault, Operation.SEND | Operation.PROBE, entities=names)
        for number, name in enumerate(names):
            w.west.store(QUEUE, envelope(b"%d" % number, name, number))
        w.west.store(QUEUE, envelope(b"good", number=1000))
        while w.home("orders") != [b"good"]:
            await asyncio.sleep(1)
        await asyncio.sleep(120)
        syphon = w.pair._engine.syphon
        assert syphon is not None
        held = syphon.locked
        assert held <= 2 * 10
        assert len(syphon.gates.gates) <= 20 + held
        assert len(syphon._senders) <= 20 + held
        probes = [task for task in asyncio.all_tasks() if task.get_name().startswith("syphon probe")]
        assert len(probes) <= 20 + held
        assert len(w.west.messages(QUEUE.path)) == 100


@in_virtual_time
async def test_messages_of_many_destinations_are_all_moved_back_after_an_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gate that was dropped strands nobody: neither a line that waits, nor what went to the queue's tail."""
    monkeypatch.setattr(gates_module, "_MOST", 3)
    async with world(allowed_entities=(), syphon_batch=10) as w:
        names = [f"real-{number}" for number in range(60)]
        setup = w.east.transport()
        for name in names:
            await setup.admin.create(Entity(name))
        w.east.fail(Fault.DOWN, Operation.SEND | Operation.PROBE, entities=names)
        for number in range(180):
            w.west.store(QUEUE, envelope(b"%d" % number, names[number % 60], number))
        await asyncio.sleep(120)
        w.east.heal()
        await w.drained()
        assert sorted(int(body) for name in names for body in w.home(name)) == list(range(180))

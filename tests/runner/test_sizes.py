"""What a message may be for both brokers, and the look at its size that every healthy send pays for (SPEC 3.8)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairmq import (
    BacklogUnavailable,
    Entity,
    Message,
    MessageTooLarge,
    Pair,
    PairOptions,
    Route,
    SendRefused,
    SendUnknown,
)
from pairmq.core.envelope import copy_of
from pairmq.model.events import Warned
from pairmq.plugins import registry
from pairmq.runner import Clock, Emitter
from pairmq.runner._job import MessageLimits, _at_most
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time
from pairmq.transport import Capabilities, QueueProperties

ORDERS = Entity("orders")
FREE_TEXTS = ("content_type", "content_encoding", "correlation_id", "subject", "to", "reply_to")  # of any length


@pytest.fixture
def looked():
    """Looks at messages where the secondary takes 100 000 bytes; gives what was measured and what was warned of."""
    west = SimulatedBroker("west", capabilities=Capabilities(max_message_bytes=100_000)).transport()
    measured: list[Message] = []
    measure = registry.transport("redis://127.0.0.1:1/0").measure  # the simulated one passes over the fields
    west.measure = lambda message: measured.append(message) or measure(message)
    warnings: list[Warned] = []
    emit = Emitter("east>west", Clock())
    emit.add(warnings.append)
    sizes = MessageLimits(SimulatedBroker("east").transport(), west, Clock(), emit)

    def look(message: Message) -> tuple[int, int]:
        sizes.look(ORDERS, message)
        return len(measured), len(warnings)

    return look


def test_a_message_surely_fits_that_is_far_below_the_secondarys_limit():
    for most, fits in ((None, True), (20_000, True), (10_000, False)):
        west = SimulatedBroker("west", capabilities=Capabilities(max_message_bytes=most)).transport()
        sizes = MessageLimits(SimulatedBroker("east").transport(), west, Clock(), Emitter("east>west", Clock()))
        assert sizes.surely_fits(Message(bytes(8_000))) is fits


def test_a_small_message_with_short_texts_is_not_measured(looked):
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "vendor=1", "customer": "x" * 50}
    assert looked(Message(b"x" * 1024, application_properties=trace)) == (0, 0)


def test_properties_that_hold_most_of_the_room_are_warned_of(looked):
    assert looked(Message(b"", application_properties={"a": "x" * 85_000})) == (1, 1)


def test_properties_that_are_no_text_are_measured(looked):
    assert looked(Message(b"", application_properties={"a": b"x" * 85_000})) == (1, 1)


@pytest.mark.parametrize("field", FREE_TEXTS)
def test_a_text_that_holds_most_of_the_room_is_warned_of(looked, field):
    assert looked(Message(b"", **{field: "x" * 300_000})) == (1, 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=200),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from(FREE_TEXTS), st.text(st.characters(exclude_categories=("Cs",)), max_size=200)),
)
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/", "memory://sizes"])
def test_no_codec_needs_more_than_the_quick_look_takes_for_granted(url, properties, texts):
    message = Message(b"x", message_id="m", application_properties=properties, **texts)
    bare = Message(b"x", message_id="m")
    transport = registry.transport(url)
    assert transport.measure(message) - transport.measure(bare) <= _at_most(message)


# What the primary can never hold is refused in every state (SPEC 3.8).

_ALL = Capabilities(
    max_message_bytes=1000, scheduling=True, time_to_live=True, lock_renewal=True, dead_letter=True, probes=True
)
_LATER = datetime(2100, 1, 1, tzinfo=UTC)

unfit = pytest.mark.parametrize(
    ("capabilities", "message", "kind"),
    [
        (_ALL, Message(bytes(1001)), MessageTooLarge),
        (replace(_ALL, time_to_live=False), Message(b"x", time_to_live=9), SendRefused),
        (replace(_ALL, scheduling=False), Message(b"x", scheduled_enqueue_at=_LATER), SendRefused),
    ],
    ids=["too large", "time-to-live", "schedule"],
)


@pytest.fixture
def narrow(world):
    """Opens a pair whose primary has such capabilities."""

    def make(capabilities: Capabilities, **options):
        return world(east=SimulatedBroker("east", capabilities=capabilities), **options)

    return make


@unfit
@pytest.mark.parametrize("ordering", ["none", "session"])
@pytest.mark.parametrize("state", ["healthy", "held", "forced", "primary down", "both down", "both hang"])
@in_virtual_time
async def test_what_the_primary_can_never_hold_is_refused_in_every_state(
    narrow, capabilities, message, kind, state, ordering
):
    async with narrow(capabilities, failover_interval=0.5, ordering=ordering) as w:
        sender = w.pair.sender("orders")
        if state == "held":
            w.pair.hold("orders")
        elif state == "forced":
            w.pair.force_failover("orders")
        elif state != "healthy":
            fault = Fault.HANG if state == "both hang" else Fault.DOWN
            w.east.fail(fault)
            if state != "primary down":
                w.west.fail(fault)
        began = asyncio.get_running_loop().time()
        # A broker that took the attempt and said nothing leaves a doubt.
        with pytest.raises(
            SendUnknown if state == "both hang" else kind, match=r"the primary can't hold it|does not support|takes"
        ):
            await sender.send(message)
        assert {type(error) for error in await sender.send_batch([message, message])} == {kind}
        assert asyncio.get_running_loop().time() - began < 4  # not only at its deadline
        assert w.backlog() == []


@in_virtual_time
async def test_the_others_of_a_batch_go_to_the_backlog_beside_one_that_the_primary_can_never_hold(narrow):
    async with narrow(_ALL) as w:
        w.pair.hold("orders")
        large = Message(bytes(1001), message_id="large")
        before, refused, after = await w.pair.sender("orders").send_batch([Message(b"1"), large, Message(b"2")])
        assert (before.route, after.route) == (Route.BACKLOG, Route.BACKLOG)
        assert isinstance(refused, MessageTooLarge)
        assert "the primary can't hold it" in str(refused)


@in_virtual_time
async def test_a_session_that_keeps_diverting_takes_nothing_that_the_primary_can_never_hold(narrow):
    async with narrow(_ALL, ordering="session") as w:
        sender = w.pair.sender("orders")
        w.pair.hold("orders")
        await sender.send(Message(b"x", session_id="s"))
        w.pair.mark_healthy("orders")
        with pytest.raises(MessageTooLarge):
            await sender.send(Message(bytes(1001), session_id="s"))
        assert len(w.backlog()) == 1


@in_virtual_time
async def test_a_message_too_large_for_the_backlog_does_not_wait_for_a_queue(world):
    west = SimulatedBroker("west", capabilities=replace(_ALL, ordered_consumer=True))
    async with world(west=west) as w:
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN)
        with pytest.raises(BacklogUnavailable):
            await w.pair.sender("orders").send(Message(b"x"), timeout=1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(MessageTooLarge, match="the backlog can't hold it"):
            await w.pair.sender("orders").send(Message(bytes(990)))
        assert asyncio.get_running_loop().time() - began < 1


@in_virtual_time
async def test_what_the_backlog_takes_has_room_for_the_mark_of_a_copy(world):
    """One that has not can't go to its queue's tail: where it waits for its destination, none behind it is received."""
    west = SimulatedBroker("west", capabilities=replace(_ALL, ordered_consumer=True))
    async with world(west=west, backlog_queue_count=1) as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        for size in range(1000):
            with suppress(MessageTooLarge):
                await sender.send(Message(bytes(size)))
        largest = w.backlog()[-1]
        transport, queue = west.transport(), w.pair.backlog_queues[0]
        transport.check_message(queue, copy_of(largest, _LATER, marked=True))
        assert transport.measure(copy_of(largest, None, marked=True)) == 1000


@in_virtual_time
async def test_a_message_that_a_broker_holds_exactly_is_not_refused(narrow):
    async with narrow(_ALL) as w:
        w.pair.hold("orders")
        assert (await w.pair.sender("orders").send(Message(bytes(1000)))).route is Route.BACKLOG


async def test_message_without_the_session_that_its_queue_requires_is_refused_in_an_outage():
    options = PairOptions(backlog_queue_count=1)
    async with Pair.connect("memory://sessions-east", "memory://sessions-west", options=options) as pair:
        await pair.primary.admin.create(ORDERS, QueueProperties(requires_session=True))
        pair.hold("orders")
        with pytest.raises(SendRefused, match="requires a session_id"):
            await pair.sender("orders").send(Message(b"a"))
        receipt = await pair.sender("orders").send(Message(b"b", session_id="s"))
        assert receipt.route is Route.BACKLOG

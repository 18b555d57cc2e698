"""What making, closing and ending keep, and that no suite is left out; whole pairs, through an outage and back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

import pytest

from pairmq.core import PairOptions
from pairmq.model import (
    ConfigurationError,
    Entity,
    EntityState,
    FailureReason,
    Receipt,
    Route,
    Source,
)
from pairmq.pair import Pair
from pairmq.plugins import registry
from pairmq.testing._simulated import Fault, SimulatedBroker
from pairmq.testing.conformance._broker import (
    CLOSED,
    NAMES,
    Broker,
    Stopwatch,
    Suite,
    bodies,
    capability,
    limits,
    message,
    must_fail,
    probe,
    receive_all,
    receive_one,
    refused,
    up_to,
)
from pairmq.transport import Transport

_CLOSE = 2.0
_QUEUE = Entity("orders")


class Lifecycle(Suite):
    """`Transport`: laziness, close, fault, and its self-description (SPEC 9.1, 9.2, 10.2)."""

    async def test_no_suite_and_no_test_is_left_out(self, request: pytest.FixtureRequest) -> None:
        # Those of this package; a direct subclass elsewhere is its own suite.
        suites = [suite for suite in Suite.__subclasses__() if suite.__module__.startswith(f"{__package__}.")]
        patterns = request.config.getini("python_classes")
        collected = [
            value
            for name, value in vars(request.module).items()
            if isinstance(value, type) and any(name.startswith(p) or fnmatchcase(name, p) for p in patterns)
        ]
        missing = sorted(suite.__name__ for suite in suites if not any(issubclass(found, suite) for found in collected))
        assert not missing, f"{request.module.__name__} has no subclass of: {', '.join(missing)}"
        replaced = [
            f"{found.__name__}.{name}"
            for found in collected
            for suite in suites
            if issubclass(found, suite)
            for name in vars(suite)
            if name.startswith("test_") and getattr(found, name) is not getattr(suite, name)
        ]
        assert not replaced, f"tests of the suites are replaced: {', '.join(replaced)}"

    async def test_making_objects_does_no_io(self, broker: Broker) -> None:
        await broker.stop()
        transport = broker.connect()
        sender, receiver, admin = transport.sender(_QUEUE), transport.receiver(Source(_QUEUE)), transport.admin
        await asyncio.sleep(0.1)  # time enough for what may have been begun behind our back
        await broker.restore()
        await admin.create(_QUEUE)
        await sender.send(message("hello"))
        assert bodies([await receive_one(receiver)]) == ["hello"]

    async def test_what_was_never_used_closes(self, broker: Broker) -> None:
        transport = broker.connect()
        sender, receiver = transport.sender(_QUEUE), transport.receiver(Source(_QUEUE))
        await sender.close()
        await receiver.close()
        await transport.close()
        assert transport.ended

    async def test_closing_again_is_no_failure(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender, receiver = broker.sender(queue), broker.receiver(queue)
        await sender.send(message("hello"))
        await receive_one(receiver)
        for closing in (sender, receiver, broker.transport):
            await closing.close()
            await closing.close()
            await asyncio.gather(closing.close(), closing.close())

    async def test_a_block_closes_its_transport(self, broker: Broker) -> None:
        async with broker.connect() as transport:
            await transport.admin.check()
        assert transport.ended
        await must_fail(transport.admin.check, *CLOSED)

    async def test_a_closed_sender_sends_nothing_and_the_next_one_does(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await sender.close()
        error = await must_fail(lambda: sender.send(message("after")), *CLOSED)
        assert not error.maybe_applied
        outcomes = await sender.send_batch([message("after")])
        assert [error and error.reason for error in outcomes] == [FailureReason.CLOSED]
        await broker.put(queue, "next")

    async def test_closing_one_object_leaves_the_others_open(self, broker: Broker) -> None:
        """`Sender.close` and `Receiver.close` end their own calls and locks, and no others."""
        queue = await broker.queue_with(*"ab")
        first, second = broker.receiver(queue), broker.receiver(queue)
        held = await receive_one(first)
        await receive_one(second)
        await second.close()
        await first.complete_batch([held, await receive_one(first)])
        sender, other = broker.sender(queue), broker.sender(queue)
        await sender.send(message("c"))
        await other.send(message("d"))
        await other.close()
        await sender.send(message("e"))
        assert bodies(await receive_all(first, 3)) == ["c", "d", "e"]

    async def test_a_closed_receiver_receives_nothing(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        receiver = broker.receiver(queue)
        delivery = await receive_one(receiver)
        await receiver.close()
        await must_fail(lambda: receiver.receive(1, 0.2), *CLOSED)
        error = await must_fail(lambda: receiver.complete(delivery))
        assert error.reason in (FailureReason.CLOSED, FailureReason.LOCK_LOST), f"{error!r}"

    async def test_closing_a_receiver_ends_its_long_poll(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        await receiver.close()
        await must_fail(lambda: polling, *CLOSED)

    async def test_every_call_of_a_closed_transport_says_that_it_is_closed(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        delivery = await receive_one(receiver)
        await sender.send(message("more"))
        await transport.close()
        await _all_say_closed(transport, queue, (
            lambda: sender.send(message("lost")),
            lambda: receiver.receive(1, 0.2),
            lambda: receiver.complete(delivery),
            lambda: receiver.abandon(delivery),
        ))  # fmt: skip
        assert [error and error.reason for error in await sender.send_batch([message("lost")])] == [
            FailureReason.CLOSED
        ]

    async def test_a_long_poll_ends_with_its_transport(self, broker: Broker) -> None:
        queue = await broker.queue()
        transport = broker.connect()
        polling = asyncio.ensure_future(transport.receiver(Source(queue)).receive(1, 300.0))
        await asyncio.sleep(0.3)
        await transport.close()
        await must_fail(lambda: polling, *CLOSED)

    async def test_closing_does_not_wait_for_a_frozen_broker(self, broker: Broker) -> None:
        queue = await broker.queue_with("hello")
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        await sender.send(message("more"))
        await receive_one(receiver)
        await broker.freeze()
        for closing in (sender, receiver, transport):
            with Stopwatch() as watch:
                await closing.close()
            assert watch.elapsed < _CLOSE + limits().slack, f"closing {closing!r} took {watch.elapsed:.2f} s"

    async def test_a_send_under_way_ends_as_closed_with_a_correct_outcome(self, broker: Broker) -> None:
        queue = await broker.queue()
        transport = broker.connect()
        sender = transport.sender(queue)
        await sender.send(message("before"))
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("in doubt")))
        await asyncio.sleep(0.3)
        await transport.close()
        error = await must_fail(lambda: sending, *CLOSED)
        await broker.restore()
        await broker.put(queue, "after")
        found = await up_to(broker, queue, "after")
        assert error.maybe_applied or "in doubt" not in found, "a send that certainly did nothing has arrived"

    async def test_a_faulted_transport_keeps_its_first_cause(self, broker: Broker) -> None:
        transport = broker.connect()
        await transport.admin.check()
        cause = RuntimeError("the partner is gone")
        await transport.fault(cause)
        await transport.fault(RuntimeError("a later one"))
        await transport.close()
        assert transport.ended and transport.fault_cause is cause
        await _all_say_closed(transport, _QUEUE, (lambda: transport.sender(_QUEUE).send(message("lost")),))

    async def test_an_ordinary_close_has_no_cause(self, broker: Broker) -> None:
        transport = broker.connect()
        await transport.close()
        assert transport.fault_cause is None

    async def test_listeners_hear_of_the_end_once(self, broker: Broker) -> None:
        transport = broker.connect()
        heard: list[str] = []
        forgotten = lambda _: heard.append("forgotten")  # noqa: E731  # must be the same object twice
        transport.on_end(lambda ended: heard.append("first" if ended is transport else "another transport"))
        transport.on_end(forgotten)
        transport.remove_on_end(forgotten)
        assert heard == []
        await transport.fault(RuntimeError("the partner is gone"))
        await transport.close()
        assert heard == ["first"]
        transport.on_end(lambda _: heard.append("late"))
        assert heard == ["first", "late"]

    async def test_closing_leaves_no_task_behind(self, broker: Broker) -> None:
        queue = await broker.queue()
        before = asyncio.all_tasks()
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        await sender.send(message("hello"))
        await receive_one(receiver)
        await transport.close()
        left = asyncio.all_tasks() - before
        if left:  # what is ending has a moment for it
            _, left = await asyncio.wait(left, timeout=limits().patience)
        assert not left, f"still running after the close: {left}"

    async def test_an_endpoint_names_a_broker(self, broker: Broker) -> None:
        endpoint, again = broker.transport.endpoint, broker.connect().endpoint
        assert endpoint.identity == again.identity and endpoint.name == again.name
        assert endpoint.identity and all(isinstance(part, str) for part in endpoint.identity)
        Entity(f"{endpoint.name}/x-servicebus-transfer/0")  # where the backlog will stand (SPEC 5.1)

    async def test_the_plugin_reports_what_its_transports_claim(self, broker: Broker) -> None:
        try:
            stated = registry.transport_record(broker.url).capabilities
        except ConfigurationError:
            return  # the harness makes transports of a plugin that is not installed
        names = [name for name in NAMES if isinstance(getattr(stated, name), bool)]
        actual = broker.capabilities
        assert {n: getattr(stated, n) for n in names} == {n: getattr(actual, n) for n in names}

    async def test_no_password_is_shown(self, broker: Broker) -> None:
        password = unquote(urlsplit(broker.url).password or "")
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("hello"))
        shown = [repr(broker.transport), str(broker.transport.endpoint), repr(broker.transport.endpoint)]
        shown += [repr(sender), repr(broker.receiver(queue)), repr(broker.admin)]
        await broker.stop()
        for transport in (broker.transport, broker.connect()):
            error = await must_fail(transport.admin.check)
            shown += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
        if password:
            secrets = {password, urlsplit(broker.url).password or ""}
            assert not [text for text in shown if any(secret in text for secret in secrets)]


async def _all_say_closed(
    transport: Transport, queue: Entity, calls: tuple[Callable[[], Awaitable[object]], ...]
) -> None:
    admin = transport.admin
    for call in (
        *calls,
        admin.check,
        lambda: admin.exists(queue),
        lambda: admin.create(queue),
        lambda: admin.counts(Source(queue)),
    ):
        await must_fail(call, *CLOSED)


_LIMIT = 15.0
"""Seconds of an attempt: more than a busy machine takes, for one that is cut off there would be a failover."""

_OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=0.5,
    ping_primary_interval=0.3,
    ping_timeout=_LIMIT,
    attempt_timeout=_LIMIT,
    send_timeout=40.0,
    backlog_retry_interval=0.5,
    syphon_receive_wait=1.0,
    enable_syphon=True,
)


class Failover(Suite):
    """A pair in which one side is the transport under test (SPEC 3 to 7)."""

    @capability("probes", disclaimed=refused(probe))
    async def test_a_primary_that_stops_loses_nothing(self, broker: Broker) -> None:
        await broker.admin.create(_QUEUE)
        async with _pair(broker, primary=True) as (pair, _):
            receipts = [await _send(pair, "before")]
            await broker.stop()
            receipts += [await _send(pair, f"during {number}") for number in range(3)]
            await broker.restore()
            # If the broker is not durable, its queues have to be recreated.
            await broker.connect().admin.create(_QUEUE)
            await _settled(pair)
            receipts.append(await _send(pair, "after"))
            routes = [receipt.route for receipt in receipts]
            assert routes[1:] == [Route.BACKLOG] * 3 + [Route.PRIMARY]
            found = await _received(pair, {"during 0", "during 1", "during 2", "after"})
            assert found - {"before"} == {"during 0", "during 1", "during 2", "after"}
            assert "before" in found or not broker.capabilities.durable

    @capability("probes", disclaimed=refused(probe))
    async def test_a_primary_that_freezes_loses_nothing(self, broker: Broker) -> None:
        await broker.admin.create(_QUEUE)
        # The first send meets silence, and waits for as long as an attempt may take.
        async with _pair(broker, primary=True, limit=5.0) as (pair, _):
            await _send(pair, "before")
            await broker.freeze()
            receipts = [await _send(pair, f"during {number}") for number in range(3)]
            assert [receipt.route for receipt in receipts] == [Route.BACKLOG] * 3
            await broker.restore()
            await _settled(pair)
            assert (await _send(pair, "after")).route is Route.PRIMARY
            everything = {"before", "during 0", "during 1", "during 2", "after"}
            assert await _received(pair, everything) == everything

    async def test_a_secondary_keeps_messages_and_gives_them_back_as_they_were(self, broker: Broker) -> None:
        async with _pair(broker, primary=False) as (pair, partner):
            partner.fail(Fault.DOWN)
            sent = [
                message(
                    f"during {number}",
                    session_id="a session",
                    time_to_live=3600.5,
                    priority=3,
                    subject="ä subject",
                    application_properties={"number": number, "bytes": b"\x00\xff", "nested": ({"a": None},)},
                )
                for number in range(4)
            ]
            # In the backlog its other properties are texts, those of the envelope.
            sent.append(message("nothing", application_properties={"text": "a text", "nothing": None}))
            receipts = [await pair.sender(_QUEUE.path).send(each) for each in sent]
            assert [receipt.route for receipt in receipts] == [Route.BACKLOG] * 5
            assert partner.messages(_QUEUE.path) == []
            partner.heal()
            await _settled(pair)
            await _until(lambda: len(_ids(partner)) >= 5, "the backlog was not moved to the primary")
            arrived = {each.message_id: each for each in partner.messages(_QUEUE.path)}
            assert arrived == {each.message_id: each for each in sent}

    @capability("durable", disclaimed=lambda broker: _a_secondary_that_forgets_takes_messages_again(broker))
    async def test_a_secondary_that_crashes_keeps_its_backlog(self, broker: Broker) -> None:
        partner = SimulatedBroker("partner")
        # Without a syphon, which might hold messages whose locks would outlive the crash and the test.
        async with _pair(broker, primary=False, partner=partner, syphon=False) as (pair, _):
            partner.fail(Fault.DOWN)
            receipts = [await _send(pair, f"during {number}") for number in range(3)]
            assert [receipt.route for receipt in receipts] == [Route.BACKLOG] * 3
        await broker.crash()
        await broker.restore()
        partner.heal()
        async with _pair(broker, primary=False, partner=partner):
            await _until(lambda: len(_ids(partner)) >= 3, "the backlog was not moved to the primary")
            arrived = {each.body.decode() for each in partner.messages(_QUEUE.path)}
            assert arrived == {"during 0", "during 1", "during 2"}


async def _a_secondary_that_forgets_takes_messages_again(broker: Broker) -> None:
    await broker.crash()
    await broker.restore()
    async with _pair(broker, primary=False) as (pair, partner):
        partner.fail(Fault.DOWN)
        assert (await _send(pair, "during")).route is Route.BACKLOG


@asynccontextmanager
async def _pair(
    broker: Broker,
    *,
    primary: bool,
    partner: SimulatedBroker | None = None,
    syphon: bool = True,
    limit: float = _LIMIT,
) -> AsyncIterator[tuple[Pair, SimulatedBroker]]:
    partner = partner or SimulatedBroker("partner")
    ours, theirs = broker.connect(), partner.transport()
    options = replace(_OPTIONS, enable_syphon=syphon, attempt_timeout=limit, ping_timeout=limit)
    if primary:
        pair = Pair(ours, theirs, options)
    else:
        await theirs.admin.create(_QUEUE)
        pair = Pair(theirs, ours, options)
    async with pair:
        yield pair, partner


async def _send(pair: Pair, body: str) -> Receipt:
    return await pair.sender(_QUEUE.path).send(message(body))


async def _settled(pair: Pair) -> None:
    await _until(lambda: pair.state(_QUEUE.path) is EntityState.HEALTHY, "the pair did not become healthy again")


async def _received(pair: Pair, expected: set[str]) -> set[str]:
    """What the queue gives until all that is expected has come; at the latest when patience ends."""
    found: set[str] = set()
    ends_at = asyncio.get_running_loop().time() + 4 / 3 * limits().patience
    async with pair.receiver(_QUEUE.path, prefetch=20) as receiver:
        while not expected <= found and asyncio.get_running_loop().time() < ends_at:
            for delivery in await receiver.receive(20, 1.0):
                found.add(delivery.body.decode())
                await delivery.complete()
    return found


def _ids(partner: SimulatedBroker) -> set[str | None]:
    """Of the messages that were moved back; a syphon that was held up may bring one twice (SPEC 3.3)."""
    return {each.message_id for each in partner.messages(_QUEUE.path)}


async def _until(condition: Callable[[], bool], failure: str) -> None:
    ends_at = asyncio.get_running_loop().time() + 4 / 3 * limits().patience
    while not condition():
        assert asyncio.get_running_loop().time() < ends_at, failure
        await asyncio.sleep(0.05)

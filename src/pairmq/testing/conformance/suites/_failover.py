"""Whole pairs: the transport as the primary and as the secondary, through an outage and back, with nothing lost.

The partner is a simulated broker of this process, so that a plugin needs no other one beside it. The loop is a real
one, and so are the outages of the broker under test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

from pairmq.core import PairOptions
from pairmq.model import Entity, EntityState, Receipt, Route
from pairmq.pair import Pair
from pairmq.testing._simulated import Fault, SimulatedBroker
from pairmq.testing.conformance._broker import Broker, Suite, capability, message, refused
from pairmq.testing.conformance._limits import limits

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
_QUEUE = Entity("orders")


async def _probe(broker: Broker) -> None:
    await broker.admin.probe(await broker.queue())


class Failover(Suite):
    """A pair in which one side is the transport under test (SPEC 3 to 7)."""

    @capability("probes", disclaimed=refused(_probe))
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

    @capability("probes", disclaimed=refused(_probe))
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
            home = {each.message_id: each for each in partner.messages(_QUEUE.path)}
            assert home == {each.message_id: each for each in sent}

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
            home = {each.body.decode() for each in partner.messages(_QUEUE.path)}
            assert home == {"during 0", "during 1", "during 2"}


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

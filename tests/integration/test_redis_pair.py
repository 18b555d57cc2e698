"""A pair of two real redis-server processes through what happens to real processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from heartbeat import Heartbeat
from pairmq import Entity, EntityState, Message, Pair, PairOptions, Receipt, Route, SendError
from pairmq.model import Source
from pairmq.model.events import RotationChanged
from pairmq.testing import memory_broker

pytestmark = pytest.mark.real_server

OPTIONS = PairOptions(
    failover_interval=0.5,
    ping_primary_interval=0.3,
    # A server on a busy machine may well keep an attempt waiting for a second or two.
    attempt_timeout=3.0,
    ping_timeout=3.0,
    send_timeout=30.0,
    backlog_queue_count=3,
    enable_syphon=True,
    backlog_retry_interval=1.0,
)


@asynccontextmanager
async def ending_within(seconds: float) -> AsyncIterator[None]:
    """What is inside ends in time, but for what the machine keeps the loop waiting."""
    heart, started = Heartbeat(), time.monotonic()
    try:
        yield
    finally:
        ended = time.monotonic()
        await heart.stop()
    assert ended - started - heart.lag(started, ended) <= seconds + 0.5


async def until(condition, seconds: float = 60.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        await asyncio.sleep(0.05)


async def bodies(pair: Pair, count: int, seconds: float = 90.0) -> list[bytes]:
    """Receive until ``count`` different bodies have come."""
    found: list[bytes] = []
    ends_at = time.monotonic() + seconds
    async with pair.receiver("orders", prefetch=200) as receiver:
        while len(set(found)) < count and time.monotonic() < ends_at:
            for delivery in await receiver.receive(200, 0.5):
                found.append(delivery.body)
                await delivery.complete()
    return found


async def opened(pair: Pair) -> Pair:
    await pair
    await pair.primary.admin.create(Entity("orders"))
    return pair


async def test_a_killed_primary_loses_nothing_and_everything_is_moved_back(servers):
    east, west = servers
    pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
    sender = pair.sender("orders")
    receipts: list[Receipt | SendError] = []

    async def send_all() -> None:
        for n in range(3000):
            receipts.append(await sender.send(Message(b"%d" % n)))
            if n == 1000:
                east.kill()
            if n == 2000:
                east.restart()

    try:
        await send_all()
        assert {r.route for r in receipts} == {Route.PRIMARY, Route.BACKLOG}
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        found = await bodies(pair, 3000)
        assert set(found) == {b"%d" % n for n in range(3000)}
        doubtful = {b"%d" % n for n, r in enumerate(receipts) if r.maybe_duplicate}
        assert {body for body in found if found.count(body) > 1} <= doubtful
    finally:
        await pair.close()


@pytest.mark.parametrize("seconds", [0.4, 20.0])
async def test_no_send_outlives_its_deadline_on_a_stopped_server(servers, seconds):
    """SIGSTOP: the server takes TCP connections and says nothing."""
    east, west = servers
    pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
    sender = pair.sender("orders")
    try:
        await sender.send(Message(b"warm"))
        east.pause()

        async def one(n: int) -> tuple[float, object]:
            started = time.monotonic()
            try:
                result: object = await sender.send(Message(b"%d" % n), timeout=seconds)
            except SendError as error:
                result = error
            return time.monotonic() - started, result

        async with ending_within(seconds):
            outcomes = await asyncio.gather(*(one(n) for n in range(50)))
        if seconds > 3:
            assert all(isinstance(r, Receipt) and r.route is Route.BACKLOG for _, r in outcomes)
        east.resume()
        await until(lambda: pair.state("orders") is EntityState.HEALTHY)
        assert (await sender.send(Message(b"after"))).route is Route.PRIMARY
    finally:
        east.resume()
        await pair.close()


async def test_both_servers_stopped_end_every_send_in_time(servers):
    east, west = servers
    pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
    sender = pair.sender("orders")
    try:
        await sender.send(Message(b"warm"))
        east.pause()
        west.pause()
        async with ending_within(3):
            results = await asyncio.gather(
                *(sender.send(Message(b"x"), timeout=3) for _ in range(200)), return_exceptions=True
            )
        assert all(isinstance(result, SendError) for result in results)
        async with ending_within(OPTIONS.close_grace + 6):
            await pair.close()
    finally:
        east.resume()
        west.resume()
        await pair.close()


async def test_a_killed_secondary_is_noticed_and_comes_back(servers):
    east, west = servers
    pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
    back: list[RotationChanged] = []
    pair.subscribe(lambda event: back.append(event) if isinstance(event, RotationChanged) and event.in_use else None)
    sender = pair.sender("orders")
    try:
        west.kill()
        assert (await sender.send(Message(b"1"))).route is Route.PRIMARY
        pair.hold("orders")
        with pytest.raises(SendError, match="no backlog queue takes messages"):
            await sender.send(Message(b"2"))
        west.restart()
        await until(lambda: back)
        assert (await sender.send(Message(b"3"))).route is Route.BACKLOG
        pair.mark_healthy("orders")
        assert set(await bodies(pair, 2)) == {b"1", b"3"}
    finally:
        await pair.close()


async def test_poison_in_a_backlog_queue_is_dead_lettered_and_nothing_else_is_lost(servers):
    east, west = servers
    pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
    try:
        queue = pair.backlog_queues[0]
        stranger = pair.secondary.sender(queue)
        await stranger.send(Message(b"\x00\xff not an envelope", message_id="forged"))
        pair.hold("orders")
        receipt = await pair.sender("orders").send(Message(b"good"))
        assert receipt.route is Route.BACKLOG
        pair.mark_healthy("orders")
        assert await bodies(pair, 1) == [b"good"]
        # Another queue's pump may have brought it, while the one of this queue has only begun.
        async with asyncio.timeout(60):
            while not (dead := await pair.secondary.admin.peek(Source(queue, dead_letter=True), 10)):
                await asyncio.sleep(0.05)
        assert [(d.message.body, d.dead_letter_reason) for d in dead] == [
            (b"\x00\xff not an envelope", "malformed-envelope")
        ]
    finally:
        await pair.close()


@pytest.mark.parametrize("scheme", ["memory", "fakeredis"])
async def test_brokers_in_one_process_pair_too(scheme):
    async with memory_broker(scheme=scheme) as east, memory_broker(scheme=scheme) as west:
        pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
        try:
            sender = pair.sender("orders")
            await sender.send(Message(b"1"))
            await east.stop()
            assert (await sender.send(Message(b"2"))).route is Route.BACKLOG
            await east.restore()
            assert set(await bodies(pair, 2)) == {b"1", b"2"}
        finally:
            await pair.close()


@pytest.mark.parametrize("scheme", ["memory", "fakeredis"])
@pytest.mark.parametrize("fault", ["stop", "hang", "slow", "refuse", "busy", "lost", "lost-before"])
async def test_no_send_outlives_its_deadline_on_a_misbehaving_broker_in_one_process(fault, scheme):
    async with memory_broker(scheme=scheme) as east, memory_broker(scheme=scheme) as west:
        pair = await opened(Pair.connect(east.url, west.url, options=OPTIONS))
        try:
            sender = pair.sender("orders")
            await sender.send(Message(b"warm"))
            await {
                "stop": east.stop,
                "hang": east.hang,
                "slow": lambda: east.slow(5.0),
                "refuse": east.refuse,
                "busy": lambda: east.refuse(kind="busy"),
                "lost": east.lose_confirms,
                "lost-before": lambda: east.lose_confirms(applied=False),
            }[fault]()
            # A client that waits until it is not busy any more waits in vain; all others need a part of their time.
            seconds = 4 if fault == "busy" else 20
            async with ending_within(seconds):
                results = await asyncio.gather(
                    *(sender.send(Message(b"%d" % n), timeout=seconds) for n in range(20)), return_exceptions=True
                )
            assert all(isinstance(result, Receipt | SendError) for result in results)
            if fault != "busy":
                assert all(isinstance(r, Receipt) for r in results), results
        finally:
            await east.restore()
            await pair.close()

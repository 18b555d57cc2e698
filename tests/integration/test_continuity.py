"""Consumers that go on while a real RabbitMQ server, the primary, is dead: its queue and a lane in Redis (SPEC 11)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from pairmq import Entity, Message, Pair, PairOptions, Receipt, SendError, TransportError
from pairmq.model.events import ReceiverChanged, Side
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

QUEUE = "continuity"
KILLED = 8.0  # s


async def test_consumers_go_on_while_rabbitmq_is_killed(rabbit_servers, hands):
    [east] = rabbit_servers(1)
    options = PairOptions(
        continuity=(QUEUE,),
        failover_interval=1,
        ping_primary_interval=1,
        attempt_timeout=20,
        enable_syphon=True,
        backlog_queue_count=2,
    )
    handled: list[tuple[bytes, Side]] = []
    unsettled: Counter[bytes] = Counter()
    completed_at: dict[bytes, float] = {}  # of what came from the primary
    results: dict[bytes, Receipt | SendError] = {}
    changes: list[ReceiverChanged] = []

    with RedisServer() as west:
        async with Pair.connect(east.url, west.url, options=options) as pair:
            await pair.primary.admin.create(Entity(QUEUE))
            pair.subscribe(lambda event: isinstance(event, ReceiverChanged) and changes.append(event))

            async def consume() -> None:
                async with pair.receiver(QUEUE, prefetch=20) as receiver:
                    async for delivery in receiver:
                        handled.append((delivery.body, delivery.origin))
                        try:
                            await delivery.complete()
                            if delivery.origin is Side.PRIMARY:
                                completed_at.setdefault(delivery.body, time.monotonic())
                        except TransportError:
                            unsettled[delivery.body] += 1

            async def send(body: bytes) -> None:
                try:
                    results[body] = await pair.sender(QUEUE).send(Message(body))
                except SendError as error:
                    results[body] = error

            async def produce(stop: asyncio.Event) -> None:
                sends = []
                while not stop.is_set():
                    sends.append(asyncio.create_task(send(b"%d" % len(sends))))
                    await asyncio.sleep(0.05)
                await asyncio.gather(*sends)

            stop = asyncio.Event()
            consuming, producing = asyncio.create_task(consume()), asyncio.create_task(produce(stop))
            await asyncio.sleep(2)
            await hands(east.kill)
            killed_at = time.monotonic()
            await asyncio.sleep(KILLED)
            # Of what the lane had accepted, all but what was on its way is handled before the primary is back.
            # While the lane was out of use, sends went to the shared queues, which no consumer reads.
            lane = pair.backlog_queues[-1].path
            try:
                async with asyncio.timeout(300):
                    while True:
                        in_outage = [body for body, origin in handled if origin is Side.SECONDARY]
                        took = Counter(getattr(result, "backlog_queue", None) for result in results.values())
                        if len(in_outage) >= 0.9 * took[lane] > 0:
                            break
                        await asyncio.sleep(0.1)
            except TimeoutError:
                pytest.fail(f"{len(in_outage)} handled of what was diverted to {took}; {changes}; {pair.states()}")
            await hands(east.start)
            await asyncio.sleep(2)
            stop.set()
            await producing
            accepted = {body for body, result in results.items() if isinstance(result, Receipt)}
            async with asyncio.timeout(120):
                while not accepted <= {body for body, _ in handled}:
                    await asyncio.sleep(0.2)
            consuming.cancel()
            await asyncio.wait((consuming,))

    times = Counter(body for body, _ in handled)
    doubtful = {body for body, result in results.items() if not isinstance(result, Receipt) or result.maybe_duplicate}
    # A broker that is killed forgets acknowledgements that it has not written yet.
    doubtful |= {body for body, at in completed_at.items() if killed_at - 1 <= at <= killed_at + 1}
    unexplained = {body for body, count in times.items() if count > 1 + (body in doubtful) + unsettled[body]}
    assert not unexplained
    assert [(change.side, change.open) for change in changes][:2] == [(Side.PRIMARY, False), (Side.PRIMARY, True)]

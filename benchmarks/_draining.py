"""A backlog for benchmarks of drains, and the speed at which it is moved back."""

from __future__ import annotations

import asyncio
import time

from pairmq import Entity, Message, Pair, PairOptions, Route
from pairmq.model import Source
from pairmq.transport import Transport

ORDERS = Entity("orders")
BODY = b"x" * 1024
LOOK = 0.02  # s
LIMIT = 120.0  # s


async def leave(primary: str, secondary: str, messages: int) -> str:
    """Divert messages, and close; gives the name of the backlog queue that holds them."""
    async with Pair.connect(primary, secondary, options=PairOptions(backlog_queue_count=1)) as pair:
        await pair.primary.admin.create(ORDERS)
        pair.hold(ORDERS.path)
        receipts = await pair.sender(ORDERS.path).send_batch(Message(BODY) for _ in range(messages))
        if any(receipt.route is not Route.BACKLOG for receipt in receipts):
            raise RuntimeError("a message was not diverted")
        [queue] = pair.backlog_queues
        return queue.path


async def watched(east: Transport, messages: int) -> float:
    """Look at what the primary has until nine tenths are there; gives messages a second from when one tenth was."""
    points: list[tuple[float, int]] = []
    async with asyncio.timeout(LIMIT):
        while not points or points[-1][1] < messages * 9 // 10:
            arrived = (await east.admin.counts(Source(ORDERS))).pending
            if arrived >= messages // 10:
                points.append((time.perf_counter(), arrived))
            await asyncio.sleep(LOOK)
    (first, low), (last, high) = points[0], points[-1]
    return (high - low) / (last - first)

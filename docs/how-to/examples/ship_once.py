"""Ship every order once, although each is there twice and one of the consumers dies.

python ship_once.py REDIS
"""

import asyncio
import sys

from pairmq import Deduplicator, Entity, Message, Pair, PairReceiver
from pairmq.transport import QueueProperties
from pairmq_redis import RedisClaims

shipped = []


async def consume(name: str, receiver: PairReceiver, dedupe: Deduplicator, dies_after: int | None = None) -> None:
    """Ship what comes."""
    async for delivery in receiver:
        async with dedupe.once(delivery) as first:
            if first:
                await asyncio.sleep(0.01)
                if dies_after is not None and len(shipped) >= dies_after:
                    raise RuntimeError(f"{name} dies with {delivery.body.decode()} in its hands")
                shipped.append(delivery.body.decode())


async def main(url: str) -> None:
    """Send each order twice, as an outage may, and let two consumers work: one dies, the other does the rest."""
    dedupe = Deduplicator(RedisClaims(url), window=3600, lease=5)
    async with Pair.connect(url, "memory://backlog", backlog_queue_count=1) as pair:
        orders = Entity("orders")
        await pair.primary.admin.create(orders, QueueProperties(lock_duration=1.0))
        copies = [Message(f"order {n}".encode(), message_id=f"order-{n}") for n in range(20)]
        await pair.sender("orders").send_batch([copy for copy in copies for _ in range(2)])
        async with pair.receiver("orders") as receiver:
            try:
                await consume("one", receiver, dedupe, dies_after=3)
            except RuntimeError as error:
                print(error)
        async with pair.receiver("orders") as receiver:
            other = asyncio.create_task(consume("two", receiver, dedupe))
            while (await pair.primary.admin.counts(receiver.source)).pending:  # noqa: ASYNC110  # only the broker knows
                await asyncio.sleep(0.1)
            other.cancel()
            await asyncio.wait([other])
    await dedupe.close()
    print(len(shipped), "orders shipped,", len(shipped) - len(set(shipped)), "of them twice")


asyncio.run(main(sys.argv[1]))

"""One session through an outage, in order: two in-process brokers, and a primary that stops for a while."""

import asyncio

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.testing import memory_broker

OPTIONS = PairOptions(
    ordering="session",
    enable_syphon=True,
    failover_interval=0.2,
    ping_primary_interval=0.1,
    attempt_timeout=0.5,
)


async def main() -> None:
    """Send, stop the primary, start it again, and read what has arrived."""
    async with (
        memory_broker() as east,
        memory_broker() as west,
        Pair.connect(east.url, west.url, options=OPTIONS) as pair,
    ):
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        for number in range(30):
            if number == 10:
                await east.stop()
            if number == 20:
                await east.restore()
            receipt = await sender.send(Message(f"order {number}".encode(), session_id="customer-7"))
            print(f"order {number}: {receipt.route.value}")
        async with pair.receiver("orders", prefetch=30) as receiver:
            arrived: list[str] = []
            while len(arrived) < 30:
                for delivery in await receiver.receive(30, 1.0):
                    arrived.append(delivery.body.decode())
                    await delivery.complete()
    print("in order" if arrived == [f"order {number}" for number in range(30)] else arrived)


asyncio.run(main())

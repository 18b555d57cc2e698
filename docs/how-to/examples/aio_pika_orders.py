"""Publish orders with aio-pika while RabbitMQ comes and goes, and see every one of them arrive.

python aio_pika_orders.py amqp://guest:guest@127.0.0.1:5672/ redis://127.0.0.1:6379/0 100
"""

import asyncio
import sys

import aio_pika

from pairmq import PairOptions
from pairmq_rabbitmq.paired import connect_robust  # instead of aio_pika's

# One process for each pair moves the backlog back; here it is this one.
OPTIONS = PairOptions(failover_interval=1, ping_primary_interval=1, enable_syphon=True)


async def main(primary: str, secondary: str, orders: int) -> None:
    connection = await connect_robust(primary, secondary=secondary, options=OPTIONS, reconnect_interval=1)
    async with connection, connection.channel() as channel:
        queue = await channel.declare_queue("orders", durable=True)
        arrived: set[int] = set()
        complete = asyncio.Event()

        async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            async with message.process():
                arrived.add(int(message.body))  # a set, as any consumer must expect a message twice
            if len(arrived) == orders:
                complete.set()

        await queue.consume(take)
        for number in range(orders):
            confirmation = await channel.default_exchange.publish(
                aio_pika.Message(str(number).encode()), routing_key="orders"
            )
            print(f"order {number}: {confirmation.receipt.route}", flush=True)
            await asyncio.sleep(0.05)
        await complete.wait()
    print(f"all {orders} orders have arrived")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

"""A FastStream app that bills orders while RabbitMQ comes and goes, until every bill is there.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=redis://127.0.0.1:6379/0
python faststream_orders.py 100
"""

import asyncio
import os
import sys

from faststream import FastStream
from faststream.rabbit import RabbitQueue

from pairmq import PairOptions
from pairmq_faststream import PairedRabbitBroker  # instead of RabbitBroker

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 100

broker = PairedRabbitBroker(
    os.environ["PAIRMQ_PRIMARY"],
    options=PairOptions(failover_interval=1, ping_primary_interval=1, enable_syphon=True),
    reconnect_interval=1,
)
app = FastStream(broker)
bills: set[int] = set()


@broker.subscriber(RabbitQueue("orders", durable=True))
@broker.publisher("bills")
async def bill(order: int) -> int:
    return order


@broker.subscriber(RabbitQueue("bills", durable=True))
async def keep(order: int) -> None:
    bills.add(order)  # a set, as any consumer must expect a message twice
    if len(bills) == ORDERS:
        print(f"all {ORDERS} bills are there", flush=True)
        app.exit()


async def place_orders() -> None:
    for number in range(ORDERS):
        confirmation = await broker.publish(number, "orders")
        print(f"order {number}: {confirmation.receipt.route}", flush=True)
        await asyncio.sleep(0.05)


@app.after_startup
async def begin() -> None:
    app.context.set_global("placing", asyncio.create_task(place_orders()))


if __name__ == "__main__":
    asyncio.run(app.run())

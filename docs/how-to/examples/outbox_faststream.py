"""A FastStream app that places orders in transactions and bills each, while RabbitMQ comes and goes.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=postgresql://shop:secret@127.0.0.1/shop
python outbox_faststream.py 100
"""

import asyncio
import os
import sys

import psycopg
from faststream import FastStream
from faststream.rabbit import RabbitQueue

from pairmq import Message, PairOptions
from pairmq_faststream import PairedRabbitBroker

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 100

broker = PairedRabbitBroker(
    os.environ["PAIRMQ_PRIMARY"],
    options=PairOptions(ping_primary_interval=1, enable_syphon=True),
    reconnect_interval=1,
)
app = FastStream(broker)
bills: set[int] = set()


@broker.subscriber(RabbitQueue("bills", durable=True))
async def bill(order: int) -> None:
    bills.add(order)  # a set, as any consumer must expect a message twice
    if len(bills) == ORDERS:
        print(f"all {ORDERS} bills are there", flush=True)
        app.exit()


async def place_orders() -> None:
    outbox = broker.pair.outbox("bills")
    async with await psycopg.AsyncConnection.connect(os.environ["PAIRMQ_SECONDARY"]) as connection:
        for number in range(ORDERS):
            order = Message(str(number).encode(), content_type="application/json")
            await connection.execute("INSERT INTO orders (number) VALUES (%s)", (number,))
            await outbox.send(order, connection=connection)
            await connection.commit()
            print(f"order {number}", flush=True)
            await asyncio.sleep(0.05)


@app.after_startup
async def begin() -> None:
    app.context.set_global("placing", asyncio.create_task(place_orders()))


if __name__ == "__main__":
    asyncio.run(app.run())

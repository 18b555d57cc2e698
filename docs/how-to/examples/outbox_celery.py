"""Celery tasks that begin when the transaction commits that they are about.

export PAIRMQ_PRIMARY=amqp://guest:guest@127.0.0.1:5672/ PAIRMQ_SECONDARY=postgresql://shop:secret@127.0.0.1/shop
Its worker:      celery -A outbox_celery worker
Its syphon:      pairmq syphon
Place an order:  python outbox_celery.py 42
"""

import os
import sys

import psycopg
from celery import Celery

from pairmq_kombu import outbox

PRIMARY, SHOP = os.environ["PAIRMQ_PRIMARY"], os.environ["PAIRMQ_SECONDARY"]

app = Celery("shop")
app.conf.update(
    broker_url=PRIMARY,
    broker_write_url=PRIMARY.replace("amqp", "pairmq", 1),
    broker_transport_options={"pairmq": {"send_timeout": 15}},
    task_ignore_result=True,
)


@app.task(name="ship_order")
def ship_order(number: int) -> None:
    print("shipped", number)


def place(connection: psycopg.Connection, number: int) -> None:
    with connection.transaction(), outbox(connection):
        ship_order.apply_async((number,))  # stored, also while RabbitMQ is unavailable
        connection.execute("INSERT INTO orders (number) VALUES (%s)", (number,))


if __name__ == "__main__":
    with psycopg.connect(SHOP, autocommit=True) as connection:
        for number in map(int, sys.argv[1:]):
            try:
                place(connection, number)
            except psycopg.errors.UniqueViolation:
                print(f"order {number}: there is such an order, and no task was sent")

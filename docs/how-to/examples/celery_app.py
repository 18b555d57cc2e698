"""A Celery application whose tasks outlive an outage of RabbitMQ.

Its worker:    celery -A celery_app worker
Its syphon:    pairmq syphon
Send a task:   python celery_app.py 42
"""

import os
import sys

from celery import Celery

import pairmq_kombu  # noqa: F401  # makes pairmq:// known

PRIMARY = os.environ["PAIRMQ_PRIMARY"]  # amqp://guest:guest@127.0.0.1:5672/

app = Celery("shop")
app.conf.update(
    broker_url=PRIMARY,
    broker_write_url=PRIMARY.replace("amqp", "pairmq", 1),
    # The second broker's URL is in PAIRMQ_SECONDARY, where the syphon finds it as well.
    broker_transport_options={"pairmq": {"failover_interval": 2, "send_timeout": 15}},
    broker_connection_retry_on_startup=True,
    task_ignore_result=True,
)


@app.task(name="place_order")
def place_order(number: int) -> None:
    """Do the work; here it is a line in a file."""
    with open(os.environ["ORDERS"], "a") as orders:
        orders.write(f"{number}\n")


if __name__ == "__main__":
    for number in sys.argv[1:]:
        place_order.delay(int(number))

"""An application, and two brokers."""

import os

from celery import Celery

app = Celery("shop")
os.environ["PAIRMQ_PRIMARY"] = "amqp://guest:guest@127.0.0.1:5672/"
os.environ["PAIRMQ_SECONDARY"] = "redis://127.0.0.1:6379/0"

"""The application of `celery_failover`, for its client and for its workers: a task writes down its number, its
message's id, and whether that was redelivered."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from celery.app.task import Task

import pairmq_kombu
from pairmq_kombu.worker import Syphon

SETTINGS, LEDGER = "CELERY_FAILOVER_SETTINGS", "CELERY_FAILOVER_LEDGER"


def application(settings: dict[str, Any]) -> Celery:
    """Make the application.

    Args:
        settings: Celery's; with ``pairmq://`` in ``broker_write_url`` its workers host the syphon.
    """
    made = Celery("failover", set_as_current=False)
    made.conf.update(settings, broker_connection_retry_on_startup=True, task_ignore_result=True)
    if settings.get("broker_write_url", "").startswith("pairmq://"):
        assert pairmq_kombu.__all__  # noqa: S101  # imported for its scheme
        made.steps["worker"].add(Syphon)

    @made.task(name="record", shared=False, bind=True)
    def record(self: Task, number: int) -> None:
        request = self.request
        message_id = (request.properties or {}).get("message_id")
        redelivered = (request.delivery_info or {}).get("redelivered")
        with open(os.environ[LEDGER], "a") as ledger:
            ledger.write(f"{number} {message_id} {redelivered}\n")

    return made


if SETTINGS in os.environ:
    app = application(json.loads(os.environ[SETTINGS]))

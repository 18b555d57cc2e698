"""The application of the tests' workers: what a task did is a line in a file."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from celery import Celery
from celery.app.task import Task

import pairmq_kombu  # noqa: F401  # makes pairmq:// known
from pairmq_kombu.worker import Syphon

FOLDER = Path(os.environ["KOMBU_TEST_FOLDER"])
PRIMARY = os.environ["PAIRMQ_PRIMARY"]

# Several tests of one process import this file: no task of an earlier one is shared with its application.
app = Celery("tests")
app.conf.update(
    broker_url=PRIMARY,
    broker_write_url=PRIMARY.replace("amqp://", "pairmq://"),
    broker_transport_options={
        "pairmq": {
            "failover_interval": 0,
            "ping_primary_interval": 0.2,
            "backlog_queue_count": 2,
            "send_timeout": 20,
            "attempt_timeout": 3,
        }
    },
    broker_connection_retry_on_startup=True,
    result_backend=os.environ.get("KOMBU_TEST_BACKEND", f"file://{FOLDER}/results"),
)
if os.environ.get("KOMBU_TEST_CONTINUITY"):
    app.conf.broker_read_url = app.conf.broker_write_url
    app.conf.broker_transport_options["pairmq"]["continuity"] = ["celery"]
    app.conf.task_ignore_result = True
if os.environ.get("KOMBU_TEST_QUEUES") == "quorum":
    app.conf.update(task_default_queue_type="quorum", task_default_exchange_type="topic")
app.steps["worker"].add(Syphon)


def note(line: str) -> None:
    """Write a line that a kill can't tear."""
    with (FOLDER / "ledger").open("a") as ledger:
        ledger.write(line + "\n")


@app.task(bind=True, shared=False)
def record(self: Task, name: str) -> str:
    """Write down that this task has run, under its id."""
    note(f"{name} {self.request.id}")
    return name


@app.task(bind=True, shared=False, acks_late=True)
def late(self: Task, name: str) -> None:
    """Write down that this task has run, and be acknowledged afterwards."""
    note(f"{name} {self.request.id}")


@app.task(bind=True, shared=False, acks_late=True, reject_on_worker_lost=True)
def killed(self: Task, name: str) -> None:
    """Write down that this task runs, and take the pool's process along, the first time."""
    note(f"{name} {self.request.id}")
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(bind=True, shared=False)
def total(self: Task, names: list[str]) -> None:
    """Write down what a chord's header has returned."""
    note(f"total:{','.join(sorted(names))} {self.request.id}")


@app.task(bind=True, max_retries=1, shared=False)
def again(self: Task, name: str) -> None:
    """Fail the first time, and be sent once more by Celery."""
    if not self.request.retries:
        raise self.retry(countdown=1)
    note(f"{name} {self.request.id}")


@app.task(shared=False)
def forward(name: str) -> None:
    """Wait until the test says so, then send a task from within the pool's process."""
    note(f"waiting:{name} -")
    while not (FOLDER / "go").exists():
        time.sleep(0.05)
    note(f"forwarded:{name} {record.delay(name).id}")

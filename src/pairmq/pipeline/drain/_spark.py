"""The Spark job: one backlog queue is one partition, and each is one task."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pairmq.model import ConfigurationError, PairMQError
from pairmq.pipeline.drain._handover import Job, Outcome
from pairmq.pipeline.drain._task import Task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairmq.pipeline.session import Tag

FAILURES = 4
"""How often a task may die before the job fails, in a session of our own: Spark's own number for clusters."""

_LOCAL = re.compile(r"local(?:\[(?P<cores>[0-9]+|\*)(?:\s*,\s*[0-9]+)?\])?")
_ABORTED = re.compile(r"(Job aborted due to[^\n]*|Job [0-9]+ cancelled[^\n]*)")
_RAISED = re.compile(r"^((?:[A-Z]\w+)(?:Error|Exception): [^\n]+)$", re.MULTILINE)
_TOLD = 300  # characters of Spark's reason


class JobFailed(PairMQError):
    """The Spark job failed: a task died more often than Spark starts it again, or the job was cancelled."""


def session_settings(at_once: int) -> dict[str, str]:
    """Return the settings of a local session for a drain.

    Args:
        at_once: tasks side by side. They wait for brokers more than they compute.
    """
    return {
        "spark.app.name": "pairmq drain",
        # Without the second number a local Spark gives a job up with the first worker that dies.
        "spark.master": f"local[{at_once},{FAILURES}]",
        "spark.speculation": "false",
        "spark.driver.memory": "1g",
        # We report a dead worker in one line instead of a hundred.
        "spark.log.level": "FATAL",
    }


def is_local(spark: SparkSession) -> bool:
    """Whether the workers run on this machine, as children of this process's Spark."""
    from pyspark.sql.utils import is_remote

    return not is_remote() and _LOCAL.fullmatch(spark.conf.get("spark.master") or "") is not None


def check_session(spark: SparkSession, *, handed_over: bool) -> None:
    """Refuse a session in which a drain would do harm."""
    if (spark.conf.get("spark.speculation", "false") or "").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is on in this session: it runs a second copy of a slow task, and two would work on one "
            "queue; set it to false"
        )
    if not handed_over:
        return
    if not is_local(spark):
        raise ConfigurationError(
            "the brokers' URLs were given to the driver only, and the workers are on other machines: put the URLs "
            "into PAIRMQ_PRIMARY and PAIRMQ_SECONDARY in the executors' environment, or into a settings file there"
        )
    if os.environ.get("PYSPARK_GATEWAY_PORT"):
        raise ConfigurationError(
            "spark-submit writes its command line into the event log: give the brokers' URLs in PAIRMQ_PRIMARY and "
            "PAIRMQ_SECONDARY, or in a settings file"
        )


def most_at_once(spark: SparkSession, tasks: int) -> int:
    """Return how many of the tasks may run concurrently, at most."""
    match = _LOCAL.fullmatch(spark.conf.get("spark.master") or "") if is_local(spark) else None
    if match is None or match["cores"] == "*":
        return tasks  # more executors may come at any time
    return min(tasks, int(match["cores"] or 1))


def run_job(spark: SparkSession, job: Job, indexes: Sequence[int], tag: Tag) -> list[Outcome]:
    """Run one task for each queue, and give the outcomes of all in any order.

    By the tag it can be cancelled from another thread. Its tasks' messages are then redelivered when their locks
    expire, as they are when `JobFailed` is raised.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql.functions import udf

    # Rows by a plain function: an Arrow one would have every worker import pandas and pyarrow for a single number.
    # What is called "nondeterministic" is called exactly once for each row.
    task = udf(Task(job, tuple(indexes)), "string", useArrow=False).asNondeterministic()
    try:
        with tag.marked():
            rows = spark.range(0, len(indexes), 1, len(indexes)).select(task("id")).collect()
        return [Outcome.from_json(row[0]) for row in rows]
    except (Py4JError, PySparkException) as error:
        raise JobFailed(_reason(error)) from error


def _reason(error: Exception) -> str:
    found = _ABORTED.search(str(error))
    text = found[1] if found else type(error).__name__
    raised = _RAISED.findall(str(error))  # by Python in a worker, such as a module that is missing there
    text = f"{raised[-1]}: {text}" if raised else text
    return f"the Spark job failed: {text if len(text) <= _TOLD else text[:_TOLD] + '…'}"

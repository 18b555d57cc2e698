"""`spark-submit` on a standalone cluster: the command of the docs makes there what a run in a local session makes."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from pairmq.pipeline import run
from rich_journal import LOST, write_rich_journal
from spark_programs import LIMIT, assert_same_tables, configured, daemon, ended, environment, spark_program

DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "run-on-a-cluster.md"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * LIMIT)]


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master and one worker. The worker has Spark and Java; of PairMQ and its Python it knows nothing."""
    folder = tmp_path_factory.mktemp("cluster")
    known = environment(configured(folder / "conf"), PATH="/usr/bin:/bin", SPARK_WORKER_DIR=str(folder / "work"))
    start = [spark_program("spark-class")]
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        leader = [*start, "org.apache.spark.deploy.master.Master", *address]
        url = stack.enter_context(daemon(leader, known, folder / "master.log", r"master at (spark://127\.0\.0\.1:\d+)"))
        worker = [*start, "org.apache.spark.deploy.worker.Worker", *address, "--cores", "1", "--memory", "1g", url]
        stack.enter_context(daemon(worker, known, folder / "worker.log", r"(Successfully registered) with master"))
        yield url


@pytest.fixture(scope="module")
def submitted(master, tmp_path_factory):
    """What the script of the docs says and makes there."""
    folder = tmp_path_factory.mktemp("submit")
    write_rich_journal(folder / "journal")
    (script,) = re.findall(r"```python\n(# job\.py.*?)```", DOCS.read_text(), re.DOTALL)
    (folder / "job.py").write_text(script)
    asked = ["--journal", "journal", "--out", "tables", "--patience", "60s"]
    command = ["spark-submit", "--master", master, "job.py", "pipeline", "run", *asked]
    return folder, ended(command, environment(configured(folder / "conf")), folder)


def test_a_job_of_spark_submit_ends_as_the_command_does(submitted):
    folder, job = submitted
    assert job.returncode == 1, job.stdout + job.stderr  # a message is lost
    told = json.loads((folder / "tables" / "run.json").read_text())
    assert [message["message_id"] for message in told["faults"]["lost"]] == [LOST]


def test_a_cluster_makes_the_same_tables(spark, submitted):
    folder, job = submitted
    assert job.returncode == 1, job.stdout + job.stderr
    run(folder / "journal", folder / "local", spark=spark, patience=60.0)
    assert_same_tables(spark, folder / "tables", folder / "local")

"""Spark Connect: the command as it is, with a server named in the environment, makes what a local session makes."""

from __future__ import annotations

import json

import pytest

from pairmq.pipeline import run
from rich_journal import LOST, write_rich_journal
from spark_programs import LIMIT, assert_same_tables, configured, daemon, ended, environment, spark_program

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * LIMIT)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server of Spark Connect, as its own script starts it in the foreground."""
    folder = tmp_path_factory.mktemp("server")
    # Port 0 is any free one, which the server then tells at this level.
    listening = {"spark.connect.grpc.binding.port": "0", "spark.log.level": "INFO"}
    settings = configured(folder / "conf", **listening, **{"spark.connect.grpc.binding.address": "127.0.0.1"})
    known = environment(settings, SPARK_LOG_DIR=str(folder))
    start = [spark_program("start-connect-server.sh"), "--wait", "--master", "local[2]"]
    with daemon(start, known, folder / "server.log", r"Connect server started at: \S*?:(\d+)\b") as port:
        yield f"sc://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def connected(server, tmp_path_factory):
    """What the command says and makes there."""
    folder = tmp_path_factory.mktemp("connect")
    write_rich_journal(folder / "journal")
    asked = ["--journal", "journal", "--out", "tables", "--patience", "60s"]
    known = environment(configured(folder / "conf"), SPARK_REMOTE=server)
    return folder, ended(["pairmq", "pipeline", "run", *asked], known, folder)


def test_the_command_works_on_a_server_of_spark_connect(connected):
    folder, command = connected
    assert command.returncode == 1, command.stderr  # a message is lost
    told = json.loads((folder / "tables" / "run.json").read_text())
    assert [message["message_id"] for message in told["faults"]["lost"]] == [LOST]


def test_spark_connect_finds_nothing_to_warn_of(connected):
    assert "Warning" not in connected[1].stderr


def test_spark_connect_makes_the_same_tables(spark, connected):
    folder, command = connected
    assert command.returncode == 1, command.stderr
    run(folder / "journal", folder / "local", spark=spark, patience=60.0)
    assert_same_tables(spark, folder / "tables", folder / "local")

"""``pairmq pipeline drain``: what it says, how it exits, and that it keeps its secrets."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import run
from diverted import held, leave, taken
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server


@pytest.fixture
def servers():
    east, west = (RedisServer(appendfsync="everysec", password=password) for password in ("p4ss-e", "p4ss-w"))
    with east, west:
        yield east, west


@pytest.fixture
def drain(servers, capfd, monkeypatch):
    """Runs the command in this process; gives its status, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith("PAIRMQ_")]:
        monkeypatch.delenv(name)
    east, west = servers

    def call(*arguments: str, primary: str = east.url, secondary: str = west.url) -> tuple[int, str, str]:
        capfd.readouterr()
        pair = ("--primary", primary, "--secondary", secondary, "--backlog-queues", "2")
        status = run(["pipeline", "drain", *pair, *arguments])
        return status, *capfd.readouterr()

    return call


@pytest.fixture
def no_spark(monkeypatch):
    """Nobody starts Spark."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("pairmq.pipeline.session.session", refuse)


def test_a_drained_backlog_is_success_and_counted_as_json(spark, servers, drain):
    asyncio.run(leave(*(server.url for server in servers), 100, queues=2))
    status, out, err = drain("--json")
    told = json.loads(out)
    assert status == 0
    assert (told["before"], told["left"], told["moved"], told["emptied"], told["exit_status"]) == (100, 0, 100, True, 0)
    assert "moved 100 messages, by the brokers; the backlog is empty" in err
    assert "p4ss" not in out + err


def test_an_empty_backlog_needs_no_spark(no_spark, servers, drain):
    asyncio.run(leave(*(server.url for server in servers), 0, queues=2))
    status, out, err = drain()
    assert (status, out) == (0, "")
    assert "moved 0 messages, by the brokers; the backlog is empty" in err
    assert "warning" not in err


def test_a_pair_without_backlog_queues_is_pointed_out(no_spark, drain):
    status, _, err = drain()
    assert status == 0
    assert "no backlog queue of this pair exists" in err


def test_a_secondary_that_is_unavailable_is_reported_without_spark(no_spark, servers, drain):
    servers[1].kill()
    status, _, err = drain("--attempt-timeout", "2s")
    assert status == 1
    assert "error: redis://" in err
    assert "p4ss" not in err


def test_what_is_left_is_named_with_the_reason(spark, servers, drain):
    asyncio.run(leave(*(server.url for server in servers), 10, queues=2))
    status, _, err = drain("--until", "2020-01-01T00:00")
    assert status == 1
    assert "x-servicebus-transfer/0: 5 left (out of time)" in err
    assert "moved 0 messages, by the brokers; left in the backlog: 10" in err


@pytest.mark.parametrize(
    "arguments", [("--until", "whenever"), ("--patience", "0"), ("--queues-at-once", "0"), ("--max-rate", "-1")]
)
def test_what_can_not_work_is_a_fault_of_the_command_line(no_spark, drain, arguments):
    status, out, err = drain(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")


def test_workers_that_lack_the_settings_are_a_fault_of_the_settings(spark, servers, drain, monkeypatch, capfd):
    """The driver has them in its environment; Spark was started before, without them."""
    urls = [server.url for server in servers]
    asyncio.run(leave(*urls, 10, queues=2))
    monkeypatch.setenv("PAIRMQ_PRIMARY", urls[0])
    monkeypatch.setenv("PAIRMQ_SECONDARY", urls[1])
    assert run(["pipeline", "drain", "--backlog-queues", "2"]) == 2
    assert "error: no primary broker" in capfd.readouterr().err
    assert asyncio.run(held(urls[0])) == 0


def test_the_program_of_the_document_drains(spark, servers, tmp_path, monkeypatch, capfd):
    text = (Path(__file__).parents[2] / "docs/how-to/drain-with-spark.md").read_text()
    (program,) = re.findall(r"```python\n# drain\.py\n(.*?)```", text, re.DOTALL)
    east, west = (server.url for server in servers)
    asyncio.run(leave(east, west, 30, queues=2))
    monkeypatch.chdir(tmp_path)
    Path("pair.toml").write_text(f'[pair]\nprimary = "{east}"\nsecondary = "{west}"\nbacklog_queue_count = 2\n')
    exec(compile(program, "drain.py", "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out == "0 left, 30 moved\n"


@pytest.mark.long
def test_ctrl_c_ends_the_program_cleanly_and_no_password_is_in_any_log(servers, tmp_path):
    """As a program of its own with everything logged: arguments with passwords, an event log, a journal, -vv."""
    east, west = (server.url for server in servers)
    ids = asyncio.run(leave(east, west, 400, queues=2))
    events, conf, journal, temporary = (tmp_path / name for name in ("events", "conf", "journal", "temporary"))
    for folder in (events, conf, temporary):
        folder.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir file:{events}\nspark.eventLog.rolling.enabled false\n"
        "spark.eventLog.compress false\n"
    )
    program = subprocess.Popen(
        [
            *(sys.executable, "-m", "pairmq", "-vv", "pipeline", "drain", "--json", "--journal", str(journal)),
            *("--primary", east, "--secondary", west, "--backlog-queues", "2", "--max-rate", "40"),
        ],
        env={**os.environ, "SPARK_CONF_DIR": str(conf), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        ends_at = time.monotonic() + 200
        while asyncio.run(held(east)) < 20:
            assert program.poll() is None, program.communicate()
            assert time.monotonic() < ends_at, "nothing was moved back"
        (settings,) = temporary.glob("pairmq-drain-*/settings")
        assert "p4ss-e" in settings.read_text()  # what follows looks in the right places
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=300)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 130, err
    assert "SIGINT: the tasks finish their locked messages" in err
    told = json.loads(out)
    home = asyncio.run(taken(east))
    assert told["stopped"]
    assert len(home) == len(set(home)) == told["moved"] == 400 - told["left"]
    assert set(home) < ids
    assert not list(temporary.glob("pairmq-drain-*"))
    logs = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("drain_queue" in path.read_text(errors="replace") for path in logs if path.parent == events)
    told_by = [path for path in logs if b"p4ss" in Path(path).read_bytes()]
    assert (told_by, "p4ss" in out, "p4ss" in err) == ([], False, False)

"""The command line of chaos runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq.testing.chaos import KILL, Settings, planned
from pairmq.testing.chaos.__main__ import main

COMMAND = [sys.executable, "-m", "pairmq.testing.chaos"]


@pytest.mark.real_server
def test_ctrl_c_ends_the_faults_and_gives_the_verdict_so_far(tmp_path: Path) -> None:
    pairs = ["--pair=redis,redis"] * 2
    run = subprocess.Popen(
        [*COMMAND, *pairs, "--minutes=60", "--every=1", "--json", "--seed=7", f"--keep={tmp_path}"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        assert run.stderr is not None
        for _ in range(4):
            run.stderr.readline()  # what it is about, and then a line for each fault
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
        out, _ = run.communicate(timeout=400)
    finally:
        run.kill()
        run.wait()
    [report] = json.loads(out)
    assert run.returncode == 130
    assert report["interrupted"]
    assert report["violations"] == []
    assert report["faults"] >= 2
    [kept] = tmp_path.iterdir()
    assert json.loads((kept / "report.json").read_text()) == report
    assert json.loads((kept / "plan.json").read_text())["settings"]["seed"] == 7


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pair", "redis"], "PRIMARY,SECONDARY"),
        (["--pair", "pigeons,redis"], "no chaos broker 'pigeons'"),
        (["--pair", "redis,redis", "--faults", "flood"], "no faults flood"),
        (["--pair", "redis,redis", "--minutes", "0"], "--minutes is 0"),
        (["--pair", "json:loads,redis"], "no chaos broker json:loads"),
        (["--plan", "nowhere.json"], "nowhere.json"),
        (["--distance", "far"], "must be none, primary, secondary or both"),
    ],
)
@pytest.mark.usefixtures("in_folder")
def test_what_cannot_be_run_is_said_in_a_line(arguments: list[str], says: str, capfd: pytest.CaptureFixture) -> None:
    assert status_of(arguments) == 2
    stderr = capfd.readouterr().err
    assert says in stderr
    assert "Traceback" not in stderr


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def status_of(arguments: list[str]) -> object:
    """The exit status of the command, run in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return ended.code


def test_a_directory_that_holds_another_run_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    (tmp_path / "redis-redis-7").mkdir()
    (tmp_path / "redis-redis-7" / "run.jsonl").touch()
    arguments = ["--pair", "redis,redis", "--seed", "7", "--keep", str(tmp_path)]
    assert status_of(arguments) == 2
    assert "is not empty" in capfd.readouterr().err


@pytest.mark.real_server
def test_a_plan_is_carried_out_once(tmp_path: Path) -> None:
    plan = planned(("redis", "redis"), Settings(seed=7, seconds=1, clients=1), ((KILL,), (KILL,)))
    (tmp_path / "plan.json").write_text(plan.to_json())
    arguments = ["--plan", "plan.json", "--json", "--quiet"]
    run = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert [report["seed"] for report in json.loads(run.stdout)] == [7], run.stderr

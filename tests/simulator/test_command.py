"""``pairmq simulate`` on the command line."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from pairmq.testing.simulator import Scenario, Settings, scenario_of
from pairmq.testing.simulator._loop import SimulationLoop
from runner_bugs import mark_no_receipt


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    logger = logging.getLogger("pairmq")
    before = logger.level, list(logger.handlers)
    yield tmp_path
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.fixture
def bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt never says that a second copy may exist."""
    mark_no_receipt(monkeypatch)


@pytest.mark.usefixtures("in_folder")
def test_one_seed_without_a_violation(capfd):
    assert run(["simulate", "--seed", "1", "--hours", "0.05"]) == 0
    assert "seed 1: no violation in 0.0" in capfd.readouterr().out


@pytest.mark.usefixtures("in_folder")
def test_several_seeds_are_summed_up(capfd):
    assert run(["simulate", "--seeds", "0..3", "--hours", "0.02", "--jobs", "1"]) == 0
    out = capfd.readouterr().out
    assert "4 seeds" in out
    assert "no violation" in out


@pytest.mark.usefixtures("in_folder", "bug")
def test_a_violation_is_reported_and_ends_with_status_1(capfd):
    assert run(["simulate", "--seeds", "0..3", "--hours", "0.05", "--jobs", "1"]) == 1
    out = capfd.readouterr().out
    assert "its receipt does not report it" in out
    assert "again: pairmq simulate --seed" in out


@pytest.mark.usefixtures("in_folder", "bug")
def test_json_for_programs(capfd):
    assert run(["simulate", "--seeds", "0..2", "--hours", "0.05", "--jobs", "1", "--json"]) == 1
    document = json.loads(capfd.readouterr().out)
    assert document["seeds"] == 3
    assert document["failures"][0]["violations"][0]["verdict"] == "unexplained duplicate"
    assert document["messages"] == sum(
        document[name] for name in ("primary", "backlog", "refused", "unknown", "killed")
    )


@pytest.mark.usefixtures("bug")
def test_what_is_shrunk_can_be_replayed(in_folder, capfd):
    seed = next(s for s in range(30) if run(["simulate", "--seed", str(s), "--hours", "0.05", "--mode", "safety"]))
    assert run(["simulate", "--seed", str(seed), "--hours", "0.05", "--mode", "safety", "--shrink"]) == 1
    capfd.readouterr()
    path = in_folder / f"simulation-{seed}.json"
    scenario = Scenario.from_json(path.read_text())
    assert len(scenario.faults) <= 3
    assert run(["simulate", "--replay", str(path)]) == 1
    assert "its receipt does not report it" in capfd.readouterr().out


def test_a_trace_is_written_line_by_line(in_folder):
    assert run(["simulate", "--seed", "3", "--hours", "0.05", "--trace", "t.txt", "--mode", "liveness"]) == 0
    lines = (in_folder / "t.txt").read_text().splitlines()
    instants = [float(line.split()[0]) for line in lines]
    assert instants == sorted(instants)
    assert any("heals everything" in line for line in lines)


def test_it_goes_on_where_it_stopped(in_folder, capfd):
    command = ["simulate", "--hours", "0.02", "--jobs", "1", "--state", "done.jsonl", "--json", "--seeds"]
    assert run([*command, "0..2"]) == 0
    first = json.loads(capfd.readouterr().out)
    kept = (in_folder / "done.jsonl").read_text()
    assert run([*command, "0..4"]) == 0
    second = json.loads(capfd.readouterr().out)
    assert (in_folder / "done.jsonl").read_text().startswith(kept)
    assert len((in_folder / "done.jsonl").read_text().splitlines()) == 6
    assert (first["seeds"], second["seeds"]) == (3, 5)
    assert second["messages"] > first["messages"]


def test_what_a_killed_run_left_of_a_line_is_simulated_again(in_folder, capfd):
    command = ["simulate", "--hours", "0.02", "--jobs", "1", "--state", "done.jsonl", "--json", "--seeds", "0..2"]
    assert run(command) == 0
    whole = (in_folder / "done.jsonl").read_text()
    (in_folder / "done.jsonl").write_text(whole[:-30])
    assert run(command) == 0
    assert (in_folder / "done.jsonl").read_text() == whole
    first, second = map(json.loads, capfd.readouterr().out.replace("}\n{", "}\0{").split("\0"))
    assert second["messages"] == first["messages"]


def test_a_state_of_other_code_is_refused(in_folder, capfd):
    command = ["simulate", "--hours", "0.02", "--jobs", "1", "--state", "done.jsonl", "--seeds", "0..0"]
    assert run(command) == 0
    state = in_folder / "done.jsonl"
    state.write_text(re.sub(r'"source": "\w+"', '"source": "0123"', state.read_text()))
    before = state.read_text()
    assert run(command) == 2
    assert "another version of the code" in capfd.readouterr().err
    assert state.read_text() == before


def test_a_state_of_other_settings_is_refused(in_folder, capfd):
    assert run(["simulate", "--seeds", "0..1", "--hours", "0.02", "--jobs", "1", "--state", "s"]) == 0
    assert run(["simulate", "--seeds", "0..1", "--hours", "0.2", "--jobs", "1", "--state", "s"]) == 2
    (in_folder / "s").write_text("nonsense")
    assert run(["simulate", "--seeds", "0..1", "--hours", "0.02", "--jobs", "1", "--state", "s"]) == 2
    assert (in_folder / "s").read_text() == "nonsense"
    assert capfd.readouterr().err.count("error: ") == 2


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--seeds", "9..3"),
        ("--seeds", "a..b"),
        ("--seeds", "0..99999999"),
        ("--seed", "1", "--seeds", "0..3"),
        ("--mode", "both"),
        ("--faults", "fire"),
        ("--hours", "0"),
        ("--seeds", "0..3", "--shrink"),
        ("--seeds", "0..3", "--trace", "t"),
    ],
)
def test_a_command_line_that_can_not_work_is_reported(arguments, capfd):
    assert run(["simulate", *arguments]) == 2
    assert "error: " in capfd.readouterr().err


def test_a_file_that_is_no_scenario_is_reported(in_folder, capfd):
    (in_folder / "x.json").write_text("{}")
    assert run(["simulate", "--replay", "x.json"]) == 2
    assert run(["simulate", "--replay", "missing.json"]) == 2
    assert capfd.readouterr().err.count("error: ") == 2


def test_faults_can_be_chosen(in_folder, capfd):
    assert run(["simulate", "--seed", "1", "--hours", "0.2", "--faults", "none", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["faults"] == 0
    scenario = replace(scenario_of(Settings(seed=1, hours=0.2)), faults=())
    (in_folder / "s.json").write_text(scenario.to_json())
    assert run(["simulate", "--replay", "s.json", "--json"]) == 0


class Interrupting:
    """Python prints and drops what is raised where this is collected."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(
    ("moment", "done", "interrupted"),
    [
        ("pairmq.testing.simulator._simulate.World", 1, interrupt),  # is made
        ("pairmq.testing.simulator._world.World._strike", 1, interrupt),
        ("pairmq.testing.simulator._world.World._strike", 1, Interrupting),
        ("pairmq.testing.simulator._loop.SimulationLoop.bury", 2, Interrupting),
        ("pairmq.testing.simulator._simulate.judged", 2, interrupt),
        ("pairmq.testing.simulator._simulate.Outcome", 2, Interrupting),
    ],
)
def test_ctrl_c_ends_it_at_the_next_step(capfd, monkeypatch, moment, done, interrupted):
    original = pkgutil.resolve_name(moment)
    outcomes = []
    monkeypatch.setattr("pairmq.cli._simulate_run._Book.enter", lambda book, outcome: outcomes.append(outcome))

    def then(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        if len(outcomes) == 1:
            interrupted()
        return result

    monkeypatch.setattr(moment, then)
    loops = count_loops(monkeypatch)
    assert run(["simulate", "--seeds", "0..9", "--hours", "0.02", "--jobs", "1"]) == 130
    assert len(outcomes) == done
    assert all(loop.is_closed() for loop in loops)
    assert "stopped after" in capfd.readouterr().err


def count_loops(monkeypatch: pytest.MonkeyPatch) -> list[SimulationLoop]:
    """Those that are made from now on."""
    loops: list[SimulationLoop] = []
    make = SimulationLoop.__init__

    def made(self: SimulationLoop) -> None:
        make(self)
        loops.append(self)

    monkeypatch.setattr(SimulationLoop, "__init__", made)
    return loops


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.real_server)])
def test_ctrl_c_ends_it_cleanly(in_folder, jobs):
    program = begun(in_folder, jobs)
    try:
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does: to all of them
        out, err = program.communicate(timeout=120)
    finally:
        program.kill()
    assert program.returncode == 130
    assert "Traceback" not in err
    assert "stopped after" in err
    assert "no violation" in out


@pytest.mark.real_server
def test_processes_end_with_the_one_that_is_killed(in_folder):
    program = begun(in_folder, 2)
    try:
        program.kill()
        program.communicate(timeout=120)  # to the end of what all of them print
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)


def begun(folder: Path, jobs: int) -> subprocess.Popen[str]:
    """A simulation of very many hours, some of which are done."""
    command = [sys.executable, "-m", "pairmq", "simulate", "--seeds", "0..9999", "--hours", "0.05"]
    command += ["--jobs", str(jobs), "--state", "done.jsonl"]
    program = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ends_at = time.monotonic() + 200
    state = folder / "done.jsonl"
    while not state.exists() or len(state.read_text().splitlines()) < 3:
        assert time.monotonic() < ends_at
        assert program.poll() is None
        time.sleep(0.05)
    return program

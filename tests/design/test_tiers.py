"""`scripts/tiers.py` imports, for a tier, the files in which its tests are marked: all its tests must be in those.

Checks run beside the first.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def command() -> Iterator[Any]:
    """`scripts/tiers.py` as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield importlib.import_module("tiers")


def test_real_servers_are_marked_in_files_of_tests_and_their_conftest_alone() -> None:
    beside = [*ROOT.glob("tests/support/*.py"), *ROOT.glob("src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    assert beside
    assert [path for path in beside if "mark.real_server" in path.read_text("utf-8")] == []


def test_files_are_found_by_their_own_mark_and_by_that_of_their_folder(command: Any) -> None:
    found = command.files_with("real_server")
    assert "plugins/pairmq-redis/tests/test_redis_sending.py" in found  # its conftest.py marks a parameter
    assert "tests/chaos/test_chaos.py" in found
    assert "tests/core/test_envelope.py" not in found


@pytest.mark.parametrize(
    ("arguments", "files"), [([], True), (["-k", "redis"], True), (["tests/chaos/test_chaos.py::test_x"], False)]
)
def test_files_are_left_to_the_arguments_when_those_name_some(command: Any, arguments: list[str], files: bool) -> None:
    assert bool(command.Tier("servers", 0, arguments, quiet=True)._files()) is files


def test_a_failed_check_stops_the_tests_and_is_reported(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tier = command.Tier("first", 0, [], quiet=False)
    checks = command.Checks(tier, ["sh", "-c", "sleep 0.3; echo no such type; exit 1"])
    assert tier._call(["sleep", "3600"]) != 0
    assert not checks.passed()
    assert tier._call(["true"]) != 0
    assert "checks FAILED, so no more tests are run\nno such type\n" in capsys.readouterr().out


def test_the_simulation_and_the_model_begin_beside_the_first_tier_and_others_after_it(command: Any) -> None:
    log: list[str] = []
    begun = {"simulated": threading.Event(), "model": threading.Event()}

    class Noted(command.Tier):  # type: ignore[misc, name-defined]
        def run(self) -> None:
            log.append(self.result.tier)
            if self.result.tier in begun:
                begun[self.result.tier].set()
            elif self.result.tier == "first":
                assert all(each.wait(60) for each in begun.values())
                log.append("first is over")

    assert command._run({name: Noted(name, 0, [], True) for name in ("servers", "eager", "first", *begun)}, False)
    assert sorted(log[:3]) == ["first", "model", "simulated"]
    assert log[3] == "first is over"
    assert sorted(log[4:]) == ["eager", "servers"]


def test_a_failed_check_stops_the_simulation_too(
    command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Long(command.Tier):  # type: ignore[misc, name-defined]
        def run(self) -> None:
            self.result.status = self._call(["sleep", "3600"])

    checks = command.Checks
    monkeypatch.setattr(command, "Checks", lambda first: checks(first, ["sh", "-c", "sleep 0.3; exit 1"]))
    tiers = {name: Long(name, 0, [], True) for name in ("first", "servers", "simulated", "model")}
    assert not command._run(dict(tiers), True)
    assert tiers["first"].result.status != 0
    assert tiers["simulated"].result.status != 0
    assert tiers["model"].result.status != 0
    assert tiers["servers"].result.status == 0  # not begun
    assert "checks FAILED" in capsys.readouterr().out


def test_checks_that_can_not_be_run_have_failed(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    checks = command.Checks(command.Tier("first", 0, [], quiet=False), ["no-such-program"])
    assert not checks.passed()
    assert "no-such-program" in capsys.readouterr().out


def test_checks_that_pass_stop_nothing(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tier = command.Tier("first", 0, [], quiet=False)
    checks = command.Checks(tier, ["true"])
    assert checks.passed()
    assert tier._call(["true"]) == 0
    assert "checks passed in" in capsys.readouterr().out


@pytest.mark.parametrize("quiet", [False, True])
def test_processor_time_of_programs_that_the_tests_start_is_counted(command: Any, quiet: bool) -> None:
    busy = "import time\nwhile time.process_time() < 0.2: pass"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    tier = command.Tier("first", 0, [], quiet=quiet)
    assert tier._call([sys.executable, "-c", start]) == 0
    assert tier.result.processor >= 0.2

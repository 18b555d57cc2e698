"""Tests that are run by forked processes are counted as if one process had run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from forked_runs import spans

pytestmark = pytest.mark.real_server  # programs

SUPPORT = Path(__file__).parents[1] / "support"
TESTS = """
import os, time
import pytest

@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    yield
    (tmp_path_factory.getbasetemp() / "taken back").touch()

@pytest.mark.parametrize("number", range(40))
def test_number(number, whole, tmp_path):
    os.system(f"echo said by {number}")
    assert number != 7
    if number == 8:
        pytest.skip("eight")

@pytest.fixture
def bad():
    yield
    raise ValueError("taken back badly")

def test_bad(bad):
    pass
"""
DIES = """
def test_dies():
    os._exit(5)

def test_behind_it():
    time.sleep(0.1)
"""
WAITS = """
def test_waits(whole):
    print("waits", flush=True)
    open("waits", "w").close()
    time.sleep(600)
"""


def started(folder: Path, tests: str, *more: str) -> subprocess.Popen[str]:
    (folder / "test_them.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    options = ("-q", "-p", "forked_runs", "-p", "no:cacheprovider", "--forks", "2", "--basetemp", str(folder / "base"))
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_what_happened_in_each_process_is_reported(tmp_path: Path):
    with started(tmp_path, TESTS, "-rs", "--junitxml", "report.xml") as process:
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "1 failed, 39 passed, 1 skipped, 1 error in" in out
    assert "said by 7\n" in out
    assert "said by 8\n" not in out
    assert "ValueError: taken back badly" in out
    assert "SKIPPED [1] test_them.py:15: eight" in out
    suite = next(ElementTree.parse(tmp_path / "report.xml").iter("testsuite")).attrib
    assert [suite[name] for name in ("tests", "failures", "errors", "skipped")] == ["41", "1", "1", "1"]


def test_no_test_is_begun_after_the_last_failure_that_is_allowed(tmp_path: Path):
    with started(tmp_path, TESTS + WAITS.replace("600", "0"), "-x") as process:
        out, _ = process.communicate(timeout=100)
    assert (process.returncode, "stopping after 1 failures" in out) == (1, True)


def test_a_test_that_ends_its_process_has_failed_and_those_that_are_left_have_too(tmp_path: Path):
    with started(tmp_path, TESTS + DIES) as process:
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 1
    assert "test_them.py::test_dies has ended its process: exit status 5" in out


def test_ctrl_c_takes_back_what_tests_have_set_up(tmp_path: Path):
    with started(tmp_path, TESTS + WAITS) as process:
        ends_at = time.monotonic() + 100
        while not (tmp_path / "waits").exists():
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "KeyboardInterrupt" in out
    assert list((tmp_path / "base").rglob("taken back"))


@pytest.mark.parametrize(("tests", "processes"), [(0, 2), (1, 4), (5, 4), (10_000, 4), (100_000, 16)])
@pytest.mark.parametrize("of_a_file", [1, 7, 300])
def test_spans_hold_every_test_once_and_become_short(tests: int, processes: int, of_a_file: int):
    files = [number // of_a_file for number in range(tests)]
    found = list(spans(files, processes))
    assert [number for span in found for number in range(*span)] == list(range(tests))
    assert all(end - begin <= max(1, (tests - begin) // (3 * processes)) + 20 for begin, end in found)
    assert len(found) * 8 < 4096  # what a pipe takes at once, everywhere


def test_a_short_file_is_in_one_span():
    files = [number // 7 for number in range(1000)]
    assert all(files[end - 1] != files[end] for _, end in spans(files, 4) if end < 900)

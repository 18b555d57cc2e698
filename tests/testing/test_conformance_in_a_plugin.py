"""The suites in somebody else's project: without our configuration, in pytest-asyncio's strict mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pairmq.testing.conformance import suites

HARNESS = """
    import pytest
    from pairmq.testing.conformance import MemoryHarness, suites


    class Harness(MemoryHarness):
        {body}


    @pytest.fixture(scope="session")
    def harness():
        with Harness() as harness:
            yield harness
"""


def project(folder: Path, *tests: str, body: str = "pass") -> None:
    lines = [line.removeprefix("    ") for line in HARNESS.format(body=body).splitlines()]
    (folder / "test_conformance.py").write_text("\n".join([*lines, *tests]) + "\n")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-q",
        "--rootdir",
        str(folder),
    ]
    # A configuration as it may well be, and none of it ours.
    configured = ["-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=session", "-W", "error"]
    return subprocess.run(
        [*command, *configured, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def suites_but(*left_out: str) -> list[str]:
    names = [suite.__name__ for suite in suites.ALL if suite.__name__ not in left_out]
    return [f"class Test{name}(suites.{name}): ..." for name in names]


def test_suites_run_in_strict_mode_with_nothing_but_a_harness(tmp_path: Path) -> None:
    project(tmp_path, *suites_but())
    done = run(tmp_path, "test_conformance.py::TestTopics", "-k", "not sessions")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout and "warning" not in done.stdout, done.stdout


def test_a_module_without_a_suite_fails(tmp_path: Path) -> None:
    project(tmp_path, *suites_but("Cancellation", "Probe"))
    done = run(tmp_path, "-k", "left_out")
    assert done.returncode == 1
    assert "has no subclass of: Cancellation, Probe" in done.stdout


def test_a_module_with_every_suite_passes(tmp_path: Path) -> None:
    project(tmp_path, "from pairmq.testing.conformance.tests import *")
    done = run(tmp_path, "-k", "left_out")
    assert done.returncode == 0, done.stdout


def test_a_test_that_was_replaced_fails(tmp_path: Path) -> None:
    project(tmp_path, *suites_but("Send"), "class TestSend(suites.Send):\n    test_a_missing_entity_is_told = None")
    done = run(tmp_path, "-k", "left_out")
    assert done.returncode == 1
    assert "tests of the suites are replaced: TestSend.test_a_missing_entity_is_told" in done.stdout


def test_a_test_that_hangs_ends_and_says_where(tmp_path: Path) -> None:
    project(tmp_path, *suites_but(), body="time_limit = 0.5")
    done = run(tmp_path, "-k", "test_a_scheduled_message_waits_for_its_time")
    assert done.returncode == 1
    assert "still running after 0.5 s: something hangs" in done.stdout
    assert "_send.py" in done.stdout


def test_a_fault_that_a_harness_lacks_skips_its_tests_and_says_what_to_write(tmp_path: Path) -> None:
    project(tmp_path, *suites_but(), body="refuse_writes = BaseHarness.refuse_writes")
    module = tmp_path / "test_conformance.py"
    module.write_text("from pairmq.testing.conformance import Harness as BaseHarness\n" + module.read_text())
    done = run(tmp_path, "-rs", "-k", "stores_nothing")
    assert done.returncode == 0, done.stdout
    assert "2 skipped" in done.stdout
    assert "implement Harness.refuse_writes() if there is a way" in done.stdout


def test_a_harness_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_conformance.py").write_text(
        "from pairmq.testing.conformance import suites\nclass TestSend(suites.Send): ...\n"
    )
    done = run(tmp_path, "-k", "test_a_missing_entity_is_told")
    assert "fixture 'harness' not found" in done.stdout


def test_a_harness_that_gives_no_url_is_told(tmp_path: Path) -> None:
    project(tmp_path, *suites_but(), body="async def make(self): pass")
    done = run(tmp_path, "test_conformance.py::TestTopics", "-x")
    assert "Harness.make() returned None: it must be the broker's URL" in done.stdout


def test_a_fixture_that_gives_no_harness_is_told(tmp_path: Path) -> None:
    project(tmp_path, *suites_but())
    module = tmp_path / "test_conformance.py"
    module.write_text(module.read_text().replace("yield harness", "yield Harness"))
    done = run(tmp_path, "test_conformance.py::TestTopics", "-x")
    assert "the fixture 'harness' gives <class 'test_conformance.Harness'>: it must give a Harness" in done.stdout

"""The suites in somebody else's project: without our configuration, in pytest-asyncio's strict mode."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairmq.testing.conformance import suites

pytest_plugins = ["pytester"]
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


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs the tests of the project; in this process unless ``alone``, as to start pytest takes longer than they do."""

    def run(*arguments: str, alone: bool = False) -> pytest.RunResult:
        # A configuration as it may well be, and none of it ours.
        command = ["-p", "no:cacheprovider", "-p", "no:xdist", "-q", "--rootdir", str(pytester.path)]
        configured = ["-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=session", "-W", "error"]
        if alone:
            return pytester.runpytest_subprocess(*command, *configured, *arguments, timeout=150)
        return pytester.runpytest_inprocess(*command, *configured, *arguments)

    return run


def suites_but(*left_out: str) -> list[str]:
    names = [suite.__name__ for suite in suites.ALL if suite.__name__ not in left_out]
    return [f"class Test{name}(suites.{name}): ..." for name in names]


@pytest.mark.real_server  # it starts pytest
def test_suites_run_in_strict_mode_with_nothing_but_a_harness(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but())
    done = run("test_conformance.py::TestTopics", "-k", "not sessions", alone=True)
    assert done.ret == 0, done.stdout.str() + done.stderr.str()
    assert "skipped" not in done.stdout.str() and "warning" not in done.stdout.str(), done.stdout.str()


def test_a_module_without_a_suite_fails(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but("Cancellation", "Probe"))
    done = run("-k", "left_out")
    assert done.ret == 1
    assert "has no subclass of: Cancellation, Probe" in done.stdout.str()


def test_a_module_with_every_suite_passes(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, "from pairmq.testing.conformance.tests import *")
    done = run("-k", "left_out")
    assert done.ret == 0, done.stdout.str()


def test_a_test_that_was_replaced_fails(run, pytester: pytest.Pytester) -> None:
    project(
        pytester.path, *suites_but("Send"), "class TestSend(suites.Send):\n    test_a_missing_entity_is_reported = None"
    )
    done = run("-k", "left_out")
    assert done.ret == 1
    assert "tests of the suites are replaced: TestSend.test_a_missing_entity_is_reported" in done.stdout.str()


def test_a_test_that_hangs_ends_and_says_where(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but(), body="time_limit = 0.5")
    done = run("-k", "test_a_scheduled_message_waits_for_its_time")
    assert done.ret == 1
    assert "still running after 0.5 s: something hangs" in done.stdout.str()
    assert "_send.py" in done.stdout.str()


def test_a_fault_that_a_harness_lacks_skips_its_tests_and_says_what_to_write(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but(), body="refuse_writes = BaseHarness.refuse_writes")
    module = pytester.path / "test_conformance.py"
    module.write_text("from pairmq.testing.conformance import Harness as BaseHarness\n" + module.read_text())
    done = run("-rs", "-k", "stores_nothing")
    assert done.ret == 0, done.stdout.str()
    assert "2 skipped" in done.stdout.str()
    assert "implement Harness.refuse_writes() if there is a way" in done.stdout.str()


def test_a_harness_that_is_missing_is_named(run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_conformance.py").write_text(
        "from pairmq.testing.conformance import suites\nclass TestSend(suites.Send): ...\n"
    )
    done = run("-k", "test_a_missing_entity_is_reported")
    assert "fixture 'harness' not found" in done.stdout.str()


def test_a_harness_that_gives_no_url_is_reported(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but(), body="async def make(self): pass")
    done = run("test_conformance.py::TestTopics", "-x")
    assert "Harness.make() returned None: it must be the broker's URL" in done.stdout.str()


def test_a_fixture_that_gives_no_harness_is_reported(run, pytester: pytest.Pytester) -> None:
    project(pytester.path, *suites_but())
    module = pytester.path / "test_conformance.py"
    module.write_text(module.read_text().replace("yield harness", "yield Harness"))
    done = run("test_conformance.py::TestTopics", "-x")
    assert "the fixture 'harness' gives <class 'test_conformance.Harness'>: it must give a Harness" in done.stdout.str()

"""Run tiers of the tests, run again what failed on a real server, and print what came of it as a table.

Run it with: .venv/bin/python scripts/tiers.py [--workers N] [--checks] [--report] TIER... [-- PYTEST ARGUMENTS]
The tiers are first, search, servers, spark, long (see conftest.py) and simulated; model searches the core's worlds that
are too large for the first tier; eager and uvloop are those tests of the first tier that depend on the event loop, in
other loops; examples are those that draw examples, with three times as many others. The first runs before the others,
which run side by side, but search, eager, uvloop and examples one after the other. The simulation and the model begin
at once, beside the first tier, too: they use what others leave.

A test of a tier with real servers that fails is run once more, alone, when the tier is over: if it fails again, it has
failed; if it passes, it is flaky, and its log is kept. More than three flaky tests fail the tier. The first tier has no
second chance, in no loop and with no examples. What came of each tier stays in build/test, for --report, which runs
nothing.
With --checks `make check` runs beside the first tier: most of it is one process of mypy. When a check fails, the tests
are stopped, and what it says is printed last.
Exit status: 0 when all passed, 1 when not, 2 for a wrong command line, 130 for Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree  # what it reads was written by pytest a moment ago
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", str, bytes)
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "build" / "test"
HOURS = {"none": 250, "session": 50}  # simulated, by the ordering of the pairs
MOST_FLAKY = 3
MOST_REPEATED = 20  # of more it is plain that something is broken, and one by one they would take very long
TESTS_FAILED = 1  # pytest's exit status
# What only computes leaves the processors to what also watches the clock.
NICENESS = {"search": 5, "eager": 5, "uvloop": 5, "examples": 5, "simulated": 10, "model": 10}
EXTRA = {"servers": 3}  # processes besides the workers: most of their tests wait
# What tests of a tier have in their file, or in a conftest.py of their folders; to import all others takes each process
# longer than a hundred tests.
WORDS = {"search": "mark.search", "servers": "real_server", "spark": "spark"}
# What makes tasks and waits on them: with eager tasks, the order of their first steps is another one; what thousands of
# operations cost is not.
_EAGER = (
    "tests/runner",
    "--ignore=tests/runner/test_known_entities.py",  # it counts memory
    "--ignore=tests/runner/test_sizes.py",
    "-k",
    "not (old_reports_are_removed or thousand or what_others_cost or what_operations_cost or short_operations"
    " or take_a_while)",
    "tests/pair/test_claims.py",
    "tests/pair/test_deduplicator.py",
    "tests/pair/test_deduplicator_iterating.py",
    "tests/pair/test_observers.py",
    "tests/pair/test_sender_only_primary.py",
    "tests/sync",
    "tests/transport/test_conformance_memory.py",
    "plugins/pairmq-sqlite/tests/test_conformance.py",
    "plugins/pairmq-redis/tests/test_conformance_fakeredis.py",
)
# What uses sockets, threads or programs: virtual time keeps its own loop, and fakeredis needs no socket or thread.
_UVLOOP = ("tests/sync", "plugins/pairmq-sqlite/tests/test_conformance.py", "plugins/servicebus-local/tests/server")
LOOPS = {"eager": _EAGER, "uvloop": _UVLOOP}  # their tests
IN_TURN = ("search", *LOOPS, "examples")  # one process after the other; none of them needs a server
BESIDE = ("simulated", "model")  # the first tier, whose tests wait at times


@dataclass
class Result:
    """What came of one tier."""

    tier: str
    passed: int = 0
    failed: int = 0
    flaky: int = 0
    not_run: int = 0
    seconds: float = 0.0
    processor: float = 0.0  # seconds of its processes, and of those that they have waited for
    status: int = 0

    @property
    def ok(self) -> bool:
        """Whether it counts as passed."""
        return not self.status and not self.failed and self.flaky <= MOST_FLAKY

    def keep(self) -> None:
        """Write it down for --report."""
        (RESULTS / f"{self.tier}.json").write_text(json.dumps(asdict(self)), "utf-8")


class Tier:
    """Runs one tier.

    Args:
        name: of the tier.
        workers: processes for its tests; 0 for none but this one's child.
        more: arguments for pytest.
        quiet: keeps what it prints until it has ended.
    """

    def __init__(self, name: str, workers: int, more: Sequence[str], quiet: bool) -> None:
        self.result = Result(name)
        self._name = name
        self._more = more
        self.quiet = quiet
        # One Spark session serves all tests of the pipeline; those of other loops fill what the servers' tests leave.
        alone = not workers or name in ("spark", *IN_TURN)
        self._parallel = [] if alone else ["--forks", str(workers + EXTRA.get(name, 0))]
        self._xml = RESULTS / f"{name}.xml"
        self._cache = RESULTS / f"{name}-cache"
        self._processes: set[subprocess.Popen[Any]] = set()  # that run now; the simulation has several
        self._stopped = False

    def run(self) -> None:
        """Run it to its end."""
        began = time.monotonic()
        shutil.rmtree(self._cache, ignore_errors=True)
        (RESULTS / f"{self._name}.flaky").unlink(missing_ok=True)
        if self._name == "simulated":
            simulate = [sys.executable, "-m", "pairmq", "simulate"]
            hours = ([*simulate, "--ordering", each, "--seeds", f"0..{many - 1}"] for each, many in HOURS.items())
            with ThreadPoolExecutor() as side_by_side:
                self.result.status = int(any(side_by_side.map(self._call, hours)))
            self.result.passed, self.result.failed = (0, 1) if self.result.status else (sum(HOURS.values()), 0)
        elif self._name == "model":
            self.result.status = self._call([sys.executable, str(ROOT / "scripts" / "model.py"), "--check"])
            self.result.passed, self.result.failed = (0, 1) if self.result.status else (1, 0)
        else:
            status = self._pytest(self._parallel)
            self._count()
            if status == TESTS_FAILED and self._name not in ("first", *IN_TURN):
                status = self._look_again()
            self.result.status = status
        self.result.seconds = time.monotonic() - began
        self.result.keep()

    def stop(self) -> None:
        """End what runs now as Ctrl-C would: servers that its tests have started are stopped, too."""
        self._stopped = True
        for process in tuple(self._processes):
            process.send_signal(signal.SIGINT)

    def _pytest(self, arguments: Sequence[str]) -> int:
        # Hypothesis draws the same examples each time, so that a change is judged by itself.
        seed = "1" if self._name == "examples" else "0"
        loop = LOOPS.get(self._name)
        if loop:
            tests = ["--tier", "first", "--loop", self._name, *loop]
        elif self._name == "examples":
            tests = ["--tier", "first", "-m", "hypothesis"]
        else:
            tests = ["--tier", self._name, *self._files()]
        fixed = ["-q", *tests, "--hypothesis-seed", seed, "-rs", f"--junitxml={self._xml}"]
        cache = ["-o", f"cache_dir={self._cache}"]
        # The first tier draws a quarter of them.
        if self._name == "examples":
            os.environ.setdefault("PAIRMQ_TEST_LOOK", "0.75")
        return self._call([sys.executable, "-m", "pytest", *fixed, *cache, *arguments, *self._more])

    def _files(self) -> list[str]:
        """Name the files of the tier's tests; none where all are to be searched, or the arguments name some."""
        word = WORDS.get(self._name)
        if word is None or any((ROOT / each.partition("::")[0]).exists() for each in self._more):
            return []
        return files_with(word)

    def _call(self, command: Sequence[str]) -> int:
        """Run a command; side by side with others its output is shown in one piece."""
        if (niceness := NICENESS.get(self._name)) is not None:
            command = ["nice", "-n", str(niceness), *command]
        if self._stopped:
            return TESTS_FAILED
        if not self.quiet:
            with self._started(subprocess.Popen(command, cwd=ROOT)) as process:
                return self._waited(process)
        with self._started(
            subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
        ) as process:
            assert process.stdout is not None  # noqa: S101  # a pipe
            said = process.stdout.read()
            status = self._waited(process)
        print(f"\n== {self._name}\n{said}", end="", flush=True)
        return status

    def _started(self, process: subprocess.Popen[T]) -> subprocess.Popen[T]:
        """Let `stop` end a process, one that has started while it was called, too."""
        self._processes.add(process)
        if self._stopped:
            process.send_signal(signal.SIGINT)
        return process

    def _waited(self, process: subprocess.Popen[Any]) -> int:
        """Wait for the end of a command, and count its processor time; gives its exit status."""
        try:
            _, status, used = os.wait4(process.pid, 0)
        except ChildProcessError:  # `stop` has found it ended
            return process.wait()
        finally:
            self._processes.discard(process)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.result.processor += used.ru_utime + used.ru_stime
        return process.returncode

    def _count(self) -> None:
        """Read pytest's own count."""
        if not self._xml.exists():
            return
        suite = next(ElementTree.parse(self._xml).iter("testsuite")).attrib  # noqa: S314  # pytest wrote it
        failed = int(suite["failures"]) + int(suite["errors"])
        self.result.failed = failed
        self.result.not_run = int(suite["skipped"])
        self.result.passed = int(suite["tests"]) - failed - self.result.not_run

    def _look_again(self) -> int:
        """Run what failed once more, alone; gives the status of the tier."""
        first = self._failed()
        if not first or len(first) > MOST_REPEATED:
            return TESTS_FAILED
        stories = self._stories()
        print(f"\n== {self._name}: {len(first)} failed; once more, alone", flush=True)
        again_xml = f"--junitxml={RESULTS / self._name}-again.xml"  # how long the others took stays in the first one
        status = self._pytest(["--lf", "--last-failed-no-failures", "none", again_xml])
        again = self._failed() if status else set()
        flaky = first - again
        self.result.flaky = len(flaky)
        self.result.failed = len(first) - len(flaky)
        self.result.passed += len(flaky)
        if flaky:
            text = "".join(f"flaky: {test}\n" for test in sorted(flaky))
            (RESULTS / f"{self._name}.flaky").write_text(text + stories, "utf-8")
        if status not in (0, TESTS_FAILED):
            return status
        return TESTS_FAILED if again else 0

    def _failed(self) -> set[str]:
        try:
            return set(json.loads((self._cache / "v/cache/lastfailed").read_text("utf-8")))
        except FileNotFoundError:
            return set()

    def _stories(self) -> str:
        """What the failures of the last run looked like."""
        stories = []
        for case in ElementTree.parse(self._xml).iter("testcase"):  # noqa: S314  # pytest wrote it
            for child in case:
                if child.tag in ("failure", "error"):
                    stories.append(f"\n---- {case.get('classname')} {case.get('name')}\n{child.text}\n")
        return "".join(stories)


class Checks:
    """Runs `make check` beside a tier.

    Args:
        beside: the tier that is stopped when a check fails.
        command: runs the checks.
    """

    def __init__(self, beside: Tier, command: Sequence[str] = ("make", "--no-print-directory", "check")) -> None:
        self._beside = beside
        self._command = command
        self._said = ""
        self._failed = True  # until they have passed
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="checks", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began = time.monotonic()
        try:
            ended = subprocess.run(
                self._command,
                cwd=ROOT,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._said, self._failed = ended.stdout, bool(ended.returncode)
        except OSError as error:
            self._said = f"{error}\n"
        self._seconds = time.monotonic() - began
        if self._failed:
            self._beside.stop()

    def passed(self) -> bool:
        """Wait for their end, and print what came of them."""
        self._thread.join()
        if self._failed:
            print(f"\n== checks FAILED, so no more tests are run\n{self._said}", end="", flush=True)
        else:
            print(f"\nchecks passed in {self._seconds:.0f} s", flush=True)
        return not self._failed


def files_with(word: str) -> list[str]:
    """Find the files of tests with a word in them, or in a conftest.py that is theirs; the root's is that of all."""
    found = []
    for test in (*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/*/tests/**/test_*.py")):
        inner = test.parents[: test.parents.index(ROOT)]
        near = (folder / "conftest.py" for folder in inner)
        if any(word in path.read_text("utf-8") for path in (test, *near) if path.exists()):
            found.append(str(test.relative_to(ROOT)))
    return sorted(found)


def report(tiers: Sequence[str]) -> bool:
    """Print the table of some tiers, of all that is kept if none is named, and the logs of flaky tests.

    Returns:
        Whether all passed.
    """
    found = sorted(RESULTS.glob("*.json"), key=lambda path: path.stat().st_mtime)
    results = [Result(**json.loads(path.read_text("utf-8"))) for path in found if not tiers or path.stem in tiers]
    for each in results:
        log = RESULTS / f"{each.tier}.flaky"
        if log.exists():
            print(f"\n== {each.tier}: flaky, kept in {log.relative_to(ROOT)}\n{log.read_text('utf-8')}")
    print(f"\n{'tier':<10}{'passed':>8}{'failed':>8}{'flaky':>8}{'not run':>9}{'seconds':>9}{'processor':>11}")
    for each in results:
        verdict = "" if each.ok else "  FAILED"
        print(
            f"{each.tier:<10}{each.passed:>8}{each.failed:>8}{each.flaky:>8}{each.not_run:>9}{each.seconds:>9.0f}"
            f"{each.processor:>11.0f}{verdict}"
        )
    sys.stdout.flush()
    return all(each.ok for each in results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run tiers, and print their table."""
    parser = argparse.ArgumentParser(description="run tiers of the tests, and print a table of what came of them")
    parser.add_argument(
        "tiers", nargs="*", choices=["first", "servers", "spark", "long", *IN_TURN, *BESIDE, []], metavar="TIER"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=5,
        help="processes for the tests of a tier (5)",
    )
    parser.add_argument("--checks", action="store_true", help="run `make check` beside the first tier")
    parser.add_argument("--report", action="store_true", help="print what came of the last runs; run nothing")
    split = sys.argv[1:] if arguments is None else list(arguments)
    more: list[str] = []
    if "--" in split:
        more = split[split.index("--") + 1 :]
        split = split[: split.index("--")]
    options = parser.parse_args(split)
    if not options.report and not options.tiers:
        parser.error("name a tier, or --report")
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not options.report:
        # Each of the hundreds of programs that the tests start would compile all of PairMQ.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        made = {name: Tier(name, options.workers, more, quiet=len(options.tiers) > 1) for name in options.tiers}
        if not _run(made, options.checks):
            return 1
    return 0 if report(options.tiers) else 1


def _run(tiers: dict[str, Tier], with_checks: bool) -> bool:
    """Run the first tier, with what runs beside it, and then the others; gives whether the checks have passed."""
    first = tiers.pop("first", None)
    beside = [tiers.pop(name) for name in BESIDE if name in tiers]
    threads = [_lane([tier]) for tier in beside]
    if first:
        first.quiet = False
        checks = Checks(first) if with_checks else None
        passed = False
        try:
            first.run()
            passed = not checks or checks.passed()
        finally:
            for tier in beside if not passed else ():
                tier.stop()
        if not passed:
            for thread in threads:
                thread.join()
            return False
    in_turn = [tiers.pop(name) for name in IN_TURN if name in tiers]  # each is one process that only computes
    threads += [_lane([tier]) for tier in tiers.values()]
    if in_turn:
        threads.append(_lane(in_turn))
    for thread in threads:
        thread.join()
    return True


def _lane(tiers: Sequence[Tier]) -> threading.Thread:
    """Begin to run tiers, one after the other."""
    thread = threading.Thread(target=_in_turn, args=(tiers,), name=tiers[0].result.tier)
    thread.start()
    return thread


def _in_turn(tiers: Sequence[Tier]) -> None:
    for tier in tiers:
        tier.run()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

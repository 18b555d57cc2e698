"""Runs tests in several processes that are forked when all tests are collected: ``--forks N``.

To import and collect the tests of a tier takes as long as some hundreds of them. pytest-xdist does it in each of its
processes; here one process does it for all. They take spans of tests from a pipe, long ones first, so that what a file
or a session shares is set up once for many tests, and yet all are busy until the end. What they report is counted,
printed and written by the process that has collected.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest
from _pytest.runner import runtestprotocol

_SPAN = struct.Struct("=II")  # number of the first test of a span, and of the one behind its last
_NUMBER = struct.Struct("=i")
_NONE = -1
_TOGETHER = 20  # tests of one file, which may share what takes long to set up


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--forks``."""
    text = "run the tests in so many processes, which are forked when all tests are collected; 0 for none but this one"
    parser.addoption("--forks", type=int, default=0, metavar="N", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests, if some are to be run, and by other processes."""
    option = session.config.option
    count = min(option.forks, len(session.items))
    if count < 1 or option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
        return None
    _Forks(session, count).run()
    return True


def spans(files: Sequence[object], processes: int) -> Iterator[tuple[int, int]]:
    """Divide tests, of which the files are given, into spans that become ever shorter, and rather not within a file."""
    begin, tests = 0, len(files)
    while begin < tests:
        end = begin + max(1, (tests - begin) // (3 * processes))
        if tests - end > processes * _TOGETHER:
            ends = range(end, end + _TOGETHER)
            end = next((each for each in ends if files[each] != files[each - 1]), end)
        yield begin, end
        begin = end


class _Forks:
    """The processes of a run."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._count = count
        self._left = set(range(len(session.items)))  # numbers of tests without a report
        self._pids: dict[Connection, int] = {}
        # Shared by all: whether no more tests are to be begun, and what each process runs.
        self._stop = mmap.mmap(-1, 1)
        self._running = mmap.mmap(-1, count * _NUMBER.size)

    def run(self) -> None:
        """Run all tests."""
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # of which each has a part
        files = [item.path for item in self._session.items]
        source, target = os.pipe()
        os.write(target, b"".join(_SPAN.pack(*span) for span in spans(files, self._count)))
        os.close(target)
        for place in range(self._count):
            self._fork(place, source)
        os.close(source)
        try:
            self._listen()
        finally:
            self._stop[0] = 1
            for reports, pid in self._pids.items():  # still running, as this process was interrupted
                reports.close()
                os.kill(pid, signal.SIGINT)
            for pid in self._pids.values():
                os.waitpid(pid, 0)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)
        for number in sorted(self._left):
            self._fail(number, "was not run: a process has ended that would have")

    # ---- in the process that has collected

    def _fork(self, place: int, source: int) -> None:
        reports, told = Pipe(duplex=False)
        _NUMBER.pack_into(self._running, place * _NUMBER.size, _NONE)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            for other in (reports, *self._pids):
                other.close()
            self._work(place, source, told)
        told.close()
        self._pids[reports] = pid

    def _listen(self) -> None:
        places = {reports: place for place, reports in enumerate(self._pids)}
        while self._pids:
            for ready in wait(list(self._pids)):
                assert isinstance(ready, Connection)
                try:
                    self._report(*ready.recv())
                except EOFError:
                    _, status = os.waitpid(self._pids.pop(ready), 0)
                    (number,) = _NUMBER.unpack_from(self._running, places[ready] * _NUMBER.size)
                    if number != _NONE:
                        self._fail(number, f"has ended its process: exit status {os.waitstatus_to_exitcode(status)}")

    def _report(self, number: int, told: list[dict[str, Any]]) -> None:
        item, hook = self._session.items[number], self._session.config.hook
        self._left.discard(number)
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for data in told:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self._stop[0] = bool(self._session.shouldfail or self._session.shouldstop)

    def _fail(self, number: int, text: str) -> None:
        item = self._session.items[number]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", f"{item.nodeid} {text}", "call")
        self._report(
            number, [self._session.config.hook.pytest_report_to_serializable(config=item.config, report=report)]
        )

    # ---- in each of those that run tests

    def _work(self, place: int, source: int, told: Connection) -> NoReturn:
        """Run tests until none are left."""
        capture: Any = self._session.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are the other processes', too
        capture.start_global_capturing()
        capture.suspend_global_capture()
        status = 0
        try:
            temporary: Any = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
            temporary._basetemp = temporary.mktemp(f"process{place}", numbered=False)
            running = _Running(told)
            self._session.config.pluginmanager.register(running)
            numbers = self._numbers(source)
            number = next(numbers, None)
            while number is not None and not self._stop[0]:
                behind = next(numbers, None)
                _NUMBER.pack_into(self._running, place * _NUMBER.size, number)
                running.number = number
                item, after = self._session.items[number], None if behind is None else self._session.items[behind]
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
                _NUMBER.pack_into(self._running, place * _NUMBER.size, _NONE)
                number = behind
        except (KeyboardInterrupt, BrokenPipeError):
            status = 130
        except BaseException:
            traceback.print_exc()
            status = 1
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, and that of the process that has collected
            with contextlib.suppress(BaseException):
                self._session._setupstate.teardown_exact(None)
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    @staticmethod
    def _numbers(source: int) -> Iterator[int]:
        while span := os.read(source, _SPAN.size):
            yield from range(*_SPAN.unpack(span))


class _Running:
    """Runs a test instead of pytest, and sends what came of it."""

    def __init__(self, told: Connection) -> None:
        self._told = told
        self.number = _NONE

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        told = [item.config.hook.pytest_report_to_serializable(config=item.config, report=each) for each in reports]
        self._told.send((self.number, told))
        return True

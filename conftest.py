"""Decides which tests a run takes: each belongs to the tier of what it needs.

| tier | its tests | run by |
|---|---|---|
| ``first`` | need Python alone, or are marked ``smoke`` | `make test`, and pytest by itself |
| ``search`` | are marked ``search``: they look for something rare, or planted | `make test-all` |
| ``servers`` | are marked ``real_server`` | `make test-servers` |
| ``spark`` | use the fixture ``spark``, or are marked ``spark`` | `make test-spark` |
| ``long`` | are marked ``long``: they take minutes | `make test-long` |

A run that names files takes their tests from every tier but ``long``; a test that is named by itself is always taken. A
test of the first tier that starts a server fails: it would fail as well where that server is missing.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import gc
import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

pytest_plugins = ["forked_runs"]

TIERS = ("first", "search", "servers", "spark", "long")
SERVERS = {"redis-server", "rabbitmq-server", "epmd", "initdb", "pgbouncer", "java", "spark-submit"}
SERVERS |= {"chromium", "google-chrome"}

# What a shell may hold for other programs, or for PairMQ itself, decides nothing here: how output looks, where brokers
# are, how servers are started, which proxy leads out. Variables of the tests themselves stay.
_OTHERS = re.compile(
    r"PAIRMQ_(?!TEST_|SAIL_)|(?:PG|RABBITMQ_|REDIS|OTEL_|SPARK_|PYSPARK_|CELERY_|DJANGO_|AZURE_)"
    r"|(?:FORCE_COLOR|CLICOLOR|CLICOLOR_FORCE|NO_COLOR|COLUMNS|LINES|TERM)$",
)
for _name in filter(_OTHERS.match, tuple(os.environ)):
    del os.environ[_name]
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "localhost,127.0.0.1,::1"

_sessions: list[pytest.Session] = []  # of this process
_alone: list[str] = []  # the test that runs now, where it may start none of these programs


def tier_of(item: pytest.Item) -> str:
    """Name the tier of what a test needs."""
    marks = {mark.name for mark in item.iter_markers()}
    if "long" in marks:
        return "long"
    if "spark" in marks or "spark" in getattr(item, "fixturenames", ()):
        return "spark"
    if "real_server" in marks and "smoke" not in marks:
        return "servers"
    return "search" if "search" in marks else "first"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tier`` and ``--loop``."""
    text = "tests of this tier; may be repeated. Without it: the first, and all but long where files are named"
    parser.addoption("--tier", action="append", choices=TIERS, help=text)
    text = "event loops of the tests: asyncio's; the same with eager tasks; or uvloop's, if it is installed"
    parser.addoption("--loop", choices=("asyncio", "eager", "uvloop"), default="asyncio", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Watch for servers, and choose the event loops."""
    if _wanted(config) == TIERS[:1]:
        _keep_files_in_memory()
    atexit.register(_end, os.getpid())  # what is registered later runs before it
    subprocess.Popen.__init__ = _refusing_servers(subprocess.Popen.__init__)  # type: ignore[method-assign]
    if config.option.loop == "uvloop":
        try:
            import uvloop
        except ImportError:
            raise pytest.UsageError(
                "--loop uvloop needs uvloop, which the pins hold for CPython on Linux: pip install uvloop"
            ) from None
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    elif config.option.loop == "eager":
        from eager_tasks import make_all_eager

        make_all_eager()


_MEMORY = Path("/dev/shm")  # noqa: S108  # files in memory, on Linux
_ROOM = 1 << 30  # bytes


def _keep_files_in_memory() -> None:
    """Let tests write where no disk is waited for: a busy one takes seconds for each transaction of SQLite's."""
    if not os.access(_MEMORY, os.W_OK | os.X_OK):
        return
    found = os.statvfs(_MEMORY)
    if found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Note whose status the process ends with."""
    _sessions.append(session)


def _end(process: int) -> None:
    """End a process as it is, but none that a test has forked: to take apart what the imports have made takes 3 s."""
    if _sessions and os.getpid() == process:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(_sessions[0].exitstatus))


def _wanted(config: pytest.Config) -> tuple[str, ...]:
    if config.option.tier:
        return tuple(config.option.tier)
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        return TIERS[:1]
    return TIERS if any("::" in argument for argument in config.args) else TIERS[:-1]


_ALL_ELSEWHERE = re.compile(r"^pytestmark = .*pytest\.mark\.(?:long|real_server|spark)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Spare the first tier the import of files of which all tests are elsewhere."""
    if _wanted(config) != TIERS[:1] or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text("utf-8")
    return True if _ALL_ELSEWHERE.search(text) and "smoke" not in text else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage among what the imports make: that takes an eighth of each process's start."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other tiers."""
    wanted = _wanted(config)
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (kept if tier_of(item) in wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare each garbage collection what the imports have made: some tests collect, and read all of it each time."""
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Note whether the test may start servers, and take chance out of the first tier."""
    if tier_of(item) == "first":
        _seed(item.nodeid)
        if not item.get_closest_marker("smoke"):
            _alone.append(item.nodeid)
    try:
        return (yield)
    finally:
        _alone.clear()


def _seed(name: str) -> None:
    """Let each pair of a test draw the same numbers in each run; PAIRMQ_TEST_SEED gives others."""
    if clock := sys.modules.get("pairmq.runner._clock"):
        pairs = itertools.count()
        seed = os.environ.get("PAIRMQ_TEST_SEED", "")
        clock.random = SimpleNamespace(Random=lambda: random.Random(f"{seed} {name} {next(pairs)}"))  # noqa: S311


def _refusing_servers(start: Callable[..., None]) -> Callable[..., None]:
    """Let a program of `SERVERS` be started only by a test that is marked for it.

    Not by an audit hook: it would be called millions of times, by each `id` for example.
    """

    @functools.wraps(start)
    def checked(self: object, args: object, *others: object, **named: object) -> None:
        if _alone and isinstance(args, (list, tuple)):
            started = SERVERS & {PurePath(os.fsdecode(word)).name for word in args}
            if started and "-version" not in args:
                pytest.fail(f"the test starts {', '.join(started)}: mark it real_server, or smoke", pytrace=False)
        start(self, args, *others, **named)

    return checked

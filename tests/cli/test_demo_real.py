"""``pairmq demo --real``: real servers that the demo starts, kills, starts again, and takes away at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pairmq.plugins import TransportRecord, hookimpl, registry
from pairmq.transport import Capabilities

_QUICK = ["--rate", "400", "--failover-interval", "200ms", "--ping-interval", "100ms"]
_LONG = ["--messages", "3000", "--rate", "200"]
"""It goes on for many seconds after each of its moments, so that a signal that comes late finds it there."""


def _servers_in(folder: Path) -> list[int]:
    """The processes that work in a folder or below: a server works where its data is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if Path(where).is_relative_to(folder) or f"{folder}/" in where:
                found.append(int(entry.name))
    return found


def _tell_all(folder: Path, number: signal.Signals) -> None:
    """Send the processes in a folder a signal."""
    for server in _servers_in(folder):
        with contextlib.suppress(ProcessLookupError):  # the one that has just ended, or was killed
            os.kill(server, number)


def _await(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def servers_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the servers of a test keep their data; it must be empty, and no server left, at the end."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)  # PostgreSQL does not run as root
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield home
        _await(lambda: not _servers_in(home))
        assert list(home.iterdir()) == []


@pytest.mark.real_server
def test_the_primary_is_killed_and_comes_back_with_its_data(cli, servers_home: Path) -> None:
    ended = cli("demo", "--real", "redis", "--messages", "800", *_QUICK)
    assert ended.status == 0, ended
    for line in ("the primary is killed", "failing → failed-over", "the primary is back after", "nothing was lost"):
        assert line in ended.out
    assert ended.err == "starting 2 redis servers…\n"


@pytest.mark.real_server
def test_two_products_and_the_verdict_as_json_names_them(program, servers_home: Path) -> None:
    demo = program("demo", "--real", "rabbitmq,redis", "--json", "--messages", "300", "--rate", "100")
    ended = demo.end(400)
    assert ended.status == 0, ended
    verdict = json.loads(ended.out)
    assert verdict["servers"] == {"primary": "rabbitmq", "secondary": "redis"}
    assert (verdict["sent"], verdict["delivered"], verdict["ok"]) == (300, 300, True)
    assert verdict["accepted_primary"] + verdict["accepted_backlog"] == 300
    assert (verdict["lost"], verdict["left_in_backlog"], verdict["duplicates_unexplained"]) == (0, 0, 0)
    assert verdict["outage_staged"] is True
    assert "starting a rabbitmq and a redis server…" in ended.err


@pytest.mark.real_server
def test_the_outbox_of_real_servers_loses_and_invents_nothing(program, servers_home: Path) -> None:
    demo = program("demo", "--real", "rabbitmq,postgres", "--outbox", "--json", "--messages", "60", "--rate", "100")
    ended = demo.end(400)
    assert ended.status == 0, ended
    seen = json.loads(ended.out)
    assert (seen["rows"], seen["messages"], seen["lost"], seen["invented"]) == (54, 54, 0, 0)
    assert "starting a rabbitmq and a postgres server…" in ended.err


@pytest.mark.real_server
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_while_the_servers_start_ends_them(program, servers_home: Path, number: signal.Signals) -> None:
    demo = program("demo", "--real", "rabbitmq")
    demo.wait_for(b"starting 2 rabbitmq servers")
    _await(lambda: _servers_in(servers_home))
    _tell_all(servers_home, signal.SIGSTOP)  # so that none is up before the signal, however late that comes
    demo.signal(number)
    ended = demo.end()
    _tell_all(servers_home, signal.SIGCONT)  # what a script of theirs had started ends by itself
    assert ended.status == 128 + number
    assert "nothing was sent" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


@pytest.mark.real_server
@pytest.mark.parametrize(
    "moment", ["killed", *(pytest.param(each, marks=pytest.mark.long) for each in ("healthy", "is back after"))]
)
def test_ctrl_c_counts_what_the_servers_hold_and_then_ends_them(program, servers_home: Path, moment: str) -> None:
    demo = program("demo", "--real", "redis", *_LONG)
    demo.wait_for(moment.encode())
    # A terminal sends it to the servers too.
    _tell_all(servers_home, signal.SIGINT)
    demo.signal(signal.SIGINT)
    ended = demo.end()
    assert ended.status == 130
    assert "stopped early" in ended.out
    assert "nothing was lost" in ended.out
    assert "Traceback" not in ended.err


@pytest.mark.real_server
def test_servers_end_with_a_killed_demo(program, servers_home: Path) -> None:
    demo = program("demo", "--real", "redis", *_LONG)
    demo.wait_for(b"healthy")
    _await(lambda: len(_servers_in(servers_home)) == 2)
    demo.signal(signal.SIGKILL)
    demo.end()
    _await(lambda: not _servers_in(servers_home))
    for folder in servers_home.iterdir():  # nobody was left to remove them
        for file in sorted(folder.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        folder.rmdir()


# What can't work.


@pytest.mark.parametrize("products", ["memory", "kafka", "redis,kafka", "Redis!"])
def test_a_product_without_a_local_server_is_a_usage_error_that_names_the_others(cli, products: str) -> None:
    ended = cli("demo", "--real", products)
    assert ended.status == 2
    assert len(ended.error_lines) == 1
    assert "plugins with a local server: postgres, rabbitmq, redis" in ended.err


def test_a_product_whose_plugin_is_missing_is_reported_with_what_brings_it(
    cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "transports", lambda: ())
    ended = cli("demo", "--real", "rabbitmq")
    assert ended.status == 2
    assert "install it with: pip install 'pairmq-rabbitmq'" in ended.err


@pytest.mark.parametrize("products", ["", ",", "redis,", ",redis", "redis,redis,redis"])
def test_one_or_two_products_are_named(cli, products: str) -> None:
    ended = cli("demo", "--real", products)
    assert (ended.status, ended.error_lines) == (
        2,
        ["error: --real: name one product for both brokers, or PRIMARY,SECONDARY"],
    )


@pytest.mark.parametrize("flag", ["--primary", "--secondary"])
def test_real_servers_and_urls_exclude_each_other(cli, flag: str) -> None:
    ended = cli("demo", "--real", "redis", flag, "memory://x")
    assert ended.status == 2
    assert "exclude each other" in ended.err


@pytest.mark.parametrize("products", ["rabbitmq", "redis"])
def test_a_missing_program_is_one_error_that_says_what_to_install(
    cli, servers_home: Path, monkeypatch: pytest.MonkeyPatch, products: str
) -> None:
    monkeypatch.setenv("PATH", str(servers_home))
    ended = cli("demo", "--real", products)
    assert ended.status == 2
    assert len(ended.error_lines) == 1
    assert f"apt-get install {products}-server" in ended.err


class _Server:
    """A local server whose `start` waits until it is killed, or fails at once."""

    made: list[_Server]
    url = "memory://never-started"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self._killed = threading.Event()
        self.threads: list[str] = []
        self.closed = False
        _Server.made.append(self)

    def start(self) -> None:
        self.threads.append(threading.current_thread().name)
        if self._error is not None:
            raise self._error
        self._killed.wait(30)
        raise RuntimeError("it was killed")

    def kill(self) -> None:
        self._killed.set()

    def close(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.closed = True


@pytest.fixture
def plugins() -> Iterator[None]:
    """Products whose servers hang, fail, or are not installed."""

    def missing() -> _Server:
        raise FileNotFoundError("no such program: install it")

    class Plugin:
        @hookimpl
        def pairmq_transports(self) -> Iterator[TransportRecord]:
            makers = {
                "hangs": _Server,
                "fails": lambda: _Server(RuntimeError("it ended with status 1\nthe log's last line\x1b[0m")),
                "cannot": lambda: _Server(PermissionError(13, "Permission denied")),
                "missing": missing,
            }
            for name, make in makers.items():
                yield TransportRecord(name, (name,), lambda url: url, Capabilities(), local_server=make)

    plugin = Plugin()
    _Server.made = []
    registry.register(plugin, "test")
    yield
    registry.unregister(plugin)


def test_a_server_that_does_not_start_is_an_error_and_the_other_one_is_ended(cli, plugins) -> None:
    ended = cli("demo", "--real", "hangs,fails")
    assert ended.status == 1
    assert ended.error_lines == ["error: the fails server did not start: it ended with status 1"]
    assert "  the log's last line\\x1b[0m" in ended.err
    assert all(server.closed for server in _Server.made)


def test_a_server_that_cannot_be_run_is_an_error_too(cli, plugins) -> None:
    ended = cli("demo", "--real", "cannot")
    assert (ended.status, len(ended.error_lines)) == (1, 1)
    assert "Permission denied" in ended.err


def test_a_server_works_in_one_thread_of_its_own(cli, plugins) -> None:
    cli("demo", "--real", "hangs,fails")
    threads = [set(server.threads) for server in _Server.made]
    assert [len(names) for names in threads] == [1, 1]
    assert threads[0].isdisjoint(threads[1])
    assert threading.current_thread().name not in threads[0] | threads[1]


def test_a_missing_second_product_leaves_nothing_of_the_first(cli, plugins) -> None:
    ended = cli("demo", "--real", "hangs,missing")
    assert ended.status == 2
    assert ended.error_lines == ["error: can't start a missing server: no such program: install it"]
    assert [server.closed for server in _Server.made] == [True]

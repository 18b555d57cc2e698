"""Server processes in tests: nothing is left behind, and a failure tells why."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pairmq.testing.servers import ServerError, ServerProcess, accepts_connections, free_port, servers_end_with_parent
from pairmq_redis.testing import RedisServer


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it is gone, perhaps while it was looked at
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.real_server
def test_data_outlives_kill_and_restart() -> None:
    with RedisServer() as server:
        server.command("SET", "k", "v")
        pid, directory = server.pid, server.directory
        server.restart()
        assert server.pid != pid
        assert not alive(pid)
        assert server.command("GET", "k") == "$1"
        server.pause()
        server.stop()  # also from a pause
        assert not server.running
    assert not directory.exists()


def test_a_program_that_ends_is_reported_with_its_last_words() -> None:
    server = ServerProcess([sys.executable, "-c", "print('no licence'); raise SystemExit(3)"], ready=lambda: False)
    with pytest.raises(ServerError, match=r"status 3\nno licence"):
        server.start()
    server.close()


def test_a_program_that_is_never_ready_is_ended() -> None:
    command = [sys.executable, "-c", "import time; print('booting', flush=True); time.sleep(60)"]
    server = ServerProcess(command, ready=lambda: False, start_timeout=0.3, name="sleeper")
    with pytest.raises(ServerError, match=r"sleeper was not ready after 0\.3 s"):
        server.start()
    assert not server.running
    with pytest.raises(ServerError, match="does not run"):
        server.pause()
    server.close()


@pytest.mark.skipif(
    not servers_end_with_parent(), reason="only setpriv of util-linux 2.33 or newer ends a server with its parent"
)
def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from pairmq.testing.servers import ServerProcess\n"
        "runs = pathlib.Path(sys.argv[1])\n"
        # Not ready before it runs: a parent that ends while setpriv still starts has asked the kernel for nothing yet.
        "code = f'import pathlib, time; pathlib.Path({str(runs)!r}).touch(); time.sleep(600)'\n"
        "server = ServerProcess([sys.executable, '-c', code], ready=runs.exists)\n"
        "server.start(); print(server.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 100
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Connection:
    """A connection that is shut when it is cleared away, as Spark's to Java is."""

    def __init__(self) -> None:
        self.here, self.there = socket.socketpair()

    def __del__(self) -> None:
        self.here.shutdown(socket.SHUT_RDWR)
        self.here.close()
        self.there.close()


def test_a_server_that_a_thread_starts_leaves_the_connections_of_others_alone() -> None:
    """In a forked copy of the interpreter, what other threads hold is cleared away."""
    held = threading.local()
    held.connection = Connection()
    with ThreadPoolExecutor(1) as other:
        server = ServerProcess([sys.executable, "-c", "import time; time.sleep(60)"], ready=lambda: True)
        other.submit(server.start).result()
        server.close()
    held.connection.here.send(b"x")
    assert held.connection.there.recv(1) == b"x"


def test_free_ports_are_free() -> None:
    assert not accepts_connections("127.0.0.1", free_port())


def test_a_missing_redis_server_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="apt-get install redis-server"):
        RedisServer()

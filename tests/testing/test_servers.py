"""Server processes that start side by side, in an environment that can also lack things."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from pairmq.testing import servers as module
from pairmq.testing.servers import (
    ServerError,
    ServerProcess,
    accepts_connections,
    free_port,
    servers_end_with_parent,
    start_together,
)


def sleeper(directory: Path, *, after: float = 0.0, ends: bool = False, others: int = 0) -> ServerProcess:
    """A process that is ready, or ends, after some seconds, and after so many like it have begun beside it."""
    directory.mkdir()
    code = f"import time, pathlib; pathlib.Path('begun').touch(); time.sleep({after})\n"
    code += f"while len(list(pathlib.Path('..').glob('*/begun'))) <= {others}: time.sleep(0.01)\n"
    code += "raise SystemExit(3)" if ends else "pathlib.Path('ready').touch(); time.sleep(120)"
    ready = directory / "ready"
    return ServerProcess([sys.executable, "-c", code], ready=ready.exists, directory=directory)


def test_servers_start_at_the_same_time(tmp_path):
    servers = [sleeper(tmp_path / str(n), others=3) for n in range(4)]  # one after the other none would be ready
    try:
        start_together(*servers)
        pids = [server.pid for server in servers]
        start_together(*servers)
        assert [server.pid for server in servers] == pids
    finally:
        for server in servers:
            server.close()


def test_when_one_does_not_start_the_others_are_ended_too(tmp_path):
    servers = [sleeper(tmp_path / "runs"), sleeper(tmp_path / "fine"), sleeper(tmp_path / "ends", after=0.2, ends=True)]
    try:
        servers[0].start()
        with pytest.raises(ServerError, match="status 3"):
            start_together(*servers)
        assert [server.running for server in servers] == [True, False, False]  # not the one that ran before
    finally:
        for server in servers:
            server.close()


def test_a_setpriv_that_knows_no_parents_is_asked_once_and_keeps_no_server_from_starting(tmp_path, monkeypatch):
    """BusyBox has one, and so had util-linux before 2.33."""
    asked = tmp_path / "asked"
    setpriv = tmp_path / "bin" / "setpriv"
    setpriv.parent.mkdir()
    setpriv.write_text(f"#!/bin/sh\necho \"$@\" >>'{asked}'\necho \"setpriv: unrecognized option '$1'\" >&2\nexit 1\n")
    setpriv.chmod(0o755)
    monkeypatch.setenv("PATH", str(setpriv.parent), prepend=os.pathsep)
    for name in ("one", "two"):
        with sleeper(tmp_path / name) as server:
            assert server.running
    assert not servers_end_with_parent()
    assert len(asked.read_text().splitlines()) == 1


def test_without_a_setpriv_servers_start_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with sleeper(tmp_path / "server") as server:
        assert server.running
    assert not servers_end_with_parent()


def test_the_environment_can_be_added_to_and_taken_from(tmp_path, monkeypatch):
    monkeypatch.setenv("PAIRMQ_SERVER_KEPT", "1")
    monkeypatch.setenv("PAIRMQ_SERVER_GONE", "1")
    code = "import os; print(sorted(n for n in os.environ if n.startswith('PAIRMQ_SERVER_')))"
    server = ServerProcess(
        [sys.executable, "-c", code],
        ready=lambda: False,
        directory=tmp_path,
        environment={"PAIRMQ_SERVER_GONE": None, "PAIRMQ_SERVER_NEW": "1"},
    )
    with pytest.raises(ServerError, match=r"\['PAIRMQ_SERVER_KEPT', 'PAIRMQ_SERVER_NEW'\]"):
        server.start()
    assert os.environ["PAIRMQ_SERVER_GONE"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's range")
def test_free_ports_are_none_that_outgoing_connections_get():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first <= 12_000:
        pytest.skip("this system gives nearly all ports to outgoing connections")
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < first
    assert not any(accepts_connections("127.0.0.1", port) for port in ports)


class Dice:
    """Gives what it was told to."""

    def __init__(self, *ports: int) -> None:
        self._ports: Iterator[int] = chain(ports, range(11_000, 12_000))

    def randrange(self, *limits: int) -> int:
        return next(self._ports)


def test_a_server_whose_port_is_taken_for_a_moment_is_started_again(tmp_path):
    port = free_port()
    code = "import socket, time; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
    code += f"s.bind(('127.0.0.1', {port})); s.listen(); time.sleep(60)"
    log = tmp_path / "server.log"

    taken: list[socket.socket] = []

    def ready() -> bool:
        if taken and b"Address already in use" in log.read_bytes():
            taken.pop().close()
        return not taken and accepts_connections("127.0.0.1", port)

    with (
        ServerProcess([sys.executable, "-c", code], ready=ready, directory=tmp_path) as server,
        socket.socket() as somebody,
    ):
        server.kill()
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past the connections of before
        somebody.bind(("127.0.0.1", port))
        somebody.listen()
        taken.append(somebody)
        server.start()
        assert server.running
    assert b"Address already in use" in log.read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is kept")
def test_a_port_that_one_process_was_given_is_no_other_s_while_that_lives(monkeypatch):
    code = "from pairmq.testing.servers import free_port; print(free_port(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        port = int(child.stdout.readline())
        monkeypatch.setattr(module, "_chance", Dice(port))
        own = free_port()
        assert own != port
        monkeypatch.setattr(module, "_chance", Dice(own))
        assert free_port() != own
        child.communicate(b"\n")
    monkeypatch.setattr(module, "_chance", Dice(port))
    assert free_port() == port


def test_a_process_keeps_no_more_ports_than_it_may(monkeypatch):
    monkeypatch.setattr(module, "_KEPT", 3)
    for _ in range(5):
        free_port()
    assert len(module._kept) <= 3


def test_ctrl_c_in_a_terminal_does_not_reach_a_server(tmp_path):
    with sleeper(tmp_path / "server") as server:
        # A terminal tells the whole process group in its foreground.
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_fork_of_a_test_process_ends_none_of_its_servers():
    program = """
import os, sys
from pairmq.testing.servers import ServerProcess

with ServerProcess([sys.executable, "-c", "import time; time.sleep(120)"], ready=lambda: True) as server:
    if (child := os.fork()) == 0:
        sys.exit()  # leaves the block, and runs what is registered for the end of a process
    os.waitpid(child, 0)
    print(server.running, server.directory.exists())
print(server.directory.exists())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "False"]

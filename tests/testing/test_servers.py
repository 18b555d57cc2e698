"""Server processes that start side by side, in an environment that can also lack things."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from pairmq.testing.servers import ServerError, ServerProcess, accepts_connections, free_port, start_together


def sleeper(directory: Path, *, after: float = 0.0, ends: bool = False, timeout: float = 20.0) -> ServerProcess:
    """A process that is ready, or ends, after some seconds."""
    directory.mkdir()
    code = f"import time, pathlib; time.sleep({after}); "
    code += "raise SystemExit(3)" if ends else "pathlib.Path('ready').touch(); time.sleep(60)"
    ready = directory / "ready"
    return ServerProcess([sys.executable, "-c", code], ready=ready.exists, directory=directory, start_timeout=timeout)


def test_servers_start_at_the_same_time(tmp_path):
    servers = [sleeper(tmp_path / str(n), after=2.0) for n in range(4)]
    try:
        started = time.monotonic()
        start_together(*servers)
        assert time.monotonic() - started < 7.5  # one after the other it takes more than 8
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


def test_the_environment_can_be_added_to_and_taken_from(tmp_path, monkeypatch):
    monkeypatch.setenv("PAIRMQ_TEST_KEPT", "1")
    monkeypatch.setenv("PAIRMQ_TEST_GONE", "1")
    code = "import os; print(sorted(n for n in os.environ if n.startswith('PAIRMQ_TEST_')))"
    server = ServerProcess(
        [sys.executable, "-c", code],
        ready=lambda: False,
        directory=tmp_path,
        environment={"PAIRMQ_TEST_GONE": None, "PAIRMQ_TEST_NEW": "1"},
    )
    with pytest.raises(ServerError, match=r"\['PAIRMQ_TEST_KEPT', 'PAIRMQ_TEST_NEW'\]"):
        server.start()
    assert os.environ["PAIRMQ_TEST_GONE"] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's range")
def test_free_ports_are_none_that_outgoing_connections_get():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if first <= 12_000:
        pytest.skip("this system gives nearly all ports to outgoing connections")
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 40
    assert max(ports) < first
    assert not any(accepts_connections("127.0.0.1", port) for port in ports)


def test_ctrl_c_in_a_terminal_does_not_reach_a_server(tmp_path):
    with sleeper(tmp_path / "server") as server:
        # A terminal tells the whole process group in its foreground.
        assert os.getpgid(server.pid) != os.getpgid(0)

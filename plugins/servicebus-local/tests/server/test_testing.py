"""The server as a child process of tests, and the client of its control endpoint."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from servicebus_local.testing import Control, ServerError, ServerProcess

pytestmark = [pytest.mark.real_server, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]


def _send(server: ServerProcess) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("kept"))


@pytest.mark.parametrize("durable", [True, False])
def test_a_killed_server_keeps_its_ports_and_durable_data(durable: bool) -> None:
    with ServerProcess(queues=["orders"], durable=durable, tls=True) as server:
        _send(server)
        ports = server.port, server.admin_port, server.tls_port, server.admin_tls_port
        server.kill()
        with pytest.raises(ServerError, match="no answer to GET queues"):
            server.queues()
        server.start()
        server.start()  # it runs
        assert (server.port, server.admin_port, server.tls_port, server.admin_tls_port) == ports
        assert server.queues()["orders"]["active"] == durable
        server.stop()


def test_a_server_that_does_not_start_reports_its_log() -> None:
    server = ServerProcess(queues=["no spaces"])
    try:
        with pytest.raises(ServerError, match=r"the server ended\nerror: .*no spaces"):
            server.start()
    finally:
        server.close()


def test_an_invalid_fault_is_refused_with_its_field() -> None:
    with ServerProcess() as server, pytest.raises(ServerError, match="no field 'when'"):
        server.fault({"at": "send", "action": "error", "when": "now"})


def test_a_wrong_key_controls_nothing() -> None:
    with ServerProcess() as server, pytest.raises(ServerError, match="401"):
        Control(server.admin_port, "wrong").clear()


def test_queues_are_created_and_deleted_without_a_client() -> None:
    with ServerProcess() as server:
        server.create_queue("a/b")
        assert set(server.queues()) == {"a/b"}
        server.delete_queue("a/b")
        with pytest.raises(ServerError, match="'a/b' does not exist"):
            server.delete_queue("a/b")
        server.create_queue("c")
        server.clear()
        assert server.queues() == {}


def test_a_server_ends_with_the_process_that_started_it() -> None:
    program = (
        "import os; from servicebus_local.testing import ServerProcess\n"
        "server = ServerProcess(); server.start(); print(server.admin_port, flush=True); os._exit(0)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    deadline = time.monotonic() + 100
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(ended.stdout))).close()
        except ConnectionRefusedError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_fork_of_a_test_process_ends_none_of_its_servers(tmp_path: Path) -> None:
    program = """
import os, sys
from servicebus_local.testing import ServerProcess

with ServerProcess(queues=["orders"]) as server:
    if (child := os.fork()) == 0:
        sys.exit()  # leaves the block, and runs what is registered for the end of a process
    os.waitpid(child, 0)
    print(sorted(server.queues()), len(os.listdir(os.environ["TMPDIR"])))
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["['orders']", "1"]
    assert not list(tmp_path.iterdir())

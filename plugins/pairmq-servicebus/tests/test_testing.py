"""The server process that tests and demos use."""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairmq.plugins import LocalServer, registry
from pairmq.testing.servers import ServerError, accepts_connections
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = [
    pytest.mark.real_server,
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def _collect() -> Iterator[None]:
    """The blocking client leaves sockets to the collector: those of a test go while that is not complained about."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def shared() -> Iterator[ServiceBusServer]:
    with ServiceBusServer(durable=False, queues=["q"], topics=["t:a,b"]) as server:
        yield server


@pytest.fixture
def server(shared: ServiceBusServer) -> ServiceBusServer:
    shared.heal()
    return shared


def _client(server: ServiceBusServer) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)


def _send(server: ServiceBusServer, body: str) -> None:
    with _client(server) as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage(body))


def _receive(server: ServiceBusServer) -> list[str]:
    with _client(server) as client, client.get_queue_receiver("q") as receiver:
        found = receiver.receive_messages(10, max_wait_time=30)
        for message in found:
            receiver.complete_message(message)
        return [str(message) for message in found]


def _held(server: ServiceBusServer) -> int:
    return sum(server.queues()["q"].values())


def test_it_is_what_demos_ask_for(server: ServiceBusServer) -> None:
    as_asked: LocalServer = server
    url = urlsplit(as_asked.url)
    assert (url.scheme, url.hostname, url.port) == ("sb", "127.0.0.1", server.port)
    assert (unquote(url.username or ""), unquote(url.password or "")) == (server.key_name, server.key)
    assert parse_qs(url.query) == {"emulator": ["true"], "admin": [f"http://127.0.0.1:{server.admin_port}"]}


def test_messages_come_through_and_are_counted(server: ServiceBusServer) -> None:
    before = server.operations()
    _send(server, "a")
    assert "a" in _receive(server)
    after = server.operations()
    assert after["send"] == before.get("send", 0) + 1
    assert after["settle"] > before.get("settle", 0)


def test_a_fault_strikes_as_often_as_it_says_and_is_healed(server: ServiceBusServer) -> None:
    server.fault({"at": "send", "action": "error", "condition": "com.microsoft:server-busy", "times": 1})
    with _client(server) as client, client.get_queue_sender("q") as sender:
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("refused"))
        held = _held(server)
        sender.send_messages(ServiceBusMessage("a"))
        server.fault({"at": "send", "action": "error"})
        server.heal()
        sender.send_messages(ServiceBusMessage("b"))
    assert _held(server) == held + 2


def test_a_fault_that_it_does_not_know_is_refused(server: ServiceBusServer) -> None:
    with pytest.raises(ServerError, match="no field 'when'"):
        server.fault({"at": "send", "action": "error", "when": "now"})


def test_connections_are_dropped_and_made_again(server: ServiceBusServer) -> None:
    with _client(server) as client, client.get_queue_receiver("q") as receiver:
        receiver.peek_messages()
        assert server.drop_connections() == 1
        with pytest.raises(ServiceBusError):
            receiver.peek_messages(timeout=30)
    held = _held(server)
    _send(server, "d")
    assert _held(server) == held + 1


def test_it_keeps_ports_and_data_over_kill_and_start() -> None:
    with ServiceBusServer(queues=["q"]) as server:
        url = server.url
        _send(server, "kept")
        server.kill()
        assert not accepts_connections("127.0.0.1", server.port)
        with pytest.raises(ServerError, match="does not run"):
            server.operations()
        server.start()
        assert server.url == url
        assert _held(server) == 1
        directory = server.directory
    assert not directory.exists()


def test_without_durability_a_kill_takes_the_data() -> None:
    with ServiceBusServer(durable=False, queues=["q"]) as server:
        _send(server, "lost")
        server.restart()
        assert _held(server) == 0


def test_queues_are_made_counted_and_deleted_without_a_client() -> None:
    with ServiceBusServer(durable=False, queues=["q"], topics=["t:s"]) as server:
        server.create_queue("a/b")
        _send(server, "one")
        assert server.count("q") == 1
        assert server.count("a/b") == 0
        server.delete_queue("a/b")
        assert set(server.queues()) == {"q"}
        with pytest.raises(ServerError):
            server.delete_queue("a/b")
        server.clear()
        assert server.queues() == {}


def test_a_paused_server_takes_connections_and_answers_nothing(server: ServiceBusServer) -> None:
    server.pause()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(b"AMQP\x03\x01\x00\x00")
            connection.settimeout(0.3)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            server.resume()
            connection.settimeout(30)
            assert connection.recv(4) == b"AMQP"
    finally:
        server.resume()


def test_it_serves_tls_under_its_own_authority() -> None:
    with ServiceBusServer(tls=True, durable=False) as server:
        assert server.ca_file is not None
        assert server.ca_file.is_file()
        url = urlsplit(server.url)
        assert url.port == server.tls_port
        assert parse_qs(url.query) == {
            "tls-ca": [str(server.ca_file)],
            "admin": [f"https://127.0.0.1:{server.admin_tls_port}"],
        }
        with ServiceBusAdministrationClient.from_connection_string(
            server.admin_connection_string, connection_verify=str(server.ca_file), retry_total=0
        ) as client:
            client.create_queue("made")
            assert [queue.name for queue in client.list_queues()] == ["made"]


def test_one_that_can_t_start_says_why() -> None:
    with ServiceBusServer(durable=False) as server:
        other = ServiceBusServer(durable=False, port=server.port)
        try:
            # It has ended by itself: nobody has waited until it should have been ready.
            with pytest.raises(ServerError, match=r"(?s)ended with status 1\n.*address already in use"):
                other.start()
        finally:
            other.close()


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "servicebus_local", None)
    monkeypatch.delitem(sys.modules, "pairmq_servicebus.testing")
    local_server = registry.transport_record("sb://").local_server
    assert local_server is not None
    with pytest.raises(FileNotFoundError, match=r"needs servicebus_local: pip install 'pairmq-servicebus\[server\]'"):
        local_server()


def test_a_directory_of_one_s_own_stays(tmp_path: Path) -> None:
    with ServiceBusServer(directory=tmp_path, queues=["q"]) as server:
        _send(server, "kept")
    assert (tmp_path / "server.log").exists()
    with ServiceBusServer(directory=tmp_path) as server:
        assert _held(server) == 1

"""The proxy fails as networks do: orderly, hard, silently, slowly; and what it holds back comes in order."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from pairmq.testing import TcpProxy
from pairmq.testing.servers import accepts_connections, free_port


class EchoServer:
    """Sends back what comes; `received` is what has arrived, of all connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.received = bytearray()
        self.connections: list[socket.socket] = []
        self.ends: list[str] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                self.threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
                self.threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    self.received += data
                    connection.sendall(data)
                self.ends.append("end")
            except OSError as error:
                self.ends.append(type(error).__name__)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy: TcpProxy) -> Iterator[Callable[[], socket.socket]]:
    opened: list[socket.socket] = []

    def connect() -> socket.socket:
        opened.append(socket.create_connection(proxy.address, timeout=30))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        assert chunk, f"the stream ended after {len(data)} of {count} bytes"
        data += chunk
    return bytes(data)


def echo(connection: socket.socket, data: bytes = b"hello") -> None:
    connection.sendall(data)
    assert read(connection, len(data)) == data


def nothing_comes(connection: socket.socket, seconds: float = 0.3) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b"never"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(30)


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.005)


def test_it_passes_on_and_counts(server, proxy, connect):
    first, second = connect(), connect()
    echo(first, b"12345")
    echo(second, b"67")
    assert (proxy.accepted, proxy.open_connections) == (2, 2)
    until(lambda: (proxy.bytes_to_server, proxy.bytes_to_client) == (7, 7))  # counted when it has been sent
    first.close()
    until(lambda: proxy.open_connections == 1)
    echo(second)


def test_a_half_closed_connection_still_gets_its_answer(server, proxy, connect):
    client = connect()
    client.sendall(b"last words")
    client.shutdown(socket.SHUT_WR)
    assert read(client, 10) == b"last words"
    assert client.recv(1) == b""
    until(lambda: server.ends == ["end"] and proxy.open_connections == 0)


def test_much_data_arrives_whole_and_in_order(proxy, connect):
    data = os.urandom(8 * 1024 * 1024)
    client = connect()
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert hashlib.sha256(read(client, len(data))).digest() == hashlib.sha256(data).digest()
    sender.join()


def test_cut_closes_in_order_and_refuses_until_restored(server, proxy, connect):
    client, port = connect(), proxy.port
    echo(client)
    proxy.cut()
    assert client.recv(1) == b""  # an end, no reset
    until(lambda: server.ends == ["end"])
    with pytest.raises(ConnectionRefusedError):
        connect()
    for reuse in (0, 1):  # nobody gets the port meanwhile
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
            with pytest.raises(OSError, match="in use"):
                thief.bind(("127.0.0.1", port))
    proxy.cut()  # twice is once
    proxy.restore()
    assert proxy.port == port
    echo(connect())


def test_cut_is_an_orderly_end_for_a_client_whose_bytes_were_not_read(proxy, connect):
    client = connect()
    echo(client)
    proxy.silence()
    client.sendall(b"x" * 340_000)  # more than the proxy holds back
    proxy.cut()
    assert client.recv(1) == b""
    time.sleep(0.1)
    assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0  # no reset behind the end


def test_reset_is_a_reset_on_both_sides_and_takes_new_connections(server, proxy, connect):
    client = connect()
    echo(client)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    until(lambda: server.ends == ["ConnectionResetError"])
    echo(connect())


def test_reset_may_refuse_new_connections(proxy, connect):
    client = connect()
    echo(client)
    proxy.reset(refuse=True)
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.restore()
    echo(connect())


def test_silence_keeps_everything_and_lets_it_flow_on_in_order(server, proxy, connect):
    client = connect()
    echo(client, b"before ")
    proxy.silence()
    client.sendall(b"held ")
    late = connect()  # accepted, but nobody answers
    late.sendall(b"new")
    assert nothing_comes(client)
    assert bytes(server.received) == b"before "
    assert len(server.connections) == 1
    client.sendall(b"back")
    proxy.restore()
    assert read(client, 9) == b"held back"
    assert read(late, 3) == b"new"
    echo(client)


def test_silence_for_clients_at_some_addresses(server, proxy, connect):
    near = connect()
    with socket.socket() as far:
        far.bind(("127.0.0.2", 0))
        far.connect(proxy.address)
        echo(far)
        proxy.silence(clients={"127.0.0.2"})
        far.sendall(b"held")
        echo(near)
        assert nothing_comes(far)
        proxy.restore()
        assert read(far, 4) == b"held"


def test_silence_hides_the_end_of_a_connection(server, proxy, connect):
    client, leaver = connect(), connect()
    echo(client)
    echo(leaver)
    proxy.silence()
    leaver.close()
    server.connections[0].shutdown(socket.SHUT_WR)
    assert nothing_comes(client)
    assert server.ends == []
    proxy.restore()
    assert client.recv(1) == b""
    until(lambda: "end" in server.ends)


def test_lost_confirmations_are_a_silence_of_one_direction(server, proxy, connect):
    client = connect()
    echo(client)
    proxy.silence(direction="to_client")
    client.sendall(b"message")
    until(lambda: server.received.endswith(b"message"))
    assert nothing_comes(client)
    late = connect()
    late.sendall(b"login")
    until(lambda: server.received.endswith(b"login"))
    proxy.restore()
    assert read(client, 7) == b"message"
    assert read(late, 5) == b"login"


def test_silence_towards_the_server_lets_answers_through(server, proxy, connect):
    client = connect()
    echo(client)
    proxy.silence(direction="to_server")
    server.connections[0].sendall(b"heartbeat")
    assert read(client, 9) == b"heartbeat"
    client.sendall(b"lost?")
    assert nothing_comes(client)
    assert not server.received.endswith(b"lost?")
    proxy.silence(direction="to_client")  # one fault takes the place of another
    until(lambda: server.received.endswith(b"lost?"))


def test_a_dropping_silence_loses_what_it_held_and_resets(server, proxy, connect):
    client = connect()
    echo(client)
    proxy.silence(drop=True)
    client.sendall(b"lost")
    assert nothing_comes(client)
    proxy.restore()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    until(lambda: server.ends == ["ConnectionResetError"])
    assert bytes(server.received) == b"hello"
    echo(connect())


def test_a_silent_proxy_stops_reading(proxy, connect):
    client = connect()
    echo(client)
    proxy.silence()
    client.settimeout(0.5)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 64 * 1024 * 1024:
            sent += client.send(b"x" * 65536)
    assert sent < 32 * 1024 * 1024  # the kernel's buffers and ours
    client.settimeout(30)
    proxy.restore()
    assert read(client, sent) == b"x" * sent


def test_silence_holds_back_what_waited_for_a_slow_reader(server, connect, proxy):
    client = connect()
    echo(client)
    data = b"y" * (16 * 1024 * 1024)
    sender = threading.Thread(target=server.connections[0].sendall, args=(data,))
    sender.start()
    until(lambda: proxy.bytes_to_client > 65536)
    time.sleep(0.2)  # until the client's buffer is full
    proxy.silence()
    passed = proxy.bytes_to_client
    read(client, passed - 5)  # makes room again
    assert nothing_comes(client)
    assert proxy.bytes_to_client == passed
    proxy.restore()
    read(client, len(data) - passed + 5)
    sender.join()


def test_slow_delays_each_direction_and_keeps_the_order(proxy, connect):
    client = connect()
    echo(client)
    proxy.slow(delay=1)
    started = time.monotonic()
    pieces = bytes(range(60))
    for n in pieces:
        client.sendall(bytes((n,)))
        time.sleep(0.01)
    assert read(client, 60) == pieces
    assert 2 <= time.monotonic() - started < 40  # a delay, not one for each piece
    proxy.slow(delay=3600)
    proxy.restore()
    echo(client)


def test_jitter_delays_by_chance_and_keeps_the_order(proxy, connect):
    client = connect()
    echo(client)
    proxy.slow(jitter=0.3)
    pieces = bytes(range(60))
    for n in pieces:
        client.sendall(bytes((n,)))
    assert read(client, 60) == pieces
    proxy.slow(jitter=3600)
    client.sendall(b"late")
    assert nothing_comes(client)
    proxy.restore()
    assert read(client, 4) == b"late"


def test_slow_limits_the_rate(proxy, connect):
    client = connect()
    echo(client)
    proxy.slow(rate=100_000)
    started = time.monotonic()
    echo(client, b"z" * 50_000)
    assert 0.4 <= time.monotonic() - started < 30


def test_bytes_wait_for_the_end_of_a_stall(proxy, connect):
    client = connect()
    echo(client)
    proxy.slow(stall=0.3, stall_interval=0.6)
    longest, ends = 0.0, time.monotonic() + 1.5
    while time.monotonic() < ends or longest < 0.1:  # twice at least
        began = time.monotonic()
        echo(client)
        longest = max(longest, time.monotonic() - began)


def test_restore_ends_a_stall(proxy, connect):
    client = connect()
    proxy.slow(stall=1e11, stall_interval=1e12)
    client.sendall(b"late")
    assert nothing_comes(client)
    proxy.restore()
    assert read(client, 4) == b"late"


def test_restore_ends_a_wait_at_once(proxy, connect):
    client = connect()
    echo(client)
    proxy.slow(delay=3600)
    client.sendall(b"soon")
    assert nothing_comes(client)
    proxy.restore()
    assert read(client, 4) == b"soon"


def test_a_broker_that_is_unavailable_resets_the_client():
    with TcpProxy("127.0.0.1", free_port()) as proxy:
        # As fast as it comes, the reset may even meet the call that connects.
        with pytest.raises(ConnectionResetError), socket.create_connection(proxy.address, timeout=30) as client:
            client.recv(1)
        assert proxy.accepted == 1
        until(lambda: proxy.open_connections == 0)


def test_a_reset_by_the_server_reaches_the_client_behind_what_it_sent():
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        TcpProxy(*listener.getsockname()) as proxy,
        socket.create_connection(proxy.address, timeout=30) as client,
    ):
        connection, _ = listener.accept()
        connection.sendall(b"refused")
        assert read(client, 7) == b"refused"
        proxy.silence()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        assert nothing_comes(client)
        proxy.restore()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


async def test_it_serves_the_event_loop_that_calls_it(proxy):
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    proxy.silence()
    writer.write(b"two")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.readexactly(3), 0.2)
    proxy.restore()
    assert await asyncio.wait_for(reader.readexactly(3), 30) == b"two"
    proxy.cut()
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()
    await writer.wait_closed()


def test_calls_from_many_threads(proxy, connect):
    def call() -> None:
        for _ in range(20):
            proxy.silence()
            proxy.cut()
            proxy.restore()

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    echo(connect())


def test_close_frees_port_and_thread(server, connect, proxy):
    client = connect()
    echo(client)
    before = threading.active_count()
    proxy.close()
    proxy.close()
    assert client.recv(1) == b""
    assert threading.active_count() < before
    assert not accepts_connections(*proxy.address)
    with pytest.raises(RuntimeError, match="does not run"):
        proxy.cut()
    proxy.start()
    echo(connect())


def test_a_start_that_got_no_thread_can_be_repeated(connect, proxy, monkeypatch):
    proxy.close()
    with monkeypatch.context() as system:
        system.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            proxy.start()
    proxy.start()
    echo(connect())


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    ("url", "rewritten"),
    [
        ("amqp://guest:p%40ss@broker:5672/%2F?heartbeat=5#x", "amqp://guest:p%40ss@127.0.0.1:{}/%2F?heartbeat=5#x"),
        ("redis://:secret@10.0.0.1:6379/0", "redis://:secret@127.0.0.1:{}/0"),
        ("amqps://broker", "amqps://127.0.0.1:{}"),
        ("amqp://[::1]:5672/v", "amqp://127.0.0.1:{}/v"),
        ("amqp://u@h?x=a@b", "amqp://u@127.0.0.1:{}?x=a@b"),
    ],
)
def test_rewrite_keeps_all_but_the_address(url, rewritten):
    proxy = TcpProxy("127.0.0.1", 1)
    assert proxy.rewrite(url) == rewritten.format(proxy.port)


@pytest.mark.parametrize("url", ["broker:5672", "amqp://", "amqp://user:secret@/x"])
def test_rewrite_refuses_what_is_no_address_and_shows_no_password(url):
    with pytest.raises(ValueError, match="scheme://host") as refusal:
        TcpProxy("127.0.0.1", 1).rewrite(url)
    assert "secret" not in str(refusal.value)


def test_wrong_arguments(proxy):
    with pytest.raises(ValueError, match="direction"):
        proxy.silence(direction="up")
    with pytest.raises(ValueError, match="delay"):
        proxy.slow(delay=-1)
    with pytest.raises(ValueError, match="jitter"):
        proxy.slow(jitter=-1)
    with pytest.raises(ValueError, match="rate"):
        proxy.slow(rate=0)
    for stall, interval in ((-1, 5), (5, 5), (1, float("inf")), (float("nan"), 5)):
        with pytest.raises(ValueError, match="stall"):
            proxy.slow(stall=stall, stall_interval=interval)

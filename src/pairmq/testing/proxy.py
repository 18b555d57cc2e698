"""A TCP proxy between a client and a broker that fails the way networks do.

It runs in a thread of its own and is called from any other, blocking or asyncio: a call takes effect before it
returns. Bytes are passed on as they are, TLS too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from random import random
from typing import Any, Literal, Self

from pairmq.testing.servers import free_port

Direction = Literal["both", "to_server", "to_client"]

_DIRECTIONS = ("to_server", "to_client")
_HOST = "127.0.0.1"
_CHUNK = 64 * 1024
# What a connection holds back per direction before it stops reading, beside the kernel's own buffers.
_HELD_AT_MOST = 256 * 1024
# Likewise where it delays: a long link that holds no more is a slow one.
_IN_FLIGHT_AT_MOST = 16 * 1024 * 1024
# Seconds that a call may take: the proxy's thread never blocks, so more is a bug.
_CALL_TIMEOUT = 60.0


@dataclass(frozen=True)
class _Fault:
    """What the network does at the moment; the default is nothing."""

    refuses: bool = False
    silent: frozenset[str] = frozenset()
    clients: frozenset[str] | None = None  # the addresses of those for whom it is silent; None for all
    drops: bool = False
    delay: float = 0.0
    jitter: float = 0.0
    rate: float | None = None
    stall: float = 0.0
    stall_interval: float = 1.0

    def stalls_until(self, now: float) -> float:
        """When bytes pass again; a moment of the past where they do now."""
        return now - now % self.stall_interval + self.stall

    def silences(self, direction: str, client: str) -> bool:
        return direction in self.silent and (self.clients is None or client in self.clients)


class TcpProxy:
    """Stands between clients and a broker, on a loopback port that stays the same for its life.

    Each fault lasts until `restore` or until another one takes its place. A connection that the broker does not
    take is accepted and then reset. A context manager.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.host = _HOST
        self.port = free_port(_HOST)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: socket.socket | None = None
        self._listening = False
        self._route: tuple[Any, ...] = ()
        self._connections: set[_Connection] = set()
        self._fault = _Fault()
        self._accepted = 0
        self._passed = {"to_server": 0, "to_client": 0}

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Listen and pass on; without effect when it does already.

        Raises:
            OSError: the broker's host is unknown, or the port is in use.
            RuntimeError: the system gives no thread.
        """
        if self._thread is not None:
            return
        self._route = socket.getaddrinfo(*self.target, type=socket.SOCK_STREAM)[0]
        listener = socket.socket()
        try:
            listener.setblocking(False)
            try:
                listener.bind((self.host, self.port))
            except OSError:
                # After `close` the kernel still knows the old connections.
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((self.host, self.port))
        except BaseException:
            listener.close()
            raise
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            loop.close()
            listener.close()
            raise
        self._listener, self._fault = listener, _Fault()
        self._loop, self._thread = loop, thread
        self._call(self._listen)

    def close(self) -> None:
        """Close all connections and the port, and end the thread; idempotent."""
        thread, loop, listener = self._thread, self._loop, self._listener
        if thread is None or loop is None or listener is None:
            return
        self._call(self._cut)
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result(_CALL_TIMEOUT)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        listener.close()
        self._thread = self._loop = self._listener = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ------------------------------------------------------------------ addresses and counters

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that clients connect to."""
        return self.host, self.port

    def rewrite(self, url: str) -> str:
        """Put the proxy in the place of host and port in a broker's address; the rest stays as it is.

        Args:
            url: such as ``amqp://user:password@broker:5672/vhost?heartbeat=5``.

        Raises:
            ValueError: it has no ``scheme://host``.
        """
        found = re.fullmatch(r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*@)?([^/?#@]+)([/?#].*)?", url, re.DOTALL)
        if found is None:
            raise ValueError("not an address of the form scheme://host")  # without the text: it may hold a password
        return f"{found[1]}{found[2] or ''}{self.host}:{self.port}{found[4] or ''}"

    @property
    def accepted(self) -> int:
        """How many connections it has accepted so far."""
        self._synchronise()
        return self._accepted

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        self._synchronise()
        return len(self._connections)

    @property
    def bytes_to_server(self) -> int:
        """How many bytes it has passed on from clients to the broker."""
        self._synchronise()
        return self._passed["to_server"]

    @property
    def bytes_to_client(self) -> int:
        """How many bytes it has passed on from the broker to clients."""
        self._synchronise()
        return self._passed["to_client"]

    # ------------------------------------------------------------------ faults

    def cut(self) -> None:
        """Close all connections in order (FIN) and refuse new ones, as a server that ends; bytes under way are lost.

        Raises:
            RuntimeError: the proxy does not run.
        """
        self._call(self._cut)

    def reset(self, *, refuse: bool = False) -> None:
        """Reset all connections (RST), as after a crash; new ones are passed on.

        Args:
            refuse: refuse new ones instead.

        Raises:
            RuntimeError: the proxy does not run.
        """
        self._call(self._reset, refuse)

    def silence(
        self, direction: Direction = "both", *, drop: bool = False, clients: Collection[str] | None = None
    ) -> None:
        """Keep the connections, accept new ones, pass nothing on and close nothing, as a link that is down.

        Little is read meanwhile, so that a sender's socket fills up. At `restore` the held bytes are forwarded, in
        order. Silence in both directions keeps new connections from the broker until then.

        Args:
            direction: ``both``, ``to_server``, or ``to_client``, where confirmations are lost but messages arrive.
            drop: at the end of the silence, lose what was held back and reset all connections, as a firewall that
                has forgotten them.
            clients: IP addresses of the clients that are concerned; all when left out.

        Raises:
            RuntimeError: the proxy does not run.
            ValueError: unknown direction.
        """
        if direction not in ("both", "to_server", "to_client"):
            raise ValueError(f"direction is both, to_server or to_client, not {direction!r}")
        silent = frozenset(_DIRECTIONS if direction == "both" else (direction,))
        of = None if clients is None else frozenset(clients)
        self._call(self._become, _Fault(silent=silent, clients=of, drops=drop))

    def slow(
        self,
        *,
        delay: float = 0.0,
        jitter: float = 0.0,
        rate: float | None = None,
        stall: float = 0.0,
        stall_interval: float = 5.0,
    ) -> None:
        """Pass on late, little at a time, or with pauses, as a long or a poor link.

        Args:
            delay: seconds that each byte takes in each direction.
            jitter: seconds that it takes longer at most, by chance; the order of bytes stays.
            rate: bytes per second in each direction of each connection; as fast as it goes when left out.
            stall: seconds for which nothing passes, in both directions of all connections, once in `stall_interval`.
            stall_interval: seconds between the beginnings of two stalls.

        Raises:
            RuntimeError: the proxy does not run.
            ValueError: a negative delay, jitter or stall, a rate that is not positive, or stalls without an end.
        """
        if delay < 0 or jitter < 0 or (rate is not None and rate <= 0):
            raise ValueError("delay and jitter are 0 or more seconds, rate more than 0 bytes/s")
        if not 0 <= stall < stall_interval < math.inf:
            raise ValueError("stall is 0 or more seconds, and less than stall_interval")
        self._call(
            self._become, _Fault(delay=delay, jitter=jitter, rate=rate, stall=stall, stall_interval=stall_interval)
        )

    def restore(self) -> None:
        """End the fault, if any.

        Raises:
            RuntimeError: the proxy does not run.
        """
        self._call(self._become, _Fault())

    def redirect(self, host: str, port: int) -> None:
        """Connect new clients to another server, and keep the open connections, as a failover behind one address does.

        Raises:
            OSError: the host is unknown; nothing has changed.
        """
        self._route = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.target = (host, port)

    # ------------------------------------------------------------------ in the thread

    def _call(self, what: Callable[..., None], *arguments: object) -> None:
        if self._loop is None:
            raise RuntimeError("the proxy does not run")

        async def run() -> None:
            what(*arguments)

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CALL_TIMEOUT)

    def _synchronise(self) -> None:
        # A peer can have bytes that the proxy's thread is just about to count.
        if self._loop is not None:
            self._call(lambda: None)

    def _become(self, fault: _Fault) -> None:
        before, self._fault = self._fault, fault
        if before.drops:
            self._end_all(orderly=False)
        if fault.refuses:
            self._refuse()
        else:
            self._listen()
        for connection in self._connections:
            connection.wake()

    def _cut(self) -> None:
        self._become(_Fault(refuses=True))
        self._end_all(orderly=True)

    def _reset(self, refuse: bool) -> None:
        self._become(_Fault(refuses=refuse))
        self._end_all(orderly=False)

    def _end_all(self, *, orderly: bool) -> None:
        for connection in list(self._connections):
            connection.end(orderly=orderly)

    def _listen(self) -> None:
        if self._listening or self._listener is None:
            return
        # Only now, see `_refuse`; the connections of before still have the port.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.listen(128)
        asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)
        self._listening = True

    def _refuse(self) -> None:
        if not self._listening or self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        # It stops listening but stays bound, and without SO_REUSEADDR no other process can bind the port.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        self._listening = False

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, (peer, *_) = listener.accept()
        except OSError:  # gone again already
            return
        client.setblocking(False)
        self._accepted += 1
        connection = _Connection(self, client, peer)
        self._connections.add(connection)
        connection.start()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Reset(Exception):
    """The peer of this direction has reset its connection."""


class _Pump:
    """One direction of a connection: reads, holds back, passes on."""

    def __init__(self, proxy: TcpProxy, peer: str, direction: str, source: socket.socket, sink: socket.socket) -> None:
        self._proxy, self._peer, self._direction, self._source, self._sink = proxy, peer, direction, source, sink
        # (when it arrived, its share of the jitter, bytes); b"" is the end of the stream and None a reset: these too
        # arrive in their turn.
        self._held: deque[tuple[float, float, memoryview | None]] = deque()
        self._held_bytes = 0
        self._room, self.news = asyncio.Event(), asyncio.Event()
        self._free_at = 0.0

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        data: bytes | None = None
        while data != b"":
            while self._held_bytes >= self._most_held:
                self._room.clear()
                await self._room.wait()
            try:
                data = await loop.sock_recv(self._source, _CHUNK)
            except OSError:
                self._held.append((loop.time(), 0.0, None))
                self.news.set()
                return
            self._held.append((loop.time(), random(), memoryview(data)))
            self._held_bytes += len(data)
            self.news.set()

    @property
    def _most_held(self) -> int:
        fault = self._proxy._fault
        return _IN_FLIGHT_AT_MOST if fault.delay and not fault.rate else _HELD_AT_MOST

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Between this look at the fault and the sending below nothing else runs in this thread: a silence
            # lets nothing through once the call that began it has returned.
            fault, now = self._proxy._fault, loop.time()
            if not self._held or fault.silences(self._direction, self._peer):
                await self._wait(None)
                continue
            arrived, share, data = self._held[0]
            due = max(arrived + fault.delay + share * fault.jitter, self._free_at if fault.rate else 0.0)
            if fault.stall and due <= now:
                due = fault.stalls_until(now)
            if due > now:
                await self._wait(due - now)
                continue
            if data is None:
                raise _Reset
            if not data:
                with contextlib.suppress(OSError):
                    self._sink.shutdown(socket.SHUT_WR)
                return
            # Twenty pieces a second, so that a slow line is a thin one and not one with pauses.
            most = max(1, int(fault.rate / 20)) if fault.rate else _CHUNK
            try:
                sent = self._sink.send(data[:most])
            except BlockingIOError:
                await self._wait_for_sink()
                continue
            self._proxy._passed[self._direction] += sent
            if fault.rate:
                self._free_at = now + sent / fault.rate
            self._held_bytes -= sent
            self._room.set()
            if sent < len(data):
                self._held[0] = (arrived, share, data[sent:])
            else:
                self._held.popleft()
            await asyncio.sleep(0)

    async def _wait(self, seconds: float | None) -> None:
        self.news.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), seconds)

    async def _wait_for_sink(self) -> None:
        loop = asyncio.get_running_loop()
        self.news.clear()
        loop.add_writer(self._sink, self.news.set)
        try:
            await self.news.wait()
        finally:
            if self._sink.fileno() >= 0:
                loop.remove_writer(self._sink)


class _Connection:
    """A client's connection and the one to the broker that belongs to it."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, peer: str) -> None:
        self._proxy = proxy
        self._peer = peer
        self._sockets = [client]
        self._pumps: list[_Pump] = []
        self._opening = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def wake(self) -> None:
        self._opening.set()
        for pump in self._pumps:
            pump.news.set()

    def end(self, *, orderly: bool) -> None:
        """Close both sides now; from within the proxy's thread."""
        self._proxy._connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        loop = asyncio.get_running_loop()
        for each in self._sockets:
            # The cancelled task does the same, but only after the sockets are gone.
            loop.remove_reader(each)
            loop.remove_writer(each)
            if orderly:
                # Closing with unread bytes would reset.
                with contextlib.suppress(OSError):
                    while each.recv(_CHUNK):
                        pass
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_WR)
            else:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()
        self._sockets.clear()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        client = self._sockets[0]
        peer = self._peer
        while all(self._proxy._fault.silences(direction, peer) for direction in _DIRECTIONS):
            self._opening.clear()
            await self._opening.wait()
        try:
            family, kind, protocol, _, address = self._proxy._route
            server = socket.socket(family, kind, protocol)
            self._sockets.append(server)
            server.setblocking(False)
            await loop.sock_connect(server, address)
        except OSError:
            self.end(orderly=False)
            return
        for each in self._sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pumps = [
            _Pump(self._proxy, peer, "to_server", client, server),
            _Pump(self._proxy, peer, "to_client", server, client),
        ]
        readers = [loop.create_task(pump.read()) for pump in self._pumps]
        writers = [loop.create_task(pump.write()) for pump in self._pumps]
        orderly = False
        try:
            # A direction whose receiver has closed does not end the other: a response may still be in flight.
            orderly = not any(await asyncio.gather(*map(_outcome, writers)))
        except _Reset:
            pass
        finally:
            for task in (*readers, *writers):
                task.cancel()
        self.end(orderly=orderly)


async def _outcome(writer: asyncio.Task[None]) -> OSError | None:
    try:
        await writer
    except OSError as error:
        return error
    return None

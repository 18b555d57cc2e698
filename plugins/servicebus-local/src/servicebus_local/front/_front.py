"""The front that clients connect to: it listens, and serves each connection: its socket, engine, and links."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable

from servicebus_local.amqp import (
    AmqpError,
    Connection,
    ConnectionEnded,
    Disposition,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionEnded,
    Transfer,
)
from servicebus_local.faults import FaultAction, FaultPoint, FaultRule
from servicebus_local.front._attaching import attach
from servicebus_local.front._endpoint import Endpoint, Shared, fault_error
from servicebus_local.front._tokens import Grants

_TLS_HANDSHAKE = 60.0
_TLS_SHUTDOWN = 2.0

HANDSHAKE = 60.0
"""Seconds in which a client must have opened its connection."""
LINGER = 10.0
"""Seconds in which a client must have taken our last words."""

_HIGH_WATER = 1024 * 1024  # bytes that may wait for a client that does not read
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time at all


class AmqpFront:
    """The front."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept clients; returns the TCP port, which is a free one for 0."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Client(self._shared),
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else _TLS_HANDSHAKE,
            ssl_shutdown_timeout=None if tls is None else _TLS_SHUTDOWN,
        )
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Take leave of all clients and stop listening."""
        shared = self._shared
        for server in self._servers:
            server.close()
        if shared.end():
            for client in list(shared.clients):
                client.close()
        # One turn, so that the good-byes leave.
        await asyncio.sleep(0)
        self.drop_connections()
        shared.cancel()

    def drop_connections(self) -> int:
        """Reset every client's socket; returns how many there were."""
        clients = list(self._shared.clients)
        for client in clients:
            client.drop()
        return len(clients)


class Client(asyncio.Protocol):
    """A socket with an engine behind it."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.grants = Grants(shared.authorizer)
        self.endpoints: dict[Link, Endpoint] = {}
        self.congested = False
        self._loop = asyncio.get_running_loop()
        self._engine = Connection(container_id=shared.container_id)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._leaving = False
        self._mute = False

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what asyncio makes of a TCP socket
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)
        self.shared.clients.add(self)
        # A peer that never opens must not keep a socket forever, however often it says something.
        self._patience = self._loop.call_later(HANDSHAKE, self._check_handshake)

    def data_received(self, data: bytes) -> None:
        if not self._mute:
            fault = self.shared.faults.strike(FaultPoint.CONNECTION)
            if fault is not None:
                self.suffer(fault, None)
        if self._mute or self._transport is None or self._transport.is_closing():
            return
        self._handle(self._engine.receive_data(data, self._loop.time()))

    def eof_received(self) -> bool:
        self._handle(self._engine.receive_eof())
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.shared.clients.discard(self)
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._forget_all()
        self.shared.changed()

    def pause_writing(self) -> None:
        # Who does not read is sent nothing more, and can't ask for more either.
        self.congested = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.congested = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        for endpoint in list(self.endpoints.values()):
            endpoint.pump()
        self._after()

    def write(self) -> None:
        data = self._engine.data_to_send()
        transport = self._transport
        if transport is None:
            return
        if data and not self._mute:
            transport.write(data)
        if self._engine.closed:
            self._leave(transport)

    def drop(self) -> None:
        if self._transport is None:
            return
        own = self._transport.get_extra_info("socket")
        if own is not None and not self._transport.is_closing():
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def close(self) -> None:
        self._engine.close(AmqpError("amqp:connection:forced", "the server is stopping", {}))
        self.write()
        if self._transport is not None:
            self._leave(self._transport)

    def _leave(self, transport: asyncio.Transport) -> None:
        transport.close()
        if not self._leaving:
            self._leaving = True
            # A peer that does not read keeps nothing open.
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self._loop.call_later(LINGER, transport.abort)

    def _after(self) -> None:
        self.shared.wants_to_write(self)
        due = self._engine.next_timer
        if due is None or (self._timer is not None and self._timer.when() <= due):
            # A timer that rings too early is set anew when it does: most of the time the due time only moves away.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._handle(self._engine.handle_timer(self._loop.time()))

    def _check_handshake(self) -> None:
        if self._engine.remote is None and not self._mute:
            self.drop()

    # Helpers of the links.

    def soon(self, action: Callable[[], None]) -> None:
        self._loop.call_soon(self._act, action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        self._loop.call_later(seconds, self._act, action)

    def _act(self, action: Callable[[], None]) -> None:
        if self._transport is not None and not self._engine.closed:
            action()
            self._after()

    def add(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.link] = endpoint

    def suffer(self, fault: FaultRule, link: Link | None) -> None:
        if fault.action is FaultAction.DROP:
            self.drop()
        elif fault.action is FaultAction.CLOSE:
            self._engine.close(fault_error(fault))
            self._after()
        elif fault.action is FaultAction.DETACH and link is not None:
            self.detach(link, fault_error(fault))
        elif fault.action is FaultAction.SILENCE and link is None:
            self._mute = True

    def detach(self, link: Link, error: AmqpError) -> None:
        self.forget(link)
        link.detach(error)
        self._after()

    def forget(self, link: Link) -> None:
        endpoint = self.endpoints.pop(link, None)
        if endpoint is not None:
            endpoint.end()

    def check_entities(self) -> None:
        for endpoint in list(self.endpoints.values()):
            endpoint.check()

    # Events.

    def _handle(self, events: list[Event]) -> None:
        try:
            for event in events:
                self._handle_one(event)
        except Exception as error:
            # A defect of ours costs this client its connection, and other clients nothing.
            self._loop.call_exception_handler({"message": "a client's request failed", "exception": error})
            self._engine.close(AmqpError("amqp:internal-error", "the server failed; its log says more", {}))
            self._forget_all()
        self._after()

    def _handle_one(self, event: Event) -> None:
        if isinstance(event, Transfer):
            endpoint = self.endpoints.get(event.link)
            if endpoint is not None:
                endpoint.on_transfer(event.delivery, event.payload)
        elif isinstance(event, Disposition):
            endpoint = self.endpoints.get(event.delivery.link)
            if endpoint is not None:
                endpoint.on_disposition(event.delivery, event.outcome, event.settled)
        elif isinstance(event, LinkFlow):
            endpoint = self.endpoints.get(event.link)
            if endpoint is not None:
                endpoint.on_flow(event.credit)
        elif isinstance(event, LinkAttached):
            attach(self, event.link)
        elif isinstance(event, LinkDetached):
            self.forget(event.link)
        elif isinstance(event, SessionEnded):
            for link in [link for link in self.endpoints if link.session is event.session]:
                self.forget(link)
        elif isinstance(event, ConnectionEnded):
            self._forget_all()

    def _forget_all(self) -> None:
        for link in list(self.endpoints):
            self.forget(link)

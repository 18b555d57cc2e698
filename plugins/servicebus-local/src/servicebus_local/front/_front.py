"""The front that clients connect to: it listens, and answers the links that they want: to an entity, to an entity's
management node, or to the node that takes tokens."""

from __future__ import annotations

import asyncio
import ssl

from servicebus_local.amqp import SENDER, AmqpError, Link, Symbol
from servicebus_local.broker import BrokerError, Source
from servicebus_local.faults import FaultAction, FaultPoint
from servicebus_local.front._endpoint import (
    CBS,
    Client,
    Endpoint,
    Shared,
    fault_error,
    managed_entity,
    path_of,
    wire_error,
)
from servicebus_local.front._links import (
    ReceivingLink,
    SendingLink,
    SessionWish,
    answered,
    locked_until_property,
    session_wish,
)
from servicebus_local.front._management import ReplyLink, RequestLink

_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_MAX_BATCH = 256 * 1024
"""Bytes of a batch (Service Bus documentation: quotas, Standard tier)."""


def attach(client: Client, link: Link) -> None:
    """Answer a link: at once, or when a session is free for it."""
    path = path_of(link.target if link.peer_role is SENDER else link.source)
    if not path:
        link.reject(AmqpError("amqp:not-implemented", "transactions and dynamic nodes are not offered here", {}))
        return
    if path.lower() == CBS:
        _attach_node(client, link, path, None)
        return
    fault = client.shared.faults.strike(FaultPoint.ATTACH, path)
    if fault is None:
        _attach(client, link, path)
    elif fault.action is FaultAction.DELAY:
        client.later(fault.seconds, lambda: _attach(client, link, path))
    elif fault.action is FaultAction.ERROR:
        link.reject(fault_error(fault))
    elif fault.action is FaultAction.DETACH:
        link.accept()
        link.detach(fault_error(fault))
    else:
        client.suffer(fault, link)


def _attach(client: Client, link: Link, path: str) -> None:
    if link.state != "attaching":
        # The client did not wait for it.
        return
    entity = managed_entity(path)
    problem = client.grants.check(path if entity is None else entity)
    if problem is not None:
        link.reject(AmqpError("amqp:unauthorized-access", f"Unauthorized access to {path}: {problem}", {}))
        return
    try:
        if entity is not None:
            _check_exists(client, entity)
            _attach_node(client, link, path, entity)
        elif link.peer_role is SENDER:
            _attach_sender(client, link, path)
        else:
            _attach_receiver(client, link, path)
    except BrokerError as error:
        link.reject(wire_error(error))


def _attach_node(client: Client, link: Link, path: str, entity: str | None) -> None:
    link.accept()
    if link.peer_role is SENDER:
        client.add(RequestLink(client, link, path, entity))
    else:
        client.add(ReplyLink(link))


def _check_exists(client: Client, entity: str) -> None:
    broker = client.shared.broker
    try:
        broker.resolve_receive(entity)
    except BrokerError as error:
        # A topic can't be received from, but has a node for what is scheduled.
        if error.condition == "amqp:not-found":
            raise


def _attach_sender(client: Client, link: Link, path: str) -> None:
    limit = client.shared.broker.resolve_send(path)
    link.accept(max_message_size=limit, properties={_BATCH_SIZE: min(limit, _MAX_BATCH)})
    client.add(SendingLink(client, link, path, limit))


def _attach_receiver(client: Client, link: Link, path: str) -> None:
    source = client.shared.broker.resolve_receive(path)
    if not source.settings.receivable:
        raise BrokerError("com.microsoft:entity-disabled", f"'{path}' is disabled for receiving.")
    wish = session_wish(link)
    if wish is not None and source.requires_session:
        waiting = WaitingLink(client, link, path, source, wish)
        client.add(waiting)
        waiting.pump()
        return
    if wish is not None or source.requires_session:
        needs = "requires a session" if wish is None else "has no sessions"
        raise BrokerError("amqp:not-allowed", f"'{path}' {needs}: it can't be read by such a receiver.")
    link.accept(max_message_size=client.shared.max_message_bytes)
    client.add(ReceivingLink(client, link, path, source, None))


class WaitingLink(Endpoint):
    """A receiving link that gets its answer when a session is free for it."""

    def __init__(self, client: Client, link: Link, path: str, source: Source, wish: SessionWish) -> None:
        super().__init__(link)
        self._client = client
        self._path = path
        self._source = source
        self._wish = wish
        self._cancel = source.on_ready(self._on_ready)
        client.later(wish.wait, self._give_up)

    @property
    def _waits(self) -> bool:
        return self._client.endpoints.get(self.link) is self

    def _on_ready(self) -> None:
        # The broker is in the middle of another call.
        self._client.soon(self.pump)

    def pump(self) -> None:
        """Answer if a session is free now."""
        if not self._waits:
            return
        client, link = self._client, self.link
        client.shared.changed()
        try:
            lock = self._source.accept_session(self._wish.session_id)
        except BrokerError as error:
            client.detach(link, wire_error(error))
            return
        if lock is None:
            return
        client.forget(link)
        assert link.source is not None  # noqa: S101  # the wish was in it
        link.accept(
            source=answered(link.source, lock.session_id),
            properties={**(link.properties or {}), **locked_until_property(lock.locked_until)},
            max_message_size=client.shared.max_message_bytes,
        )
        client.add(ReceivingLink(client, link, self._path, self._source, lock))

    def check(self) -> None:
        """Refuse the link if its source is gone."""
        if self._source.deleted:
            self.pump()

    def _give_up(self) -> None:
        if self._waits:
            text = f"no session of {self._path} was free in time"
            self._client.detach(self.link, AmqpError("com.microsoft:timeout", text, {}))

    def end(self) -> None:
        self._cancel()


_TLS_HANDSHAKE = 60.0
_TLS_SHUTDOWN = 2.0


class AmqpFront:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Accept clients; returns the TCP port, which is a free one for 0."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Client(self._shared, attach),
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
        shared = self._shared
        for server in self._servers:
            server.close()
        if shared.end():
            for client in list(shared.clients):
                client.close()
        # One turn, so that the closes are written.
        await asyncio.sleep(0)
        self.drop_connections()
        shared.cancel()

    def drop_connections(self) -> int:
        """Reset every client's socket; returns how many there were."""
        clients = list(self._shared.clients)
        for client in clients:
            client.drop()
        return len(clients)

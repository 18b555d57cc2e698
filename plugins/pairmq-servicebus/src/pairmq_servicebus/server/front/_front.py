"""All clients of the AMQP front, and the beat in which changes become durable before anybody hears of them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time

from pairmq_servicebus.server.broker import Broker, StoreError
from pairmq_servicebus.server.faults import FaultPlan
from pairmq_servicebus.server.front._client import Client
from pairmq_servicebus.server.front._receiving import ReceivingLink
from pairmq_servicebus.server.front._tokens import Authorizer

_log = logging.getLogger(__name__)

_TLS_HANDSHAKE = 10.0
_TLS_SHUTDOWN = 2.0
_RETRY = 1.0  # s after which a store that failed is tried again


class AmqpFront:
    """The front.

    What clients ask for in one turn of the event loop is done in the broker at once; at the turn's end the broker makes
    all of it durable in one go, and only then the answers are written.

    Args:
        broker: behind it.
        authorizer: who judges tokens.
        faults: that shall strike.
        container_id: the name that the server gives itself.
        max_message_bytes: the largest message that receivers may meet.
    """

    def __init__(
        self, broker: Broker, authorizer: Authorizer, faults: FaultPlan, container_id: str, max_message_bytes: int
    ) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self.faults = faults
        self.container_id = container_id
        self.max_message_bytes = max_message_bytes
        self.clients: set[Client] = set()
        self.holders: set[ReceivingLink] = set()  # links that hold a session
        self._servers: list[asyncio.Server] = []
        self._writers: dict[Client, None] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Take clients at an address.

        Args:
            host: an address of this machine.
            port: of TCP; 0 for a free one.
            tls: for encrypted connections.

        Returns:
            The port.

        Raises:
            OSError: it can't be had.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Client(self),
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
        for server in self._servers:
            server.close()
        if self._turn is not None:
            self._end_turn()
        if self._turn is None:
            for client in list(self.clients):
                client.close()
        # Else the changes could not be made durable, and nobody may be told that they were.
        # One turn, so that the good-byes leave.
        await asyncio.sleep(0)
        for client in list(self.clients):
            client.drop()
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is not None:
            self._turn.cancel()

    def drop_connections(self) -> int:
        """Reset every client's socket; tells how many there were."""
        clients = list(self.clients)
        for client in clients:
            client.drop()
        return len(clients)

    def changed(self) -> None:
        """Note that the broker may have changed: it is made durable at the end of this turn."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._end_turn)

    def entities_changed(self) -> None:
        """Note that entities were made, changed or deleted: links to what is gone are detached."""
        for client in list(self.clients):
            client.check_entities()
        self.changed()

    def wants_to_write(self, client: Client) -> None:
        """Let a client write at the end of this turn."""
        self._writers[client] = None
        self.changed()

    def _end_turn(self) -> None:
        for holder in list(self.holders):
            holder.check_session()
        try:
            self.broker.flush()
        except StoreError as error:
            # Nobody is answered until it is durable.
            _log.error("can't write what clients sent, trying again: %s", error)
            self._turn = asyncio.get_running_loop().call_later(_RETRY, self._end_turn)
            return
        self._turn = None
        writers, self._writers = self._writers, {}
        for client in writers:
            client.write()
        self._arm()

    def _arm(self) -> None:
        """Have the broker look at its timers when the next of them is due."""
        due = self.broker.next_deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None:
            delay = max(0.0, due - time.time())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.broker.advance()
        self.changed()

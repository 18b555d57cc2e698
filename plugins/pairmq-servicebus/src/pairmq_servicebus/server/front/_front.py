"""The front that clients connect to: it listens, and takes leave of all of them."""

from __future__ import annotations

import asyncio
import ssl

from pairmq_servicebus.server.front._client import Client
from pairmq_servicebus.server.front._shared import Shared

_TLS_HANDSHAKE = 60.0
_TLS_SHUTDOWN = 2.0


class AmqpFront:
    """The front.

    Args:
        shared: what its clients share.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._servers: list[asyncio.Server] = []

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
        """Reset every client's socket; tells how many there were."""
        clients = list(self._shared.clients)
        for client in clients:
            client.drop()
        return len(clients)

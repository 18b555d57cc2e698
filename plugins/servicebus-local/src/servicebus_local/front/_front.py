"""The front that clients connect to: it listens, and makes what serves each connection."""

from __future__ import annotations

import asyncio
import ssl

from servicebus_local.front._attaching import attach
from servicebus_local.front._endpoint import Client, Shared

_TLS_HANDSHAKE = 60.0
_TLS_SHUTDOWN = 2.0


class AmqpFront:
    """The front."""

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

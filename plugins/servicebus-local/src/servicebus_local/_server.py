"""The server: a broker, its fronts, and what it keeps on disk."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass

from aiohttp import web

from servicebus_local.amqp import Byte, Char, Float, Int, Long, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from servicebus_local.atom import Administration, Control
from servicebus_local.broker import Broker, SqliteStore
from servicebus_local.faults import FaultPlan
from servicebus_local.front import AmqpFront, Authorizer, Shared
from servicebus_local.settings import ServerSettings

_SCALAR_TYPES = (Byte, Char, Float, Int, Long, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort)
"""What application properties may hold besides plain Python values: the store gives them back as what they were."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a server listens: the requested ports, or free ones; None for one that it does not have."""

    port: int  # of AMQP
    admin_port: int  # of the administration over HTTP
    tls_port: int | None = None  # of AMQP over TLS
    admin_tls_port: int | None = None  # of the administration over HTTPS


class LocalServer:
    """A Service Bus namespace on this machine.

    Raises:
        StoreError: what it kept can't be read.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self.faults = FaultPlan()
        store = None if settings.data is None else SqliteStore(settings.data, _SCALAR_TYPES)
        self.broker = Broker(time.time, store, max_message_bytes=settings.max_message_bytes)
        self._authorizer = Authorizer(settings.keys, any_token=settings.accept_any_token)
        self._shared = Shared(
            self.broker, self._authorizer, self.faults, settings.namespace, settings.max_message_bytes
        )
        self._front = AmqpFront(self._shared)
        self._runner: web.AppRunner | None = None
        self.addresses: Addresses | None = None

    async def start(self) -> Addresses:
        """Take clients.

        Returns:
            Where.

        Raises:
            OSError: a port is not available; nothing listens then.
        """
        settings = self._settings
        if settings.prepare is not None:
            settings.prepare(self.broker)
            self.broker.flush()
        tls = None
        if settings.tls is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(settings.tls.certificate, settings.tls.key)
        try:
            admin_port, admin_tls_port = await self._serve_administration(tls)
            port = await self._front.listen(settings.host, settings.port)
            tls_port = None
            if settings.tls_port is not None:
                tls_port = await self._front.listen(settings.host, settings.tls_port, tls)
        except BaseException:
            await self.stop()
            raise
        self._shared.changed()
        self.addresses = Addresses(port, admin_port, tls_port, admin_tls_port)
        return self.addresses

    async def _serve_administration(self, tls: ssl.SSLContext | None) -> tuple[int, int | None]:
        settings = self._settings
        control = Control(self.faults, self._front.drop_connections) if settings.control else None
        administration = Administration(
            self.broker,
            authorize=self._authorize,
            namespace=settings.namespace,
            on_change=self._shared.entities_changed,
            control=control,
        )
        self._runner = web.AppRunner(administration.app, access_log=None, handle_signals=False)
        await self._runner.setup()
        ports: list[int | None] = []
        for port, context in ((settings.admin_port, None), (settings.admin_tls_port, tls)):
            if port is None:
                ports.append(None)
                continue
            site = web.TCPSite(self._runner, settings.host, port, ssl_context=context)
            await site.start()
            ports.append(self._runner.addresses[-1][1])
        found = ports[0]
        assert found is not None  # noqa: S101  # the administration always has a port
        return found, ports[1]

    def _authorize(self, header: str, url: str) -> bool:
        return self._authorizer.check(header.removeprefix("Bearer "), url, time.time()) is None

    async def stop(self) -> None:
        """Close all connections; what is in memory only is lost."""
        await self._front.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self.broker.close()
        await asyncio.sleep(0)

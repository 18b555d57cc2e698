"""The transport: settings and connections, and the objects that use them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from redis.asyncio import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pairmq.model import Entity, Message, Source
from pairmq.transport import Admin, Capabilities, Receiver, Sender, Transport, bracketed, dial
from pairmq_redis import _codec
from pairmq_redis._admin import RedisAdmin
from pairmq_redis._capabilities import CAPABILITIES
from pairmq_redis._cluster import Cluster, ClusterLine
from pairmq_redis._context import Context
from pairmq_redis._link import Line
from pairmq_redis._nodes import Sentinels
from pairmq_redis._receiver import RedisReceiver
from pairmq_redis._sender import RedisSender
from pairmq_redis._url import RedisUrl, parse_redis_url
from pairmq_redis._wire import RedisWire, Wire

_CLOSE_TIMEOUT = 1.8


class StreamsTransport(Transport):
    """The transport over any connection that speaks Redis."""

    def __init__(
        self,
        url: RedisUrl,
        make_wire: Callable[[], Wire],
        capabilities: Capabilities,
        make_line: Callable[[], Line] | None = None,
    ) -> None:
        super().__init__(url.endpoint)
        self._context = Context(url, self.scope, make_wire, make_line)
        self._capabilities = capabilities
        self._admin = RedisAdmin(self._context)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return RedisSender(self._context, entity)

    def receiver(self, source: Source) -> Receiver:
        return RedisReceiver(self._context, source)

    def measure(self, message: Message) -> int:
        return _codec.size(message)

    async def _close(self) -> None:
        closing = [asyncio.ensure_future(receiver.close()) for receiver in list(self._context.receivers)]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_TIMEOUT)
        await self._context.end_link(self._context.sending)
        await self._context.end_link(self._context.control)


class RedisTransport(StreamsTransport):
    """A transport to a Redis or Valkey server, 6.2 or newer, to the master that sentinels name, or to a cluster."""

    def __init__(self, url: str) -> None:
        parsed = parse_redis_url(url)
        timeout = parsed.connect_timeout
        make = _connection_factory(parsed)
        self._sentinels: Sentinels | None = None
        self._cluster: Cluster | None = None
        find = make_line = None
        if parsed.sentinels:
            self._sentinels = Sentinels(parsed.host, parsed.sentinels, _sentinel_factory(parsed), self._switched)
            find = self._sentinels.master
        if parsed.cluster:
            cluster = self._cluster = Cluster(parsed.cluster, lambda node: _at(parsed, node)(), timeout, self._demoted)
            make_line = lambda: ClusterLine(cluster, lambda node: RedisWire(_at(parsed, node), timeout))  # noqa: E731
        super().__init__(parsed, lambda: RedisWire(make, timeout, find), CAPABILITIES, make_line)

    @property
    def node(self) -> str | None:
        """The master that the sentinels named last."""
        if self._sentinels is None or self._sentinels.found is None:
            return None
        host, port = self._sentinels.found
        return f"{bracketed(host)}:{port}"

    def _switched(self, master: tuple[str, int]) -> None:
        self._context.leave(lambda wire: isinstance(wire, RedisWire) and wire.address != master)

    def _demoted(self, owners: frozenset[tuple[str, int]]) -> None:
        self._context.leave(lambda wire: isinstance(wire, RedisWire) and wire.address not in owners)

    async def _close(self) -> None:
        await super()._close()
        for each in (self._sentinels, self._cluster):
            if each is not None:
                await each.close()


class _Connection(Connection):
    """A connection that, over TLS, trusts exactly the authorities of the context.

    redis-py's own one trusts the system's authorities as well as those that it is given, and reads them again for each
    connection.
    """

    def __init__(self, tls: ssl.SSLContext | None, **settings: Any) -> None:
        self._tls = tls
        self._dialled: socket.socket | None = None
        super().__init__(**settings)

    async def _connect(self) -> None:
        self._dialled = await dial(self.host, int(self.port))
        await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's

    def _connection_arguments(self) -> Mapping[str, Any]:
        if self._dialled is None:
            return {**super()._connection_arguments(), "ssl": self._tls}
        return {"sock": self._dialled, "ssl": self._tls, "server_hostname": self._tls and self.host}


def _sentinel_factory(url: RedisUrl) -> Callable[[tuple[str, int]], Connection]:
    if not url.sentinel_login:
        url = replace(url, username=None, password=None)

    return lambda address: _at(url, address)()


def _at(url: RedisUrl, address: tuple[str, int]) -> Callable[[], Connection]:
    return _connection_factory(replace(url, host=address[0], port=address[1], db=0))


def _connection_factory(url: RedisUrl) -> Callable[[], Connection]:
    """Prepare the factory of redis-py's connections, with everything it would do by itself switched off."""
    settings: dict[str, Any] = {
        "host": url.host,
        "port": url.port,
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "protocol": 2,  # plain lists as replies, on every server, in every version of redis-py
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # time limits are set above
        "socket_connect_timeout": url.connect_timeout,
        "health_check_interval": 0,
    }
    # redis-py 7.1 and later read their own version from files, for each connection, in several milliseconds.
    with contextlib.suppress(ImportError):
        from redis.driver_info import DriverInfo

        settings["driver_info"] = DriverInfo()
    tls = None if url.tls is None else url.tls.context(for_url=url.endpoint.url)
    return lambda: _Connection(tls, **settings)

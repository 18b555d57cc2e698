"""The entry point: the transports of this distribution."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import LocalServer, TransportRecord, hookimpl
from pairmq_redis._fakeredis import FAKEREDIS_CAPABILITIES, FakeRedisTransport, fakeredis_control
from pairmq_redis._transport import CAPABILITIES, RedisTransport


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``redis`` and ``fakeredis``."""
    yield TransportRecord(
        name="redis",
        schemes=("redis", "rediss"),
        factory=RedisTransport,
        capabilities=CAPABILITIES,
        description="Redis or Valkey, 6.2 or newer: one stream per queue or topic",
        local_server=_local_server,
    )
    yield TransportRecord(
        name="fakeredis",
        schemes=("fakeredis",),
        factory=FakeRedisTransport,
        capabilities=FAKEREDIS_CAPABILITIES,
        description="this transport on fakeredis, in this process: lost with the process",
        broker_control=fakeredis_control,
    )


def _local_server() -> LocalServer:
    from pairmq_redis.testing import RedisServer  # only when a server is requested

    return RedisServer()

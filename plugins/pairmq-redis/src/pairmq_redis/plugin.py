"""The entry point: the transports of this distribution."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import BrokerControl, LocalServer, TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_redis._capabilities import CAPABILITIES, FAKEREDIS_CAPABILITIES


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``redis`` and ``fakeredis``."""
    yield TransportRecord(
        name="redis",
        schemes=tuple(f"{scheme}{form}" for form in ("", "+sentinel", "+cluster") for scheme in ("redis", "rediss")),
        factory=_transport,
        capabilities=CAPABILITIES,
        description="Redis or Valkey, 6.2 or newer: one stream per queue or topic",
        local_server=_local_server,
    )
    yield TransportRecord(
        name="fakeredis",
        schemes=("fakeredis",),
        factory=_fakeredis_transport,
        capabilities=FAKEREDIS_CAPABILITIES,
        description="this transport on fakeredis, in this process: lost with the process",
        broker_control=_fakeredis_control,
    )


def _transport(url: str) -> Transport:
    from pairmq_redis._transport import RedisTransport  # and the client, which other transports don't need

    return RedisTransport(url)


def _fakeredis_transport(url: str) -> Transport:
    from pairmq_redis._fakeredis import FakeRedisTransport

    return FakeRedisTransport(url)


def _fakeredis_control(url: str) -> BrokerControl:
    from pairmq_redis._fakeredis import fakeredis_control

    return fakeredis_control(url)


def _local_server() -> LocalServer:
    from pairmq_redis.testing import RedisServer  # only when a server is requested

    return RedisServer()

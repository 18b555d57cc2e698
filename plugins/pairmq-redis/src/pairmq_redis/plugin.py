"""The entry point: which transports this distribution brings."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import BrokerControl, LocalServer, TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_redis._memory import MEMORY_CAPABILITIES, MemoryTransport, memory_control
from pairmq_redis._transport import CAPABILITIES, RedisTransport


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``redis`` and ``memory``."""
    yield TransportRecord(
        name="redis",
        schemes=("redis", "rediss"),
        factory=_redis,
        capabilities=CAPABILITIES,
        description="Redis or Valkey, 6.2 or newer: one stream per queue or topic",
        local_server=_local_server,
    )
    yield TransportRecord(
        name="memory",
        schemes=("memory",),
        factory=_memory,
        capabilities=MEMORY_CAPABILITIES,
        description="a broker in this process, for tests and trials: lost with the process",
        broker_control=_control,
    )


def _redis(url: str) -> Transport:
    return RedisTransport(url)


def _local_server() -> LocalServer:
    from pairmq_redis.testing import RedisServer  # only for who asks for a server

    return RedisServer()


def _memory(url: str) -> Transport:
    return MemoryTransport(url)


def _control(url: str) -> BrokerControl:
    return memory_control(url)

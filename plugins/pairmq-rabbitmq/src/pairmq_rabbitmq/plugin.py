"""The entry point: the transports of this distribution."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import LocalServer, TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_rabbitmq._names import CAPABILITIES


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``rabbitmq``."""
    yield TransportRecord(
        name="rabbitmq",
        schemes=("amqp", "amqps"),
        factory=_transport,
        capabilities=CAPABILITIES,
        description="RabbitMQ, 3.8 or newer: AMQP 0-9-1 with publisher confirms",
        local_server=_local_server,
    )


def _transport(url: str) -> Transport:
    from pairmq_rabbitmq._transport import RabbitTransport  # and the client, which other transports don't need

    return RabbitTransport(url)


def _local_server() -> LocalServer:
    from pairmq_rabbitmq.testing import RabbitServer  # only when a server is requested

    return RabbitServer()

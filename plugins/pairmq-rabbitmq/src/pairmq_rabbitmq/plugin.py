"""The entry point: which transports this distribution brings."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_rabbitmq._transport import CAPABILITIES, RabbitTransport


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``rabbitmq``."""
    yield TransportRecord(
        name="rabbitmq",
        schemes=("amqp", "amqps"),
        factory=_rabbitmq,
        capabilities=CAPABILITIES,
        description="RabbitMQ, 3.8 or newer: AMQP 0-9-1 with publisher confirms",
    )


def _rabbitmq(url: str) -> Transport:
    return RabbitTransport(url)

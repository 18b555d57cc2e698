"""The entry point: which transports this distribution brings."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import LocalServer, TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_servicebus._capabilities import CAPABILITIES


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``servicebus``."""
    yield TransportRecord(
        name="servicebus",
        schemes=("sb",),
        factory=_transport,
        capabilities=CAPABILITIES,
        description="Azure Service Bus, its emulator, and the local server of this distribution: AMQP 1.0",
        local_server=_local_server,
    )


def _transport(url: str) -> Transport:
    from pairmq_servicebus._transport import ServiceBusTransport  # and the client, which other transports don't need

    return ServiceBusTransport(url)


def _local_server() -> LocalServer:
    try:
        from pairmq_servicebus.testing import ServiceBusServer  # only for who asks for a server
    except ModuleNotFoundError as error:
        raise FileNotFoundError(str(error)) from None
    return ServiceBusServer()

"""The entry point: which transport this distribution brings."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import LocalServer, TransportRecord, hookimpl
from pairmq.transport import Transport
from pairmq_postgres._capabilities import CAPABILITIES
from pairmq_postgres._url import SCHEMES


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``postgres``."""
    yield TransportRecord(
        name="postgres",
        schemes=SCHEMES,
        factory=_transport,
        capabilities=CAPABILITIES,
        description="durable queues in a PostgreSQL database, 13 or newer",
        local_server=_local_server,
    )


def _transport(url: str) -> Transport:
    from pairmq_postgres._transport import PostgresTransport  # and the client, which other transports don't need

    return PostgresTransport(url)


def _local_server() -> LocalServer:
    from pairmq_postgres.testing import PostgresServer  # only when a server is requested

    return PostgresServer()

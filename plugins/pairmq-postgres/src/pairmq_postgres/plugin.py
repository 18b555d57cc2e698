"""The entry point: which transport this distribution brings."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import LocalServer, TransportRecord, hookimpl
from pairmq_postgres._transport import CAPABILITIES, PostgresTransport
from pairmq_postgres._url import SCHEMES


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``postgres``."""
    yield TransportRecord(
        name="postgres",
        schemes=SCHEMES,
        factory=PostgresTransport,
        capabilities=CAPABILITIES,
        description="durable queues in a PostgreSQL database, 13 or newer",
        local_server=_local_server,
    )


def _local_server() -> LocalServer:
    from pairmq_postgres.testing import PostgresServer  # only when a server is requested

    return PostgresServer()

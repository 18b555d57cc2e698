"""The entry point: which transport this distribution brings.

PairMQ imports this module to list its plugins, whether or not this one is used: keep it quick to import, and
without side effects.
"""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins import TransportRecord, hookimpl
from pairmq_sqlite._transport import CAPABILITIES, SQLiteTransport
from pairmq_sqlite._url import SCHEME


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield one record for each transport: its name, its URL schemes, and what makes one from a URL."""
    yield TransportRecord(
        name=SCHEME,
        schemes=(SCHEME,),
        factory=SQLiteTransport,
        capabilities=CAPABILITIES,
        description="durable queues in one file on this machine, for several processes at once",
    )

"""The transports that PairMQ brings itself, as any plugin does."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.plugins._records import TransportRecord
from pairmq.plugins.hookspecs import hookimpl


@hookimpl
def pairmq_transports() -> Iterable[TransportRecord]:
    """Yield ``memory``."""
    from pairmq.memory import CAPABILITIES, MemoryTransport, control  # when first needed

    yield TransportRecord(
        name="memory",
        schemes=("memory",),
        factory=MemoryTransport,
        capabilities=CAPABILITIES,
        description="a broker in this process, for tests and trials: lost with the process",
        broker_control=control,
    )

"""What the transport supports: apart from it, so that it can be listed without an import of the client."""

from __future__ import annotations

from pairmq.transport import Capabilities

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""More than other brokers take, so that this one can stand behind any of them. PostgreSQL itself ends at 1 GB a row."""

CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    topics=True,
    sessions=True,
    scheduling=True,
    counts_scheduled=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    quiet_peek=True,
    ordered_consumer=True,
    ordered_batches=True,
    durable=True,
)
"""All that a transport can do."""

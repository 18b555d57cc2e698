"""What the transport supports: apart from it, so that it can be listed without an import of the client."""

from __future__ import annotations

from dataclasses import replace

from pairmq.transport import Capabilities

MAX_MESSAGE_BYTES = 512 * 1024 * 1024
"""Redis' limit for one string (``proto-max-bulk-len``), taken for the whole message."""

CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    topics=True,
    scheduling=True,
    counts_scheduled=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    ordered_consumer=True,
    ordered_batches=True,
    quiet_peek=True,
    durable=True,
)
"""What Redis supports. Durable as far as ``appendfsync`` is on; it has no sessions."""

FAKEREDIS_CAPABILITIES = replace(CAPABILITIES, durable=False)
"""All that Redis does, but nothing outlives the process."""

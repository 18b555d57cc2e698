"""What the transport supports: apart from it, so that it can be listed without an import of the client."""

from __future__ import annotations

from typing import Final

from pairmq.transport import Capabilities

MAX_PATH_LENGTH: Final = 260

MAX_MESSAGE_BYTES = 256 * 1024
"""Of the tier Standard (Service Bus documentation: Quotas); a link to a Premium namespace shows more."""

CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_path_length=MAX_PATH_LENGTH,
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
"""What Service Bus does through this transport; its README shows the fine print."""

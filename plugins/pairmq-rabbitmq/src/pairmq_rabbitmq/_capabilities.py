"""What the transport supports: apart from it, so that it can be listed without an import of the client."""

from __future__ import annotations

from pairmq.transport import Capabilities
from pairmq_rabbitmq._names import MAX_PATH_LENGTH

MAX_MESSAGE_BYTES = 128 * 1024 * 1024
"""RabbitMQ's ``max_message_size`` from 3.8 on; 4.0 made it 16 MiB, and a server may be configured with another."""

CAPABILITIES = Capabilities(
    max_message_bytes=MAX_MESSAGE_BYTES,
    max_path_length=MAX_PATH_LENGTH,
    topics=True,
    scheduling=True,
    time_to_live=True,
    dead_letter=True,
    lock_renewal=True,
    probes=True,
    peek=True,
    ordered_consumer=True,
    durable=True,
)
"""What RabbitMQ supports through this transport; its README has the details."""

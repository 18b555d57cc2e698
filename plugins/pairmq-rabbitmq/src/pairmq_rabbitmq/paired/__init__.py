"""aio-pika's robust connection whose publishes go through a pair, and consumers of queues with continuity.

In a program that uses ``aio_pika`` today::

    from pairmq_rabbitmq.paired import connect_robust

    connection = await connect_robust("amqp://…", secondary="redis://…")

Everything but a publish, and consuming queues with continuity, is aio-pika's own, on the primary.
"""

from pairmq_rabbitmq.paired._connection import (
    PairedChannel,
    PairedConnection,
    PairedExchange,
    connect_robust,
    pair_url,
    paired_exchange,
)
from pairmq_rabbitmq.paired._consuming import ConsumingConnection
from pairmq_rabbitmq.paired._publisher import (
    Confirmation,
    NotDeliveredError,
    OnReceipt,
    Publisher,
    PublishOutcomeUnknownError,
    ReservedHeaderError,
    as_client_error,
)

__all__ = [
    "Confirmation",
    "ConsumingConnection",
    "NotDeliveredError",
    "OnReceipt",
    "PairedChannel",
    "PairedConnection",
    "PairedExchange",
    "PublishOutcomeUnknownError",
    "Publisher",
    "ReservedHeaderError",
    "as_client_error",
    "connect_robust",
    "pair_url",
    "paired_exchange",
]

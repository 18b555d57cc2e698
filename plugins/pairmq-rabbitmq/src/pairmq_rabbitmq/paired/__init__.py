"""aio-pika's robust connection whose publishes go through a pair.

In a program that uses ``aio_pika`` today::

    from pairmq_rabbitmq.paired import connect_robust

    connection = await connect_robust("amqp://…", secondary="redis://…")

Everything but a publish is aio-pika's own, on the primary.
"""

from pairmq_rabbitmq.paired._channel import PairedChannel
from pairmq_rabbitmq.paired._connection import PairedConnection, connect_robust, pair_url
from pairmq_rabbitmq.paired._errors import (
    NotDeliveredError,
    PublishOutcomeUnknownError,
    ReservedHeaderError,
    as_client_error,
)
from pairmq_rabbitmq.paired._exchange import PairedExchange, paired_exchange
from pairmq_rabbitmq.paired._publisher import Confirmation, OnReceipt, Publisher

__all__ = [
    "Confirmation",
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

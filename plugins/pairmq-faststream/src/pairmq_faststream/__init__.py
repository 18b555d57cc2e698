"""FastStream's RabbitBroker, publishing through a pair."""

from pairmq_faststream._broker import PairedRabbitBroker
from pairmq_faststream._middleware import PairMiddleware

__all__ = ["PairMiddleware", "PairedRabbitBroker"]

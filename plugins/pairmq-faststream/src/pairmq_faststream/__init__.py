"""FastStream's RabbitBroker, publishing through a pair."""

from pairmq_faststream._broker import PairedRabbitBroker, PairMiddleware

__all__ = ["PairMiddleware", "PairedRabbitBroker"]

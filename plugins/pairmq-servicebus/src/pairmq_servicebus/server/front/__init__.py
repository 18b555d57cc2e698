"""The AMQP 1.0 front: sockets, links and nodes, between the protocol's engine and the broker."""

from pairmq_servicebus.server.front._front import AmqpFront
from pairmq_servicebus.server.front._shared import Shared
from pairmq_servicebus.server.front._tokens import Authorizer

__all__ = ["AmqpFront", "Authorizer", "Shared"]

"""The AMQP 1.0 front: sockets, links and nodes, between the protocol's engine and the broker."""

from servicebus_local.front._endpoint import Shared
from servicebus_local.front._front import AmqpFront
from servicebus_local.front._tokens import Authorizer

__all__ = ["AmqpFront", "Authorizer", "Shared"]

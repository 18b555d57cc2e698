"""Which publishes go through the pair, and to which entity.

A message for the default exchange goes to the queue that its routing key names, which is how Celery sends a task. One
for a durable direct or topic exchange goes to that exchange, which is a topic to PairMQ, with the routing key as its
subject. All else goes to the primary only: remote control, events and replies are for those who listen now, and would
do harm if they came late.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any, Protocol

from pairmq import Entity, EntityKind, Message
from pairmq_kombu._message import PERSISTENT, NotCarried, to_pairmq

_ROUTED_TYPES = frozenset(("direct", "topic"))
_SYSTEM = ("amq.", "pairmq.")

# Workers declare them, and what publishes a task with an ETA to a quorum queue does not: `kombu.transport.
# native_delayed_delivery`. A task that is sent once more after its ETA goes to the last one of them.
_DELAYED = re.compile(r"(?:.+_)?celery_delayed_(?:delivery|[0-9]+)")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What this process has declared an exchange to be.

    Args:
        type: ``direct``, ``topic``, ``fanout`` or another one.
        durable: whether it outlives its broker.
    """

    type: str
    durable: bool


class Declared(Protocol):
    """The exchanges that this process has declared."""

    def get(self, name: str, /) -> Exchange | None:
        """What it is; None for one that is not known."""
        ...


def routed(message: Any, exchange: str, routing_key: str, declared: Declared) -> tuple[Entity, Message] | None:
    """Find out where a publish goes through the pair.

    Args:
        message: an `amqp.Message`.
        exchange: its name; empty for the default exchange.
        routing_key: the routing key.
        declared: exchanges that this process has declared.

    Returns:
        The entity and the message for it; None for what is not meant to outlive an outage.

    Raises:
        NotCarried: it is, but a pair can't carry it.
    """
    if message.properties.get("delivery_mode") != PERSISTENT:
        return None
    if str(message.properties.get("reply_to") or "").startswith("amq."):
        return None  # a request whose caller waits on this connection of the primary
    if not exchange:
        return _entity(routing_key, EntityKind.QUEUE), to_pairmq(message)
    known = declared.get(exchange) or _undeclared(exchange)
    if known is None:
        raise NotCarried(
            "this process has not declared the exchange, so that its type is not known: name a queue that is bound to "
            "it in task_queues, or declare it"
        )
    if not known.durable or known.type not in _ROUTED_TYPES:
        return None
    return _entity(exchange, EntityKind.TOPIC), to_pairmq(message, routing_key or None)


def _undeclared(name: str) -> Exchange | None:
    """What is known of an exchange that this process has not declared: Celery's own, or one in a ``task_queues``.

    Celery declares a queue that a task is sent to, and nothing for one that is sent to an exchange: its workers do.
    """
    if _DELAYED.fullmatch(name):
        return Exchange("topic", durable=True)
    celery: Any = sys.modules.get("celery._state")
    for application in list(celery._get_active_apps()) if celery is not None else ():
        if not application.configured:  # it publishes nothing, and to ask it would read its settings
            continue
        for queue in list(application.amqp.queues.values()):
            for exchange in (queue.exchange, *(binding.exchange for binding in queue.bindings)):
                if exchange is not None and exchange.name == name:
                    return Exchange(exchange.type, bool(exchange.durable) and not exchange.auto_delete)
    return None


def _entity(path: str, kind: EntityKind) -> Entity:
    if path.startswith(_SYSTEM):
        raise NotCarried("it belongs to the broker")
    try:
        return Entity(path, kind)
    except ValueError as error:
        raise NotCarried(str(error)) from None

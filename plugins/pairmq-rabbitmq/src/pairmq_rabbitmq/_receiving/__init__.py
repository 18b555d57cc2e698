"""Receiving under peek-lock: how messages come, who holds them until when, and what becomes of them.

The `RabbitReceiver` has the calls, decodes what came and hands it out. Messages come on a `DeliveryChannel`, or on an
`OrderedChannel` where the queue is for one consumer at a time. Each keeps the time of the locks, and its `Settling`
reports to the broker what became of a message, and counts what this process holds. `_dead_letter` puts what no caller
can get into the dead-letter queue.
"""

from pairmq_rabbitmq._receiving._ordered_channel import is_for_one_consumer, visit
from pairmq_rabbitmq._receiving._receiver import RabbitReceiver
from pairmq_rabbitmq._receiving._settling import held_by_this_process

__all__ = ["RabbitReceiver", "held_by_this_process", "is_for_one_consumer", "visit"]

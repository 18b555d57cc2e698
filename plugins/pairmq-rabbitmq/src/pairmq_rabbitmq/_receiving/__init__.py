"""Receiving under peek-lock: how messages arrive, who holds them until when, and how they are settled.

The `RabbitReceiver` has the calls, decodes messages and returns them. Messages arrive on a `DeliveryChannel`, or on an
`OrderedChannel` where the queue is for one consumer at a time. Each tracks the locks' ends, and its `Settling`
settles messages with the broker, and counts what this process holds. `_dead_letter` dead-letters what can't be returned
to a caller.
"""

from pairmq_rabbitmq._receiving._ordered_channel import visit
from pairmq_rabbitmq._receiving._receiver import RabbitReceiver
from pairmq_rabbitmq._receiving._settling import held_by_this_process

__all__ = ["RabbitReceiver", "held_by_this_process", "visit"]

"""Receiving under peek-lock: how messages come, who holds them until when, and what becomes of them.

The `RabbitReceiver` has the calls; their `Waits` end when it closes. Messages come on a `DeliveryChannel`, or on an
`OrderedChannel` where the queue is for `_one_consumer` at a time. Both are `LockingChannel`s, which keep the time of
the locks and have `Settling` tell the broker what became of a message. `_reading` decodes what came; `_deliveries`
hands it out, or `Aside` puts it into the dead-letter queue where nobody is to get it. `_held` knows how much all
receivers of this process hold.
"""

from pairmq_rabbitmq._receiving._held import held_by_this_process
from pairmq_rabbitmq._receiving._one_consumer import is_for_one_consumer, visit
from pairmq_rabbitmq._receiving._receiver import RabbitReceiver

__all__ = ["RabbitReceiver", "held_by_this_process", "is_for_one_consumer", "visit"]

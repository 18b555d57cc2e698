"""The pair for programs without asyncio: the same names, blocking, for threads, Django and Celery workers.

    with Pair.connect("amqp://…", "redis://…") as pair:
        receipt = pair.sender("orders").send(Message(b"42"))

All pairs of a process run on one event loop in a thread in the background. What the asynchronous pair promises holds
here too: deadlines, outcomes, and that nothing else is disturbed by a call that is interrupted. A child that is forked
while a pair is open gets connections of its own at its first call.
"""

from pairmq.sync._loop import run
from pairmq.sync._pair import Admin, Pair, Side
from pairmq.sync._receiver import Deduplicator, PairDelivery, PairReceiver
from pairmq.sync._sender import PairOutbox, PairSender

__all__ = ["Admin", "Deduplicator", "Pair", "PairDelivery", "PairOutbox", "PairReceiver", "PairSender", "Side", "run"]

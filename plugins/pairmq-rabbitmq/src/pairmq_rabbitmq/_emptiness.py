"""Whether a queue is really empty, where RabbitMQ's quick answer of 0 messages does not say so."""

from __future__ import annotations

from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq.model import FailureReason, TransportError
from pairmq_rabbitmq._channel import close_channel
from pairmq_rabbitmq._context import Context

# The answer to the first says that the queue has a leader which has read all that it holds. It then finds out which
# consumers are gone, and has back what they held before it comes to the second.
_QUESTIONS = 2


async def count_certainly(context: Context, queue: str, doing: str) -> int:
    """Count what waits in a queue, where 0 means that there is nothing.

    A passive declare, which tells the number, is answered at once with what the queue's process knows. Of a quorum
    queue that may be 0 with any number of messages in it: while no leader is elected, when the leader does not answer
    within 0.25 s, and after a boot as long as what dead consumers held is not given back (seen for 0.2 to 0.9 s with
    RabbitMQ 3.10). `basic.get` is no question but a command, which the leader carries out in turn with all others. So
    0 is asked about with that. A message that it finds goes back to its place, counted as delivered once more.

    Nothing can be fetched so from a queue with a single active consumer, or by a user who may not read it. The leader
    refuses the former in turn as well, so that the number told afterwards is right; the latter is told as it was.

    Args:
        context: to ask the broker.
        queue: its name.
        doing: in words, for errors.

    Returns:
        Messages that nobody holds locked.

    Raises:
        TransportError: there is no such queue, or it could not be asked. A queue without leader never answers: bring
            a time limit.

    A cancelled call gives back what it had fetched.
    """
    waiting, _ = await context.count(queue, doing)
    refused = False
    for _ in range(_QUESTIONS):
        if waiting:
            break
        try:
            waiting = await context.ask(doing, lambda channel: fetch_one(channel, queue), about=queue)
        except TransportError as error:
            if error.reason not in (FailureReason.DISABLED, FailureReason.UNAUTHORIZED):
                raise
            refused = True
    if refused:
        waiting, _ = await context.count(queue, doing)
    return waiting


async def fetch_one(channel: Channel, queue: str) -> int:
    """Have a queue's leader fetch a message, and give it back to its place, which closes the channel.

    Args:
        channel: that nobody else uses.
        queue: its name.

    Returns:
        How many messages there were, this one included; 0 when there was none.

    Raises:
        Exception: the driver's, as for a queue that is not there or may not be read.
    """
    fetched = (await channel.basic_get(queue)).delivery
    if not isinstance(fetched, Basic.GetOk):
        return 0
    # A nack would put it at the end of a quorum queue without delivery limit.
    await close_channel(channel)
    return 1 + (fetched.message_count or 0)

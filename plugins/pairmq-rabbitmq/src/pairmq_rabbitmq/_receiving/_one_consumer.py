"""Queues for one consumer at a time: which ones are, and how whoever looks into one takes its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiormq.channel import Channel

from pairmq.transport import QueueProperties
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._interrogation import interrogate
from pairmq_rabbitmq._link import Link
from pairmq_rabbitmq._names import dead_letter_of
from pairmq_rabbitmq._properties import QUEUE_TYPE, SINGLE_CONSUMER, arguments_of, is_single
from pairmq_rabbitmq._receiving._held import Share
from pairmq_rabbitmq._receiving._opening import Opening
from pairmq_rabbitmq._receiving._ordered_channel import OrderedChannel
from pairmq_rabbitmq._receiving._settling import Locked
from pairmq_rabbitmq._session import Session

_BARE = {QUEUE_TYPE: "quorum", SINGLE_CONSUMER: True}
_LIKELY = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1, single_consumer=True)
_STEP = 0.005  # s
_GIVING_BACK = 0.25


async def is_for_one_consumer(context: Context, queue: str, doing: str, link: Link | None = None) -> bool:
    """Tell whether a queue is for one consumer at a time; asks the broker once, for most queues one question.

    Who may not configure the queue gets no answer, and reads it as one for several: one that keeps order is to be read
    by those alone who may.

    Args:
        context: to ask the broker.
        queue: its name.
        doing: in words, for errors.
        link: whose connection to ask over; the control link's when left out.

    Raises:
        TransportError: the broker could not be asked.
    """
    known = context.one_consumer.get(queue)
    if known is not None:
        return known
    differs = frozenset((QUEUE_TYPE, SINGLE_CONSUMER))
    # The second guess is what a backlog queue is: of a queue with a long name the broker can tell no more than that.
    for guess in (_BARE, arguments_of(_LIKELY, "quorum", dead_letter_of(queue), doing)):
        found = await interrogate(context, queue, guess, doing, until=differs, link=link)
        if found.complete:
            context.one_consumer[queue] = is_single(found.arguments)
            return context.one_consumer[queue]
    return False


def ordered_channel(context: Context, session: Session, raw: Channel, queue: str) -> OrderedChannel:
    """Make the channel of a reader.

    Args:
        context: the transport's connections and settings.
        session: of the consuming link.
        raw: the driver's channel, fresh.
        queue: the broker's name of a queue for one consumer at a time.
    """
    share = Share(context.url.endpoint.identity, queue)
    return OrderedChannel(
        session,
        raw,
        queue,
        share,
        context.url.lock_duration,
        lambda markers: context.markers.answer(markers, f"answer markers of {queue}"),
    )


async def visit(
    context: Context, queue: str, doing: str, enough: Callable[[OrderedChannel], bool], patience: float
) -> list[Locked]:
    """Read a queue for a moment as its one consumer, and give back all that came, in its order.

    What it meets of markers is answered; while somebody else reads the queue, nothing comes.

    Args:
        context: to ask the broker.
        queue: the broker's name of a queue for one consumer at a time.
        doing: in words, for errors.
        enough: whether what came will do.
        patience: seconds after which it has to do.

    Returns:
        What came, given back already.

    Raises:
        TransportError: the queue could not be read.

    A cancelled call gives back what had come.
    """
    try:
        session = await context.consuming_of(queue).session()
        opening = Opening(session)
        try:
            await asyncio.wait((opening.task,))
        except asyncio.CancelledError:
            opening.forsake()
            raise
        channel = ordered_channel(context, session, opening.task.result(), queue)
    except Unsent as error:
        failed = _errors.failure(error, doing)
        raise failed from failed.__cause__
    try:
        until = asyncio.get_running_loop().time() + patience
        fetching = channel.fetch(1, until)
        while not enough(channel) and channel.cause is None and asyncio.get_running_loop().time() < until:
            await asyncio.wait((fetching,), timeout=_STEP)
            if fetching.done():  # there is a message, and more may be on their way
                await asyncio.sleep(_STEP)
        if channel.cause is not None:
            raise _errors.failure(channel.cause, doing)
        found = list(channel.waiting)
        await channel.close(patience)
    finally:
        channel.discard()
    # The queue takes its time to have them back, and counts too few so long; somebody else may be quicker to get them.
    until = asyncio.get_running_loop().time() + _GIVING_BACK
    while found and asyncio.get_running_loop().time() < until:
        back, _ = await context.count(queue, doing)
        if back >= len(found):
            break
        await asyncio.sleep(_STEP)
    return found

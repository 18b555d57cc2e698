"""Around the driver: methods with names that it refuses, how a channel is closed, and what it logs about connections.

RabbitMQ accepts any text of up to 255 bytes as the name of a queue or exchange; pamqp raises ValueError for all but
ASCII letters, digits, space and a few punctuation characters. So methods that carry names are instances of the classes
here, which leave validation to the broker, and are passed to a channel's ``rpc``.

aiormq logs an error for each connection attempt that is refused, and a warning with a traceback for each connection
that is lost. It can't know that a pair retries throughout an outage, and reports the outage once: every failure is
raised. So its records about *our* connections are demoted to DEBUG, and those about an application's own connections
stay unchanged. Which is which is in the context that a task starts with, and passes on to the tasks it creates: all
that aiormq does for a connection is done in tasks of which the first one was ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Final, TypeVar

from aiormq.abc import ChannelFrame, ConsumerCallback, DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import commands
from pamqp.base import Frame

_TURN: Final = 1.0  # s for the reply to a request in flight, ahead of a Channel.Close
_SUCCESS: Final = 200

F = TypeVar("F", bound=Frame)

_ours: ContextVar[bool] = ContextVar("pairmq_rabbitmq_connection", default=False)

_DEMOTED: Final[Mapping[str, int]] = {
    "aiormq.connection": logging.CRITICAL,
    # Its errors report a callback that failed, or an invalid frame from the broker: nothing else reports these.
    "aiormq.channel": logging.WARNING,
}
"""Its loggers, and up to which level their records are demoted."""


def _any_name(frame: type[F]) -> type[F]:
    return type(frame.__name__, (frame,), {"validate": lambda self: None})


BasicConsume = _any_name(commands.Basic.Consume)
BasicGet = _any_name(commands.Basic.Get)
BasicPublish = _any_name(commands.Basic.Publish)
ExchangeBind = _any_name(commands.Exchange.Bind)
ExchangeDeclare = _any_name(commands.Exchange.Declare)
ExchangeDelete = _any_name(commands.Exchange.Delete)
QueueBind = _any_name(commands.Queue.Bind)
QueueDeclare = _any_name(commands.Queue.Declare)
QueueDelete = _any_name(commands.Queue.Delete)
QueuePurge = _any_name(commands.Queue.Purge)


def count_in(queue: str) -> commands.Queue.Declare:
    """The method whose reply counts a queue's messages and consumers, and that changes nothing."""
    return QueueDeclare(queue=queue, passive=True)


async def consume(channel: Channel, queue: str, tag: str, callback: ConsumerCallback) -> None:
    """As the driver's ``basic_consume``, for any name."""
    channel.consumers[tag] = callback
    await channel.rpc(BasicConsume(queue=queue, consumer_tag=tag))


async def get(channel: Channel, queue: str) -> DeliveredMessage:
    """As the driver's ``basic_get``, for any name, on a channel that no other call uses."""
    channel.getter = getter = channel.create_future()
    try:
        await channel.rpc(BasicGet(queue=queue))
        message: DeliveredMessage
        _, message = await getter
        return message
    finally:
        getter.cancel()
        channel.getter = None


async def close_channel(channel: Channel) -> None:
    """Have the broker close a channel and release what is locked on it; without effect when it is closed.

    The driver's own close gives up after a heartbeat: either without sending anything to the broker, which then keeps
    the messages locked, or by sending Channel.Close twice, for which the broker closes the connection.

    A request in flight is completed first: if its reply is the broker's Channel.Close, ours must not cross it, or
    it is unknown which channel owns the number. Only a broker that delays the reply for long, as for a queue without a
    leader, is not waited for.

    Returns when the broker has replied; a cancelled call leaves closing to the broker, if the request was sent.
    """
    async with contextlib.AsyncExitStack() as turn:
        try:
            async with asyncio.timeout(_TURN):
                await turn.enter_async_context(channel.lock)
        except ChannelInvalidStateError:
            return
        except TimeoutError:
            pass
        if channel.connection.channels.get(channel.number) is not channel:
            return  # the broker closed it, and another channel may have the number by now
        if not getattr(channel, "close_sent", False):
            channel.close_sent = True  # type: ignore[attr-defined]
            close = commands.Channel.Close(reply_code=_SUCCESS, reply_text="", class_id=0, method_id=0)
            await channel.write_queue.put(ChannelFrame.marshall(channel.number, [close]))
        with contextlib.suppress(Exception):  # by which the driver reports the close
            await channel.closing


def connection_context() -> Context:
    """Create the context for a task that works on a connection of ours: the present one, marked."""
    context = copy_context()
    context.run(_ours.set, True)
    return context


class _OursAreForDebugging(logging.Filter):
    """Demotes a logger's records about our connections; on the logger itself, as it must act before any handler."""

    def __init__(self, logger: logging.Logger, up_to: int) -> None:
        super().__init__()
        self._logger = logger
        self._up_to = up_to

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > self._up_to or not _ours.get():
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return self._logger.isEnabledFor(logging.DEBUG)


# Without any handler Python would write what is left to stderr.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
for _name, _level in _DEMOTED.items():
    _logger = logging.getLogger(_name)
    _logger.addFilter(_OursAreForDebugging(_logger, _level))

"""Around the driver: its connection, methods with names that it refuses, how a channel is closed, and what it logs.

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
import ssl
from collections.abc import Coroutine, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeVar, cast

import aio_pika
import aiormq
from aio_pika.abc import UnderlayConnection
from aio_pika.tools import OneShotCallback
from aiormq.abc import ChannelFrame, ConsumerCallback, DeliveredMessage, ExceptionType
from aiormq.channel import Channel
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import commands
from pamqp.base import Frame
from pamqp.common import FieldTable
from yarl import URL

from pairmq.transport import start_task
from pairmq_rabbitmq._url import Node, RabbitUrl
from pairmq_rabbitmq._wire import WatchedStreams, Wire

_TURN: Final = 1.0  # s for the reply to a request in flight, ahead of a Channel.Close
_SUCCESS: Final = 200

F = TypeVar("F", bound=Frame)
T = TypeVar("T")

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


async def consume(
    channel: Channel, queue: str, tag: str, callback: ConsumerCallback, *, priority: int | None = None
) -> None:
    """As the driver's ``basic_consume``, for any name; of two consumers the one with the higher priority is served."""
    channel.consumers[tag] = callback
    arguments: FieldTable = {} if priority is None else {"x-priority": priority}
    await channel.rpc(BasicConsume(queue=queue, consumer_tag=tag, arguments=arguments))


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


class _Each:
    """Stands where the driver keeps the future of one answer to `basic.get`, and takes as many as were requested."""

    def __init__(self, channel: Channel, count: int, taken: asyncio.Future[list[DeliveredMessage]]) -> None:
        self._channel = channel
        self._count = count
        self._taken = taken
        self._messages: list[DeliveredMessage] = []

    def done(self) -> bool:
        return self._taken.done()

    def set_result(self, answer: tuple[Any, DeliveredMessage]) -> None:
        if self._messages:
            self.forget()
        self._messages.append(answer[1])
        if len(self._messages) == self._count:
            self._taken.set_result(self._messages)

    def forget(self) -> None:
        """Drop an answer where the driver puts each one afterwards: when ten are there, it reads no further."""
        self._channel.rpc_frames.get_nowait()


async def get_and_release(channel: Channel, queue: str, count: int) -> list[DeliveredMessage]:
    """Fetch so many messages and release them, in one round trip, on a channel that nothing else is locked on.

    All is written at once: other consumers miss the messages for as long as the broker takes for it, however far away
    it is. They are released in their places by a classic queue, and by a quorum queue with a delivery limit.
    """
    methods = [*(BasicGet(queue=queue) for _ in range(count)), commands.Basic.Nack(multiple=True)]
    taken = channel.create_future()  # it ends with the channel, which the broker closes to refuse
    each = _Each(channel, count, taken)
    channel.getter = cast("Any", each)
    try:
        async with channel.lock:
            await channel.write_queue.put(ChannelFrame.marshall(channel.number, methods))
            messages: list[DeliveredMessage] = await taken
            each.forget()
    finally:
        taken.cancel()
        channel.getter = None
    return [message for message in messages if isinstance(message.delivery, commands.Basic.GetOk)]


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


def next_closed(driver: Any) -> asyncio.Future[Any] | None:
    """The end of a channel that the broker was asked to close, and for which it has not replied; None without one."""
    sent = (channel for channel in driver.channels.values() if getattr(channel, "close_sent", False))
    return next((channel.closing for channel in sent if not channel.is_closed), None)


class DriverLoop:
    """The running loop, for the driver: it remembers the tasks that the driver starts and never waits for."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    def create_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return start_task(coroutine, loop=self._loop, keep=self.tasks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class _Driver(aiormq.Connection):
    # When this queue of frames is full, the driver drops its answer to a channel that the broker closed, and uses the
    # channel's number again, which makes the broker close the connection.
    FRAME_BUFFER_SIZE = 1000


class Underlay(UnderlayConnection):
    async def close(self, exc: ExceptionType | None) -> None:
        """As aio-pika's, which when it is cancelled waits for what then may never come, and holds up the loop's end."""
        if not self.close_callback.finished.is_set():
            await self.connection.close(exc)
            await self.close_callback.wait()


class Connection(aio_pika.Connection):
    """aio-pika's plain connection, which never reconnects, over streams of ours."""

    def __init__(
        self,
        url: RabbitUrl,
        node: Node,
        tls: ssl.SSLContext | None,
        purpose: str,
        wire: Wire,
        loop: DriverLoop,
    ) -> None:
        broker = URL.build(
            scheme="amqp" if tls is None else "amqps",
            host=node[0],
            port=node[1],
            user=url.username,
            password=url.password,
            path="/",
            query={"heartbeat": str(url.heartbeat), "name": purpose},
        )
        super().__init__(broker)
        self._vhost = url.vhost
        self._streams = WatchedStreams(wire, tls)
        self._driver_loop: Any = loop

    def __del__(self) -> None:
        """Do nothing: the session ends it. What aio-pika does here needs a loop, and the collector may run anywhere."""

    async def connect(self, timeout: float | None = None) -> None:
        driver = _Driver(self.url, loop=self._driver_loop, transport_factory=self._streams)
        driver.vhost = self._vhost  # in a URL the driver would misread most characters but letters
        await driver.connect()
        on_close = OneShotCallback(self._on_connection_close)
        on_close.loop = self._driver_loop
        driver.closing.add_done_callback(on_close)
        self.transport = Underlay(connection=driver, close_callback=on_close)
        await self._on_connected()


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

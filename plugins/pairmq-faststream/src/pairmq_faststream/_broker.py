"""The RabbitBroker that has a pair, and starts without its RabbitMQ; and the middleware that publishes through a pair.

FastStream builds a chain for each publish: the scopes of the middlewares, outermost first, and at its end the
producer's method. The pair takes the place of that end, so that every middleware still sees the message, also those
that were added later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

from aio_pika import RobustConnection
from aio_pika.exceptions import (
    AMQPConnectionError,
    AuthenticationError,
    ChannelInvalidStateError,
    ProbableAuthenticationError,
    PublishError,
)
from aiormq.exceptions import ConnectionNotAllowed
from faststream import BaseMiddleware
from faststream.rabbit import RabbitBroker
from faststream.rabbit.parser import AioPikaParser
from faststream.rabbit.publisher.producer import AioPikaFastProducerImpl
from faststream.rabbit.response import RabbitPublishCommand
from yarl import URL

from pairmq import ConfigurationError, Pair, PairOptions
from pairmq_rabbitmq.paired import ConsumingConnection, OnReceipt, Publisher, pair_url

if TYPE_CHECKING:
    from faststream import ContextRepo

Next: TypeAlias = Callable[[Any], Awaitable[Any]]


_AWAY: Final = (AMQPConnectionError, OSError, ChannelInvalidStateError)
_REFUSED: Final = (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed)
_log = logging.getLogger("pairmq")


class PairMiddleware:
    """Publishes through a pair; one of a RabbitBroker's ``middlewares``.

    Args:
        pair: with the broker's RabbitMQ as its primary; open when the first message comes, and yours to close.
        on_receipt: called with the receipt of each accepted message.
        on_return_raises: raise for a message that no queue takes; else it is returned, as FastStream does. Say what the
            broker's ``default_channel`` says.
    """

    def __init__(self, pair: Pair, *, on_receipt: OnReceipt | None = None, on_return_raises: bool = False) -> None:
        self._publisher = Publisher(pair, on_receipt)
        self._on_return_raises = on_return_raises

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> _Scope:
        """Make the middleware of one message, as FastStream asks for."""
        return _Scope(msg, context=context, publish=self._publish)

    async def _publish(self, call_next: Next, command: Any) -> Any:
        if not isinstance(command, RabbitPublishCommand):
            raise ConfigurationError(
                f"a pair can't send a {type(command).__name__}: PairMiddleware is for RabbitBroker, as other brokers' "
                "messages have a form of FastStream's own"
            )
        last = _end(call_next)
        producer = getattr(last, "__self__", None)
        if not isinstance(producer, AioPikaFastProducerImpl) or last.__name__ != "publish":
            return await call_next(command)  # a request, which waits for its answer here and now, or a test's broker
        return await _with_end(call_next, partial(self._send, producer, last))(command)

    async def _send(self, producer: AioPikaFastProducerImpl, own: Next, command: RabbitPublishCommand) -> Any:
        exchange = command.exchange
        if not self._publisher.carries(exchange.name, command.destination, command.reply_to):
            return await own(command)
        message = await AioPikaParser.encode_message(
            message=command.body,
            serializer=producer.serializer,
            codec=producer.codec,
            id_generator=producer.id_generator,
            reply_to=command.reply_to,
            headers=command.headers,
            correlation_id=command.correlation_id,
            **command.message_options,
        )
        options = command.publish_options
        try:
            return await self._publisher.publish(
                message,
                command.destination,
                exchange=exchange.name,
                exchange_type=exchange.type.value,
                mandatory=options.get("mandatory", True),
                immediate=options.get("immediate", False),
                timeout=command.timeout or options.get("timeout"),
            )
        except PublishError as error:
            if self._on_return_raises:
                raise
            return error.message


class _Scope(BaseMiddleware[Any, Any]):
    """The middleware of one message."""

    __slots__ = ("_publish",)

    def __init__(self, msg: Any, /, *, context: ContextRepo, publish: Callable[[Next, Any], Awaitable[Any]]) -> None:
        super().__init__(msg, context=context)
        self._publish = publish

    async def publish_scope(self, call_next: Next, cmd: Any) -> Any:
        """Send through the pair; FastStream calls it for each publish."""
        return await self._publish(call_next, cmd)


def _end(chain: Any) -> Any:
    """The producer's method at the end of a chain of middlewares."""
    while isinstance(chain, partial) and chain.args:
        chain = chain.args[0]
    return chain


def _with_end(chain: Any, end: Next) -> Next:
    """The same chain with another end."""
    if not isinstance(chain, partial) or not chain.args:
        return end
    return partial(chain.func, _with_end(chain.args[0], end), *chain.args[1:], **chain.keywords)


class PairedRabbitBroker(RabbitBroker):
    """``faststream.rabbit.RabbitBroker`` that publishes to its RabbitMQ, or to a backlog while that is unavailable.

    The pair opens with the broker's start and closes with its stop. Without RabbitMQ the broker starts all the same:
    what is published waits in the backlog, and subscribers begin when RabbitMQ is back.

    Args:
        url: as for ``RabbitBroker``; also the pair's primary.
        secondary: the URL of any broker that PairMQ has a transport for; else ``PAIRMQ_SECONDARY``.
        options: how the pair behaves; else from ``PAIRMQ_*`` variables, with `PairOptions`' defaults.
        make_pair: makes the pair instead of these two, each time that the broker starts.
        on_receipt: called with the receipt of each accepted message.
        start_timeout: seconds that a start waits for RabbitMQ before it goes on in the background.
        middlewares: as for ``RabbitBroker``.
        kwargs: as for ``RabbitBroker``.
    """

    def __init__(
        self,
        url: str | URL | None = "amqp://guest:guest@localhost:5672/",
        *,
        secondary: str | None = None,
        options: PairOptions | None = None,
        make_pair: Callable[[], Pair] | None = None,
        on_receipt: OnReceipt | None = None,
        start_timeout: float = 5.0,
        middlewares: Iterable[Any] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(url, middlewares=(*middlewares, self._scope), **kwargs)
        self._connection_kwargs["connection_class"] = self._hold
        self._held: RobustConnection | None = None
        self._make_pair = make_pair or self._connected_pair
        self._secondary = secondary
        self._pair_options = options
        self._on_receipt = on_receipt
        self._start_timeout = start_timeout
        channel = kwargs.get("default_channel")
        self._on_return_raises = bool(channel is not None and channel.on_return_raises)
        self._pair: Pair | None = None
        self._middleware: PairMiddleware | None = None
        self._starting: asyncio.Task[None] | None = None

    @property
    def pair(self) -> Pair:
        """The pair that publishes, with its states and events.

        Raises:
            ConfigurationError: the broker is not started.
        """
        if self._pair is None:
            raise ConfigurationError("the broker is not started: its pair opens with it")
        return self._pair

    async def start(self) -> None:
        """Open the pair, connect, and start the subscribers; without RabbitMQ the latter two follow by themselves.

        Raises:
            ConfigurationError: the pair can't work.
            TransportError: the secondary refuses to let the backlog queues be made.
            AMQPError: RabbitMQ responds and refuses something.

        A start that fails or is cancelled leaves nothing open.
        """
        await self._begin(super().start)

    async def __aenter__(self) -> Self:
        await self._begin(super().connect)
        return self

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Stop the subscribers, disconnect, and close the pair.

        It waits for a RabbitMQ that does not respond no longer than ``graceful_timeout`` and ``start_timeout``
        together.

        Args:
            exc_type: as FastStream's.
            exc_val: as FastStream's.
            exc_tb: as FastStream's.
        """
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait((starting,))
        try:
            await self._stopped(super().stop(exc_type, exc_val, exc_tb))
        finally:
            # FastStream stops a broker whose start goes on, and cancels that start only then, at each of its awaits:
            # it could close nothing any more, and a connection that is not closed keeps the program alive.
            await self._let_go()
            pair, self._pair, self._middleware = self._pair, None, None
            if pair is not None:
                await pair.close()

    async def _stopped(self, stopping: Coroutine[Any, Any, None]) -> None:
        """Let FastStream stop: it asks RabbitMQ to end each consumer, and waits as long as the connection lives."""
        task = asyncio.create_task(stopping, name="broker stop")
        task.add_done_callback(lambda _: task.cancelled() or task.exception())  # of one that is given up: seen
        patience = (cast(Any, self.config).graceful_timeout or 0.0) + self._start_timeout
        try:
            await asyncio.wait((task,), timeout=patience)
            if task.done():
                task.result()
            else:
                _log.warning("RabbitMQ does not respond: the broker stops without it")
                await self._let_go()
        finally:
            task.cancel()
            await asyncio.wait((task,), timeout=self._start_timeout)

    def _scope(self, msg: Any, /, *, context: Any) -> Any:
        """The middleware of one message: the pair's, once there is one."""
        if self._middleware is None:
            # Not started, or a test's broker: whatever FastStream says to that.
            return BaseMiddleware(msg, context=context)
        return self._middleware(msg, context=context)

    def _hold(self, *args: Any, **kwargs: Any) -> RobustConnection:
        """Make aio-pika's connection and hold it: one whose maker gave up goes on connecting until it is closed."""
        self._held = ConsumingConnection(*args, pair=self.pair, **kwargs)
        return self._held

    def _connected_pair(self) -> Pair:
        given = self._connection_kwargs
        primary = pair_url(URL(given["url"]), given.get("ssl_context"))
        return Pair.connect(primary, self._secondary, options=self._pair_options)

    async def _begin(self, step: Callable[[], Awaitable[Any]]) -> None:
        if self._starting is not None:
            return
        try:
            await self._open_pair()
            try:
                await self._attempt(step)
            except _REFUSED:
                raise
            except _AWAY as error:
                _log.warning("RabbitMQ is unavailable at the start, so that subscribers begin later: %s", _words(error))
                self._starting = asyncio.create_task(self._keep_trying(step), name="paired broker start")
        except BaseException:
            await self.stop()
            raise

    async def _open_pair(self) -> None:
        if self._pair is None:
            self._pair = self._make_pair()
            self._middleware = PairMiddleware(
                self._pair, on_receipt=self._on_receipt, on_return_raises=self._on_return_raises
            )
        await self._pair.open()
        # FastStream does this when it has connected, and messages have to be encoded before that.
        config = cast(Any, self.config)
        config.producer.connect(serializer=config.fd_config._serializer, codec=config.broker_codec)

    async def _attempt(self, step: Callable[[], Awaitable[Any]]) -> None:
        try:
            async with asyncio.timeout(self._start_timeout):
                await step()
        except BaseException:
            # Half of the subscribers may have begun: all of them begin again.
            with contextlib.suppress(Exception):
                await super().stop()
            await self._let_go()
            raise

    async def _let_go(self) -> None:
        """Close the connection that was made last, also one that nothing else refers to yet."""
        held, self._held = self._held, None
        if held is not None:
            with contextlib.suppress(Exception):
                await held.close()

    async def _keep_trying(self, step: Callable[[], Awaitable[Any]]) -> None:
        pause = float(self._connection_kwargs.get("reconnect_interval") or 5.0)
        while True:
            await asyncio.sleep(pause)
            try:
                await self._attempt(step)
            except Exception as error:
                _log.warning("the broker can't start yet: %s", _words(error))
            else:
                _log.warning("RabbitMQ is reachable: the broker has started")
                return


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__

"""The middleware that sends what a RabbitBroker publishes through a pair.

FastStream builds a chain for each publish: the scopes of the middlewares, outermost first, and at its end the
producer's method. The pair takes the place of that end, so that every middleware still sees the message, also those
that were added later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from aio_pika.exceptions import PublishError
from faststream import BaseMiddleware
from faststream.rabbit.parser import AioPikaParser
from faststream.rabbit.publisher.producer import AioPikaFastProducerImpl
from faststream.rabbit.response import RabbitPublishCommand

from pairmq import ConfigurationError, Pair
from pairmq_rabbitmq.paired import OnReceipt, Publisher

if TYPE_CHECKING:
    from faststream import ContextRepo

Next: TypeAlias = Callable[[Any], Awaitable[Any]]


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

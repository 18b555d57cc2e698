"""The exchange whose ``publish`` goes through a pair."""

from __future__ import annotations

from typing import Any, cast

from aio_pika import RobustExchange
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractMessage, PublishResultType
from aio_pika.exceptions import ChannelInvalidStateError, PublishError
from aio_pika.message import IncomingMessage

from pairmq import Pair
from pairmq_rabbitmq.paired._publisher import OnReceipt, Publisher


class PairedExchange(RobustExchange):
    """``aio_pika.RobustExchange`` that publishes to the primary, or to the backlog while that is away.

    Made by a `PairedChannel`, or by `paired_exchange`. Declaring, binding and deleting are aio-pika's own.

    Args:
        channel: aio-pika's; a `PairedChannel` brings the publisher with it.
        name: the exchange's name, empty for the default one.
        publisher: publishes, where the channel brings none.
        options: as for ``aio_pika.RobustExchange``.
    """

    def __init__(
        self, channel: AbstractChannel, name: str, *args: Any, publisher: Publisher | None = None, **options: Any
    ) -> None:
        super().__init__(channel, name, *args, **options)
        self._publisher: Publisher = publisher or cast(Any, channel).publisher

    async def publish(  # type: ignore[override]  # aio-pika has overloads, which say no more than this
        self,
        message: AbstractMessage,
        routing_key: str,
        *,
        mandatory: bool = True,
        immediate: bool = False,
        timeout: float | None = None,
    ) -> PublishResultType | None:
        """Publish one message, and return once a broker has confirmed it.

        Args:
            message: aio-pika's.
            routing_key: as aio-pika's.
            mandatory: whether a message that no queue takes is returned; else it is dropped.
            immediate: RabbitMQ knows it no more.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Returns:
            A `Confirmation`, None on a channel without publisher confirms (it was confirmed all the same), or the
            returned message, after the channel's return callbacks.

        Raises:
            ValueError: a pair can't carry it, or the exchange is internal; nothing was sent.
            PublishError: no queue of the primary takes it, and the channel has ``on_return_raises``.
            NotDeliveredError: neither broker took it in time.
            PublishOutcomeUnknownError: perhaps accepted, perhaps not.
            AMQPChannelError: the primary refuses it; the subclasses say why.
            ChannelInvalidStateError: the channel, or the pair, is closed.
            MethodNotImplemented: ``immediate``.

        A cancelled publish's outcome is unknown.
        """
        if self.internal:
            raise ValueError(f"Can not publish to internal exchange: '{self.name}'!")
        if not self._publisher.carries(self.name, routing_key, message.reply_to):
            return await super().publish(
                message, routing_key, mandatory=mandatory, immediate=immediate, timeout=timeout
            )
        channel = cast(Any, self.channel)
        if getattr(channel, "_close_called", False):  # `is_closed` is also true of one that waits for the primary
            raise ChannelInvalidStateError(f"{channel!r} closed")
        try:
            confirmation = await self._publisher.publish(
                message,
                routing_key,
                exchange=self.name,
                exchange_type=self._type,
                mandatory=mandatory,
                immediate=immediate,
                timeout=timeout,
            )
        except PublishError as error:
            if channel.on_return_raises or error.message is None:
                raise
            channel.return_callbacks(IncomingMessage(error.message, no_ack=True))
            return error.message
        return confirmation if channel.publisher_confirms else None


def paired_exchange(exchange: AbstractExchange, pair: Pair, *, on_receipt: OnReceipt | None = None) -> PairedExchange:
    """Make an exchange that publishes through a pair of one of aio-pika's.

    Args:
        exchange: any, on any channel; it is left as it is.
        pair: open, with this RabbitMQ as its primary.
        on_receipt: called with the receipt of each accepted message.

    Returns:
        The same exchange on the same channel.
    """
    known = cast(Any, exchange)
    return PairedExchange(
        known.channel,
        known.name,
        known._type,
        auto_delete=known.auto_delete,
        durable=known.durable,
        internal=known.internal,
        passive=known.passive,
        arguments=known.arguments,
        publisher=Publisher(pair, on_receipt),
    )

"""What publishing by a pair is, whoever asks for it: the drop-in's exchanges, or the middleware of a framework."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from aio_pika.abc import AbstractMessage
from aio_pika.exceptions import ChannelNotFoundEntity, MethodNotImplemented, PublishError
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from pairmq import Entity, EntityKind, EntityNotFound, Pair, PairMQError, PairSender, Receipt
from pairmq_rabbitmq._names import is_system_name
from pairmq_rabbitmq.paired._convert import convert
from pairmq_rabbitmq.paired._errors import as_client_error

OnReceipt: TypeAlias = Callable[[Receipt], None]

_MOST_SENDERS: Final = 1000
_NO_ROUTE: Final = 312
_MADE_UP: Final = re.compile("amq_[0-9a-f]{32}")
"""The names that aio-pika's robust channel gives to queues that are declared without one."""


class Confirmation(Basic.Ack):
    """The broker's confirmation as aio-pika returns it, with the pair's receipt.

    Args:
        receipt: where the message went; None for one that was dropped because nothing takes it and ``mandatory`` is
            off.
    """

    # pamqp goes by __slots__ when it writes a frame, so that this class has none of its own.

    def __init__(self, receipt: Receipt | None) -> None:
        super().__init__()
        self.receipt = receipt


class Publisher:
    """Publishes aio-pika's messages through a pair. Any number of tasks may share one.

    Args:
        pair: its primary is RabbitMQ; open when the first message comes.
        on_receipt: called with the receipt of each accepted message.
    """

    def __init__(self, pair: Pair, on_receipt: OnReceipt | None = None) -> None:
        self.pair = pair
        self._on_receipt = on_receipt
        self._senders: OrderedDict[Entity, PairSender] = OrderedDict()

    @staticmethod
    def carries(exchange: str, routing_key: str, reply_to: str | None = None) -> bool:
        """Whether the pair is for such messages; the others are aio-pika's.

        The names that belong to the broker (``amq.…``, among them direct replies and queues with made-up names), and
        those that aio-pika makes up (``amq_…``), live and die with the primary's connections. Neither a message to them
        nor a request whose answer is to go there may wait in a backlog, to be carried out when its caller has given up.

        Args:
            exchange: the name, empty for the default exchange.
            routing_key: as given to ``publish``.
            reply_to: where the answer is to go; None if the message asks for none.
        """
        name = exchange or routing_key
        return bool(name) and not any(
            is_system_name(each) or _MADE_UP.fullmatch(each) for each in (name, reply_to or "")
        )

    async def publish(
        self,
        message: AbstractMessage,
        routing_key: str,
        *,
        exchange: str = "",
        exchange_type: str | None = None,
        mandatory: bool = True,
        immediate: bool = False,
        timeout: float | None = None,
    ) -> Confirmation:
        """Publish one message, and return once a broker has confirmed it.

        Args:
            message: aio-pika's.
            routing_key: the queue's name where the exchange is the default one.
            exchange: the name, empty for the default exchange.
            exchange_type: ``topic``, ``fanout`` and so on; None if it is not known.
            mandatory: raise if no queue of the primary takes it; else it is dropped, as RabbitMQ does.
            immediate: RabbitMQ knows it no more.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Returns:
            The confirmation, with the receipt.

        Raises:
            ValueError: a pair can't carry it, or have such a name; nothing was sent.
            PublishError: no queue of the primary takes it.
            AMQPError: not accepted, or perhaps not; the subclasses say why, and the pair's error is the cause.
            ChannelInvalidStateError: the pair is closed.

        A cancelled publish's outcome is unknown.
        """
        if immediate:
            raise MethodNotImplemented("immediate=True: RabbitMQ closes the connection over it since 3.0")
        made = convert(message, exchange=exchange, exchange_type=exchange_type, routing_key=routing_key)
        entity = Entity(exchange, EntityKind.TOPIC) if exchange else Entity(routing_key)
        try:
            receipt = await (await self._sender(entity)).send(made, timeout=timeout)
        except EntityNotFound as error:
            if _no_exchange(error):
                raise as_client_error(error) from error
            if not mandatory:
                return Confirmation(None)
            raise _returned(message, exchange, routing_key) from error
        except PairMQError as error:
            if isinstance(error, ValueError):  # a setting, or a name that no entity can have
                raise
            raise as_client_error(error) from error
        if self._on_receipt is not None:
            self._on_receipt(receipt)
        return Confirmation(receipt)

    async def _sender(self, entity: Entity) -> PairSender:
        sender = self._senders.get(entity)
        if sender is None:
            sender = self._senders[entity] = self.pair.sender(entity.path, kind=entity.kind.value)
            if len(self._senders) > _MOST_SENDERS:
                _, oldest = self._senders.popitem(last=False)
                await oldest.close()
        else:
            self._senders.move_to_end(entity)
        return sender


def _no_exchange(error: EntityNotFound) -> bool:
    """Whether the exchange itself is missing, over which RabbitMQ closes a channel, and not a queue behind it."""
    return any(isinstance(cause.__cause__, ChannelNotFoundEntity) for cause in error.causes)


def _returned(message: AbstractMessage, exchange: str, routing_key: str) -> PublishError:
    """The error that aio-pika makes of what the broker returns."""
    frame = Basic.Return(reply_code=_NO_ROUTE, reply_text="NO_ROUTE", exchange=exchange, routing_key=routing_key)
    header = ContentHeader(properties=message.properties, body_size=len(message.body))
    # There is no channel that it came back on: nobody can settle a returned message.
    return PublishError(DeliveredMessage(frame, header, message.body, cast(Any, None)), frame)

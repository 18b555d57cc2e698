"""Publishing through a pair, for the drop-in's exchanges or the middleware of a framework.

The properties are read as if they had been received, so that a consumer gets the same from the pair as from aio-pika.
Messages for which that is impossible are refused here, before anything is sent. PairMQ's errors are converted to those
that aio-pika raises, so that existing except clauses keep their meaning.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

from aio_pika.abc import AbstractMessage, ExchangeType
from aio_pika.exceptions import (
    AMQPChannelError,
    AMQPConnectionError,
    AMQPError,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    MethodNotImplemented,
    PublishError,
)
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelAccessRefused
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from pairmq import (
    BacklogUnavailable,
    Entity,
    EntityKind,
    EntityNotFound,
    MessageTooLarge,
    Pair,
    PairClosed,
    PairFaulted,
    PairMQError,
    PairSender,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    SendUnknown,
    Unauthorized,
)
from pairmq.model import Message
from pairmq_rabbitmq import _codec
from pairmq_rabbitmq._names import is_system_name

OnReceipt: TypeAlias = Callable[[Receipt], None]

_MOST_SENDERS: Final = 1000
_NO_ROUTE: Final = 312
_MADE_UP: Final = re.compile("amq_[0-9a-f]{32}")
"""The names that aio-pika's robust channel gives to queues that are declared without one."""

_COPIES: Final = frozenset(("CC", "BCC"))
_KEYLESS: Final = frozenset((ExchangeType.FANOUT.value, ExchangeType.HEADERS.value))
"""Types of exchanges that do not look at the routing key."""


class Confirmation(Basic.Ack):
    """The broker's confirmation as aio-pika returns it, with the pair's receipt; None for a message that was dropped
    because nothing takes it and ``mandatory`` is off."""

    # pamqp reads __slots__ when it writes a frame, so this class has none of its own.

    def __init__(self, receipt: Receipt | None) -> None:
        super().__init__()
        self.receipt = receipt


class Publisher:
    """Publishes aio-pika's messages through a pair. Any number of tasks may share one.

    Args:
        pair: its primary is RabbitMQ; open when the first message is published.
        on_receipt: called with the receipt of each accepted message.
    """

    def __init__(self, pair: Pair, on_receipt: OnReceipt | None = None) -> None:
        self.pair = pair
        self._on_receipt = on_receipt
        self._senders: OrderedDict[Entity, PairSender] = OrderedDict()

    @staticmethod
    def carries(exchange: str, routing_key: str, reply_to: str | None = None) -> bool:
        """Whether the pair handles such messages; the others are aio-pika's.

        The broker's own names (``amq.…``, among them direct replies and queues with generated names), and those that
        aio-pika generates (``amq_…``), live and die with the primary's connections. Neither a message to them nor a
        request whose answer is to go there may wait in a backlog, to be handled when its caller has given up.
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
        """Publish one message, and return once a broker has confirmed it; else as `PairedExchange.publish`.

        Args:
            exchange: the name, empty for the default exchange, where the routing key is the queue's name.
            exchange_type: ``topic``, ``fanout`` and so on; None if it is not known.
            mandatory: raise if no queue of the primary takes it; else it is dropped, as RabbitMQ does.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Raises:
            AMQPError: not accepted, or perhaps not; the subclasses say why, and the pair's error is the cause.
        """
        if immediate:
            raise MethodNotImplemented("immediate=True: RabbitMQ closes the connection because of it since 3.0")
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
            if isinstance(error, ValueError):  # an invalid setting or entity name
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
    """Whether the exchange itself is missing, for which RabbitMQ closes a channel, and not a queue behind it."""
    return any(isinstance(cause.__cause__, ChannelNotFoundEntity) for cause in error.causes)


def _returned(message: AbstractMessage, exchange: str, routing_key: str) -> PublishError:
    """The error that aio-pika makes of a message that the broker returned."""
    frame = Basic.Return(reply_code=_NO_ROUTE, reply_text="NO_ROUTE", exchange=exchange, routing_key=routing_key)
    header = ContentHeader(properties=message.properties, body_size=len(message.body))
    # There is no channel that it was returned on: nothing can settle a returned message.
    return PublishError(DeliveredMessage(frame, header, message.body, cast(Any, None)), frame)


def convert(message: AbstractMessage, *, exchange: str, exchange_type: str | None, routing_key: str) -> Message:
    """Make the message that the pair sends to where aio-pika would have published it; one to an exchange has the
    routing key as its subject. Raises `ValueError`, which names what a pair can't carry."""
    headers = dict(message.headers or {})
    for name in _COPIES & headers.keys():
        raise ValueError(f"the header {name} sends copies elsewhere, which a pair can't follow: publish once for each")
    try:
        properties = message.properties
        properties.headers = {name: _value(value) for name, value in headers.items()} or None
        if properties.timestamp is not None:
            properties.timestamp = _value(properties.timestamp)
        if exchange:
            properties.message_type = _subject(properties.message_type, exchange_type, routing_key)
        return _codec.decode(properties, message.body)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"a pair can't carry this message: {error}") from error


def _subject(message_type: str | None, exchange_type: str | None, routing_key: str) -> str | None:
    """The one text for both: a topic's messages are routed by their subject, which is AMQP's ``type``."""
    if message_type is None or message_type == routing_key:
        return routing_key or None
    if not routing_key and exchange_type in _KEYLESS:
        return message_type
    raise ValueError(
        f"its type {message_type!r} is not its routing key {routing_key!r}, and to an exchange the pair sends one text "
        "for both: leave the type out, or use a header"
    )


def _value(value: Any) -> Any:
    """A header's value as it is in AMQP 0-9-1: instants in whole seconds, in UTC."""
    if isinstance(value, datetime):
        return (
            value.astimezone(UTC).replace(microsecond=0) if value.tzinfo else value.replace(microsecond=0, tzinfo=UTC)
        )
    if isinstance(value, dict):
        return {name: _value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inner) for inner in value]
    return value


class NotDeliveredError(AMQPConnectionError, TimeoutError):
    """Neither broker took the message in time; certainly nothing holds it.

    It is both aio-pika's error of a lost connection and asyncio's of an expired ``timeout``, since it may be either.
    """


class PublishOutcomeUnknownError(AMQPConnectionError, TimeoutError):
    """The message may have been accepted, or not: a confirmation was lost, and nothing else took it.

    Publish it again under the same ``message_id`` if a second copy is harmless.
    """


class ReservedHeaderError(AMQPError, ValueError):
    """The message has a header of a name that a pair needs for itself (``x-ms-path`` and the like)."""


_CLASSES: Final[tuple[tuple[type[PairMQError], type[Exception]], ...]] = (
    (SendUnknown, PublishOutcomeUnknownError),
    (MessageTooLarge, ChannelPreconditionFailed),
    (EntityNotFound, ChannelNotFoundEntity),
    (Unauthorized, ChannelAccessRefused),
    (ReservedPropertyError, ReservedHeaderError),
    (BacklogUnavailable, NotDeliveredError),
    (PrimaryUnavailable, NotDeliveredError),
    (PairClosed, ChannelInvalidStateError),
    (PairFaulted, ChannelInvalidStateError),
)


def as_client_error(error: PairMQError) -> Exception:
    """Convert PairMQ's error to one that users of aio-pika catch, with it as ``__cause__``; closes nothing."""
    kind = next((chosen for kind, chosen in _CLASSES if isinstance(error, kind)), AMQPChannelError)
    made = kind(str(error))
    made.__cause__ = error
    return made

"""Messages of azure-servicebus as PairMQ carries them; what can't be carried unchanged is refused before it is sent.

The rules are the client's own, so that a consumer gets what it got before: bytes among the application properties are
text, instants have milliseconds, an instant without a time zone is UTC. What Service Bus writes itself into a received
message (sequence number, lock, delivery count) is left out when that message is sent on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from pairmq import Message
from pairmq_servicebus import _codec
from pairmq_servicebus._values import FIELDS

SingleMessage: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
"""What the client takes as one message."""

_PARTITION_KEY: Final = "x-opt-partition-key"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
_OF_THE_SERVICE: Final = frozenset(
    (
        _SEQUENCE_NUMBER,
        "x-opt-deadletter-source",
        "x-opt-enqueue-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-lock-token",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-partition-id",
    )
)
"""Annotations that only the service writes; it ignores them on what is sent to it."""

_UNLIMITED: Final = 10_675_199 * 86_400_000  # ms: .NET's longest time span, by which Service Bus says *unlimited*
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_DEFAULT_SIZE: Final = 256 * 1024
_MOST: Final = 1024 * 1024


def convert(message: SingleMessage) -> Message:
    """Make PairMQ's message of one that azure-servicebus takes, received ones included; with an id only if it has one.

    Raises `TypeError` or `ValueError`, which name the field that a pair can't carry.
    """
    raw = _raw(message)
    annotations = {_text("a message annotation's name", key): value for key, value in (raw.annotations or {}).items()}
    received = isinstance(message, ServiceBusReceivedMessage) or _SEQUENCE_NUMBER in annotations
    application = raw.application_properties or {}
    if received and any(_name(key) == FIELDS for key in application):
        # This package wrote it: the property says what the client's own view of the message has lost.
        return _codec.decode(raw).message
    if not received:
        _refuse_sections(raw)
    properties = raw.properties or AmqpMessageProperties()
    header = raw.header or AmqpMessageHeader()
    if not received:
        _refuse_fields(header, properties)
    return Message(
        _body(raw),
        message_id=_text_or_none("message_id", properties.message_id),
        session_id=_text_or_none("session_id", properties.group_id),
        time_to_live=_time_to_live(header, None if received else properties),
        scheduled_enqueue_at=_scheduled(annotations.get(_SCHEDULED)),
        content_type=_text_or_none("content_type", properties.content_type),
        content_encoding=_text_or_none("content_encoding", properties.content_encoding),
        correlation_id=_text_or_none("correlation_id", properties.correlation_id),
        subject=_text_or_none("subject", properties.subject),
        to=_text_or_none("to", properties.to),
        reply_to=_text_or_none("reply_to", properties.reply_to),
        reply_to_session_id=_text_or_none("reply_to_session_id", properties.reply_to_group_id),
        partition_key=_text_or_none("partition_key", _only_known(annotations).get(_PARTITION_KEY)),
        priority=None if received else header.priority,
        application_properties=_application_properties(application),
    )


def convert_all(messages: Iterable[SingleMessage]) -> list[Message]:
    """Make PairMQ's messages of several, all or none; an error begins with the message's place, counted from 0."""
    converted = []
    for index, message in enumerate(messages):
        try:
            converted.append(convert(message))
        except TypeError as error:
            raise TypeError(f"message {index}: {error}") from error
        except ValueError as error:
            raise ValueError(f"message {index}: {error}") from error
    return converted


def is_one(message: object) -> bool:
    return isinstance(message, Mapping) or not isinstance(message, Iterable)


def _raw(message: SingleMessage) -> AmqpAnnotatedMessage:
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message).raw_amqp_message
    # By the attribute, as the client does: an event of azure-eventhub has it too.
    raw = getattr(message, "raw_amqp_message", None)
    if not isinstance(raw, AmqpAnnotatedMessage):
        raise TypeError(
            f"a {type(message).__name__} can't be sent: give a ServiceBusMessage, an AmqpAnnotatedMessage, or a mapping"
        )
    return raw


# What is refused.


def _refuse_sections(raw: AmqpAnnotatedMessage) -> None:
    for name, section in (("footer", raw.footer), ("delivery annotations", raw.delivery_annotations)):
        if section:
            raise ValueError(f"the message has AMQP's {name}, which a pair can't carry: use application properties")


def _refuse_fields(header: AmqpMessageHeader, properties: AmqpMessageProperties) -> None:
    for name, value in (
        ("user_id", properties.user_id),
        ("group_sequence", properties.group_sequence),
        ("header.delivery_count", header.delivery_count),
        ("header.first_acquirer", header.first_acquirer),
    ):
        if value is not None:
            raise ValueError(f"the message has {name}, which a pair can't carry: leave it out")
    if header.durable is False:
        raise ValueError("the message has header.durable=False: a pair sends durable messages only")


def _only_known(annotations: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in annotations:
        if name not in (_PARTITION_KEY, _SCHEDULED) and name not in _OF_THE_SERVICE:
            raise ValueError(f"the message has the annotation {name!r}, which a pair can't carry: leave it out")
    return annotations


# Single fields.


def _body(raw: AmqpAnnotatedMessage) -> bytes:
    if raw.body_type is not AmqpMessageBodyType.DATA:
        kind = "a sequence" if raw.body_type is AmqpMessageBodyType.SEQUENCE else "an AMQP value"
        also = ", and None is one too: give b'' for an empty body" if raw.body is None else ": give bytes or a string"
        raise TypeError(f"the body is {kind}, which a pair can't carry{also}")
    parts = list(raw.body)
    if len(parts) != 1:
        raise ValueError(f"the body has {len(parts)} data sections: a pair carries exactly one, so join them")
    part = parts[0]
    if not isinstance(part, bytes | bytearray | memoryview):
        raise TypeError(f"the body is a {type(part).__name__}: give bytes or a string")
    return bytes(part)


def _time_to_live(header: AmqpMessageHeader, properties: AmqpMessageProperties | None) -> float | None:
    milliseconds = header.time_to_live
    if milliseconds is None:
        # With a time-to-live the client makes both instants of it; alone they are the user's own.
        if properties is not None and (properties.absolute_expiry_time or properties.creation_time):
            raise ValueError(
                "the message has absolute_expiry_time or creation_time without a time_to_live, which a pair can't "
                "carry: give the time_to_live"
            )
        return None
    if isinstance(milliseconds, bool) or not isinstance(milliseconds, int):
        raise TypeError(f"header.time_to_live is a {type(milliseconds).__name__}: give milliseconds as an int")
    if milliseconds <= 0:
        raise ValueError("time_to_live is below 1 s, which the client cuts to 0: give at least 1 s, or leave it out")
    return None if milliseconds >= _UNLIMITED else milliseconds / 1000


def _scheduled(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, datetime):
        return _cut(value)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            raise ValueError("scheduled_enqueue_time_utc lies outside the years 1 to 9999") from None
    raise TypeError(f"scheduled_enqueue_time_utc is a {type(value).__name__}: give a datetime")


def _cut(value: datetime) -> datetime:
    """An instant as AMQP carries it: in UTC, to the millisecond below; one without a zone is taken for UTC."""
    known = value.replace(tzinfo=UTC) if value.tzinfo is None or value.utcoffset() is None else value
    return known.replace(microsecond=known.microsecond // 1000 * 1000)


def _application_properties(given: Mapping[Any, Any]) -> dict[str, Any]:
    return {(name := _text("an application property's name", key)): _value(name, value) for key, value in given.items()}


def _value(name: str, value: Any) -> Any:
    # Subclasses (an IntEnum, a StrEnum) are encoded as what they are made of.
    if value is None or isinstance(value, bool | UUID):
        return value
    if isinstance(value, bytes):
        return _text(f"application property {name!r}", value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return _cut(value)
    raise TypeError(
        f"application property {name!r} is a {type(value).__name__}, which a pair can't carry: give str, int, float, "
        "bool, UUID, datetime or None"
    )


def _name(key: Any) -> Any:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else key


def _text_or_none(what: str, value: Any) -> str | None:
    return None if value is None else _text(what, value)


def _text(what: str, value: Any) -> str:
    if isinstance(value, bytes):
        # What the client has received it gives as bytes.
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{what} is bytes that are no UTF-8: a pair carries text there") from None
    if not isinstance(value, str):
        raise TypeError(f"{what} is a {type(value).__name__}, which a pair can't carry: give a string")
    return str.__str__(value)


class PairedMessageBatch(ServiceBusMessageBatch):
    """A `ServiceBusMessageBatch` of a paired sender; made by its ``create_message_batch``.

    A message is taken as it is when it is added: what is changed in it later does not count, as with the client's own.
    """

    def __init__(self, max_size_in_bytes: int) -> None:
        super().__init__(max_size_in_bytes)
        self._converted: list[Message] = []

    def add_message(self, message: SingleMessage) -> None:
        """Add one message.

        Args:
            message: as ``send_messages`` takes it.

        Raises:
            MessageSizeExceededError: the batch is full; the message is not in it.
            TypeError, ValueError: a pair can't carry the message; the text names the field.
        """
        converted = convert(message)
        super().add_message(message)
        self._converted.append(converted)

    @property
    def converted(self) -> tuple[Message, ...]:
        return tuple(self._converted)


def make_batch(max_size_in_bytes: int | None) -> PairedMessageBatch:
    """Make an empty batch, without asking the service, which may be unavailable, for its limit.

    At most 1 MiB, what a premium namespace takes; 256 KiB, what every namespace takes, when left out.
    """
    if max_size_in_bytes and max_size_in_bytes > _MOST:
        raise ValueError(f"max_size_in_bytes is {max_size_in_bytes}: no namespace takes a batch of more than {_MOST}")
    return PairedMessageBatch(max_size_in_bytes or _DEFAULT_SIZE)


def messages_of(batch: ServiceBusMessageBatch) -> tuple[Message, ...]:
    """The messages of a batch; one of another client keeps only the encoded ones."""
    if not isinstance(batch, PairedMessageBatch):
        raise TypeError("this batch was made by another client: use the paired sender's own create_message_batch")
    return batch.converted

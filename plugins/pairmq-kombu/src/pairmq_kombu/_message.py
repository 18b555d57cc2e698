"""Which publishes go through the pair, to which entity, and as which message.

A message for the default exchange goes to the queue that its routing key names, which is how Celery sends a task. One
for a durable direct or topic exchange goes to that exchange, which is a topic to PairMQ, with the routing key as its
subject. All else goes to the primary only: remote control, events and replies are for those who listen now, and would
do harm if they came late.

What goes through the pair reaches its consumer as py-amqp itself would have written it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from amqp import Message as AMQPMessage

from pairmq import Entity, EntityKind, Message
from pairmq_kombu._bounded import Recent

PERSISTENT: Final = 2
"""The delivery mode of messages that outlive their broker."""

# Property of AMQP 0-9-1, field of Message.
_TEXTS = (
    ("content_type", "content_type"),
    ("content_encoding", "content_encoding"),
    ("correlation_id", "correlation_id"),
    ("reply_to", "reply_to"),
    ("message_id", "message_id"),
    ("type", "subject"),
)
_APP_ID, _TIMESTAMP = "amqp.app_id", "amqp.timestamp"
_NOT_CARRIED_PROPERTIES = ("user_id", "cluster_id")

# Field of Message, header that other clients have written it as.
_HEADERS = (
    ("to", "to"),
    ("session_id", "group-id"),
    ("reply_to_session_id", "reply-to-group-id"),
    ("partition_key", "x-opt-partition-key"),
)

# Headers that PairMQ's RabbitMQ transport does not write as they are: it gives these names to fields of its own, or
# keeps them from a broker that would act on them. Its readers get them back, but py-amqp is not one of them.
_NOT_CARRIED = frozenset(
    (
        *("BCC", "CC", "application-properties", "application-property-types", "content-encoding", "content-type"),
        *("correlation-id", "group-id", "message-id", "reply-to", "reply-to-group-id", "subject", "to", "ttl"),
        *("x-acquired-count", "x-dead-letter-description", "x-dead-letter-reason", "x-death", "x-delivery-count"),
        *("x-opt-partition-key", "x-opt-priority", "x-opt-scheduled-enqueue-time", "x-unreadable-header"),
    )
)
_NOT_CARRIED_PREFIXES = ("amqp.", "x-first-death-", "x-last-death-", "x-ms-", "x-pairmq-")
_MILLISECONDS = re.compile("[1-9][0-9]{0,9}")
_MAX_EXPIRATION_MS = 2**32 - 1

_ROUTED_TYPES = frozenset(("direct", "topic"))
_SYSTEM = ("amq.", "pairmq.")

# Workers declare them, and what publishes a task with an ETA to a quorum queue does not: `kombu.transport.
# native_delayed_delivery`. A task that is sent once more after its ETA goes to the last one of them.
_DELAYED = re.compile(r"(?:.+_)?celery_delayed_(?:delivery|[0-9]+)")


class NotCarried(ValueError):
    """A pair would not move this message back as it is; the text says what stands against it."""


def to_pairmq(message: Any, subject: str | None = None) -> Message:
    """Read an `amqp.Message` that Kombu has prepared for publishing; it is left as it is.

    Its ``type`` must be the subject, if there is one, as the routing key of an exchange travels in it. Published by
    PairMQ's RabbitMQ transport, its consumer gets the body, properties and headers that py-amqp would have written, and
    a ``message_id`` if it had none.
    """
    properties = {name: value for name, value in message.properties.items() if value is not None}
    if properties.pop("delivery_mode", None) != PERSISTENT:
        raise NotCarried("it is not persistent")
    fields: dict[str, Any] = {"body": _body(message.body, properties)}
    for name, field in _TEXTS:
        if name in properties:
            fields[field] = properties.pop(name)
    if subject is not None and fields.setdefault("subject", subject) != subject:
        raise NotCarried("its type is not its routing key")
    if "priority" in properties:
        fields["priority"] = properties.pop("priority")
    if "expiration" in properties:
        fields["time_to_live"] = _seconds(properties.pop("expiration"))
    headers = _headers(properties.pop("application_headers", None) or {})
    if "app_id" in properties:
        headers[_APP_ID] = properties.pop("app_id")
    if "timestamp" in properties:
        headers[_TIMESTAMP] = _instant(properties.pop("timestamp"))
    # Celery hands on much else when it sends a task once more; py-amqp writes what AMQP has, and leaves out the rest.
    for name in _NOT_CARRIED_PROPERTIES:
        if name in properties:
            raise NotCarried(f"it has the property {name}")
    try:
        return Message(application_properties=headers, **fields)
    except (TypeError, ValueError) as error:
        raise NotCarried(str(error)) from None


def to_amqp(message: Message, channel: Any) -> Any:
    """Write a received message as the `amqp.Message` that py-amqp would have read, but for where it was published."""
    properties: dict[str, Any] = {"delivery_mode": PERSISTENT}
    for name, field in (*_TEXTS, ("priority", "priority")):
        value = getattr(message, field)
        if value is not None:
            properties[name] = value
    headers = {name: _plain(value) for name, value in message.application_properties.items()}
    for name in ("app_id", "timestamp", *_NOT_CARRIED_PROPERTIES):
        if f"amqp.{name}" in headers:
            properties[name] = headers.pop(f"amqp.{name}")
    for field, header in _HEADERS:
        value = getattr(message, field)
        if value is not None:
            headers.setdefault(header, value)
    if message.time_to_live is not None:
        properties["expiration"] = str(round(message.time_to_live * 1000))
    return AMQPMessage(message.body, channel=channel, application_headers=headers, **properties)


def _plain(value: Any) -> Any:
    """Bring a property's value to the type that py-amqp's reader gives."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None)
    return str(value) if isinstance(value, UUID) else value


def _body(body: object, properties: dict[str, Any]) -> bytes:
    if isinstance(body, str):
        encoding = properties.setdefault("content_encoding", "utf-8")
        try:
            return body.encode(encoding)
        except (LookupError, UnicodeEncodeError) as error:
            raise NotCarried(f"its body is no {encoding}") from error
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise NotCarried(f"its body is a {type(body).__name__}")


def _seconds(expiration: object) -> float:
    if isinstance(expiration, str) and _MILLISECONDS.fullmatch(expiration):
        ms = int(expiration)
        if ms <= _MAX_EXPIRATION_MS:
            return ms / 1000
    # 0 too: such a message is for a consumer that waits, and for no backlog.
    raise NotCarried(f"it expires after {expiration!r} ms")


def _headers(headers: Mapping[Any, Any]) -> dict[str, Any]:
    for name in headers:
        if name in _NOT_CARRIED or (isinstance(name, str) and name.startswith(_NOT_CARRIED_PREFIXES)):
            raise NotCarried(f"it has the header {name!r}")
    return {name: _value(name, value) for name, value in headers.items()}


def _value(name: object, value: object) -> Any:
    """Bring a header's value to the type that py-amqp's reader gives, as PairMQ keeps bytes and strings apart."""
    if value is None or isinstance(value, bool | Decimal):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise NotCarried(f"its header {name!r} holds bytes that are no UTF-8") from None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, dict):
        return {key: _value(name, entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_value(name, entry) for entry in value]
    raise NotCarried(f"its header {name!r} holds a {type(value).__name__}")


def _instant(at: object) -> datetime:
    """Read an instant as py-amqp writes it: without a zone it is in UTC, and fractions of a second are left out."""
    if not isinstance(at, datetime):
        raise NotCarried(f"it has a timestamp that is a {type(at).__name__}")
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What this process has declared an exchange to be: ``direct``, ``topic``, ``fanout`` or another type."""

    type: str
    durable: bool


def routed(
    message: Any, exchange: str, routing_key: str, declared: Recent[str, Exchange]
) -> tuple[Entity, Message] | None:
    """Find the entity and the message for it of a publish through the pair; None for what need not outlive an outage.

    Raises `NotCarried` for what is, but a pair can't carry.
    """
    if message.properties.get("delivery_mode") != PERSISTENT:
        return None
    if str(message.properties.get("reply_to") or "").startswith("amq."):
        return None  # a request whose caller waits on this connection of the primary
    if not exchange:
        return _entity(routing_key, EntityKind.QUEUE), to_pairmq(message)
    known = declared.get(exchange) or _undeclared(exchange)
    if known is None:
        raise NotCarried(
            "this process has not declared the exchange, so that its type is not known: name a queue that is bound to "
            "it in task_queues, or declare it"
        )
    if not known.durable or known.type not in _ROUTED_TYPES:
        return None
    return _entity(exchange, EntityKind.TOPIC), to_pairmq(message, routing_key or None)


def _undeclared(name: str) -> Exchange | None:
    """What is known of an exchange that this process has not declared: Celery's own, or one in a ``task_queues``.

    Celery declares a queue that a task is sent to, and nothing for one that is sent to an exchange: its workers do.
    """
    if _DELAYED.fullmatch(name):
        return Exchange("topic", durable=True)
    celery: Any = sys.modules.get("celery._state")
    for application in list(celery._get_active_apps()) if celery is not None else ():
        if not application.configured:  # it publishes nothing, and to ask it would read its settings
            continue
        for queue in list(application.amqp.queues.values()):
            for exchange in (queue.exchange, *(binding.exchange for binding in queue.bindings)):
                if exchange is not None and exchange.name == name:
                    return Exchange(exchange.type, bool(exchange.durable) and not exchange.auto_delete)
    return None


def _entity(path: str, kind: EntityKind) -> Entity:
    if path.startswith(_SYSTEM):
        raise NotCarried("it belongs to the broker")
    try:
        return Entity(path, kind)
    except ValueError as error:
        raise NotCarried(str(error)) from None

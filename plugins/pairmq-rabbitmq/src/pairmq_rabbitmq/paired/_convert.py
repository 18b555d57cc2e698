"""aio-pika's messages as PairMQ's.

The properties are read as if they had come from the wire, so that what a consumer gets by the pair is what it would
have got from aio-pika. What that would not be true of is refused here, before anything is sent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from aio_pika.abc import AbstractMessage, ExchangeType

from pairmq.model import Message
from pairmq_rabbitmq import _codec

_COPIES: Final = frozenset(("CC", "BCC"))
_KEYLESS: Final = frozenset((ExchangeType.FANOUT.value, ExchangeType.HEADERS.value))
"""Types of exchanges that do not look at the routing key."""


def convert(message: AbstractMessage, *, exchange: str, exchange_type: str | None, routing_key: str) -> Message:
    """Make a message that the pair sends to where aio-pika would have published it.

    Args:
        message: aio-pika's.
        exchange: its name, empty for the default exchange.
        exchange_type: ``topic``, ``fanout`` and so on; None if it is not known.
        routing_key: as given to ``publish``.

    Returns:
        The message; one to an exchange has the routing key as its subject.

    Raises:
        ValueError: a pair can't carry it; the text names what.
    """
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
    """The one text that has to be both: a topic's messages are routed by their subject, which is AMQP's ``type``."""
    if message_type is None or message_type == routing_key:
        return routing_key or None
    if not routing_key and exchange_type in _KEYLESS:
        return message_type
    raise ValueError(
        f"its type {message_type!r} is not its routing key {routing_key!r}, and to an exchange the pair sends one text "
        "for both: leave the type out, or use a header"
    )


def _value(value: Any) -> Any:
    """A header's value as AMQP 0-9-1 has it: instants in whole seconds, in UTC."""
    if isinstance(value, datetime):
        return (
            value.astimezone(UTC).replace(microsecond=0) if value.tzinfo else value.replace(microsecond=0, tzinfo=UTC)
        )
    if isinstance(value, dict):
        return {name: _value(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_value(inner) for inner in value]
    return value

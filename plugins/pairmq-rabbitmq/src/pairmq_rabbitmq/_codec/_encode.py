"""A message as AMQP properties, without loss."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pairmq.model import Message, PropertyValue
from pairmq_rabbitmq._codec import _layout
from pairmq_rabbitmq._codec._values import NATIVE, pairs_to_wire, table_to_wire, to_wire
from pairmq_rabbitmq._header import Properties, is_timestamp

# Bytes around the properties in a content header frame: frame header and end octet, class, weight, body size.
_FRAME_BYTES = 8 + 12


def encode(message: Message, *, login: str, delayed: bool = False, priority_aside: bool = False) -> Properties:
    """Write a message's properties, to be sent as they are: a field-by-field copy may lose digits and names.

    RabbitMQ refuses a ``user_id`` that is not the login of the connection. A ``delayed`` message goes through delay
    queues, where it must not expire. With ``priority_aside`` the target queue must treat it as a message without
    priority.
    """
    headers: dict[str, Any] = {}
    properties = Properties.blank()
    for field, attribute, header in _layout.TEXTS:
        text = getattr(message, field)
        if text is None:
            continue
        if (len(text) > _layout.MAX_SHORT_LETTERS or text == _layout.DIRECT_REPLY_TO) and _layout.unfit(header, text):
            headers[header] = text
            # A returned message is matched by its message_id, so it always needs one.
            text = _layout.digest(text) if header == "message-id" else None
        setattr(properties, attribute, text)
    for field, header, _ in _layout.HEADERS:
        text = getattr(message, field)
        if text is not None:
            headers[header] = text
    if not priority_aside:
        properties.priority = message.priority
    elif message.priority is not None:
        headers[_layout.PRIORITY] = message.priority
    if message.time_to_live is not None:
        properties.expiration, exactly = _layout.lifetime(message.time_to_live, delayed=delayed)
        if exactly is not None:
            headers[_layout.TTL] = exactly
    if message.scheduled_enqueue_at is not None:
        headers[_layout.SCHEDULED] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")
    if message.application_properties:
        _put_properties(properties, headers, message.application_properties, login)
    if headers:
        properties.headers = headers
    return properties


def size(message: Message, *, login: str = "") -> int:
    """Bytes of a message's body and content header frame as it is sent; RabbitMQ's own bound counts the body only."""
    return len(message.body) + _FRAME_BYTES + len(encode(message, login=login).marshal())


def _put_properties(
    properties: Properties, headers: dict[str, Any], values: Mapping[str, PropertyValue], login: str
) -> None:
    sheltered: dict[str, PropertyValue] | None = None
    types: dict[str, Any] | None = None
    for name, value in values.items():
        where = _layout.place(name)
        if where != _layout.PLAIN:
            if where == _layout.SHELTERED:
                sheltered = sheltered or {}
                sheltered[name] = value
                continue
            if _put_extra(properties, name, value, login):
                continue
        if type(value) in NATIVE:
            headers[name] = value
            continue
        headers[name], node = to_wire(value)
        if node is not None:
            types = types or {}
            types[name] = node
    if sheltered:
        if all(map(_layout.fits_short, sheltered)):
            headers[_layout.SHELTER], node = table_to_wire(sheltered)
        else:
            headers[_layout.SHELTER], node = pairs_to_wire(sheltered)
        if node is not None:
            types = types or {}
            types[_layout.SHELTER] = node
    if types:
        headers[_layout.TYPES] = types


def _put_extra(properties: Properties, name: str, value: PropertyValue, login: str) -> bool:
    """Send a value as AMQP's own property if it fits one."""
    if name == _layout.TIMESTAMP:
        if isinstance(value, datetime) and is_timestamp(value):
            properties.timestamp = value
            return True
    elif isinstance(value, str) and _layout.fits_short(value):
        if name == _layout.APP_ID:
            properties.app_id = value
            return True
        if value == login and login:  # USER_ID
            properties.user_id = value
            return True
    return False

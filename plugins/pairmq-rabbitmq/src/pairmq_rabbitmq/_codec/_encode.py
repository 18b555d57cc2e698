"""A message as AMQP properties."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pamqp.commands import Basic

from pairmq.model import Message, PropertyValue
from pairmq_rabbitmq._codec._layout import (
    APP_ID,
    DIRECT_REPLY_TO,
    HEADERS,
    MAX_SHORT_LETTERS,
    PLAIN,
    PRIORITY,
    SCHEDULED,
    SHELTER,
    SHELTERED,
    TEXTS,
    TIMESTAMP,
    TTL,
    TYPES,
    digest,
    fits_short,
    place,
    unfit,
)
from pairmq_rabbitmq._codec._marshal import Properties, blank, header_size
from pairmq_rabbitmq._codec._times import is_timestamp, lifetime
from pairmq_rabbitmq._codec._values import NATIVE, pairs_to_wire, table_to_wire, to_wire


def encode(message: Message, *, login: str, priority_aside: bool = False) -> Basic.Properties:
    """Write a message's properties; its body is the body.

    Args:
        message: any message.
        login: the user of the connection that it goes over; RabbitMQ refuses a ``user_id`` of another one.
        priority_aside: the queue that it goes to must take it for one without priority.

    Returns:
        The properties, to be sent as they are: a field-by-field copy may lose digits and names.
    """
    headers: dict[str, Any] = {}
    properties = blank()
    for field, attribute, header in TEXTS:
        text = getattr(message, field)
        if text is None:
            continue
        if (len(text) > MAX_SHORT_LETTERS or text == DIRECT_REPLY_TO) and unfit(header, text):
            headers[header] = text
            # A returned message is known by its message_id, so that it has one in any case.
            text = digest(text) if header == "message-id" else None
        setattr(properties, attribute, text)
    for field, header, _ in HEADERS:
        text = getattr(message, field)
        if text is not None:
            headers[header] = text
    if not priority_aside:
        properties.priority = message.priority
    elif message.priority is not None:
        headers[PRIORITY] = message.priority
    if message.time_to_live is not None:
        scheduled = message.scheduled_enqueue_at is not None
        properties.expiration, exactly = lifetime(message.time_to_live, scheduled=scheduled)
        if exactly is not None:
            headers[TTL] = exactly
    if message.scheduled_enqueue_at is not None:
        headers[SCHEDULED] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")
    if message.application_properties:
        _put_properties(properties, headers, message.application_properties, login)
    if headers:
        properties.headers = headers
    return properties


def size(message: Message, *, login: str = "") -> int:
    """Measure a message as it is sent.

    Args:
        message: any message.
        login: as for `encode`; it makes a difference of a few bytes to messages with ``amqp.user_id``.

    Returns:
        Bytes of its body and of its content header frame. RabbitMQ's own bound counts the body only.
    """
    return len(message.body) + header_size(encode(message, login=login))


def _put_properties(
    properties: Properties, headers: dict[str, Any], values: Mapping[str, PropertyValue], login: str
) -> None:
    sheltered: dict[str, PropertyValue] | None = None
    types: dict[str, Any] | None = None
    for name, value in values.items():
        where = place(name)
        if where != PLAIN:
            if where == SHELTERED:
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
        if all(map(fits_short, sheltered)):
            headers[SHELTER], node = table_to_wire(sheltered)
        else:
            headers[SHELTER], node = pairs_to_wire(sheltered)
        if node is not None:
            types = types or {}
            types[SHELTER] = node
    if types:
        headers[TYPES] = types


def _put_extra(properties: Properties, name: str, value: PropertyValue, login: str) -> bool:
    """Send a value as AMQP's own property if it can be one."""
    if name == TIMESTAMP:
        if isinstance(value, datetime) and is_timestamp(value):
            properties.timestamp = value
            return True
    elif isinstance(value, str) and fits_short(value):
        if name == APP_ID:
            properties.app_id = value
            return True
        if value == login and login:  # USER_ID
            properties.user_id = value
            return True
    return False

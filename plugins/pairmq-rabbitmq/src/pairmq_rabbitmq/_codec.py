"""A message as AMQP 0-9-1 properties and body, and back, without loss; readable by clients that don't know PairMQ.

What AMQP 0-9-1 has a property for is sent as that property, the rest as headers that are named after AMQP 1.0 and
Service Bus (``group-id``, ``to``, ``x-opt-partition-key`` and the like), application properties as headers of their
own names. Three cases need more than that, and only messages that need it carry it:

- an application property whose header would be interpreted or removed on the way (``CC`` sends copies elsewhere,
  ``group-id`` is the session) is in the table ``application-properties``, which no broker interprets; so is one
  whose name is too long for a table: then all are sent as an array of alternating names and values;
- a value that AMQP has no type for is sent as readable text, and the table ``application-property-types`` holds its
  type. It has the shape of the headers themselves: members by name, elements by their index, and under the name ``""``
  that an array was a mapping;
- text too long for an AMQP property is sent in a header instead.

Any client may put anything into a queue: decoding raises `MalformedMessage` and nothing else.

Here are both directions, and the copy in a dead-letter queue with the broker's own notes, by the `_layout` of names and
times; `_values` are converted to AMQP's types and back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from pamqp.commands import Basic

from pairmq.model import MAX_ID_LENGTH, Message, PropertyValue
from pairmq_rabbitmq import _layout
from pairmq_rabbitmq._header import Properties, is_timestamp
from pairmq_rabbitmq._values import (
    NATIVE,
    SIMPLE,
    converted,
    misfit,
    pairs_to_wire,
    shelter,
    sheltered_in,
    table_to_wire,
    to_wire,
    types_by_name,
)

# Bytes around the properties in a content header frame: frame header and end octet, class, weight, body size.
_FRAME_BYTES = 8 + 12


MAX_REASON_LENGTH: Final = 1024
"""Characters of a dead-letter reason or description that are kept."""


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


def decode(properties: Basic.Properties, body: bytes) -> Message:
    """Read a message; raises `MalformedMessage` for what a Message can't hold.

    Properties that a Message has no field for are application properties ``amqp.…``; an ``expiration`` of 0 becomes a
    time to live of 1 ms, as 0 is invalid. The broker's own notes are left out.
    """
    try:
        values, application_properties = _read(properties, _raise)
        if application_properties:
            return Message(body, application_properties=application_properties, **values)
        return Message(body, **values)
    except _layout.MalformedMessage:
        raise
    except Exception as error:  # the values are untrusted, and a receiver must survive all of them
        raise _layout.MalformedMessage((str(error) or type(error).__name__)[:300]) from error


def decode_leniently(properties: Basic.Properties, body: bytes) -> Message:
    """Show a message that may be malformed to a person: all of its body, and what else a Message can hold."""
    try:
        return decode(properties, body)
    except _layout.MalformedMessage:
        pass
    try:
        values, own = _read(properties, lambda _: None)
    except Exception:
        return Message(bytes(body))
    fields = {name: value for name, value in values.items() if _holds(**{name: value})}
    if not _holds(**fields):
        fields.pop("partition_key", None)  # differs from the session id
    kept = {name: value for name, value in own.items() if _holds(application_properties={name: value})}
    return Message(bytes(body), application_properties=kept, **fields)


def _raise(problem: str) -> None:
    raise _layout.MalformedMessage(problem)


def _holds(**fields: Any) -> bool:
    try:
        Message(**fields)
    except Exception:
        return False
    return True


def _read(properties: Basic.Properties, refuse: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find a message's fields and its application properties, both unchecked.

    ``refuse`` is called with the problem, and returns if the value is to be left out.
    """
    values: dict[str, Any] = {}
    for field, attribute, _ in _layout.TEXTS:
        text = getattr(properties, attribute)
        if text is not None:
            values[field] = text
    if not values.get("message_id", True):
        del values["message_id"]  # an empty one counts as unset
    if properties.priority is not None:
        values["priority"] = properties.priority
    if properties.expiration is not None:
        seconds = _layout.expiration_seconds(properties.expiration)
        if seconds is not None:
            values["time_to_live"] = seconds
        else:
            refuse("the property expiration is not a number of milliseconds")

    own: dict[str, Any] = {}
    if properties.headers:
        mapped: dict[str, Any] = {}
        simple = True
        for name, value in properties.headers.items():
            if _layout.place(name) == _layout.SHELTERED:
                if name in _layout.MAPPING:
                    mapped[name] = value
                    continue
                if name in _layout.BROKER_MADE or name.startswith(_layout.BROKER_PREFIXES):
                    continue
            own[name] = value
            if type(value) not in SIMPLE:
                simple = False
        if mapped:
            own = _read_mapped(properties, mapped, values, own, refuse)
        elif not simple:
            own = converted(own, {}, refuse)
    if (at := properties.timestamp) is not None:
        own[_layout.TIMESTAMP] = at
    if (text := properties.app_id) is not None:
        own[_layout.APP_ID] = text
    if (text := properties.user_id) is not None:
        own[_layout.USER_ID] = text
    if text := properties.cluster_id:
        own[_layout.CLUSTER_ID] = text
    return values, own


def _read_mapped(
    properties: Basic.Properties,
    mapped: dict[str, Any],
    values: dict[str, Any],
    own: dict[str, Any],
    refuse: Callable[[str], None],
) -> dict[str, Any]:
    """Read the headers whose names PairMQ uses; one that PairMQ would not have written so is the application's."""
    for field, _, header in _layout.TEXTS:
        if header in mapped:
            text = mapped[header]
            there = values.get(field)
            free = there is None or (field == "message_id" and isinstance(text, str) and there == _layout.digest(text))
            if free and isinstance(text, str) and _layout.unfit(header, text):
                values[field] = text
            else:
                own[header] = text
    for field, header, is_id in _layout.HEADERS:
        if header in mapped:
            text = mapped[header]
            if not isinstance(text, str) or (is_id and not text):
                own[header] = text
            elif is_id and len(text) > MAX_ID_LENGTH:
                refuse(f"the header {header} has {len(text)} characters: at most {MAX_ID_LENGTH} are allowed")
            else:
                values[field] = text
    if _layout.TTL in mapped:
        seconds = _layout.header_seconds(mapped[_layout.TTL], properties.expiration)
        if seconds is None:
            own[_layout.TTL] = mapped[_layout.TTL]
        else:
            values["time_to_live"] = seconds
    if _layout.PRIORITY in mapped:
        priority = mapped[_layout.PRIORITY]
        if properties.priority is None and type(priority) is int and 0 <= priority <= 255:
            values["priority"] = priority
        else:
            own[_layout.PRIORITY] = priority
    if _layout.SCHEDULED in mapped:
        at = mapped[_layout.SCHEDULED]
        if isinstance(at, str):
            parsed = _layout.instant(at)
            if parsed is None:
                refuse(f"the header {_layout.SCHEDULED} is not an ISO 8601 instant with a time zone")
            else:
                values["scheduled_enqueue_at"] = parsed
        elif isinstance(at, datetime):
            values["scheduled_enqueue_at"] = at
        else:
            own[_layout.SCHEDULED] = at

    types = mapped.get(_layout.TYPES)
    if not (isinstance(types, dict) and types):
        if _layout.TYPES in mapped:
            own[_layout.TYPES] = types
        types = {}
    if _layout.SHELTER not in mapped:
        return converted(own, types, refuse)
    shelter = mapped[_layout.SHELTER]
    sheltered = sheltered_in(shelter)
    if sheltered is None or not sheltered.keys().isdisjoint(own):
        own[_layout.SHELTER] = shelter
        return converted(own, types, refuse)
    types = dict(types)
    node = types.pop(_layout.SHELTER, None)
    found = converted(own, types, refuse)
    if node is None:
        node = {}
    elif not isinstance(node, dict):
        refuse(misfit(_layout.SHELTER))
        node = {}
    if isinstance(shelter, list):
        node = types_by_name(shelter, node, refuse)
    return converted(sheltered, node, refuse) | found


def with_dead_letter(properties: Basic.Properties, reason: str, description: str, *, login: str = "") -> Properties:
    """Copy a received message's properties for its dead-letter queue, with the reason and description cut to size.

    Properties that the broker would act on again are moved out of its reach, and decode to the same: the message must
    not expire in the dead-letter queue, go to its ``CC`` again or be refused for another user's ``user_id``.
    """
    copy = Properties.blank()
    for attribute in Basic.Properties.__slots__:
        setattr(copy, attribute, getattr(properties, attribute))
    headers: dict[str, Any] = dict(properties.headers or {})
    for name in _layout.BROKER_COUNTS:
        headers.pop(name, None)  # of the queue that it leaves
    for name in _layout.ROUTING & headers.keys():
        shelter(headers, name)
    if copy.user_id is not None and copy.user_id != login:
        headers[_layout.USER_ID] = copy.user_id
        copy.user_id = None
    if copy.expiration is not None:
        seconds = _layout.expiration_seconds(copy.expiration)
        if _layout.TTL in headers:
            exact = _layout.header_seconds(headers[_layout.TTL], copy.expiration)
            if exact is None:
                shelter(headers, _layout.TTL)
            else:
                seconds = exact
        if seconds is not None:
            headers[_layout.TTL] = _layout.seconds_text(seconds)
        copy.expiration = None
    headers[_layout.REASON] = _cut(reason)
    headers[_layout.DESCRIPTION] = _cut(description)
    copy.headers = headers
    copy.delivery_mode = 2
    return copy


def dead_letter_reason(properties: Basic.Properties) -> tuple[str | None, str | None]:
    """Read reason and description as `with_dead_letter` wrote them; otherwise the broker's reason in PairMQ's terms."""
    headers = properties.headers or {}
    reason, description = headers.get(_layout.REASON), headers.get(_layout.DESCRIPTION)
    if isinstance(reason, str):
        return reason, description if isinstance(description, str) else None
    found = death_reason(properties)
    if found is None:
        return None, None
    return {"maxlen": "max-length", "delivery_limit": "max-delivery-count"}.get(found, found), None


def _cut(text: str) -> str:
    return text[:MAX_REASON_LENGTH].encode(errors="replace").decode()


def death_reason(properties: Basic.Properties) -> str | None:
    """Read why the broker dead-lettered a message, the last time it did; None if it never did, or its header can't be
    read."""
    headers = properties.headers
    if not headers:
        return None
    deaths = headers.get("x-death")
    found = [entry for entry in deaths if isinstance(entry, dict)] if isinstance(deaths, list) else []
    last = {key: headers.get(f"x-last-death-{key}") for key in ("reason", "queue")}
    # The newest comes first, but RabbitMQ 4 also names it, and orders those of one instant differently.
    named = [entry for entry in found if all(entry.get(key) == value for key, value in last.items())]
    entry: dict[str, Any] = (named or found or [last])[0]
    reason, queue = entry.get("reason"), entry.get("queue")
    return reason if isinstance(reason, str) and isinstance(queue, str) else None


def delivery_count(properties: Basic.Properties, redelivered: bool) -> int:
    """How many times a message was delivered, at least 1; from a classic queue 2 means *more than once*."""
    count = properties.headers.get(_layout.DELIVERY_COUNT) if properties.headers else None
    return count_of(count if type(count) is int and count >= 0 else None, redelivered)


def count_of(before: int | None, redelivered: bool) -> int:
    """The same, from the broker's count of earlier deliveries; None if it sends none."""
    if before is not None:
        return before + 1
    return 2 if redelivered else 1

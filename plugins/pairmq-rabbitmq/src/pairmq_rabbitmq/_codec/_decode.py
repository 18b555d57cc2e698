"""A message from AMQP properties that any client may have written, and its copy in a dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pamqp.commands import Basic

from pairmq.model import MAX_ID_LENGTH, Message
from pairmq_rabbitmq._codec._encode import blank
from pairmq_rabbitmq._codec._layout import (
    APP_ID,
    BROKER_COUNTS,
    BROKER_MADE,
    BROKER_PREFIXES,
    CLUSTER_ID,
    DELIVERY_COUNT,
    DESCRIPTION,
    HEADERS,
    MAPPING,
    PRIORITY,
    REASON,
    ROUTING,
    SCHEDULED,
    SHELTER,
    SHELTERED,
    SIMPLE,
    TEXTS,
    TIMESTAMP,
    TTL,
    TYPES,
    USER_ID,
    MalformedMessage,
    converted,
    digest,
    expiration_seconds,
    header_seconds,
    instant,
    misfit,
    place,
    seconds_text,
    shelter,
    sheltered_in,
    types_by_name,
    unfit,
)

MAX_REASON_LENGTH: Final = 1024
"""Characters of a dead-letter reason or description that are kept."""


def with_dead_letter(
    properties: Basic.Properties, reason: str, description: str, *, login: str = ""
) -> Basic.Properties:
    """Copy a received message's properties for its dead-letter queue, with the reason and description cut to size.

    Properties that the broker would act on again are moved out of its reach, and decode to the same: the message must
    not expire in the dead-letter queue, go to its ``CC`` again or be refused for another user's ``user_id``.
    """
    copy = blank()
    for attribute in Basic.Properties.__slots__:
        setattr(copy, attribute, getattr(properties, attribute))
    headers: dict[str, Any] = dict(properties.headers or {})
    for name in BROKER_COUNTS:
        headers.pop(name, None)  # of the queue that it leaves
    for name in ROUTING & headers.keys():
        shelter(headers, name)
    if copy.user_id is not None and copy.user_id != login:
        headers[USER_ID] = copy.user_id
        copy.user_id = None
    if copy.expiration is not None:
        seconds = expiration_seconds(copy.expiration)
        if TTL in headers:
            exact = header_seconds(headers[TTL], copy.expiration)
            if exact is None:
                shelter(headers, TTL)
            else:
                seconds = exact
        if seconds is not None:
            headers[TTL] = seconds_text(seconds)
        copy.expiration = None
    headers[REASON] = _cut(reason)
    headers[DESCRIPTION] = _cut(description)
    copy.headers = headers
    copy.delivery_mode = 2
    return copy


def dead_letter_reason(properties: Basic.Properties) -> tuple[str | None, str | None]:
    """Read reason and description as `with_dead_letter` wrote them; otherwise the broker's reason in PairMQ's terms."""
    headers = properties.headers or {}
    reason, description = headers.get(REASON), headers.get(DESCRIPTION)
    if isinstance(reason, str):
        return reason, description if isinstance(description, str) else None
    found = death(properties)
    if found is None:
        return None, None
    return {"maxlen": "max-length", "delivery_limit": "max-delivery-count"}.get(found.reason, found.reason), None


def _cut(text: str) -> str:
    return text[:MAX_REASON_LENGTH].encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class Death:
    """Why RabbitMQ dead-lettered a message, the last time it did; it removed an ``expiration`` of so many seconds."""

    reason: str
    queue: str
    original_expiration: float | None = None


def death(properties: Basic.Properties) -> Death | None:
    """Read why the broker dead-lettered a message; None if it never did, or its header can't be read."""
    headers = properties.headers
    if not headers:
        return None
    deaths = headers.get("x-death")
    found = [entry for entry in deaths if isinstance(entry, dict)] if isinstance(deaths, list) else []
    last = {key: headers.get(f"x-last-death-{key}") for key in ("reason", "queue")}
    # The newest comes first, but RabbitMQ 4 also names it, and orders those of one instant differently.
    named = [entry for entry in found if all(entry.get(key) == value for key, value in last.items())]
    entry: dict[str, Any] = (named or found or [last])[0]
    reason, queue, expiration = entry.get("reason"), entry.get("queue"), entry.get("original-expiration")
    if not isinstance(reason, str) or not isinstance(queue, str):
        return None
    return Death(reason, queue, expiration_seconds(expiration) if isinstance(expiration, str) else None)


def delivery_count(properties: Basic.Properties, redelivered: bool) -> int:
    """How many times a message was delivered, at least 1; from a classic queue 2 means *more than once*."""
    count = properties.headers.get(DELIVERY_COUNT) if properties.headers else None
    return count_of(count if type(count) is int and count >= 0 else None, redelivered)


def count_of(before: int | None, redelivered: bool) -> int:
    """The same, from the broker's count of earlier deliveries; None if it sends none."""
    if before is not None:
        return before + 1
    return 2 if redelivered else 1


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
    except MalformedMessage:
        raise
    except Exception as error:  # the values are untrusted, and a receiver must survive all of them
        raise MalformedMessage((str(error) or type(error).__name__)[:300]) from error


def decode_leniently(properties: Basic.Properties, body: bytes) -> Message:
    """Show a message that may be malformed to a person: all of its body, and what else a Message can hold."""
    try:
        return decode(properties, body)
    except MalformedMessage:
        pass
    try:
        values, application_properties = _read(properties, lambda _: None)
    except Exception:
        return Message(bytes(body))
    fields = {name: value for name, value in values.items() if _holds(**{name: value})}
    if not _holds(**fields):
        fields.pop("partition_key", None)  # differs from the session id
    kept = {name: value for name, value in application_properties.items() if _holds_property(name, value)}
    return Message(bytes(body), application_properties=kept, **fields)


def _raise(problem: str) -> None:
    raise MalformedMessage(problem)


def _holds(**fields: Any) -> bool:
    try:
        Message(**fields)
    except Exception:
        return False
    return True


def _holds_property(name: str, value: Any) -> bool:
    return _holds(application_properties={name: value})


def _read(properties: Basic.Properties, refuse: Callable[[str], None]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Find a message's fields and its application properties, both unchecked.

    ``refuse`` is called with the problem, and returns if the value is to be left out.
    """
    values: dict[str, Any] = {}
    for field, attribute, _ in TEXTS:
        text = getattr(properties, attribute)
        if text is not None:
            values[field] = text
    if not values.get("message_id", True):
        del values["message_id"]  # an empty one counts as unset
    if properties.priority is not None:
        values["priority"] = properties.priority
    if properties.expiration is not None:
        seconds = expiration_seconds(properties.expiration)
        if seconds is not None:
            values["time_to_live"] = seconds
        else:
            refuse("the property expiration is not a number of milliseconds")

    own: dict[str, Any] = {}
    if properties.headers:
        mapped: dict[str, Any] = {}
        simple = True
        for name, value in properties.headers.items():
            if place(name) == SHELTERED:
                if name in MAPPING:
                    mapped[name] = value
                    continue
                if name in BROKER_MADE or name.startswith(BROKER_PREFIXES):
                    continue
            own[name] = value
            if type(value) not in SIMPLE:
                simple = False
        if mapped:
            own = _read_mapped(properties, mapped, values, own, refuse)
        elif not simple:
            own = converted(own, {}, refuse)
    if (at := properties.timestamp) is not None:
        own[TIMESTAMP] = at
    if (text := properties.app_id) is not None:
        own[APP_ID] = text
    if (text := properties.user_id) is not None:
        own[USER_ID] = text
    if text := properties.cluster_id:
        own[CLUSTER_ID] = text
    return values, own


def _read_mapped(
    properties: Basic.Properties,
    mapped: dict[str, Any],
    values: dict[str, Any],
    own: dict[str, Any],
    refuse: Callable[[str], None],
) -> dict[str, Any]:
    """Read the headers whose names PairMQ uses; one that PairMQ would not have written so is the application's."""
    for field, _, header in TEXTS:
        if header in mapped:
            text = mapped[header]
            there = values.get(field)
            free = there is None or (field == "message_id" and isinstance(text, str) and there == digest(text))
            if free and isinstance(text, str) and unfit(header, text):
                values[field] = text
            else:
                own[header] = text
    for field, header, is_id in HEADERS:
        if header in mapped:
            text = mapped[header]
            if not isinstance(text, str) or (is_id and not text):
                own[header] = text
            elif is_id and len(text) > MAX_ID_LENGTH:
                refuse(f"the header {header} has {len(text)} characters: at most {MAX_ID_LENGTH} are allowed")
            else:
                values[field] = text
    if TTL in mapped:
        seconds = header_seconds(mapped[TTL], properties.expiration)
        if seconds is None:
            own[TTL] = mapped[TTL]
        else:
            values["time_to_live"] = seconds
    if PRIORITY in mapped:
        priority = mapped[PRIORITY]
        if properties.priority is None and type(priority) is int and 0 <= priority <= 255:
            values["priority"] = priority
        else:
            own[PRIORITY] = priority
    if SCHEDULED in mapped:
        at = mapped[SCHEDULED]
        if isinstance(at, str):
            parsed = instant(at)
            if parsed is None:
                refuse(f"the header {SCHEDULED} is not an ISO 8601 instant with a time zone")
            else:
                values["scheduled_enqueue_at"] = parsed
        elif isinstance(at, datetime):
            values["scheduled_enqueue_at"] = at
        else:
            own[SCHEDULED] = at

    types = mapped.get(TYPES)
    if not (isinstance(types, dict) and types):
        if TYPES in mapped:
            own[TYPES] = types
        types = {}
    if SHELTER not in mapped:
        return converted(own, types, refuse)
    shelter = mapped[SHELTER]
    sheltered = sheltered_in(shelter)
    if sheltered is None or not sheltered.keys().isdisjoint(own):
        own[SHELTER] = shelter
        return converted(own, types, refuse)
    types = dict(types)
    node = types.pop(SHELTER, None)
    found = converted(own, types, refuse)
    if node is None:
        node = {}
    elif not isinstance(node, dict):
        refuse(misfit(SHELTER))
        node = {}
    if isinstance(shelter, list):
        node = types_by_name(shelter, node, refuse)
    return converted(sheltered, node, refuse) | found

"""The copy of a message in a dead-letter queue and why it is there; and how often the broker delivered a message."""

from __future__ import annotations

from typing import Any, Final

from pamqp.commands import Basic

from pairmq_rabbitmq._codec import _layout
from pairmq_rabbitmq._codec._values import shelter
from pairmq_rabbitmq._header import Properties

MAX_REASON_LENGTH: Final = 1024
"""Characters of a dead-letter reason or description that are kept."""


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

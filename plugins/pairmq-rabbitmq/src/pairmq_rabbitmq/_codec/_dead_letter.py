"""The copy of a message in a dead-letter queue, and why it is there."""

from __future__ import annotations

from typing import Any, Final

from pamqp.commands import Basic

from pairmq_rabbitmq._codec._layout import BROKER_COUNTS, DESCRIPTION, REASON, ROUTING, TTL, USER_ID
from pairmq_rabbitmq._codec._marshal import blank
from pairmq_rabbitmq._codec._notes import death
from pairmq_rabbitmq._codec._shelter import shelter
from pairmq_rabbitmq._codec._times import expiration_seconds, header_seconds, seconds_text

MAX_REASON_LENGTH: Final = 1024
"""Characters of a dead-letter reason or description that are kept."""


def with_dead_letter(
    properties: Basic.Properties, reason: str, description: str, *, login: str = ""
) -> Basic.Properties:
    """Copy a received message's properties for its dead-letter queue.

    What the broker would act on once more is put out of its reach, and reads the same: the message must not expire in
    the dead-letter queue, go to its ``CC`` again or be refused for another user's ``user_id``.

    Args:
        properties: as received; they are left as they are.
        reason: a word or two; cut to `MAX_REASON_LENGTH`.
        description: a sentence; cut likewise.
        login: as for `encode`.

    Returns:
        The copy, to be sent as it is.
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
    """Read why a message is in a dead-letter queue.

    Args:
        properties: as received.

    Returns:
        Reason and description as `with_dead_letter` wrote them; else the broker's reason in PairMQ's words, without a
        description; None for what is not known.
    """
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

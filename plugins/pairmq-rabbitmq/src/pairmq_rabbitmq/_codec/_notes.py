"""What the broker noted on a message: why it dead-lettered it, and how often it gave it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pamqp.commands import Basic

from pairmq_rabbitmq._codec._layout import DELIVERY_COUNT
from pairmq_rabbitmq._codec._times import expiration_seconds


@dataclass(frozen=True, slots=True)
class Death:
    """Why RabbitMQ dead-lettered a message, the last time that it did.

    Args:
        reason: ``expired``, ``rejected``, ``maxlen`` or ``delivery_limit``.
        queue: where it was.
        original_expiration: seconds of its ``expiration``, which RabbitMQ took away; None if it had none.
    """

    reason: str
    queue: str
    original_expiration: float | None = None


def death(properties: Basic.Properties) -> Death | None:
    """Read why the broker dead-lettered a message, the last time that it did.

    Args:
        properties: as received.

    Returns:
        The reason; None for a message that it never dead-lettered, or if what it says can't be read.
    """
    headers = properties.headers
    if not headers:
        return None
    deaths = headers.get("x-death")
    found = [entry for entry in deaths if isinstance(entry, dict)] if isinstance(deaths, list) else []
    last = {key: headers.get(f"x-last-death-{key}") for key in ("reason", "queue")}
    # The newest stands first, but RabbitMQ 4 also names it, and has an order of its own for those of one instant.
    named = [entry for entry in found if all(entry.get(key) == value for key, value in last.items())]
    entry: dict[str, Any] = (named or found or [last])[0]
    reason, queue, expiration = entry.get("reason"), entry.get("queue"), entry.get("original-expiration")
    if not isinstance(reason, str) or not isinstance(queue, str):
        return None
    return Death(reason, queue, expiration_seconds(expiration) if isinstance(expiration, str) else None)


def delivery_count(properties: Basic.Properties, redelivered: bool) -> int:
    """Tell how many times a message was delivered.

    Args:
        properties: as received.
        redelivered: the delivery's flag, which is all that classic queues tell.

    Returns:
        The number with this delivery, at least 1; from a classic queue 2 means *more than once*.
    """
    count = properties.headers.get(DELIVERY_COUNT) if properties.headers else None
    return count_of(count if type(count) is int and count >= 0 else None, redelivered)


def count_of(before: int | None, redelivered: bool) -> int:
    """The same, of how often the broker says that it gave the message out before; None if it does not say."""
    if before is not None:
        return before + 1
    return 2 if redelivered else 1

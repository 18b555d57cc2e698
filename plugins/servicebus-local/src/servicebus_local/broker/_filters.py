"""Rules of subscriptions and what they match (Service Bus documentation: "Topic filters and actions")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from servicebus_local.broker._values import Stored

DEFAULT_RULE = "$Default"
"""The rule that a subscription has if it is given no other."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Matches messages for which an expression is true (Service Bus documentation: "Subscription rule SQL filter
    syntax").
    """

    expression: str
    # Values of what the text calls `@name`, with or without the sign.
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Matches messages that have every value given here, exactly and with regard to case."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


CORRELATION_FIELDS = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")
"""In the service's order, in which some clients read them."""

Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class Rule:
    """A filter of a subscription, with a name."""

    name: str  # unique in the subscription
    filter: Filter
    action: str | None = None  # `SET` and `REMOVE` statements for the copies of messages that match
    created_at: float = 0.0  # unix seconds; the broker sets it


def current_properties(message: Stored) -> Mapping[str, object]:
    """Application properties with what was changed since the message was sent."""
    if not message.added_properties:
        return message.properties
    return {**message.properties, **message.added_properties}

"""What a Service Bus namespace does, without IO: entities, messages, locks, sessions, rules, and a store for them."""

from __future__ import annotations

from servicebus_local.broker._broker import Broker
from servicebus_local.broker._descriptions import (
    EntityInfo,
    EntityStatus,
    MessageCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.broker._errors import BrokerError, status_of
from servicebus_local.broker._rules import (
    CORRELATION_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from servicebus_local.broker._shelf import SessionLock
from servicebus_local.broker._source import Source
from servicebus_local.broker._store import SqliteStore, StoreError
from servicebus_local.broker._values import Incoming, MessageState, Stored

__all__ = [
    "CORRELATION_FIELDS",
    "Broker",
    "BrokerError",
    "CorrelationFilter",
    "EntityInfo",
    "EntityStatus",
    "FalseFilter",
    "Filter",
    "Incoming",
    "MessageCounts",
    "MessageState",
    "QueueDescription",
    "Rule",
    "SessionLock",
    "Source",
    "SqlFilter",
    "SqliteStore",
    "StoreError",
    "Stored",
    "SubscriptionDescription",
    "TopicDescription",
    "TrueFilter",
    "status_of",
]

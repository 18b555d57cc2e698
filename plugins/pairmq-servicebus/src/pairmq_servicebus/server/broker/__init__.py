"""What a Service Bus namespace does, without IO: entities, messages, locks, sessions, rules, and a store for them."""

from __future__ import annotations

from pairmq_servicebus.server.broker._broker import Broker, SendTarget
from pairmq_servicebus.server.broker._descriptions import (
    EntityStatus,
    MessageCounts,
    QueueDescription,
    QueueInfo,
    SubscriptionDescription,
    SubscriptionInfo,
    TopicDescription,
    TopicInfo,
)
from pairmq_servicebus.server.broker._errors import BrokerError
from pairmq_servicebus.server.broker._filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    TrueFilter,
)
from pairmq_servicebus.server.broker._session_source import Source
from pairmq_servicebus.server.broker._shelf import SessionLock
from pairmq_servicebus.server.broker._store import SqliteStore, Store, StoreError
from pairmq_servicebus.server.broker._values import Incoming, MessageState, Stored

__all__ = [
    "Broker",
    "BrokerError",
    "CorrelationFilter",
    "EntityStatus",
    "FalseFilter",
    "Filter",
    "Incoming",
    "MessageCounts",
    "MessageState",
    "QueueDescription",
    "QueueInfo",
    "Rule",
    "SendTarget",
    "SessionLock",
    "Source",
    "SqlFilter",
    "SqliteStore",
    "Store",
    "StoreError",
    "Stored",
    "SubscriptionDescription",
    "SubscriptionInfo",
    "TopicDescription",
    "TopicInfo",
    "TrueFilter",
]

"""How entities are set up, and what they report about themselves.

The properties, defaults and limits are those of the service (Service Bus documentation: "Service Bus quotas" and
the reference of ``QueueDescription``, ``TopicDescription`` and ``SubscriptionDescription``). Durations are seconds.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields
from enum import StrEnum
from typing import Generic, TypeVar

from servicebus_local.broker._errors import ARGUMENT, NOT_ALLOWED, OUT_OF_RANGE, BrokerError, forward_path

DAY = 86400.0


class EntityStatus(StrEnum):
    """What an entity may be used for (Service Bus documentation: "Suspend and reactivate messaging entities")."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def sends(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def receives(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """How a queue is set up; see the module for units."""

    lock_duration: float = 60.0
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: float | None = None
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: float = 600.0
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    auto_delete_on_idle: float | None = None
    enable_partitioning: bool = False
    user_metadata: str | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    max_message_size_in_kilobytes: int | None = None
    enable_express: bool = False
    support_ordering: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """How a topic is set up; see the module for units."""

    default_message_time_to_live: float | None = None
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: float = 600.0
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    auto_delete_on_idle: float | None = None
    enable_partitioning: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None
    enable_express: bool = False
    support_ordering: bool = True
    filtering_messages_before_publishing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """How a subscription is set up; see the module for units."""

    lock_duration: float = 60.0
    requires_session: bool = False
    default_message_time_to_live: float | None = None
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    auto_delete_on_idle: float | None = None
    user_metadata: str | None = None
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None


Description = QueueDescription | TopicDescription | SubscriptionDescription
_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """How many messages an entity holds, by what they wait for."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    deferred: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True, slots=True)
class EntityInfo(Generic[_D]):
    """A queue, topic or subscription as it is now; instants are unix seconds.

    A subscription has its ``topic``, and its path is ``TOPIC/Subscriptions/NAME``; the name of others is their path.
    """

    path: str
    description: _D
    counts: MessageCounts
    created_at: float
    updated_at: float
    accessed_at: float
    size_in_bytes: int
    topic: str
    name: str
    subscription_count: int


# Property -> smallest and largest value that the service takes. An absent upper bound means none.
_RANGES: dict[str, tuple[float, float | None]] = {
    "lock_duration": (1.0, 300.0),
    "max_size_in_megabytes": (1, 81920),
    "default_message_time_to_live": (0.001, None),
    "duplicate_detection_history_time_window": (20.0, 7 * DAY),
    "max_delivery_count": (1, 2**31 - 1),
    "auto_delete_on_idle": (300.0, None),
    "max_message_size_in_kilobytes": (1, 102400),
}
_FIXED = ("requires_session", "requires_duplicate_detection", "enable_partitioning")
_MAX_METADATA = 1024


def check(path: str, description: Description) -> None:
    """Refuses a description that the service would not take."""
    for name, (low, high) in _RANGES.items():
        value = getattr(description, name, None)
        if value is not None and not (value >= low and (high is None or value <= high)):
            bounds = f"{low} or more" if high is None else f"{low} to {high}"
            raise BrokerError(OUT_OF_RANGE, f"{name} of '{path}' is {value}, and must be {bounds}.")
    if description.user_metadata is not None and len(description.user_metadata) > _MAX_METADATA:
        raise BrokerError(OUT_OF_RANGE, f"user_metadata of '{path}' is longer than {_MAX_METADATA} characters.")
    if isinstance(description, TopicDescription):
        return
    if description.forward_to is not None and description.requires_session:
        raise BrokerError(ARGUMENT, f"'{path}' requires sessions and cannot forward its messages.")
    for target in (description.forward_to, description.forward_dead_lettered_messages_to):
        if target is not None and forward_path(target).lower() == path.lower():
            raise BrokerError(ARGUMENT, f"'{path}' cannot forward to itself.")


def check_update(path: str, before: Description, after: Description) -> None:
    """Refuses a change that the service does not make."""
    check(path, after)
    names = {field.name for field in fields(before)}
    for name in _FIXED:
        if name in names and getattr(before, name) != getattr(after, name):
            raise BrokerError(NOT_ALLOWED, f"{name} of '{path}' was set at creation and cannot be changed.")

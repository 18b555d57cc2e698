"""Properties of entities under the names that the service gives them, in XML and in settings files.

Names and order are those of the service's data contracts (Service Bus documentation: reference of the REST API,
"Create queue", "Create topic", "Create subscription").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TypeVar

from servicebus_local.broker import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.durations import format_duration, parse_duration

Description = TypeVar("Description", QueueDescription, TopicDescription, SubscriptionDescription)


class PropertyError(ValueError):
    """A property's value can't be read; the text names the property."""


class Kind(Enum):
    """How a property is written."""

    FLAG = auto()
    NUMBER = auto()
    DURATION = auto()
    TEXT = auto()
    STATUS = auto()


@dataclass(frozen=True, slots=True)
class Property:
    """One property.

    Args:
        name: the service's.
        field: the description's.
        kind: how it is written.
    """

    name: str
    field: str
    kind: Kind


_LOCK = Property("LockDuration", "lock_duration", Kind.DURATION)
_SIZE = Property("MaxSizeInMegabytes", "max_size_in_megabytes", Kind.NUMBER)
_DUPLICATES = Property("RequiresDuplicateDetection", "requires_duplicate_detection", Kind.FLAG)
_SESSION = Property("RequiresSession", "requires_session", Kind.FLAG)
_TIME_TO_LIVE = Property("DefaultMessageTimeToLive", "default_message_time_to_live", Kind.DURATION)
_EXPIRED = Property("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", Kind.FLAG)
_FILTER_ERRORS = Property(
    "DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions", Kind.FLAG
)
_WINDOW = Property("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window", Kind.DURATION)
_DELIVERIES = Property("MaxDeliveryCount", "max_delivery_count", Kind.NUMBER)
_BATCHED = Property("EnableBatchedOperations", "enable_batched_operations", Kind.FLAG)
_FILTERING = Property("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing", Kind.FLAG)
_STATUS = Property("Status", "status", Kind.STATUS)
_ORDERING = Property("SupportOrdering", "support_ordering", Kind.FLAG)
_IDLE = Property("AutoDeleteOnIdle", "auto_delete_on_idle", Kind.DURATION)
_PARTITIONS = Property("EnablePartitioning", "enable_partitioning", Kind.FLAG)
_EXPRESS = Property("EnableExpress", "enable_express", Kind.FLAG)
_FORWARD = Property("ForwardTo", "forward_to", Kind.TEXT)
_METADATA = Property("UserMetadata", "user_metadata", Kind.TEXT)
_FORWARD_DEAD = Property("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", Kind.TEXT)
_MESSAGE_SIZE = Property("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", Kind.NUMBER)

PROPERTIES: Mapping[type, tuple[Property, ...]] = {
    QueueDescription: (
        _LOCK,
        _SIZE,
        _DUPLICATES,
        _SESSION,
        _TIME_TO_LIVE,
        _EXPIRED,
        _WINDOW,
        _DELIVERIES,
        _BATCHED,
        _STATUS,
        _ORDERING,
        _IDLE,
        _PARTITIONS,
        _EXPRESS,
        _FORWARD,
        _METADATA,
        _FORWARD_DEAD,
        _MESSAGE_SIZE,
    ),
    TopicDescription: (
        _TIME_TO_LIVE,
        _SIZE,
        _DUPLICATES,
        _WINDOW,
        _BATCHED,
        _FILTERING,
        _STATUS,
        _ORDERING,
        _IDLE,
        _PARTITIONS,
        _EXPRESS,
        _METADATA,
        _MESSAGE_SIZE,
    ),
    SubscriptionDescription: (
        _LOCK,
        _SESSION,
        _TIME_TO_LIVE,
        _EXPIRED,
        _FILTER_ERRORS,
        _DELIVERIES,
        _BATCHED,
        _STATUS,
        _FORWARD,
        _FORWARD_DEAD,
        _IDLE,
        _METADATA,
    ),
}
"""What each kind of entity has."""


def read_properties(base: Description, given: Mapping[str, str]) -> Description:
    """Change a description by texts under the service's names; unknown names are skipped. Raises `PropertyError`."""
    changes = {entry.field: _read(entry, given[entry.name]) for entry in PROPERTIES[type(base)] if entry.name in given}
    # The type checker can't see which fields the table names.
    return replace(base, **changes)  # type: ignore[arg-type]


def write_properties(description: QueueDescription | TopicDescription | SubscriptionDescription) -> dict[str, str]:
    """The text of each property by the service's name, in the service's order; unset texts are left out."""
    written = {}
    for entry in PROPERTIES[type(description)]:
        value = getattr(description, entry.field)
        if entry.kind is Kind.DURATION:
            written[entry.name] = format_duration(value)
        elif value is not None:
            written[entry.name] = str(value).lower() if entry.kind is Kind.FLAG else str(value)
    return written


def xml_names(names: Iterable[str]) -> dict[str, str]:
    """The service's spelling of names, such as ``ReplyTo`` for ``reply_to``, each with the name."""
    return {"".join(part.capitalize() for part in name.split("_")): name for name in names}


def read_flag(text: str) -> bool:
    """Read ``true`` or ``false`` as XML Schema allows them to be written.

    Raises:
        ValueError: it is neither.
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text[:60]!r} is neither true nor false") from None


def _read(entry: Property, text: str) -> bool | int | float | str | EntityStatus | None:
    try:
        if entry.kind is Kind.FLAG:
            return read_flag(text)
        if entry.kind is Kind.NUMBER:
            return _number(text)
        if entry.kind is Kind.DURATION:
            return parse_duration(text)
        if entry.kind is Kind.STATUS:
            return _status(text)
    except ValueError as error:
        raise PropertyError(f"{entry.name}: {error}") from None
    # An empty text takes a forwarding or the metadata away.
    return text or None


def _number(text: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise ValueError(f"{text[:60]!r} is no number")
    return int(digits)


def _status(text: str) -> EntityStatus:
    for status in EntityStatus:
        if status.lower() == text.strip().lower():
            return status
    raise ValueError(f"invalid value {text[:60]!r}; use {', '.join(EntityStatus)}")

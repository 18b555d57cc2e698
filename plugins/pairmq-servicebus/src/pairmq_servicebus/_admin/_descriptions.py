"""Settings of queues and topics as the administration describes them, and back."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from azure.servicebus.management import QueueProperties as QueueDescription
from azure.servicebus.management import TopicProperties as TopicDescription

from pairmq.model import FailureReason
from pairmq.transport import QueueProperties
from pairmq_servicebus import _errors
from pairmq_servicebus._single_consumer import METADATA

MOST_DELIVERIES: Final = 2**31 - 1
"""The service's way of saying *without a limit*."""

MOST_COUNTED: Final = 2000
"""Where a server counts deliveries at all and refuses `MOST_DELIVERIES`, this is as far as it counts."""

_ENDLESS = timedelta(days=10_000_000)  # the service says 10 675 199 days for *unlimited*
_DEFAULT_LOCK = 60.0  # s


def queue_settings(asked: QueueProperties | None, doing: str) -> dict[str, Any]:
    """Give what makes a queue of these settings; what is None is left to the service, whose default is *unlimited*.

    Raises:
        TransportError: reason *malformed* when a setting is no setting at all; the service checks the ranges.
    """
    if asked is None:
        return {"dead_lettering_on_message_expiration": True}
    return {
        "max_size_in_megabytes": asked.max_size_megabytes,
        "max_delivery_count": asked.max_delivery_count or MOST_DELIVERIES,
        "default_message_time_to_live": _duration(asked.default_time_to_live, "default_time_to_live", doing),
        "auto_delete_on_idle": _duration(asked.auto_delete_after, "auto_delete_after", doing),
        "lock_duration": _duration(asked.lock_duration, "lock_duration", doing),
        "dead_lettering_on_message_expiration": asked.dead_letter_on_expiration,
        "enable_batched_operations": asked.batched_operations,
        "requires_session": asked.requires_session or asked.single_consumer,
        "user_metadata": METADATA if asked.single_consumer else None,
    }


def fewer_deliveries(settings: dict[str, Any]) -> bool:
    """Change settings that ask for no limit of deliveries to the largest that every server takes; tells if they did."""
    if settings.get("max_delivery_count") != MOST_DELIVERIES:
        return False
    settings["max_delivery_count"] = MOST_COUNTED
    return True


def topic_settings(asked: QueueProperties | None, doing: str) -> dict[str, Any]:
    """Give what makes a topic; what only its subscriptions have is left out. Raises as `queue_settings`."""
    if asked is None:
        return {}
    return {
        "max_size_in_megabytes": asked.max_size_megabytes,
        "default_message_time_to_live": _duration(asked.default_time_to_live, "default_time_to_live", doing),
        "auto_delete_on_idle": _duration(asked.auto_delete_after, "auto_delete_after", doing),
        "enable_batched_operations": asked.batched_operations,
    }


def properties_of(found: QueueDescription | TopicDescription) -> QueueProperties:
    """Read a description; of a topic, what it has of a queue's settings."""
    shared = {
        "max_size_megabytes": found.max_size_in_megabytes,
        "default_time_to_live": _seconds(found.default_message_time_to_live),
        "auto_delete_after": _seconds(found.auto_delete_on_idle),
        "batched_operations": bool(found.enable_batched_operations),
    }
    if isinstance(found, TopicDescription):
        return QueueProperties(**shared, lock_duration=None, dead_letter_on_expiration=False)  # type: ignore[arg-type]
    lock = _seconds(found.lock_duration)
    # The partitions of a partitioned queue number their messages apart, and are browsed in no certain order
    # (Service Bus documentation: "Partitioned queues and topics"): what of it is settled can't be told.
    sessions, partitioned = bool(found.requires_session), bool(found.enable_partitioning)
    single_consumer = sessions and not partitioned and METADATA in (found.user_metadata or "")
    return QueueProperties(
        **shared,  # type: ignore[arg-type]  # each of its own type
        max_delivery_count=found.max_delivery_count,
        lock_duration=_DEFAULT_LOCK if lock is None else lock,
        dead_letter_on_expiration=bool(found.dead_lettering_on_message_expiration),
        requires_session=sessions and not single_consumer,
        single_consumer=single_consumer,
    )


def _duration(seconds: float | None, name: str, doing: str) -> timedelta | None:
    if seconds is None:
        return None
    if not 0 < seconds <= _ENDLESS.total_seconds():
        text = f"{name} is {seconds!r}: seconds above 0, or None for the service's default"
        raise _errors.refused(doing, text, FailureReason.MALFORMED)
    return timedelta(seconds=seconds)


def _seconds(duration: timedelta | str | None) -> float | None:
    if not isinstance(duration, timedelta) or duration >= _ENDLESS:
        return None
    return duration.total_seconds()

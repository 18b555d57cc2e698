"""What Service Bus takes as a path (Service Bus documentation: Quotas; Naming rules for Microsoft.ServiceBus)."""

from __future__ import annotations

import re
from typing import Final

from pairmq.model import Entity, FailureReason, Source
from pairmq_servicebus import _errors

MAX_SUBSCRIPTION_LENGTH: Final = 50

_PATH = re.compile(r"[A-Za-z0-9._~/-]+")
_SUBSCRIPTION = re.compile(r"[A-Za-z0-9._-]+")


def is_system(path: str) -> bool:
    """Whether a segment begins with ``$``, which is the service's own: ``$management``, ``$DeadLetterQueue``."""
    return any(segment.startswith("$") for segment in path.split("/"))


def check(entity: Entity, subscription: str | None = None) -> None:
    """Refuse a path that the service would refuse, as *malformed*; the text names the rule."""
    if not _PATH.fullmatch(entity.path):
        text = "Service Bus' paths have letters, digits and . - _ ~ in segments separated by /"
        raise _errors.refused(f"entity {entity}", text, FailureReason.MALFORMED)
    if subscription is not None and (
        not _SUBSCRIPTION.fullmatch(subscription) or len(subscription) > MAX_SUBSCRIPTION_LENGTH
    ):
        text = f"subscriptions' names have 1 to {MAX_SUBSCRIPTION_LENGTH} letters, digits and . - _"
        raise _errors.refused(f"subscription {subscription}", text, FailureReason.MALFORMED)


def check_source(source: Source) -> None:
    """Refuse a source that the service would refuse; as `check`."""
    check(source.entity, source.subscription)

"""PairMQ: what happens to your messages when the broker goes down."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's, without the import of it
if TYPE_CHECKING:
    from pairmq.core import PairOptions
    from pairmq.model import (
        BacklogUnavailable,
        ConfigurationError,
        Delivery,
        Entity,
        EntityKind,
        EntityNotFound,
        EntityState,
        FailureKind,
        FailureReason,
        LockLost,
        Message,
        MessageTooLarge,
        PairClosed,
        PairFaulted,
        PairMQError,
        PrimaryUnavailable,
        Receipt,
        ReservedPropertyError,
        Route,
        SendError,
        SendRefused,
        SendUnknown,
        TransportError,
        Unauthorized,
    )
    from pairmq.pair import (
        Deduplicator,
        EntityReadiness,
        FirstDelivery,
        MemoryClaims,
        Pair,
        PairConsumer,
        PairDelivery,
        PairOutbox,
        PairReceiver,
        PairSender,
        Readiness,
    )

__all__ = [
    "BacklogUnavailable",
    "ConfigurationError",
    "Deduplicator",
    "Delivery",
    "Entity",
    "EntityKind",
    "EntityNotFound",
    "EntityReadiness",
    "EntityState",
    "FailureKind",
    "FailureReason",
    "FirstDelivery",
    "LockLost",
    "MemoryClaims",
    "Message",
    "MessageTooLarge",
    "Pair",
    "PairClosed",
    "PairConsumer",
    "PairDelivery",
    "PairFaulted",
    "PairMQError",
    "PairOptions",
    "PairOutbox",
    "PairReceiver",
    "PairSender",
    "PrimaryUnavailable",
    "Readiness",
    "Receipt",
    "ReservedPropertyError",
    "Route",
    "SendError",
    "SendRefused",
    "SendUnknown",
    "TransportError",
    "Unauthorized",
]

_ROOMS = ("model", "core", "pair")  # where the names are; each takes longer to import than those before it


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: values and errors need neither asyncio nor a pair."""
    if name in __all__:
        for room in _ROOMS:
            module = import_module(f"{__name__}.{room}")
            if hasattr(module, name):
                value: object = getattr(module, name)
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

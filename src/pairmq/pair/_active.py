"""Which pairs exist in this process, so that no two of them contradict each other (SPEC 9.3)."""

from __future__ import annotations

import asyncio

from pairmq.model import ConfigurationError
from pairmq.pair._settings import check_distinct
from pairmq.transport import Transport

_active: list[tuple[Transport, Transport, asyncio.AbstractEventLoop]] = []


def claim(primary: Transport, secondary: Transport) -> None:
    """Register a pair, unless one of its connections is in a pair already, both are the same broker, or one broker
    would be the primary of one pair and the secondary of another. A pair ends with its event loop, also one that was
    not closed."""
    _active[:] = [pair for pair in _active if not pair[2].is_closed()]
    check_distinct(primary, secondary)
    for transport in (primary, secondary):
        if transport.ended:
            raise ConfigurationError(f"the connection to {transport.endpoint} is closed: make a new one")
        if holds(transport):
            raise ConfigurationError(f"the connection to {transport.endpoint} is in a pair already: make another one")
    for other_primary, other_secondary, _ in _active:
        if secondary.endpoint.is_same_broker(other_primary.endpoint):
            raise ConfigurationError(
                f"{secondary.endpoint} is the primary of another pair of this process: "
                "a secondary must not be a primary elsewhere"
            )
        if primary.endpoint.is_same_broker(other_secondary.endpoint):
            raise ConfigurationError(
                f"{primary.endpoint} is the secondary of another pair of this process: "
                "a secondary must not be a primary elsewhere"
            )
    _active.append((primary, secondary, asyncio.get_running_loop()))


def holds(transport: Transport) -> bool:
    """Whether a connection is in a registered pair."""
    return any(transport in pair for pair in _active)


def release(primary: Transport, secondary: Transport) -> None:
    """Unregister a pair; an unknown one is ignored."""
    _active[:] = [pair for pair in _active if pair[0] is not primary or pair[1] is not secondary]

"""The two facts of an entity, and the one state that people see (SPEC 4)."""

from __future__ import annotations

import enum

from pairmq.model import EntityState


class Health(enum.Enum):
    """Whether the primary's entity takes messages, as far as this process knows."""

    UP = "up"
    TRIAL = "trial"
    """Up by a ping's word alone: the first real message is the canary (SPEC 4.8)."""
    FAILING = "failing"
    DOWN = "down"
    HELD = "held"
    """Down by an operator's word: no pings (SPEC 4.7)."""


class Backlog(enum.Enum):
    """Whether messages of the entity may lie in backlog queues."""

    CLEAN = "clean"
    DIRTY = "dirty"


def visible(health: Health, backlog: Backlog) -> EntityState:
    """Derive the state that people see from the two facts (SPEC 4)."""
    return _VISIBLE[health, backlog]


_VISIBLE = {
    (health, backlog): state
    for health, clean, dirty in (
        (Health.UP, EntityState.HEALTHY, EntityState.DRAINING),
        (Health.TRIAL, EntityState.HEALTHY, EntityState.DRAINING),
        (Health.FAILING, EntityState.FAILING, EntityState.FAILING),
        (Health.DOWN, EntityState.FAILED_OVER, EntityState.FAILED_OVER),
        (Health.HELD, EntityState.FAILED_OVER, EntityState.FAILED_OVER),
    )
    for backlog, state in ((Backlog.CLEAN, clean), (Backlog.DIRTY, dirty))
}

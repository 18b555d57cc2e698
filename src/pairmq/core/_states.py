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
    # No table: an enum's members are hashed by a function of Python, and each send asks for this several times.
    if health is _UP or health is _TRIAL:
        return EntityState.HEALTHY if backlog is _CLEAN else EntityState.DRAINING
    return EntityState.FAILING if health is _FAILING else EntityState.FAILED_OVER


_UP, _TRIAL, _FAILING, _CLEAN = Health.UP, Health.TRIAL, Health.FAILING, Backlog.CLEAN

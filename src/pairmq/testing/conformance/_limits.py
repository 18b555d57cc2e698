"""How long the suites wait; shorter where a test was seen to pass in less, and a defect is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds."""

    # Within which everything expected happens, even on a slow and busy machine. Nothing waits that long.
    patience: float = 30.0
    # That a broker stays unavailable for a call that should not wait for it; an immediate failure ends the wait.
    outage: float = 5.0
    # That a call may take beyond what it is allowed: not a measure of speed, but of who decides when it ends.
    slack: float = 2.0
    # Within which a receive without waiting has returned, over a link that is open; what waits all the same mostly
    # waits for longer.
    asking_once: float = 2.0
    stall: float = 0.05  # by which the machine is late before that is excused: many small ones delay no waiting call


_LIMITS: ContextVar[Limits] = ContextVar("pairmq conformance limits", default=Limits())  # noqa: B039  # it is frozen


def limits() -> Limits:
    """Return those of the running test."""
    return _LIMITS.get()


@contextmanager
def limited(to: Limits) -> Iterator[None]:
    """Let a block, and the tasks that it starts, keep to other limits."""
    before = _LIMITS.set(to)
    try:
        yield
    finally:
        _LIMITS.reset(before)

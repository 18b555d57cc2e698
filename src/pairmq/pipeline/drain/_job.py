"""What goes to the workers and what comes back: values that hold no secret, as Spark may show or log them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from pairmq.core import PairOptions


@dataclass(frozen=True, slots=True)
class Job:
    """What every task is told; Spark pickles it.

    Args:
        options: the pair's, with this task's share of the rate.
        primary: the primary's URL without its password: the worker's own must lead to the same broker.
        secondary: likewise.
        config: absolute path of the settings file that the worker reads, None for its environment alone.
        handover: the directory shared with the driver (see `Handover`); None where it is on another machine.
        handed_over: the URLs are in there.
        journal: directory for the task's journal, None for none.
        patience: seconds without progress after which the queue is left.
        ends_at: seconds since 1970 UTC at which the task ends, None for no such instant.
        log_level: of the logger ``pairmq``, as the driver has it.
        observers: names of those that watch the task's pair.
    """

    options: PairOptions
    primary: str
    secondary: str
    config: str | None
    handover: str | None
    handed_over: bool
    journal: str | None
    patience: float
    ends_at: float | None
    log_level: int
    observers: tuple[str, ...] = ()


class Ending(StrEnum):
    """How the work on one queue ended."""

    DRAINED = "drained"
    """The queue was seen empty."""
    STALLED = "stalled"
    """Nothing moved for as long as the drain is patient: see the outcome's shut destinations and problem."""
    OUT_OF_TIME = "out of time"
    """The drain's last instant came."""
    STOPPED = "stopped"
    """A person or the system asked for the end."""
    FAILED = "failed"
    """The pair did not open, or has faulted."""
    MISCONFIGURED = "misconfigured"
    """The worker's settings can't work."""
    LOST = "lost"
    """Its task brought no result: a worker died more often than Spark starts it again, which ends all other tasks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended. It says nothing of how many messages it moved: an attempt that died tells nobody.

    Args:
        index: of the queue.
        ending: how it ended.
        attempt: 0 for the first; others before it died.
        shut: destinations that took no messages at the end, each with the reason.
        problem: what went wrong last, None for nothing.
    """

    index: int
    ending: Ending
    attempt: int = 0
    shut: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None

    def to_json(self) -> str:
        """As text, which is what a task gives back."""
        return json.dumps({**asdict(self), "shut": dict(self.shut)})

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "ending": Ending(values["ending"])})

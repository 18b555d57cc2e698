"""The words of the judge."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What is wrong."""

    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATE = "unexplained duplicate"
    ORDER = "wrong order"
    NOT_DRAINED = "not drained"
    DEADLINE = "outlived its deadline"
    CLOSE = "hung close"
    STATE = "wrong state"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise.

    Args:
        verdict: which.
        at: the virtual second at which it was so.
        text: what happened, in a sentence.
        message: the number of the message, if any.
    """

    verdict: Verdict
    at: float
    text: str
    message: int | None = None

    def __str__(self) -> str:
        return f"{self.verdict} at {self.at:.3f} s: {self.text}"

"""What a drain did, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pairmq.pipeline.drain._handover import Ending


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One backlog queue.

    Args:
        queue: its path.
        before: messages in it at the start; None when it could not be asked.
        left: messages in it at the end; likewise.
        ending: how the work on it ended; None when there was nothing to do.
        attempts: tasks that worked on it one after the other; more than one where a worker died.
        problem: what went wrong last, None for nothing.
    """

    queue: str
    before: int | None
    left: int | None
    ending: Ending | None = None
    attempts: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What a drain did.

    Args:
        queues: one entry each, by their index.
        before: messages in the backlog at the start; None when not known.
        left: messages in it at the end; likewise. Others may have put some there, or taken some out.
        moved: messages moved to the primary; None if unknown.
        gone: messages that left the queues without being dead-lettered, by the secondary's counts; None if unknown.
        counted_from: ``"journal"``: exactly what the tasks wrote down, short of the last moment of a worker that was
            killed; ``"brokers"``: the same as ``gone``, moved by any process.
        moved_again: of these, those that may have a second copy in the primary; None without a journal.
        dead_lettered: messages dead-lettered meanwhile, by the journal or the secondary, whichever is more; None when
            not known.
        workers_lost: attempts that died.
        shut: destinations that took no messages, each with the reason.
        problem: why the drain as a whole failed; None when it did not.
        stopped: a person or the system asked for the end.
        seconds: from the first count to the last.
        elsewhere: backlog queues that hold messages and that this drain leaves alone, each with the reason.
        unread: why it was not looked whether messages wait elsewhere; None when it was.
    """

    queues: tuple[QueueReport, ...]
    before: int | None
    left: int | None
    moved: int | None
    gone: int | None
    counted_from: str
    moved_again: int | None
    dead_lettered: int | None
    workers_lost: int
    shut: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    stopped: bool = False
    seconds: float = 0.0
    elsewhere: tuple[str, ...] = ()
    unread: str | None = None

    @property
    def emptied(self) -> bool:
        """Whether every queue was asked at the end and holds nothing to be moved."""
        return self.left == 0

    @property
    def clean(self) -> bool:
        """Whether nothing is left to do: emptied, and known to have set nothing aside."""
        return self.emptied and self.dead_lettered == 0 and self.problem is None and not self.elsewhere

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"emptied": self.emptied, **asdict(self), "seconds": round(self.seconds, 3)}

"""What passes between the driver and its workers.

A job and its outcome go through Spark: values that hold no secret, as Spark may show or log them. The rest is in a
private directory that the driver shares with workers on the same machine: the URLs that were given to the driver alone;
its request to stop; and who began to work, so that those who died are known. Only this user can read
it, and it ends with the drain.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pairmq.core import PairOptions
from pairmq.pipeline._storage import writing


@dataclass(frozen=True, slots=True)
class Job:
    """Parameters of every task; Spark pickles them."""

    options: PairOptions  # the pair's, with this task's share of the rate
    primary: str  # the primary's URL without its password: the worker's own must lead to the same broker
    secondary: str  # likewise
    config: str | None  # absolute path of the settings file that the worker reads, None for its environment alone
    handover: str | None  # the directory shared with the driver; None where it is on another machine
    handed_over: bool  # whether the URLs are in there
    journal: str | None  # directory for the task's journal
    patience: float  # seconds without progress after which the queue is left
    ends_at: float | None  # seconds since 1970 UTC
    log_level: int  # of the logger ``pairmq``, as the driver has it
    observers: tuple[str, ...] = ()  # names of those that watch the task's pair


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
    """How a task ended. Without the number of moved messages: an attempt that died can't report it."""

    index: int  # of the queue
    ending: Ending
    attempt: int = 0  # 0 for the first; others before it died
    # Destinations that took no messages at the end, each with the reason.
    shut: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None  # what went wrong last

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "shut": dict(self.shut)})

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "ending": Ending(values["ending"])})


_SETTINGS, _STOP, _ATTEMPTS = "settings", "stop", "attempts"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One task's attempt at a queue."""

    index: int  # of the queue
    journal: str  # the name under which it journals; empty where it does not


class Handover:
    """The driver's side, with the URLs if the workers need them; a context manager."""

    def __init__(self, urls: tuple[str, str] | None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pairmq-drain-"))  # made with mode 0700
        (self.directory / _ATTEMPTS).mkdir()
        if urls is not None:
            path = self.directory / _SETTINGS
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(urls, file)

    def stop(self) -> None:
        """Ask all tasks to end; those that begin later end at once, and need no URLs."""
        (self.directory / _STOP).touch()
        (self.directory / _SETTINGS).unlink(missing_ok=True)

    def begun(self) -> list[Attempt]:
        """Every attempt that began, also those of workers that died."""
        return [
            Attempt(int(path.name.partition("-")[0]), path.read_text())
            for path in sorted((self.directory / _ATTEMPTS).iterdir())
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class Worker:
    """A worker's side of the driver's directory, which may be out of reach."""

    def __init__(self, directory: str | None) -> None:
        self.interrupted = False
        """A signal came, to this process or to all of the drain's."""
        self._directory = None if directory is None else Path(directory)

    def urls(self) -> tuple[str, str]:
        assert self._directory is not None  # noqa: S101  # a driver that is out of reach hands nothing over
        primary, secondary = json.loads((self._directory / _SETTINGS).read_text())
        return str(primary), str(secondary)

    def stopped(self) -> bool:
        """Whether the driver asks for the end, or has gone with all it had."""
        return self._directory is not None and (
            (self._directory / _STOP).exists() or not (self._directory / _ATTEMPTS).exists()
        )

    def interrupt(self) -> None:
        """Take a signal."""
        self.interrupted = True

    def begin(self, index: int, attempt: int, journal: str) -> None:
        """Say that an attempt at a queue begins, and under which name it journals."""
        if self._directory is not None:
            path = self._directory / _ATTEMPTS / f"{index}-{attempt}"
            with writing(path):
                path.write_text(journal)

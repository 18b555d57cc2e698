"""Where a journal's files are, and what their names say.

::

    DIR/date=2026-11-21/segment-<process>-000003.parquet    whole and final, for readers
    DIR/_open/<process>-000004.part                         what is being written
    DIR/_open/<process>-000005.lost-…                       empty: its name counts what could not be written

Spark, and most that read folders of Parquet, take ``date=…`` for a column and leave out what begins with ``_``.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pairmq.model import ConfigurationError

OPEN = "_open"
"""The folder of what is being written."""

_PART = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,199})-([0-9]{6,12})\.part")
_LOST = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9.-]{0,199})-([0-9]{6,12})\.lost-([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,15})-([0-9]{1,15})(?:-closed-([0-9]{1,18}))?"
)
_ASIDE = re.compile(r"(.+)\.[0-9]{4}-[0-9]{2}-[0-9]{2}\.tmp")
_NEW = ".new"
_MOST_OTHERS = 100
_LAST_DAY = 2_932_896  # 9999-12-31, in days since 1970: what a date can be


@dataclass(frozen=True, slots=True)
class ProcessRun:
    """One run of one process, as no other is called: host, process id, start and chance, fit for a file's name."""

    name: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Loss:
    """What a process could not write, as the name of an empty file says it: a full disk still takes a name.

    The number is taken from those of its parts, ``first_seq`` is the one that the first of the rows would have had; the
    times are in milliseconds since 1970. ``dropped`` are the events that the process could not keep in all, where it
    closed its journal, so that the count is whole.
    """

    process: str
    number: int
    first_seq: int
    count: int
    since: int
    until: int
    dropped: int | None


def this_run(now: float) -> ProcessRun:
    """Name this process anew, by wall-clock seconds since 1970 UTC."""
    host = socket.gethostname()
    started = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    return ProcessRun(f"{_plain(host)}-{os.getpid()}-{started}-{secrets.token_hex(4)}", host, os.getpid())


def _plain(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", host).strip("-.")[:64] or "host"


def directory_of(path: str | os.PathLike[str]) -> Path:
    if "://" in os.fspath(path):
        raise ConfigurationError("the journal's directory is a URL: give the path of a directory")
    return Path(path).absolute()


def part_path(directory: Path, process: str, number: int) -> Path:
    return directory / OPEN / f"{process}-{number:06d}.part"


def parse_part(path: Path) -> tuple[str, int] | None:
    """The process and the number in a part's name; None for any other file."""
    match = _PART.fullmatch(path.name)
    return None if match is None else (match[1], int(match[2]))


def loss_path(directory: Path, loss: Loss) -> Path:
    name = f"{loss.process}-{loss.number:06d}.lost-{loss.first_seq}-{loss.count}-{loss.since}-{loss.until}"
    return directory / OPEN / f"{name}{'' if loss.dropped is None else f'-closed-{loss.dropped}'}"


def parse_loss(path: Path) -> Loss | None:
    """The loss recorded in a file's name; None for other files."""
    match = _LOST.fullmatch(path.name)
    if match is None:
        return None
    number, first_seq, count, since, until = map(int, match.groups()[1:6])
    return Loss(match[1], number, first_seq, count, since, until, None if match[7] is None else int(match[7]))


def others_writing(directory: Path, process: str) -> dict[str, float]:
    """The other processes that write, and when they last did: shows readers what is missing, even a whole process."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError):  # to be seen later will do
        for path in (directory / OPEN).iterdir():
            other, number = parse_part(path) or (process, 0)
            if other != process and number > 0 and path.exists():
                found[other] = max(round(path.stat().st_mtime, 3), found.get(other, 0.0))
    return dict(sorted(found.items(), key=lambda each: -each[1])[:_MOST_OTHERS])


def is_of_host(process: str, host: str) -> bool:
    return process.startswith(f"{_plain(host)}-")


def aside_path(part: Path, date: str) -> Path:
    """Where a part's segment of one day is written before it is put in place."""
    return part.with_suffix(f".{date}.tmp")


def mark_aside(path: Path) -> Path:
    """Where the empty file of a loss is made before it is put in place."""
    return path.with_name(f"{path.name}{_NEW}")


def is_mark_aside(path: Path) -> bool:
    return path.suffix == _NEW and parse_loss(path.with_suffix("")) is not None


def part_of_aside(path: Path) -> Path | None:
    """The part of a segment that is written aside; None for any other file."""
    if path.suffix == ".tmp" and parse_loss(path.with_suffix("")) is not None:
        return path.with_suffix("")
    match = _ASIDE.fullmatch(path.name)
    part = None if match is None else path.with_name(f"{match[1]}.part")
    return part if part is not None and parse_part(part) is not None else None


def date_of(day: int) -> str:
    """Name a day, given as days since 1970; one that no calendar has becomes the nearest that it has."""
    return datetime.fromtimestamp(min(max(day, 0), _LAST_DAY) * 86_400, UTC).strftime("%Y-%m-%d")


def segment_path(directory: Path, date: str, process: str, number: int) -> Path:
    """The segment of a part's rows of one day: always the same one, however often and wherever it is made."""
    return directory / f"date={date}" / f"segment-{process}-{number:06d}.parquet"


def sync_directory(path: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

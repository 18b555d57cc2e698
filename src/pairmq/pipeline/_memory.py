"""How much memory this process may use: the computer's, or less where a control group limits it, as containers do.

Both versions of control groups are read, and every group from the process's own up to the outermost that can be seen:
each of them may set a limit, and the lowest one counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_LIMITS = {"cgroup2": "memory.max", "cgroup": "memory.limit_in_bytes"}
_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class _Mount:
    """A place where control groups can be seen."""

    type: str  # of its file system
    group: PurePosixPath  # the group that is seen there, as it is called outside
    place: str


def usable_memory(root: Path = _ROOT) -> int | None:
    """Return how much memory this process may use, in bytes; None if the system does not report it."""
    try:
        physical = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, OSError, ValueError):
        physical = []
    return min((*physical, *_limits(root)), default=None)


def _limits(root: Path) -> Iterator[int]:
    groups = _groups(root)
    for mount in _mounts(root):
        own = groups.get(mount.type)
        if own is None:
            continue
        # A container may see its group's name as outside, while only that group itself is visible inside.
        inside = own.relative_to(mount.group) if own.is_relative_to(mount.group) else PurePosixPath()
        for each in (inside, *inside.parents):
            text = _text(root / mount.place.lstrip("/") / each / _LIMITS[mount.type]).strip()
            if text.isdecimal():  # version 2 says "max" for none, version 1 a number beyond any computer's
                yield int(text)


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """The process's own group by the type of file system on which it is seen."""
    found = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            found["cgroup2"] = PurePosixPath(group)
        elif "memory" in controllers.split(","):
            found["cgroup"] = PurePosixPath(group)
    return found


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        place, mounted = before.split(" "), after.split(" ")
        if len(place) < 5 or len(mounted) < 3 or mounted[0] not in _LIMITS:
            continue
        if mounted[0] == "cgroup2" or "memory" in mounted[2].split(","):
            yield _Mount(mounted[0], PurePosixPath(_unescaped(place[3])), _unescaped(place[4]))


def _unescaped(text: str) -> str:
    """A path of mountinfo, in which blanks etc. are three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

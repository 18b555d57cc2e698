"""What is installed: the version of PairMQ, and the entry points of all distributions."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@functools.cache
def version() -> str:
    """Return the version, ``unknown`` for source code that was never installed."""
    from importlib import metadata  # takes as long to import as a third of PairMQ

    try:
        return metadata.version("pairmq")
    except metadata.PackageNotFoundError:
        return "unknown"


class Installed(NamedTuple):
    """A distribution and its entry points of one group, or why these can't be read."""

    name: str
    version: str
    entry_points: tuple[EntryPoint, ...] = ()
    error: Exception | None = None


def installed(group: str) -> Iterator[Installed]:
    """Find the distributions that have entry points of a group, or may have some: one damaged file hides no other."""
    from importlib.metadata import distributions  # slow to import, as above

    for distribution in distributions():
        found: tuple[EntryPoint, ...] = ()
        broken: Exception | None = None
        try:
            # To parse all of some hundred files takes longer than to read them.
            if group not in (distribution.read_text("entry_points.txt") or ""):
                continue
            found = tuple(each for each in distribution.entry_points if each.group == group)
        except UnicodeDecodeError as error:
            if group.encode() not in error.object:
                continue
            broken = error
        except Exception as error:  # the parser raises what it comes across
            broken = error
        if found or broken is not None:
            try:
                yield Installed(distribution.metadata["Name"] or "unknown", distribution.version, found, broken)
            except Exception:  # its metadata is missing, as after a removal that was interrupted
                yield Installed("unknown", "unknown", found, broken)

"""Puts a directory in the place of another at one stroke, so that nobody ever sees half of it."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux: both names change what they mean in one step


def put_in_place(new: Path, place: Path) -> None:
    """Put a directory in its place, and delete what was there.

    Args:
        new: complete; on the same file system.
        place: what it is to be called; a directory, or nothing.

    Raises:
        OSError: the place is taken by something else, or can't be written.

    Cut short at any instant, it leaves either the old or the new directory in the place, and on systems that can't
    exchange two names perhaps none for the moment between two renames.
    """
    if not place.exists():
        new.rename(place)
        return
    if not _exchanged(new, place):
        old = new.with_name(f"{new.name}-old")
        place.rename(old)
        new.rename(place)
        new = old
    shutil.rmtree(new)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two names; False where the system can't."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0)

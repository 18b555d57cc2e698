"""Puts a directory in the place of another at one stroke, so that nobody ever sees half of it."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

from pairmq.model import ConfigurationError

_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux: both names change what they mean in one step


def check_place(place: Path) -> None:
    """See that a directory can be put in a place, before the work of making it is done.

    A link can't be kept: what is behind it may be on another file system, where no single stroke puts a directory in
    the place of another.

    Args:
        place: what it is to be called.

    Raises:
        ConfigurationError: a link is there, or a file.
    """
    if place.is_symlink():
        raise ConfigurationError(
            f"{place} is a symbolic link, and a table can't be put in its place: remove it, or let the output "
            "directory itself be a link"
        )
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{place} is no directory, and a table can't be put in its place: move it away")


def put_in_place(new: Path, place: Path) -> None:
    """Put a directory in its place, and delete what was there.

    Args:
        new: complete; on the same file system.
        place: what it is to be called; a directory, or nothing.

    Raises:
        ConfigurationError: as `check_place`; nothing was changed.
        OSError: the place can't be written.

    Cut short at any instant, it leaves either the old or the new directory in the place, and on systems that can't
    exchange two names perhaps none for the moment between two renames.
    """
    check_place(place)
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

"""The output directory: one writer at a time, who works aside, and puts each table in place at one stroke."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from pairmq.model import ConfigurationError

_WORK = "_work-"  # readers leave out names that begin with an underscore
_LOCK = "_lock"
_LONGEST_NAME = 200  # bytes of what a lock says of its holder


@contextlib.contextmanager
def work_folder(out: Path, holder: str) -> Iterator[Path]:
    """Give a folder to write in, on the file system of the tables; deleted in the end, with those of killed runs.

    Args:
        out: the output directory, made where it is missing.
        holder: who works there, for those who are refused meanwhile.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"can't write tables to {out}: {error.strerror or error}") from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            said = os.pread(lock, _LONGEST_NAME, 0).decode("utf-8", "replace").strip()
            raise ConfigurationError(
                f"another run is writing tables to {out}" + (f": {said}" if said else "")
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{holder}, process {os.getpid()}\n".encode()[:_LONGEST_NAME], 0)
        for left in out.glob(f"{_WORK}*"):
            shutil.rmtree(left, ignore_errors=True)
        work = out / f"{_WORK}{secrets.token_hex(4)}"
        work.mkdir()
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(lock)


_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux: both names change what they mean in one step


def check_place(place: Path) -> None:
    """See that a directory can be put in a place, before the work of making it is done.

    A link can't be kept: what is behind it may be on another file system, where no single stroke puts a directory in
    the place of another.
    """
    if place.is_symlink():
        raise ConfigurationError(
            f"{place} is a symbolic link, which a table can't replace: remove it, or make the output directory itself "
            "a link"
        )
    if place.exists() and not place.is_dir():
        raise ConfigurationError(f"{place} is not a directory, and a table can't replace it: move it")


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


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file around what writes it: only what opens or renames one names it by itself, a full disk never.

    Args:
        path: the file, or the directory whose names are written.

    Raises:
        OSError: as it came, with a path.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise

"""The output directory while somebody writes to it: one writer at a time, who works aside."""

from __future__ import annotations

import contextlib
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

    Raises:
        ConfigurationError: it can't be written to, or somebody else is at work there.
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

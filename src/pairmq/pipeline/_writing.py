"""What is said of a file that can't be written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


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

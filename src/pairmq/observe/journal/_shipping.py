"""Uploads finished segments to a store that fsspec reaches; a reader finds each there whole, or not at all.

What the store has is the only record of what was done: nothing is kept here, so that nothing can disagree with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairmq.model import ConfigurationError
from pairmq.observe.journal._reading import segments

_ATOMIC = frozenset({"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "r2", "s3", "s3a"})
"""Stores in which an object appears when its upload is complete; everywhere else a file grows under its name."""


class ShipmentError(Exception):
    """The store could not be used; what was uploaded before is complete, and the next shipment continues.

    Args:
        message: what failed.
        done: what was shipped before.
    """

    def __init__(self, message: str, done: Shipped) -> None:
        super().__init__(message)
        self.done = done


@dataclass(slots=True)
class Shipped:
    """What a shipment did.

    Args:
        segments: that were uploaded.
        bytes: in them.
        present: segments that the store had before.
        deleted: segments that were deleted here, as the store has them.
        failed: segments that could not be read or deleted here, and why.
    """

    segments: list[Path] = field(default_factory=list)
    bytes: int = 0
    present: int = 0
    deleted: int = 0
    failed: dict[Path, str] = field(default_factory=dict)


def ship(
    directory: str | os.PathLike[str],
    url: str,
    *,
    delete: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Shipped:
    """Upload the segments of a journal that a store does not have yet, under the same names.

    Parts that are still being written are left for a later shipment. A segment counts as uploaded when the store has a
    file of its name and size. Shipments may run beside each other and beside processes that write, and may be killed
    at any time: the next one continues.

    Args:
        directory: the journal's.
        url: the journal's place in the store, such as ``s3://bucket/journal``. Any protocol of fsspec whose package is
            installed; credentials come from its own configuration and environment.
        delete: delete each segment here once the store has it.
        progress: called after each segment with how many are done, and with the number of all.

    Returns:
        What was done. A segment that can't be read here is named there, and does not stop the others.

    Raises:
        ConfigurationError: fsspec or the protocol's package is missing, the protocol is unknown, or ``url`` has none.
        OSError: the directory can't be read.
        ShipmentError: the store refused something, or could not be reached.
    """
    done = Shipped()
    found = segments(directory)
    store = _Store(url, done)
    held: dict[str, int] = {}
    day = None
    for number, path in enumerate(found, 1):
        if path.parent.name != day:  # they come day by day
            day = path.parent.name
            held = store.sizes(day)
        try:
            _shipped(path, store, held, delete, done)
        except OSError as error:
            done.failed[path] = error.strerror or str(error)
        if progress is not None:
            progress(number, len(found))
    return done


def _shipped(path: Path, store: _Store, held: dict[str, int], delete: bool, done: Shipped) -> None:
    """Ship one segment. Raises `OSError` for what failed on this side alone."""
    with path.open("rb") as segment:  # what can't be read here is not the store's fault
        size = os.fstat(segment.fileno()).st_size
    if held.get(path.name) == size:
        done.present += 1
    else:
        store.put(path, size)
        done.segments.append(path)
        done.bytes += size
    if delete:
        path.unlink()
        done.deleted += 1


class _Store:
    """A folder of a file system of fsspec, with `ShipmentError` for its errors: each package has its own exceptions."""

    def __init__(self, url: str, done: Shipped) -> None:
        protocol, separator, rest = url.partition("://")
        if not separator or not rest:
            raise ConfigurationError("the store is not a URL: give one such as s3://bucket/journal")
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError:
            raise ConfigurationError(
                "shipping needs fsspec: install it with: pip install 'pairmq[ship]', and the store's, such as s3fs"
            ) from None
        self._done = done
        login, at, _ = rest.partition("@")
        self._secret = login if at else None
        self._atomic = protocol in _ATOMIC
        try:
            self._files, root = url_to_fs(url)
        except (ImportError, ValueError) as error:  # fsspec says which package, or that it knows no such protocol
            raise ConfigurationError(f"can't use a store at {protocol}://: {self._plain(error)}") from error
        except Exception as error:
            raise self._problem("open the store", error) from error
        self._root = str(root).rstrip("/")

    def sizes(self, day: str) -> dict[str, int]:
        """The size of each segment that the store has of a day."""
        try:
            listed = self._listed(day)
        except Exception as error:
            raise self._problem(f"list {day}", error) from error
        sizes = {str(each["name"]).rpartition("/")[2]: each["size"] for each in listed}
        for name in sizes:
            # Uploads that were interrupted: their segments are whole by now.
            if name.startswith("_") and name[1:].rpartition(".")[0] in sizes:
                with contextlib.suppress(Exception):  # readers leave it out, and the next shipment tries again
                    self._files.rm_file(self._path(day, name))
        return sizes

    def put(self, path: Path, size: int) -> None:
        """Upload a segment, and see that all of it has arrived."""
        day = path.parent.name
        target = self._path(day, path.name)
        # Readers leave out what begins with an underscore.
        first = target if self._atomic else self._path(day, f"_{path.name}.{secrets.token_hex(4)}")
        try:
            if not self._atomic:  # those have no folders, and would make a misspelt bucket
                self._files.makedirs(self._path(day), exist_ok=True)
            self._files.put_file(str(path), first)
            self._files.invalidate_cache()
            held = self._files.info(first)["size"]
            if held != size:
                raise EOFError(f"it has {held} bytes of {size}")
            if first != target:
                self._files.mv(first, target)
        except Exception as error:
            # Another shipment may have uploaded it at the same time, and removed what this one began.
            if self._has(day, path.name, size):
                return
            raise self._problem(f"upload {path.name}", error) from error

    def _has(self, day: str, name: str, size: int) -> bool:
        try:
            return any(str(each["name"]).endswith(f"/{name}") and each["size"] == size for each in self._listed(day))
        except Exception:
            return False  # what it was asked for is worth reporting, and this is not

    def _listed(self, day: str) -> list[dict[str, Any]]:
        self._files.invalidate_cache()  # others write there, too
        try:
            found: list[dict[str, Any]] = self._files.ls(self._path(day), detail=True)
        except FileNotFoundError:
            return []
        return found

    def _path(self, *names: str) -> str:
        return "/".join((self._root, *names))

    def _problem(self, doing: str, error: Exception) -> ShipmentError:
        return ShipmentError(f"can't {doing}: {self._plain(error)}", self._done)

    def _plain(self, error: Exception) -> str:
        """The first line of an error, without the login in the URL."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        return text.replace(self._secret, "…") if self._secret else text

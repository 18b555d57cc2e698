"""Where journals and tables are: directories of this computer, or places that Spark reaches by a URL.

What is local is a `pathlib.Path`. What is not is a `HadoopPath`, with as much of the same methods as the pipeline uses;
behind them is the Java library by which Spark itself reads and writes, with the session's settings and credentials.

A run writes aside, and its tables become visible at one stroke each. In a local directory that is an exchange of two
names. Elsewhere nothing is ever renamed, as object stores can't: each run has a folder of its own, and counts once the
last thing that is written there, `RUN_FILE`, is whole::

    OUT/runs/20261128T053312123456-6b1f03aa/reconciliation/*.parquet
    OUT/runs/20261128T053312123456-6b1f03aa/run.json

Readers take the latest run that counts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairmq.model import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUN_FILE = "run.json"

GRACE = 3600.0
"""Seconds for which a run's folder stays after the one that follows it, for those who are reading it."""

_RUNS = "runs"
_RUN = re.compile(r"[0-9]{8}T[0-9]{12}-[0-9a-f]{8}")
_DATE, _DATED = "%Y%m%dT%H%M%S%f", 21
_FORGOTTEN = 7 * 86_400.0  # s after which a run that never came to its end is deleted
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LOCAL = re.compile(r"file:(//)?(?=/)")


@dataclass(frozen=True, order=True, slots=True)
class HadoopPath:
    """A file or folder at a URL."""

    url: str  # whole; nothing in it is escaped
    spark: SparkSession = field(compare=False, repr=False)  # the session by which it is reached

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> HadoopPath:
        return HadoopPath(f"{self.url.rstrip('/')}/{name}", self.spark)

    @property
    def name(self) -> str:
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def parent(self) -> HadoopPath:
        return HadoopPath(self.url.rstrip("/").rpartition("/")[0], self.spark)

    def with_suffix(self, suffix: str) -> HadoopPath:
        stem, dot, _ = self.name.rpartition(".")
        return self.parent / f"{stem if dot else self.name}{suffix}"

    def exists(self) -> bool:
        with self._errors():
            return bool(self._files.exists(self._path))

    def is_dir(self) -> bool:
        try:
            with self._errors():
                return bool(self._files.getFileStatus(self._path).isDirectory())
        except FileNotFoundError:
            return False

    def changed_at(self) -> float:
        """When its content was last changed, seconds since 1970 UTC."""
        with self._errors():
            return float(self._files.getFileStatus(self._path).getModificationTime() / 1000)

    def glob(self, pattern: str) -> list[HadoopPath]:
        """The files or folders in this one whose names end as a pattern of the form ``*end`` says."""
        end = pattern.removeprefix("*")
        try:
            with self._errors():
                names = [status.getPath().getName() for status in self._files.listStatus(self._path)]
        except FileNotFoundError:
            return []
        return [self / name for name in sorted(names) if name.endswith(end)]

    def files(self) -> list[tuple[str, HadoopPath]]:
        """All files below this folder, each with its path from here, in order; one call where the store can list."""
        found = []
        with self._errors():
            listed = self._files.listFiles(self._path, True)
            start = len(self._files.makeQualified(self._path).toUri().getPath().rstrip("/")) + 1
            while listed.hasNext():
                below = listed.next().getPath().toUri().getPath()[start:]
                found.append((below, self / below))
        return sorted(found)

    def mkdir(self, *, parents: bool = False, exist_ok: bool = False) -> None:
        with self._errors():
            self._files.mkdirs(self._path)

    def delete(self) -> None:
        with self._errors():
            self._files.delete(self._path, True)

    def open_input(self) -> io.BufferedReader:
        """Open the file to read any part of it."""
        with self._errors():
            return io.BufferedReader(_Input(self), _BLOCK)

    def open_output(self) -> io.BufferedWriter:
        """Open the file to write it anew; in an object store it is there once it is closed."""
        with self._errors():
            return io.BufferedWriter(_Output(self), _BLOCK)

    def read_text(self, encoding: str = "utf-8") -> str:
        with self.open_input() as file:
            return file.read().decode(encoding)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        with self.open_output() as file:
            file.write(text.encode(encoding))

    @property
    def _path(self) -> Any:
        return self.spark._jvm.org.apache.hadoop.fs.Path(self.url)  # type: ignore[union-attr]

    @property
    def _files(self) -> Any:
        return self._path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Give Java's errors as those of files."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            yield
        except PySparkException as error:  # of a URL that can't be
            raise OSError(5, str(error).splitlines()[0], self.url) from None
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            text = (error.java_exception.getMessage() or kind).splitlines()[0]
            if kind.endswith(("FileNotFoundException", "NoSuchFileException")):
                raise FileNotFoundError(2, text, self.url) from None
            raise OSError(5, f"{kind.rpartition('.')[2]}: {text}", self.url) from None


Place = Path | HadoopPath
"""A file or folder, wherever it is."""

_BLOCK = 1 << 20


class _Stream(io.RawIOBase):
    """A stream of Java's, which one buffered file has for its own."""

    def __init__(self, path: HadoopPath, stream: Any) -> None:
        self._owner = path
        self._stream = stream

    def close(self) -> None:
        if not self.closed:
            super().close()
            with self._owner._errors():
                self._stream.close()


class _Input(_Stream):
    def __init__(self, path: HadoopPath) -> None:
        super().__init__(path, path._files.open(path._path))
        self._size = path._files.getFileStatus(path._path).getLen()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = max(0, min(len(buffer), self._size - self._at))
        if not wanted:
            return 0
        with self._owner._errors():
            self._stream.seek(self._at)
            data = self._stream.readNBytes(wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Output(_Stream):
    def __init__(self, path: HadoopPath) -> None:
        super().__init__(path, path._files.create(path._path, True))

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._owner._errors():
            self._stream.write(bytes(data))
        return len(data)


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether a place is a URL that is not a local directory's."""
    text = os.fspath(place)
    return _URL.match(text) is not None and _LOCAL.match(text) is None


def local(place: str | os.PathLike[str]) -> Path:
    """Return the path of a place that is no URL, or a local one; an empty text is often a variable that is not set."""
    text = _LOCAL.sub("", os.fspath(place))
    if not text or "\0" in text:
        raise ConfigurationError(f"invalid path {text!r}; give another one")
    return Path(text)


def reached(place: str | os.PathLike[str], spark: SparkSession) -> Place:
    """Return a place as it is reached, or raise `ConfigurationError` where this session can't reach such URLs."""
    if not is_url(place):
        return local(place)
    text = os.fspath(place).rstrip("/")
    if not hasattr(spark, "_jsparkSession"):
        raise ConfigurationError(
            f"{text} can't be reached through Spark Connect: give a directory that this process and the server see, or "
            "use spark-submit"
        )
    found = HadoopPath(text, spark)
    try:
        found.exists()
    except OSError as error:
        raise ConfigurationError(f"can't reach {text}: {error.strerror}") from None
    return found


def opened(place: Place) -> Any:
    """Return what Arrow opens to read a file."""
    return place if isinstance(place, Path) else place.open_input()


def created(place: Place) -> Any:
    """Return what Arrow writes a file to, which does not close what was opened for it."""
    return place.open("wb") if isinstance(place, Path) else place.open_output()


def parquet_files(folder: Place) -> list[Place]:
    """Return the files of a table, in order; none where the folder is missing."""
    return sorted(folder.glob("*.parquet"), key=str)


def delete_folder(place: Place) -> None:
    """Delete a folder with all that is in it, as far as that is possible."""
    if isinstance(place, Path):
        shutil.rmtree(place, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            place.delete()


def latest_run(out: Place) -> Place:
    """Return where the tables of the latest run are, of those that came to their end, or raise `FileNotFoundError`."""
    if isinstance(out, Path):
        return out
    for run in reversed(_runs(out)):
        if _is_whole(run / RUN_FILE):
            return run
    raise FileNotFoundError(2, "no run is there", str(out))


def _is_whole(file: HadoopPath) -> bool:
    """Whether a run's file was written to its end: in some stores one can be seen before that."""
    try:
        json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


def publish(work: Place, out: Place, tables: tuple[str, ...], document: str) -> None:
    """Make the tables of a `work_folder` those of the output directory, and then the run file."""
    if isinstance(work, Path) and isinstance(out, Path):
        for table in tables:
            put_in_place(work / table, out / table)
        written = work / RUN_FILE
        with writing(written):
            written.write_text(document, "utf-8")
        written.replace(out / RUN_FILE)
    elif isinstance(work, HadoopPath) and isinstance(out, HadoopPath):
        for between in work.glob("*"):
            if between.name.startswith("_"):
                delete_folder(between)
        (work / RUN_FILE).write_text(document)
        _forget_runs(out, work)


def _forget_runs(out: HadoopPath, latest: HadoopPath) -> None:
    """Delete runs that were followed by others long enough ago, and those that never came to their end."""
    now = time.time()
    following = now
    for run in reversed([run for run in _runs(out) if run <= latest]):
        try:
            ended = (run / RUN_FILE).changed_at()
        except FileNotFoundError:
            # A store may date no folders.
            began = datetime.strptime(run.name[:_DATED], _DATE).replace(tzinfo=UTC).timestamp()
            over = began < now - _FORGOTTEN
        else:
            over, following = following < now - GRACE, ended
        if over:
            delete_folder(run)


def _runs(out: HadoopPath) -> list[HadoopPath]:
    return [run for run in (out / _RUNS).glob("*") if _RUN.fullmatch(run.name)]


@contextlib.contextmanager
def work_folder(out: Place, holder: str) -> Iterator[Place]:
    """Give a folder to write in, where the tables will be; deleted in the end, unless it has become a run.

    Those who are refused meanwhile read the holder. At a URL several may work, and the one that began last counts.
    """
    if isinstance(out, Path):
        with local_work_folder(out, holder) as local_work:
            yield local_work
        return
    work = out / _RUNS / f"{datetime.now(UTC):{_DATE}}-{secrets.token_hex(4)}"
    try:
        work.mkdir()
    except OSError as error:
        raise ConfigurationError(f"can't write tables to {out}: {error.strerror}") from None
    try:
        yield work
    finally:
        if not _is_whole(work / RUN_FILE):
            delete_folder(work)


def locked(path: Path, holder: str, patience: float = 0.0) -> int:
    """Take a lock within so many seconds; the kernel releases it when the process ends in any way.

    Gives a descriptor, to be closed, or raises `BlockingIOError` with the name of its holder.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + patience
    with contextlib.ExitStack() as failed:
        failed.callback(os.close, descriptor)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= deadline:
                    said = os.pread(descriptor, _LONGEST_NAME, 0).decode("utf-8", "replace").strip()
                    raise BlockingIOError(error.errno, said, os.fspath(path)) from None
                time.sleep(_POLL)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{holder}\n".encode()[:_LONGEST_NAME], 0)
        failed.pop_all()
    return descriptor


_WORK = "_work-"  # readers leave out names that begin with an underscore
_LOCK = "_lock"
_LONGEST_NAME = 200  # bytes of what a lock says of its holder
_POLL = 0.05  # s between two attempts at a lock


@contextlib.contextmanager
def local_work_folder(out: Path, holder: str) -> Iterator[Path]:
    """Delete those of killed runs, too."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = locked(out / _LOCK, f"{holder}, process {os.getpid()}")
    except BlockingIOError as held:
        said = f": {held.strerror}" if held.strerror else ""
        raise ConfigurationError(f"another run is writing tables to {out}{said}") from None
    except OSError as error:
        raise ConfigurationError(f"can't write tables to {out}: {error.strerror or error}") from None
    try:
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
    """Put a directory in its place on the same file system, and delete what was there.

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


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with writing(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_text(path: Path, text: str) -> None:
    """Put a small file in its place at one stroke, and on the disk."""
    part = path.with_name(f".{path.name}.part")
    with writing(part):
        part.write_text(text, "utf-8")
    sync(part)
    part.replace(path)
    sync(path.parent)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file around what writes it: only what opens or renames one names it by itself, a full disk never."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = os.fspath(path)
        raise

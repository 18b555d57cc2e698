"""Opens the tables of a directory, and gives their rows batch by batch: a table may be larger than the memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairmq.model import ConfigurationError
from pairmq.pipeline.reporting._values import Counts, Numbers

NEVER = np.iinfo(np.int64).min
"""Stands for a null among instants."""

_BATCH = 131_072
_RUN_FILE = "run.json"
_PARTS = ("journal", "messages")  # of it, that the report needs
_LARGEST_RUN_FILE = 64 * 2**20


class TableReplaced(ConfigurationError):
    """A file of a table is gone: a run has put a new table in its place since its files were listed."""


class Directory:
    """The tables that one run wrote.

    Args:
        path: what ``--out`` named.

    Raises:
        ConfigurationError: no run has written there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = _run_document(path)

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; an older run's may lack some."""
        names: set[str] = set()
        with self._told_clearly(table):
            for file in self._files(table):
                names.update(pq.read_schema(file).names)
        return frozenset(names)

    def batches(self, table: str, columns: Sequence[str], *, repeated: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """Read some columns of a table.

        Args:
            table: its name.
            columns: their names.
            repeated: of these, texts that are few: they come as dictionaries.

        Raises:
            ConfigurationError: the table is missing or damaged.
        """
        with self._told_clearly(table):
            for file in self._files(table):
                with pq.ParquetFile(file, read_dictionary=list(repeated)) as opened:
                    lacking = set(columns) - set(opened.schema_arrow.names)
                    if lacking:
                        raise KeyError(f"it has no column {min(lacking)}")
                    yield from opened.iter_batches(_BATCH, columns=list(columns))

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The same row by row, instants as seconds; for small tables, and large ones that are looked at once."""
        for batch in self.batches(table, columns):
            ready = [_seconds(column) if pa.types.is_timestamp(column.type) else column for column in batch.columns]
            yield from pa.RecordBatch.from_arrays(ready, names=batch.schema.names).to_pylist()

    @contextlib.contextmanager
    def _told_clearly(self, table: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise TableReplaced(
                f"can't read the table {table} in {self.path}: a file of it is gone, a run is writing there; try again"
            ) from None
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ConfigurationError(
                f"can't read the table {table} in {self.path}: {error}; make it again with 'pairmq pipeline run'"
            ) from None

    def _files(self, table: str) -> list[Path]:
        folder = self.path / table
        if not folder.is_dir():
            raise ConfigurationError(f"{self.path} lacks the table {table}: make it with 'pairmq pipeline run'")
        return sorted(folder.glob("*.parquet"))


def micros(column: pa.Array) -> Counts:
    """Instants as microseconds since 1970 UTC; `NEVER` for null."""
    whole = pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    return cast(Counts, pc.fill_null(whole, int(NEVER)).to_numpy(zero_copy_only=False))


def numbers(column: pa.Array) -> Numbers:
    """Counts as numbers; 0 for null."""
    return cast(Numbers, pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False))


def _seconds(column: pa.Array) -> pa.Array:
    whole = pc.cast(column, pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())
    return pc.divide(whole.cast(pa.float64()), 1e6)


def _run_document(path: Path) -> dict[str, Any]:
    file = path / _RUN_FILE
    try:
        if file.stat().st_size > _LARGEST_RUN_FILE:
            raise ConfigurationError(f"{file} is no document of a run: it is too large")
        document = json.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(
            f"no run is in {path}: make the tables first, with 'pairmq pipeline run --out {path}'"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"can't read {file}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file} is no document of a run: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(document.get(part), dict) for part in _PARTS):
        raise ConfigurationError(f"{file} is no document of a run: make the tables again with 'pairmq pipeline run'")
    return document

"""Several journals of one chaos run in one directory: what was done to each.

Each copy has names and a day of its own, so that one query judges all of them: a query costs more than its rows.
"""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chaos_rows import Key

DAY = 86_400.0
_INSTANTS = ("at", "received_at", "since")


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a journal, from which rows were taken."""

    name: str  # of the pair in it, and of its processes
    days: int = 0  # by which all instants are earlier
    gone: frozenset[Key] = field(default_factory=frozenset)  # the rows that are missing
    hidden: bool = True  # the rows after them are numbered anew, so that no number is missing

    def _seq(self, key: Key) -> int:
        process, seq = key
        return seq - bisect.bisect_left(self._numbers(process), seq) if self.hidden else seq

    @functools.cache  # noqa: B019  # a copy lives as long as its test
    def _numbers(self, process: str) -> list[int]:
        """The numbers that are gone of a process."""
        return sorted(number for owner, number in self.gone if owner == process)

    def write(self, journal: Path, to: Path) -> None:
        """Write its segments beside those of other copies."""
        for path in sorted(journal.glob("date=*/*.parquet")):
            table = self._table(pq.ParquetFile(path).read())
            if table.num_rows:
                (to / self.name).mkdir(parents=True, exist_ok=True)
                pq.write_table(table, to / self.name / path.name)

    def _table(self, table: pa.Table) -> pa.Table:
        keys = keys_of(table)
        table = table.filter(pa.array([key not in self.gone for key in keys], pa.bool_()))
        keys = [key for key in keys if key not in self.gone]
        table = _with(table, "process", pa.array([f"{process}-{self.name}" for process, _ in keys], pa.string()))
        table = _with(table, "seq", pa.array([self._seq(key) for key in keys], pa.int64()))
        named = pc.if_else(pc.equal(table["pair"], ""), "", self.name)
        table = _with(table, "pair", named)
        for instant in _INSTANTS:
            table = _with(table, instant, pc.subtract(table[instant], self.days * DAY))
        return table


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), column)


def keys_of(table: pa.Table) -> list[Key]:
    """Process and number of each row."""
    return list(zip(table["process"].to_pylist(), table["seq"].to_pylist(), strict=True))


def segment_keys(journal: Path) -> list[frozenset[Key]]:
    """The rows of each segment."""
    paths = sorted(journal.glob("date=*/*.parquet"))
    return [frozenset(keys_of(pq.ParquetFile(path).read(["process", "seq"]))) for path in paths]

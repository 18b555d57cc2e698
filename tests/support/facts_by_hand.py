"""All tables of some rows, in memory: what a run writes down is kept as rows here.

Kept by `localCheckpoint`, when it is first read, not in Spark's cache: a cached table still carries the plan of all
that it was made of, which grows with each step until the tables of a few thousand rows fill a heap of 2 GB. What a run
reads again from its files has no past either.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from pairmq.pipeline.schema import arrow_schema
from pairmq.pipeline.transforms import STEPS, Settings
from pairmq.pipeline.transforms.facts import MESSAGES, SMALL, digests_of_parts, small_of


class Made(Mapping[str, Any]):
    """Facts and tables by name, each made when it is asked for."""

    def __init__(self, facts: Mapping[str, Any], settings: Settings) -> None:
        self._frames = dict(facts)
        self._settings = settings
        self._steps = {step.name: step for step in STEPS}

    def __getitem__(self, name: str) -> Any:
        if name not in self._frames:
            step = self._steps[name]
            needed = {need: self[need] for need in step.needs}
            self._frames[name] = step.make(needed, self._settings).localCheckpoint(eager=False)
        return self._frames[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self._frames, *(name for name in self._steps if name not in self._frames)))

    def __len__(self) -> int:
        return len(set(self._frames) | set(self._steps))


def tables_of(rows: Any, settings: Settings | None = None) -> Made:
    """The facts and tables of some rows."""
    return Made(facts_of(rows), settings or Settings())


def facts_of(rows: Any) -> dict[str, Any]:
    """The facts of some rows."""
    counted = counted_of(rows)
    small = {each.name: frame_of(rows.sparkSession, each, [counted[each.name]]) for each in SMALL}
    return {**small, MESSAGES.name: MESSAGES.of(rows).localCheckpoint(eager=False)}


def counted_of(rows: Any) -> dict[str, pa.Table]:
    """The small facts of some rows."""
    parts = {small.name: [arrow_schema(small.schema).empty_table()] for small in SMALL}
    digests = digests_of_parts(small_of(rows).toArrow())
    for name, table in itertools.chain.from_iterable(digest.items() for digest in digests):
        parts[name].append(table)
    return {small.name: small.merged(pa.concat_tables(parts[small.name])) for small in SMALL}


def frame_of(spark: Any, small: Any, parts: list[pa.Table]) -> Any:
    """What parts of a small fact are together."""
    found = small.merged(pa.concat_tables(parts))
    return spark.createDataFrame([tuple(row.values()) for row in found.to_pylist()], small.schema).coalesce(1)


def tables_of_parts(rows: Any, parts: int, settings: Settings | None = None) -> Made:
    """The same of facts that were made of parts: each row is in any one of them, whatever it is about."""
    from pyspark.sql import functions as F

    part = F.pmod(F.xxhash64("process", "seq", F.lit("any")), F.lit(parts))
    cut = [rows.filter(part == number) for number in range(parts)]
    counted = [counted_of(each) for each in cut]
    facts = {}
    for small in SMALL:
        # The first two are merged before the others come, as one who follows a journal does.
        first = small.merged(pa.concat_tables(part[small.name] for part in counted[:2]))
        rest = [part[small.name] for part in counted[2:]]
        facts[small.name] = frame_of(rows.sparkSession, small, [first, *rest])
    partial = [MESSAGES.of(each) for each in cut]
    merged = MESSAGES.merged(functools.reduce(DataFrame.unionByName, partial[:2]))
    whole = MESSAGES.merged(functools.reduce(DataFrame.unionByName, partial[2:], merged))
    facts[MESSAGES.name] = whole.localCheckpoint(eager=False)
    return Made(facts, settings or Settings())

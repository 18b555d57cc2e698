"""``spark.readStream.format("pairmq")``: consumes an entity at least once, by way of a spool.

A broker's acknowledgement can't be undone, and Spark reads a batch in other processes, perhaps several times. So a
batch is not read from the broker: `latestOffset` moves messages into a spool and acknowledges them when they are on the
disk, offsets are numbers of the spool's segments, and `commit` deletes segments. Spark reports a commit one batch late,
which costs disk space and nothing else.

Spark calls this now and then. The event loop is that of `pairmq.sync`, which goes on between two calls, or a
connection's heartbeats would stop while a batch is computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from pairmq import sync
from pairmq.model import ConfigurationError, FailureKind, Source, TransportError
from pairmq.pipeline.datasource._intake import Intake
from pairmq.pipeline.datasource._options import Brokers, Options
from pairmq.pipeline.datasource._rows import Place
from pairmq.pipeline.datasource._spool import Spool, SpoolError, read_segment

_log = logging.getLogger("pairmq.pipeline")

_MAX_ROWS = 10_000
_MOST_ROWS = 100_000_000
_RECEIVE_WAIT = 1.0
_SPOOL_WAIT = 20.0
_LAST_TRIES = 5  # with an unavailable broker, if the query is to end


@dataclass(frozen=True, slots=True)
class _Plan:
    """What the options say; all that is pickled."""

    brokers: Brokers
    side: str
    source: Source
    directory: Path
    max_rows: int
    receive_wait: float
    spool_wait: float


class _Consumer:
    """What lives as long as the query, in one process: the spool's lock and the broker's connection."""

    def __init__(self, plan: _Plan) -> None:
        transport, settings = plan.brokers.transport(plan.side)
        with contextlib.ExitStack() as opened:
            self.spool = Spool(plan.directory, f"{plan.source} ({plan.side})", patience=plan.spool_wait)
            opened.callback(self.spool.close)
            place = Place(plan.side, str(plan.source), plan.source.entity.path)
            self.intake = Intake(transport, plan.source, place, self.spool, settings.options.attempt_timeout)
            for segment in self.spool.segments():
                self.intake.remember(read_segment(plan.directory, segment))
            sync.run(asyncio.sleep(0))  # where that loop can't be had, the spool is released
            self._opened = opened.pop_all()

    def available(self) -> int:
        return sync.run(self.intake.available())

    def fill(self, most: int, wait: float, start: int, whole: bool) -> int:
        return sync.run(self.intake.fill(most, wait, start, whole=whole))

    def close(self) -> None:
        with self._opened:
            sync.run(self.intake.close())


class SpoolStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a spool, and fills it when it is empty.

    Spark makes several of these, and pickles some: only the one whose offsets are asked for opens anything.
    """

    def __init__(self, plan: _Plan) -> None:
        self._plan = plan
        self._opened: _Consumer | None = None
        self._left: int | None = None  # messages until a query that takes what is there has taken it
        self._failures = 0
        self._dry = 0  # receives in a row that brought nothing, though there was something to bring

    @classmethod
    def of(cls, options: Options) -> SpoolStreamReader:
        brokers, side, source = options.brokers(), options.side(), options.source()
        settings = brokers.settings(side)  # their errors are raised immediately
        if settings.options.is_backlog_queue(source.entity.path):
            raise ConfigurationError(
                f"{source} is a backlog queue: a stream would take its messages from the syphon, and they would never "
                "reach the primary. Browse it, or stream the destination entities"
            )
        plan = _Plan(
            brokers,
            side,
            source,
            options.spool(),
            options.count("max_rows", _MAX_ROWS, _MOST_ROWS),
            options.seconds("receive_wait", _RECEIVE_WAIT, 0.0, 60.0),
            options.seconds("spool_wait", _SPOOL_WAIT, 0.0, 3600.0),
        )
        return cls(plan)

    def __getstate__(self) -> dict[str, Any]:
        return {"_plan": self._plan, "_opened": None, "_left": None, "_failures": 0, "_dry": 0}

    # Offsets, in the one process that Spark keeps for them.

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins: with all that is in the spool."""
        spool = self._consumer.spool
        return _offset(spool, spool.first)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._plan.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Settle how much such a query takes: what can be received now.

        An error of the broker is raised: a query that ends must not look as if it had taken everything.
        """
        self._left = self._consumer.available()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; receives from the broker only if the spool has no messages.

        A limit that is no `ReadMaxRows` means what the broker has at this moment. For an unavailable broker it waits,
        batch after batch.
        """
        spool = self._consumer.spool
        at = self._number(start)
        waiting = spool.segments(at)
        # For a query that is to end, an unchanged offset means that there are no more messages: be sure.
        while not waiting and not self._take(limit, at) and self._left is not None:
            pass
        waiting = waiting or spool.segments(at)
        rows, end = 0, at
        for segment in waiting:
            rows += segment.rows
            if end > at and isinstance(limit, ReadMaxRows) and rows > limit.max_rows:
                break
            end = segment.number + 1
        return _offset(spool, end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One for each segment from ``start`` up to ``end``; raises `SpoolError` where one is missing."""
        first, last = self._number(start), self._number(end)
        there = [segment for segment in self._consumer.spool.segments(first) if segment.number < last]
        if last > first and (not there or there[-1].number != last - 1 or len(there) != last - first):
            raise SpoolError(
                f"spool {self._plan.directory} does not have all segments from {first} to {last - 1}: some were "
                "deleted, or were read by a query with another checkpoint"
            )
        return [InputPartition(segment) for segment in there]

    def commit(self, end: dict[str, Any]) -> None:
        self._consumer.spool.discard(self._number(end))

    def stop(self) -> None:
        """Release the spool and the broker connection; unacknowledged messages are released."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    # Rows, in the tasks' processes.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_segment(self._plan.directory, partition.value)

    @property
    def _consumer(self) -> _Consumer:
        if self._opened is None:
            self._opened = _Consumer(self._plan)
        return self._opened

    def _number(self, offset: dict[str, Any]) -> int:
        spool = self._consumer.spool
        if offset["spool"] != spool.id:
            raise SpoolError(
                f"spool {self._plan.directory} does not belong to the checkpoint: use the query's own spool, or start "
                "with a new checkpoint"
            )
        return int(offset["next"])

    def _take(self, limit: ReadLimit, start: int) -> bool:
        """Fill the spool as far as the limit goes; False when that is to be tried again."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        if self._left is not None:
            most = self._left if most is None else min(most, self._left)
        whole = most is None  # Spark asks once, for everything that is there
        try:
            if most is None:
                most = self._consumer.available()
            taken = self._consumer.fill(most, self._plan.receive_wait, start, whole) if most else 0
            if self._left is not None:
                self._left = self._left - taken if taken or not most else self._left_after_nothing(self._left)
        except TransportError as error:
            self._wait_for_broker(error)
            return False
        self._failures = 0
        if taken:
            self._dry = 0
        return bool(taken) or not self._left

    def _left_after_nothing(self, left: int) -> int:
        """How many are still to come although a receive brought none: others took them, or the broker is slow."""
        self._dry += 1
        left = min(left, self._consumer.available())
        if left and self._dry >= _LAST_TRIES:
            _log.warning("%d messages were not delivered: other consumers seem to have locked them", left)
            return 0
        return left

    def _wait_for_broker(self, error: TransportError) -> None:
        self._failures += 1
        if error.kind is FailureKind.REFUSED or (self._left is not None and self._failures >= _LAST_TRIES):
            raise error
        if self._failures == 1:
            _log.warning("can't receive, trying again: %s", error)
        time.sleep(min(0.1 * 2 ** min(self._failures, 6), 5.0))


def _offset(spool: Spool, number: int) -> dict[str, Any]:
    return {"spool": spool.id, "next": number}

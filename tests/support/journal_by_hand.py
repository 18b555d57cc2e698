"""Journals written by hand: events in, rows out, as the journal's writer would number them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pairmq.model import Entity, EntityKind, EntityState
from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    Cause,
    Event,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    OperationsCounted,
    PairEnded,
    PairOpened,
    PingCompleted,
    ReceiverChanged,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    Settlement,
    Side,
    StateChanged,
)
from pairmq.model.records import COLUMNS, row_of

START = 1_770_000_000.0 - 1_770_000_000.0 % 86_400
"""Midnight UTC of some day."""

PAIR = "east>west"
QUEUE, TOPIC = Entity("orders"), Entity("news", EntityKind.TOPIC)
BACKLOG = "east/x-servicebus-transfer/0"
HEALTHY, FAILING, FAILED_OVER, DRAINING = (
    EntityState.HEALTHY,
    EntityState.FAILING,
    EntityState.FAILED_OVER,
    EntityState.DRAINING,
)


class Journal:
    """The rows of one process; instants are seconds after ``start``, which is `START` unless told otherwise."""

    def __init__(self, process: str = "sender", *, pair: str = PAIR, start: float = START) -> None:
        self.process = process
        self.pair = pair
        self.rows: list[dict[str, Any]] = []
        self._start = start
        self._next = 0

    def add(self, kind: type[Event], at: float, /, **values: Any) -> Journal:
        return self.noted(kind(at=self._start + at, **{"pair": self.pair, **values}))

    def noted(self, event: Event) -> Journal:
        """Add an event that happened somewhere else."""
        blank = dict.fromkeys(column.name for column in COLUMNS)
        self.rows.append(blank | row_of(event) | {"process": self.process, "seq": self._next})
        self._next += 1
        return self

    def skip(self, rows: int = 1) -> Journal:
        """Number the next row as if others had come before it."""
        self._next += rows
        return self

    def opened(self, at: float = 0.0, *, sample: float = 1.0, host: str = "here") -> Journal:
        values = {"host": host, "pid": 7, "version": "0.1.0", "sample_healthy": sample}
        return self.add(JournalOpened, at, pair="", **values)

    def closed(self, at: float, *, dropped: int = 0) -> Journal:
        return self.add(JournalClosed, at, pair="", dropped=dropped)

    def dropped(self, at: float, count: int, since: float) -> Journal:
        return self.add(EventsDropped, at, pair="", count=count, since=self._start + since)

    def pair_opened(self, at: float, *, options: str = '{"ordering": "none"}') -> Journal:
        return self.add(PairOpened, at, primary="a", secondary="b", version="0.1.0", options=options)

    def pair_ended(self, at: float) -> Journal:
        return self.add(PairEnded, at)

    def sent(self, at: float, message: str, outcome: str = "primary", **values: Any) -> Journal:
        known = {
            "entity": QUEUE,
            "message_id": message,
            "outcome": SendOutcome[outcome.upper()],
            "backlog_queue": BACKLOG if outcome == "backlog" else None,
            "attempts": 1,
            "elapsed": 0.010,
            "maybe_duplicate": False,
            "size": 100,
            "sender": "s1",
            "sequence": len(self.rows),
            "state": HEALTHY if outcome == "primary" else FAILED_OVER,
        }
        return self.add(SendCompleted, at, **{**known, **values})

    def failed(self, at: float, message: str, *, applied: bool = False, **values: Any) -> Journal:
        known = {"entity": QUEUE, "queue": None, "kind": "unavailable", "error": "gone", "maybe_applied": applied}
        return self.add(AttemptFailed, at, message_id=message, **{**known, **values})

    def changed(
        self,
        at: float,
        previous: EntityState,
        current: EntityState,
        cause: Cause,
        *,
        lasted: float = 1.0,
        **values: Any,
    ) -> Journal:
        known = {"entity": QUEUE, "epoch": 1}
        return self.add(
            StateChanged,
            at,
            previous=previous,
            current=current,
            cause=cause,
            lasted=float(lasted),
            **{**known, **values},
        )

    def pinged(self, at: float, *, ok: bool) -> Journal:
        return self.add(PingCompleted, at, entity=QUEUE, ok=ok, elapsed=0.1, error=None if ok else "no")

    def moved(self, at: float, message: str, **values: Any) -> Journal:
        known = {
            "queue": BACKLOG,
            "entity": QUEUE,
            "waited": 5.0,
            "maybe_duplicate": False,
            "redelivered": False,
            "completed": True,
        }
        return self.add(MessageMoved, at, message_id=message, **{**known, **values})

    def set_aside(self, at: float, message: str | None, reason: str = "not-found", **values: Any) -> Journal:
        known = {"queue": BACKLOG, "entity": QUEUE.path, "description": "a sentence"}
        return self.add(MessageDeadLettered, at, message_id=message, reason=reason, **{**known, **values})

    def delivered(self, at: float, message: str | None, settlement: str = "completed", **values: Any) -> Journal:
        known = {
            "entity": QUEUE,
            "subscription": None,
            "dead_letter": False,
            "delivery_count": 1,
            "sequence_number": "",
            "received_at": self._start + at,
        }
        return self.add(
            MessageDelivered, at, message_id=message, settlement=Settlement(settlement), **{**known, **values}
        )

    def receiver(self, at: float, side: Side, *, opened: bool, queue: Entity = QUEUE) -> Journal:
        return self.add(ReceiverChanged, at, entity=queue, side=side, open=opened, error=None if opened else "down")

    def rotated(self, at: float, *, in_use: bool, left: int, queue: str = BACKLOG) -> Journal:
        return self.add(RotationChanged, at, queue=queue, in_use=in_use, left=left, error=None if in_use else "refused")

    def checked(self, at: float, *, created: bool, queue: str = BACKLOG) -> Journal:
        return self.add(BacklogQueueChecked, at, queue=queue, created=created)

    def counted(self, at: float, side: Side, **counts: int) -> Journal:
        known = {"sends": 0, "receives": 0, "settlements": 0, "pings": 0, "admin": 0}
        return self.add(OperationsCounted, at, side=side, seconds=60.0, **{**known, **counts})


def rows_of(spark: Any, *journals: Journal) -> Any:
    """The rows of some processes as a data frame."""
    from pairmq.pipeline.schema import rows_schema

    schema = rows_schema()
    rows = [tuple(row[name] for name in schema.names) for row in _all(journals)]
    return spark.createDataFrame(rows, schema).coalesce(1)  # known to be in one place, no row is sent anywhere


def _all(journals: Iterable[Journal]) -> Iterator[dict[str, Any]]:
    for journal in journals:
        yield from journal.rows


def second(instant: Any) -> float | None:
    """An instant of a table as seconds after `START`."""
    from datetime import UTC

    return None if instant is None else round(instant.replace(tzinfo=UTC).timestamp() - START, 6)


def segment_table(*journals: Journal) -> Any:
    """The same as an Arrow table, as a segment holds it."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "list<string>": pa.list_(pa.string()),
    }
    schema = pa.schema([pa.field(column.name, types[column.type], column.nullable) for column in COLUMNS])
    return pa.Table.from_pylist(list(_all(journals)), schema=schema)

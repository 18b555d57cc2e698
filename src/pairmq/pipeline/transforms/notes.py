"""The fact ``notes``: the rows that tell of something out of the ordinary, as they are.

In a healthy journal they are few: nothing of what the primary accepts, and nothing of what consumers complete at once,
is among them. In an outage there is one for every diverted message, and one more when it comes home.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    DestinationChanged,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    PairEnded,
    PairOpened,
    PingCompleted,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    StateChanged,
    SyphonFailed,
)
from pairmq.pipeline.schema import rows_schema
from pairmq.pipeline.transforms._fact import TEXT, Fact, schema_of
from pairmq.pipeline.transforms._rows import of_kind
from pairmq.pipeline.transforms.messages import completed

_RARE = (
    AttemptFailed,
    BacklogQueueChecked,
    DestinationChanged,
    EventsDropped,
    JournalClosed,
    JournalOpened,
    MessageDeadLettered,
    MessageMoved,
    PairEnded,
    PairOpened,
    PingCompleted,
    RotationChanged,
    StateChanged,
    SyphonFailed,
)

_COLUMNS = (
    "kind",
    "at",
    "pair",
    "entity",
    "entity_kind",
    "process",
    "seq",
    "message_id",
    "message_key",
    "outcome",
    "backlog_queue",
    "maybe_duplicate",
    "queue",
    "waited",
    "redelivered",
    "completed",
    "failure_kind",
    "maybe_applied",
    "previous",
    "current",
    "cause",
    "lasted",
    "ok",
    "error",
    "reason",
    "dead_letter",
    "delivery_count",
    "settlement",
    "in_use",
    "left",
    "created",
    "host",
    "pid",
    "version",
    "sample_healthy",
    "since",
    "count",
)


def _ordinary() -> Column:
    """Whether a send or a delivery is one of the many that tell no more than that all is well."""
    sent = (F.col("outcome") == SendOutcome.PRIMARY.value) & ~F.col("maybe_duplicate")
    read = completed() & (F.col("delivery_count") <= 1) & F.col("error").isNull()
    return F.coalesce(F.when(of_kind(SendCompleted), sent).otherwise(read), F.lit(False))


def _of(rows: DataFrame) -> DataFrame:
    told = rows.filter(of_kind(*_RARE) | (of_kind(SendCompleted, MessageDelivered) & ~_ordinary()))
    return told.select(*_COLUMNS, F.get_json_object("options", "$.ordering").alias("ordering"))


_TYPES = {field.name: field.dataType for field in rows_schema()}

NOTES = Fact(
    "notes",
    schema_of({**{name: _TYPES[name] for name in _COLUMNS}, "ordering": TEXT}),
    of=_of,
    merged=lambda facts: facts,
)
"""Rows of the journal, with the columns that any table needs of them, and ``ordering``, a pair's option."""

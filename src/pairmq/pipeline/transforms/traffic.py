"""The facts ``traffic`` and ``names``: how many sends and deliveries there were, and what hides behind the keys."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pairmq.model.events import JournalOpened, MessageDelivered, SendCompleted, SendOutcome
from pairmq.pipeline.transforms._fact import COUNT, FLAG, NUMBER, TEXT, Measure, digest
from pairmq.pipeline.transforms._quantiles import bucket_of
from pairmq.pipeline.transforms._rows import HOUR, ended_as, of_kind, start_of
from pairmq.pipeline.transforms.messages import key_of

DELIVERED = "delivered"
"""The end of a delivery, beside those of sends."""


def _prepared(rows: DataFrame) -> DataFrame:
    accepted = F.col("outcome").isin(SendOutcome.PRIMARY.value, SendOutcome.BACKLOG.value)
    latency = F.when(accepted, F.col("elapsed"))
    return rows.filter(of_kind(SendCompleted, MessageDelivered)).select(
        "process",
        "pair",
        "entity",
        "entity_kind",
        start_of(HOUR).alias("hour"),
        F.coalesce("outcome", F.lit(DELIVERED)).alias("outcome"),
        F.coalesce(_may_be_sampled(), F.lit(False)).alias("sampled"),
        bucket_of(latency).alias("bucket"),
        latency.alias("latency"),
    )


def _may_be_sampled() -> Column:
    """Whether a send's row stands for others too, where its process keeps only a part of the healthy ones."""
    return (
        ended_as(SendOutcome.PRIMARY)
        & (F.col("state") == "healthy")
        & (F.col("attempts") == 1)
        & ~F.col("maybe_duplicate")
    )


TRAFFIC = digest(
    "traffic",
    _prepared,
    {
        "process": TEXT,
        "pair": TEXT,
        "entity": TEXT,
        "entity_kind": TEXT,
        "hour": COUNT,
        "outcome": TEXT,
        "sampled": FLAG,
        "bucket": COUNT,
    },
    {
        "rows": Measure(COUNT, "sum", lambda: F.lit(1)),
        "most": Measure(NUMBER, "max", lambda: F.col("latency")),
    },
)
"""Sends by their outcome, and deliveries, by hour and bucket of the latency: small, whatever the journal's size."""

NAMES = digest(
    "names",
    lambda rows: (
        rows.filter(of_kind(SendCompleted))
        .select(F.explode(F.array("sender", "session_id")).alias("name"))
        .filter(F.col("name").isNotNull())
        .select(key_of("name").alias("key"), "name")
    ),
    {"key": COUNT, "name": TEXT},
    {},
)
"""The texts of senders and sessions by their keys."""


def sample_rates(notes: DataFrame) -> DataFrame:
    """Give the part of healthy sends that each process keeps: one row for each that keeps less than all of them."""
    opened = notes.filter(of_kind(JournalOpened) & (F.col("sample_healthy") < 1) & (F.col("sample_healthy") > 0))
    return opened.groupBy("process").agg(F.min("sample_healthy").alias("rate"))


def weight() -> Column:
    """How many sends one row stands for, given ``sampled`` and the ``rate`` of its process."""
    return F.when(F.col("sampled"), 1 / F.coalesce("rate", F.lit(1.0))).otherwise(1.0)

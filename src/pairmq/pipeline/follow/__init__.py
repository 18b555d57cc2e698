"""Tables that are kept up to date while processes go on writing their journals."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pairmq.model import Price
from pairmq.pipeline.follow._values import Stop
from pairmq.pipeline.session import check_packages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairmq.pipeline.follow._values import Refreshed
    from pairmq.pipeline.report import Report

__all__ = ["Stop", "follow"]


def follow(
    journal: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    spark: SparkSession | None = None,
    cores: int | None = None,
    prices: Mapping[str, Price] | None = None,
    patience: float = 300.0,
    every: float = 60.0,
    once: bool = False,
    until_idle: float | None = None,
    restart: bool = False,
    stop: Stop | None = None,
    on_refresh: Callable[[Refreshed], None] | None = None,
    progress: Callable[[int, str], None] | None = None,
) -> Report:
    """Keep all tables of a journal up to date, as `pairmq.pipeline.run` would make them of the files that were read.

    What it knows is kept in ``_follow`` in the output directory. Killed at any instant and started again it goes on
    from there: no row is counted twice, none is left out. Every table is put in place whole.

    The tables are *complete until* the first instant of which a known process may still have rows to add: the first
    hole of the journal that reaches into its last ``patience`` seconds. That is the last row of a process that has not
    closed its journal, or the row before some that are missing. An older hole is given up: `run.json` lists of it as
    missing rows or as a killed process. Should its rows come all the same, they are taken; nothing is ever dropped for
    being late. Of a process none of whose files has come yet nothing is known.

    Args:
        journal: the directory that processes keep it in.
        out: the directory of the tables, made where it is missing.
        spark: a session to work in, not one of Spark Connect; a local one when left out, or the one that is active.
        cores: of a local session; all when left out.
        prices: of ``primary`` and ``secondary``.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
        every: seconds from one look for new files to the next.
        once: end when all that is there is in the tables.
        until_idle: end when nothing new has come for so many seconds.
        restart: forget what is kept, and read the whole journal again.
        stop: ends it, when set, after what it is reading.
        on_refresh: called after every refresh of the tables.
        progress: called with the rows read since the last refresh, and the current step.

    Returns:
        What the tables say at the end.

    Raises:
        PipelineUnavailable: PySpark or Java is missing.
        ConfigurationError: a directory can't be used, another run is writing there, what is kept there is damaged, of
            another journal or of a PairMQ with other rules, or the session is one of Spark Connect.

    Interrupted by an exception, it leaves every table as one of its refreshes made it, whole, and goes on at the next
    call as after a kill.
    """
    check_packages()
    from pairmq.pipeline.follow import _follow
    from pairmq.pipeline.transforms import Settings

    nothing: Callable[..., None] = lambda *_: None  # noqa: E731  # a default
    settings = Settings(patience, prices or {})
    wishes = _follow.Wishes(
        settings, every, once, until_idle, stop or Stop(), on_refresh or nothing, progress or nothing
    )
    return _follow.follow(journal, out, wishes, spark=spark, cores=cores, restart=restart)

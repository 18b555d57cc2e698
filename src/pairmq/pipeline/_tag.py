"""Jobs that can be found again and ended, from whatever thread.

A session's own tags are of the thread that put them on, unless it is one of Spark Connect: ended from another thread,
nothing is found. Those of its context are known to all threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Tag:
    """Marks jobs, and no others of the session, which may be somebody else's.

    Args:
        spark: the session.
        name: what the jobs do.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._text = f"{name}-{secrets.token_hex(4)}"
        self._cancel: Callable[[str], object]
        if hasattr(spark, "_jsparkSession"):
            context = spark.sparkContext
            self._add, self._remove, self._cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
        else:
            self._add, self._remove, self._cancel = spark.addTag, spark.removeTag, spark.interruptTag

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Mark what this thread begins meanwhile."""
        self._add(self._text)
        try:
            yield
        finally:
            self._remove(self._text)

    def interrupt(self) -> None:
        """End the marked jobs that have begun."""
        self._cancel(self._text)

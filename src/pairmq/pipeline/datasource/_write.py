"""``df.write`` and ``df.writeStream`` with ``format("pairmq")``: rows go through a pair, failover included.

Each task opens a pair of its own. It succeeds when each of its rows has a receipt, and so does the job. A job that
fails has sent rows all the same: a broker can't take them back. What is sent again has the id that it had, so that
whoever receives can tell the copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError, Entity
from pairmq.pair import Pair
from pairmq.pipeline.datasource._options import Brokers, Options
from pairmq.pipeline.datasource._rows import RowReader
from pairmq.pipeline.datasource._send import RowSender

_log = logging.getLogger("pairmq.pipeline")

_WINDOW: Final = 2000
_MOST_WINDOW: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """What one task says when it has ended well: rows by where they went.

    Args:
        primary: accepted by the primary.
        backlog: accepted by a backlog queue.
        maybe_duplicate: of both, those that the primary may hold a second time.
    """

    primary: int
    backlog: int
    maybe_duplicate: int


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows go, and how; picklable.

    Args:
        brokers: how to find the pair.
        entity: on the primary.
        rows: makes messages of rows.
        window: messages in flight in each task.
    """

    brokers: Brokers
    entity: Entity
    rows: RowReader
    window: int

    @classmethod
    def of(cls, options: Options, schema: StructType) -> Destination:
        """Read the options.

        Raises:
            ConfigurationError: an option, a setting or a column is wrong; nothing was sent.
        """
        path = options.required_entity()
        try:
            entity = Entity(path, options.choice("kind", "queue", "topic"))  # type: ignore[arg-type]  # takes its text too
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        brokers = options.brokers()
        settings = brokers.settings()
        if settings.options.is_backlog_queue(path):
            raise ConfigurationError(f"{path} is a backlog queue: name the entity that the messages belong to")
        rows = RowReader.of(
            schema,
            id_from=options.names("message_id_from"),
            id_prefix=options.text("message_id_prefix") or "",
            text_properties=options.choice("properties", "json", "text") == "text",
        )
        return cls(brokers, entity, rows, options.count("window", _WINDOW, _MOST_WINDOW))

    def write(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send a task's rows; ends when each has its receipt. Raises as `RowSender.send`, and as `Pair.open`."""
        return asyncio.run(self._write(batches))

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        settings = self.brokers.settings()
        pair = Pair.connect(
            settings.primary,
            settings.secondary,
            options=settings.options,
            observers=settings.observers,
            journal=settings.journal,
        )
        async with pair, pair.sender(self.entity.path, kind=self.entity.kind.value) as sender:
            tally = await RowSender(sender, self.rows, self.window).send(batches)
        return Sent(tally.primary, tally.backlog, tally.maybe_duplicate)

    def told(self, messages: Sequence[WriterCommitMessage | None]) -> str:
        """Sum up what tasks said."""
        sent = [message for message in messages if isinstance(message, Sent)]
        primary, backlog = sum(message.primary for message in sent), sum(message.backlog for message in sent)
        return f"{primary + backlog} messages to {self.entity}: {primary} to the primary, {backlog} to the backlog"


class BatchWriter(DataSourceArrowWriter):
    """Serves ``df.write``.

    Args:
        destination: where rows go.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send one task's rows."""
        return self._destination.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what was sent; every task has ended well."""
        _log.info("sent %s", self._destination.told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what was sent although the job failed."""
        _log.warning("the job failed; its tasks that ended well had sent %s", self._destination.told(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Serves ``df.writeStream``.

    Args:
        destination: where rows go.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        """Send one task's rows of a batch."""
        return self._destination.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what was sent; every task of the batch has ended well."""
        _log.info("batch %d: sent %s", batchId, self._destination.told(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what was sent although the batch failed."""
        _log.warning(
            "batch %d failed; its tasks that ended well had sent %s", batchId, self._destination.told(messages)
        )

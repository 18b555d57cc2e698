"""``df.write`` and ``df.writeStream`` with ``format("pairmq")``: rows go through a pair, failover included.

Each task opens a pair of its own and keeps chunks of rows in flight side by side. It succeeds when each of its rows has
a receipt, and so does the job. A job that fails has sent rows all the same: a broker can't take them back. What is sent
again has the same id, so that consumers can detect the copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError, Entity, Message, PairMQError, Receipt, Route, SendError, SendUnknown
from pairmq.pair import Pair, PairSender
from pairmq.pipeline.datasource._options import Brokers, Options
from pairmq.pipeline.datasource._rows import RowReader, RowRefused

_log = logging.getLogger("pairmq.pipeline")

_WINDOW: Final = 2000
_MOST_WINDOW: Final = 100_000


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """A successful task's report: rows by destination.

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
            raise ConfigurationError(f"{path} is a backlog queue: name the destination entity")
        rows = RowReader.of(schema)
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

    def summary(self, messages: Sequence[WriterCommitMessage | None]) -> str:
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
        """Log what was sent; every task has succeeded."""
        _log.info("sent %s", self._destination.summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what was sent although the job failed."""
        _log.warning("the job failed; its successful tasks had sent %s", self._destination.summary(messages))


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
        """Log what was sent; every task of the batch has succeeded."""
        _log.info("batch %d: sent %s", batchId, self._destination.summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Say what was sent although the batch failed."""
        _log.warning("batch %d failed; its successful tasks had sent %s", batchId, self._destination.summary(messages))


_CHUNK = 500
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 3  # sends of a message whose outcome stays unknown
_NAMED = 5  # rows that an error names


class RowsNotSent(PairMQError):
    """A task has rows without a receipt; the text names the first ones, and what was sent."""


@dataclass(slots=True)
class Tally:
    """What became of the rows so far.

    Args:
        primary: accepted by the primary.
        backlog: accepted by a backlog queue.
        maybe_duplicate: of both, those that the primary may hold a second time.
        failed: rows without a receipt, the first ones with their error.
        failures: how many these are.
    """

    primary: int = 0
    backlog: int = 0
    maybe_duplicate: int = 0
    failed: list[SendError] = field(default_factory=list)
    failures: int = 0

    @property
    def sent(self) -> int:
        """Rows with a receipt."""
        return self.primary + self.backlog

    def add(self, outcomes: Sequence[Receipt | SendError]) -> None:
        """Count a chunk."""
        for outcome in outcomes:
            if isinstance(outcome, SendError):
                self.failures += 1
                if len(self.failed) < _NAMED:
                    self.failed.append(outcome)
                continue
            if outcome.route is Route.PRIMARY:
                self.primary += 1
            else:
                self.backlog += 1
            self.maybe_duplicate += outcome.maybe_duplicate


class RowSender:
    """Sends the rows of one task.

    Args:
        sender: of an open pair.
        reader: makes messages of rows.
        window: messages in flight at most.
    """

    def __init__(self, sender: PairSender, reader: RowReader, window: int) -> None:
        self._sender = sender
        self._reader = reader
        self._chunk = min(_CHUNK, window)
        self._at_once = max(1, window // self._chunk)
        self._running: set[asyncio.Task[list[Receipt | SendError]]] = set()
        self._tally = Tally()

    async def send(self, batches: Iterator[pa.RecordBatch]) -> Tally:
        """Send all rows.

        Args:
            batches: as Spark gives them; read in a thread, as computing the next one may take long.

        Raises:
            RowsNotSent: a row was refused, or its outcome stayed unknown. No chunk was begun after that, and those in
                flight have ended.
            RowRefused: no message can be made of a row; likewise.
            PairFaulted: the pair lost a broker permanently.
        """
        refused: RowRefused | None = None
        try:
            async for chunk in self._chunks(batches):
                await self._make_room(self._at_once - 1)
                if self._tally.failures:
                    break
                self._running.add(asyncio.create_task(self._send_chunk(chunk), name="spark rows"))
            await self._make_room(0)
        except RowRefused as error:
            refused = error
            await self._make_room(0)
        finally:
            for task in self._running:
                task.cancel()
        if refused is not None:
            raise RowRefused(f"{refused}. {self._already_sent()}")
        if self._tally.failures:
            first = "; ".join(str(error) for error in self._tally.failed)
            raise RowsNotSent(f"{self._tally.failures} rows have no receipt: {first}. {self._already_sent()}")
        return self._tally

    def _already_sent(self) -> str:
        return (
            f"{self._tally.sent} rows of this task were sent before, {self._tally.backlog} of them to the backlog; "
            "when Spark tries the task again they are sent again, under the same message ids"
        )

    async def _make_room(self, most: int) -> None:
        while len(self._running) > most:
            done, self._running = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._tally.add(task.result())

    async def _send_chunk(self, chunk: list[Message]) -> list[Receipt | SendError]:
        outcomes = await self._sender.send_batch(chunk)
        for _ in range(_ATTEMPTS - 1):
            unknown = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, SendUnknown)]
            if not unknown:
                break
            _log.warning("the outcome of %d sends is unknown: sending them again under the same ids", len(unknown))
            again = await self._sender.send_batch([chunk[at] for at in unknown])
            for at, outcome in zip(unknown, again, strict=True):
                # This receipt knows nothing of the copy that the send before may have left.
                outcomes[at] = replace(outcome, maybe_duplicate=True) if isinstance(outcome, Receipt) else outcome
        return outcomes

    async def _chunks(self, batches: Iterator[pa.RecordBatch]) -> AsyncIterator[list[Message]]:
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            chunk: list[Message] = []
            size = 0
            for message in self._reader.messages(batch):
                chunk.append(message)
                size += len(message.body)
                if len(chunk) >= self._chunk or size >= _CHUNK_BYTES:
                    yield chunk
                    chunk, size = [], 0
            if chunk:
                yield chunk

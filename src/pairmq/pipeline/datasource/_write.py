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
from pairmq.transport import in_chunks

_log = logging.getLogger("pairmq.pipeline")

_WINDOW: Final = 2000
_MOST_WINDOW: Final = 100_000


@dataclass(frozen=True)
class Writer(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Serves ``df.write`` and ``df.writeStream``, of which only the latter has numbered batches; picklable."""

    brokers: Brokers
    entity: Entity
    rows: RowReader
    window: int  # messages in flight in each task

    @classmethod
    def of(cls, options: Options, schema: StructType) -> Writer:
        """Read the options, and check them with the columns before anything is sent."""
        path = options.required_entity()
        try:
            entity = Entity(path, options.choice("kind", "queue", "topic"))  # type: ignore[arg-type]  # takes its text too
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        brokers = options.brokers()
        if brokers.settings().options.is_backlog_queue(path):
            raise ConfigurationError(f"{path} is a backlog queue: name the destination entity")
        rows = RowReader.of(schema)
        return cls(brokers, entity, rows, options.count("window", _WINDOW, _MOST_WINDOW))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Tally:
        """Send one task's rows; ends when each has its receipt. Raises as `RowSender.send`, and as `Pair.open`."""
        return asyncio.run(self._write(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Log what was sent; every task has succeeded."""
        _log.info("%ssent %s", "" if batchId is None else f"batch {batchId}: ", self._summary(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Say what was sent although the job, or the batch, failed."""
        what = "the job" if batchId is None else f"batch {batchId}"
        _log.warning("%s failed; its successful tasks had sent %s", what, self._summary(messages))

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> Tally:
        settings = self.brokers.settings()
        pair = Pair.connect(
            settings.primary,
            settings.secondary,
            options=settings.options,
            observers=settings.observers,
            journal=settings.journal,
        )
        async with pair, pair.sender(self.entity.path, kind=self.entity.kind.value) as sender:
            return await RowSender(sender, self.rows, self.window).send(batches)

    def _summary(self, messages: Sequence[WriterCommitMessage | None]) -> str:
        sent = [message for message in messages if isinstance(message, Tally)]
        primary, backlog = sum(message.primary for message in sent), sum(message.backlog for message in sent)
        return f"{primary + backlog} messages to {self.entity}: {primary} to the primary, {backlog} to the backlog"


_CHUNK = 500
_CHUNK_BYTES = 1 << 20
_ATTEMPTS = 3  # sends of a message whose outcome stays unknown
_NAMED = 5  # rows that an error names


class RowsNotSent(PairMQError):
    """A task has rows without a receipt; the text names the first ones, and what was sent."""


@dataclass(slots=True)
class Tally(WriterCommitMessage):
    """What became of the rows so far; also the report of a successful task, in which no row has failed."""

    primary: int = 0  # accepted by the primary
    backlog: int = 0  # accepted by a backlog queue
    maybe_duplicate: int = 0  # of both, those that the primary may hold a second time
    failed: list[SendError] = field(default_factory=list)  # of the first rows without a receipt
    failures: int = 0  # rows without a receipt

    @property
    def sent(self) -> int:
        return self.primary + self.backlog

    def add(self, outcomes: Sequence[Receipt | SendError]) -> None:
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
    """Sends the rows of one task, with a window of so many messages in flight."""

    def __init__(self, sender: PairSender, reader: RowReader, window: int) -> None:
        self._sender = sender
        self._reader = reader
        self._chunk = min(_CHUNK, window)
        self._at_once = max(1, window // self._chunk)
        self._running: set[asyncio.Task[list[Receipt | SendError]]] = set()
        self._tally = Tally()

    async def send(self, batches: Iterator[pa.RecordBatch]) -> Tally:
        """Send all rows, which are read in a thread, as computing the next ones may take long.

        After a row that was refused, or whose outcome stayed unknown, no chunk is begun, and those in flight end before
        `RowRefused` or `RowsNotSent` is raised.
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
            messages = self._reader.messages(batch)
            for chunk in in_chunks(messages, lambda message: len(message.body), self._chunk, _CHUNK_BYTES):
                yield chunk

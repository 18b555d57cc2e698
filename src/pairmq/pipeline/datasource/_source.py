"""The data source ``pairmq`` as Spark registers it, and ``spark.read``, which leaves messages where and as they are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError, Delivery, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.pipeline.datasource import _options
from pairmq.pipeline.datasource._options import Brokers, Options
from pairmq.pipeline.datasource._rows import SCHEMA, Place, to_batch
from pairmq.pipeline.datasource._stream import SpoolStreamReader
from pairmq.pipeline.datasource._write import Writer
from pairmq.plugins import registry

_SPECULATION: Final = (
    "spark.speculation is on: a second copy of a task would send its rows a second time. Start the session with "
    "spark.speculation=false"
)


class PairMQDataSource(DataSource):
    """Messages as rows: browsed, consumed as a stream, or sent through a pair.

    It is made of options alone and holds no connection, as Spark pickles it.
    """

    speculation = False

    @classmethod
    def name(cls) -> str:
        return "pairmq"

    def schema(self) -> StructType:
        """The columns of a message; the same for every source."""
        return SCHEMA

    def reader(self, schema: StructType) -> BrowseReader:
        _check_schema(schema)
        return BrowseReader.of(Options(self.options, _options.BROWSE))

    def streamReader(self, schema: StructType) -> SpoolStreamReader:
        _check_schema(schema)
        return SpoolStreamReader.of(Options(self.options, _options.STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        if overwrite:
            raise ConfigurationError("messages can't be overwritten: use mode('append')")
        if self.speculation:
            raise ConfigurationError(_SPECULATION)
        return Writer.of(Options(self.options, _options.WRITE), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Writer:
        return self.writer(schema, overwrite)


class SpeculativeDataSource(PairMQDataSource):
    """What is registered in a session that starts tasks twice: it reads, and refuses to write.

    A class of its own, as a worker imports the class by its name and sees nothing that was set on it elsewhere.
    """

    speculation = True


def _check_schema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise ConfigurationError("the columns of messages are fixed: omit schema(…), and select what you need")


_UNASKED = 10_000  # messages of a queue that are shown without a limit being set: a broker copies them all at once
_MOST = 10_000_000
_BATCH = 1000


@dataclass(frozen=True, slots=True)
class _Part:
    source: Source
    place: Place


@dataclass(frozen=True)
class BrowseReader(DataSourceReader):
    """Shows the oldest messages of each queue through `Admin.peek`."""

    brokers: Brokers
    side: str
    parts: tuple[_Part, ...]  # what is looked at, a partition each
    limit: int | None  # messages of each; None for all of them, which are refused if they are very many

    @classmethod
    def of(cls, options: Options) -> BrowseReader:
        limit = options.count("limit", 0, _MOST) or None
        brokers = options.brokers()
        if not options.switch("backlog"):
            source, side = options.source(), options.side()
            brokers.settings(side)  # their errors are raised before any task starts
            return cls(brokers, side, (_Part(source, Place(side, str(source), source.entity.path)),), limit)
        for name in ("entity", "path", "subscription", "side"):
            if options.text(name):
                raise ConfigurationError(f"option backlog shows all backlog queues of the secondary: leave {name} out")
        return cls(brokers, "secondary", _backlog_parts(brokers, options.switch("dead_letter")), limit)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self.parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: _Part = partition.value
        found = asyncio.run(self._peek(part))
        for at in range(0, len(found), _BATCH):
            yield to_batch(found[at : at + _BATCH], part.place)

    async def _peek(self, part: _Part) -> list[Delivery]:
        transport, settings = self.brokers.transport(self.side)
        most = self.limit or _UNASKED + 1
        async with transport:
            try:
                async with asyncio.timeout(settings.options.attempt_timeout):
                    found = await transport.admin.peek(part.source, most)
            except TimeoutError:
                seconds = settings.options.attempt_timeout
                raise TransportError(
                    f"{transport.endpoint} did not show {part.source} within {seconds:g} s: if it exists and is large, "
                    "raise attempt_timeout",
                    FailureKind.UNAVAILABLE,
                    FailureReason.TIMEOUT,
                ) from None
            except TransportError as error:
                if part.place.backlog and error.reason is FailureReason.NOT_FOUND:
                    return []  # it is made when a pair opens
                raise
        if self.limit is None and len(found) > _UNASKED:
            raise ConfigurationError(
                f"{part.source} holds more than {_UNASKED} messages: set the option limit; the broker copies the "
                "messages in one go, and a worker holds them in memory"
            )
        return found


def _backlog_parts(brokers: Brokers, dead_letter: bool) -> tuple[_Part, ...]:
    settings = brokers.settings()
    names = settings.options.backlog_queue_names(registry.transport(settings.primary).endpoint.name)
    sources = [Source(Entity(name), dead_letter=dead_letter) for name in names]
    return tuple(_Part(source, Place("secondary", str(source), source.entity.path, backlog=True)) for source in sources)

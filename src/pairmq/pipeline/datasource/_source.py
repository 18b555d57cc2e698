"""The data source ``pairmq`` as Spark registers it."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pairmq.model import ConfigurationError
from pairmq.pipeline.datasource import _options
from pairmq.pipeline.datasource._browse import BrowseReader
from pairmq.pipeline.datasource._options import Options
from pairmq.pipeline.datasource._rows import SCHEMA
from pairmq.pipeline.datasource._stream import SpoolStreamReader
from pairmq.pipeline.datasource._write import BatchWriter, Destination, StreamWriter

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
        """What ``format(…)`` takes."""
        return "pairmq"

    def schema(self) -> StructType:
        """The columns of a message; the same for every source."""
        return SCHEMA

    def reader(self, schema: StructType) -> BrowseReader:
        """Serve ``spark.read``."""
        _check_schema(schema)
        return BrowseReader.of(Options(self.options, _options.BROWSE))

    def streamReader(self, schema: StructType) -> SpoolStreamReader:
        """Serve ``spark.readStream``."""
        _check_schema(schema)
        return SpoolStreamReader.of(Options(self.options, _options.STREAM))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Serve ``df.write``."""
        return BatchWriter(self._destination(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Serve ``df.writeStream``."""
        return StreamWriter(self._destination(schema, overwrite))

    def _destination(self, schema: StructType, overwrite: bool) -> Destination:
        if overwrite:
            raise ConfigurationError("messages can't be overwritten: use mode('append')")
        if self.speculation:
            raise ConfigurationError(_SPECULATION)
        return Destination.of(Options(self.options, _options.WRITE), schema)


class SpeculativeDataSource(PairMQDataSource):
    """What is registered in a session that starts tasks twice: it reads, and refuses to write.

    A class of its own, as a worker imports the class by its name and sees nothing that was set on it elsewhere.
    """

    speculation = True


def _check_schema(schema: StructType) -> None:
    if schema != SCHEMA:
        raise ConfigurationError("the columns of messages are fixed: leave schema(…) out, and select what you need")

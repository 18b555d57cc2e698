"""The journal, its facts and its tables as definitions of a pipeline.

The rows come from a directory that this computer sees, or from a URL that Spark alone can read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession, types

from pairmq.model import ConfigurationError
from pairmq.model.records import COLUMNS
from pairmq.pipeline.batch import unfinished_of, unread_of
from pairmq.pipeline.declarative._project import is_url, read_configuration
from pairmq.pipeline.journal_io import look_over, read_rows
from pairmq.pipeline.schema import rows_schema
from pairmq.pipeline.transforms import TABLES, Table
from pairmq.pipeline.transforms._fact import Fact
from pairmq.pipeline.transforms.facts import FACTS
from pairmq.pipeline.transforms.steps import STEPS, Settings, Step, Unfinished, Unread

_JOURNAL = "pairmq_journal"
_TABLES = {table.name: table for table in TABLES}


def define() -> None:
    """Enter the journal, its facts and its tables into the pipeline that is being read.

    Nothing is computed here: each function below gives a plan, and Spark finds out by itself what comes before what.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ConfigurationError("there is no Spark session: run this with `spark-pipelines run`")
    configuration = read_configuration(lambda name: spark.conf.get(name, None))
    source = source_of(configuration.journal)
    settings = Settings(
        patience=configuration.patience,
        primary=configuration.primary,
        secondary=configuration.secondary,
        unread=source.unread,
        unfinished=source.unfinished,
    )
    pipelines.temporary_view(name=_JOURNAL)(lambda: source.rows(spark))
    for fact in FACTS:
        _enter(fact.name, f"fact_{fact.name}", _fact_query(fact, spark), spark)
    for step in STEPS:
        name = step.name if step.is_table else f"step_{step.name}"
        _enter(step.name, name, _step_query(step, settings, spark), spark)


def _fact_query(fact: Fact, spark: SparkSession) -> Callable[[], DataFrame]:
    return lambda: fact.of(spark.read.table(_JOURNAL))


def _step_query(step: Step, settings: Settings, spark: SparkSession) -> Callable[[], DataFrame]:
    return lambda: step.make({name: spark.read.table(_seen(name)) for name in step.needs}, settings)


def _enter(name: str, place: str, query: Callable[[], DataFrame], spark: SparkSession) -> None:
    """Enter a materialized view, and a view by which others read it.

    While definitions are read Spark resolves some operators at once, `withColumn` for one. If it finds the table of an
    earlier run in the catalog, it takes that for the source and forgets what depends on what: the new run would read
    old rows, or none. The view's name is in no catalog, so that it is resolved when the pipeline runs.
    """
    table = _TABLES.get(name)
    if table is None:
        pipelines.materialized_view(name=place)(query)
    else:
        # What the reference says of a table and its columns is in the catalog, too.
        comment = f"One row: {table.row}."
        pipelines.materialized_view(name=place, comment=comment, schema=_described(table))(query)
    pipelines.temporary_view(name=_seen(name))(lambda: spark.read.table(place))


def _seen(name: str) -> str:
    return f"pairmq_{name}"


def _described(table: Table) -> types.StructType:
    """A table's schema, with the meaning of each column."""
    meanings = {field.name: field.meaning for field in table.fields}
    return types.StructType(
        [types.StructField(each.name, each.dataType, True, {"comment": meanings[each.name]}) for each in table.schema]
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A journal.

    Args:
        rows: gives them, each once, without reading them yet.
        unread: which rows may be missing because a file is damaged.
        unfinished: which may be because they are in no segment yet.
    """

    rows: Callable[[SparkSession], DataFrame]
    unread: tuple[Unread, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def source_of(journal: str) -> Source:
    """Find a journal.

    The files of a directory are looked over as `pairmq.pipeline.run` does it: bad ones are left out, and only what
    two files may both hold is compared row by row. Behind a URL every row is compared, and a bad file ends the run.
    """
    path = journal.removeprefix("file://")
    if is_url(path):
        return Source(lambda spark: _read_url(spark, journal))
    contents = look_over(Path(path))
    return Source(lambda spark: read_rows(spark, contents), unread_of(contents.bad), unfinished_of(contents.parts))


def _read_url(spark: SparkSession, url: str) -> DataFrame:
    # What the names of folders say is in the rows, too.
    files = spark.read.schema(rows_schema()).option("recursiveFileLookup", True).option("pathGlobFilter", "*.parquet")
    return files.parquet(url).select(*(column.name for column in COLUMNS)).dropDuplicates(["process", "seq"])

"""``pairmq pipeline spec``: the same tables as a Spark Declarative Pipeline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from pairmq.cli._common import examples
from pairmq.cli._output import say
from pairmq.cli._prices import read_prices
from pairmq.cli._values import duration
from pairmq.model import Price
from pairmq.pipeline.declarative import Configuration, is_url, write_project

_EPILOG = examples(
    "pairmq pipeline spec project --journal /var/lib/pairmq/journal --out tables",
    "SPARK_CONF_DIR=project spark-pipelines run --spec project/spark-pipeline.yml",
)


def add(group: typer.Typer) -> None:
    """Enter the command into its group."""
    group.command("spec", epilog=_EPILOG)(spec)


def spec(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Where to write it; made where missing.")],
    journal: Annotated[
        str,
        typer.Option("--journal", metavar="DIR", help="Directory that the journal was kept in, or a URL for Spark."),
    ],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory of the tables; made where missing.")],
    patience: Annotated[
        float,
        typer.Option(
            "--patience",
            parser=duration,
            metavar="DURATION",
            help="Later messages of its queue may overtake a message by so much before it counts as lost.",
        ),
    ] = "5min",  # type: ignore[assignment]  # the parser reads defaults too
    prices: Annotated[
        str | None,
        typer.Option("--prices", metavar="FILE", help="TOML: tables primary and secondary, each per_million and base."),
    ] = None,
) -> int:
    """Write a folder with which `spark-pipelines run` makes the tables, and print the command for it.

    It holds the spec, the settings of Spark and the definitions; what is asked for here stands in the first two and may
    be changed there. Nothing is overwritten.
    """
    primary, secondary = (Price(), Price()) if prices is None else read_prices(prices)
    # Spark runs the pipeline from the folder.
    place = journal if is_url(journal) else str(Path(journal).resolve())
    project = write_project(folder, Configuration(place, patience, primary, secondary), out)
    say(f"SPARK_CONF_DIR={shlex.quote(str(project.folder))} {shlex.join(project.command)}")
    return 0

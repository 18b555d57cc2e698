"""``pairmq pipeline``: what a journal tells, as tables made by Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from pairmq.cli._common import Json, examples
from pairmq.cli._values import duration

_RUN_EPILOG = examples(
    "pairmq pipeline run --journal /var/lib/pairmq/journal --out tables",
    "pairmq pipeline run --journal journal --out tables --prices prices.toml --json",
)


def add(app: typer.Typer) -> None:
    """Enter the commands into the application."""
    group = typer.Typer(no_args_is_help=True, help="Tables of what a journal tells, made by Spark.")
    group.command("run", epilog=_RUN_EPILOG)(run)
    app.add_typer(group, name="pipeline")


def run(
    journal: Annotated[str, typer.Option("--journal", metavar="DIR", help="Directory that the journal was kept in.")],
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
    cores: Annotated[
        int | None, typer.Option("--cores", metavar="N", min=1, help="Of a local Spark. Default: all.")
    ] = None,
    json: Json = False,
) -> int:
    """Make tables of a journal: what became of each message, outages, availability, the backlog, cost.

    Each table is a directory of Parquet files in the output directory, and run.json says what was found. Exit status: 1
    when a message that was accepted is lost, 130 after Ctrl-C.
    """
    # Spark is no part of what other commands need.
    from pairmq.cli import _pipeline_run

    return _pipeline_run.run(journal, out, patience=patience, prices=prices, cores=cores, json=json)

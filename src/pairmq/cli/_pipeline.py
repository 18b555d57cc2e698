"""``pairmq pipeline``: what Spark does: tables of what a journal tells, and the emptying of a backlog."""

from __future__ import annotations

from typing import Annotated

import typer

from pairmq.cli import _pipeline_drain, _pipeline_report, _pipeline_spec
from pairmq.cli._common import Json, examples
from pairmq.cli._errors import BadUsage
from pairmq.cli._values import duration

_RUN_EPILOG = examples(
    "pairmq pipeline run --journal /var/lib/pairmq/journal --out tables",
    "pairmq pipeline run --journal journal --out tables --prices prices.toml --json",
    "pairmq pipeline run --journal /var/lib/pairmq/journal --out tables --follow --every 5min",
)

_FOLLOWING = "Following"


def add(app: typer.Typer) -> None:
    """Enter the commands into the application."""
    group = typer.Typer(no_args_is_help=True, help="Work for Spark: tables of what a journal tells, a backlog emptied.")
    group.command("run", epilog=_RUN_EPILOG)(run)
    _pipeline_report.add(group)
    _pipeline_drain.add(group)
    _pipeline_spec.add(group)
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
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep the tables up to date, until a signal.", rich_help_panel=_FOLLOWING)
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            "--every",
            parser=duration,
            metavar="DURATION",
            help="From one look for new files to the next. Default 1min.",
            rich_help_panel=_FOLLOWING,
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Go on from where it was, and end when all is in the tables.", rich_help_panel=_FOLLOWING
        ),
    ] = False,
    until_idle: Annotated[
        float | None,
        typer.Option(
            "--until-idle",
            parser=duration,
            metavar="DURATION",
            help="End when nothing new has come for so long.",
            rich_help_panel=_FOLLOWING,
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option(
            "--restart", help="Forget what was read, and read the whole journal again.", rich_help_panel=_FOLLOWING
        ),
    ] = False,
) -> int:
    """Make tables of a journal: what became of each message, outages, availability, the backlog, cost.

    Each table is a directory of Parquet files in the output directory, and run.json says what was found. Exit status: 1
    when a message that was accepted is lost, 130 after Ctrl-C. With --follow it ends after what it has in hand when
    SIGTERM (exit status 0) or Ctrl-C asks for it, and at once when it comes a second time; killed, it goes on from
    where it was when it is started again.
    """
    if not follow and (every is not None or once or until_idle is not None or restart):
        raise BadUsage("--every, --once, --until-idle and --restart are for --follow")
    if once and until_idle is not None:
        raise BadUsage("--once and --until-idle exclude each other")
    # Spark is no part of what other commands need.
    if follow:
        from pairmq.cli import _pipeline_follow

        wishes = _pipeline_follow.Wishes(
            every=60.0 if every is None else every, once=once, until_idle=until_idle, restart=restart
        )
        return _pipeline_follow.run(
            journal, out, patience=patience, prices=prices, cores=cores, json=json, wishes=wishes
        )
    from pairmq.cli import _pipeline_run

    return _pipeline_run.run(journal, out, patience=patience, prices=prices, cores=cores, json=json)

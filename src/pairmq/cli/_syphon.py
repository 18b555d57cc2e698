"""``pairmq syphon``: brings diverted messages home, as a service or until nothing is left."""

from __future__ import annotations

from typing import Annotated

import typer

from pairmq.cli._common import SYPHON, PairArguments, examples, transport_of, with_pair
from pairmq.cli._dashboard_serve import Serving, address_of, check_dashboard
from pairmq.cli._signals import run_async
from pairmq.cli._syphon_job import SyphonJob
from pairmq.cli._values import duration
from pairmq.pair import Pair

_EPILOG = examples(
    "pairmq syphon --config pair.toml",
    "pairmq syphon --until-empty --max-rate 500",
    "pairmq syphon --dashboard 8765",
    "pairmq syphon --json --metrics-interval 60s >> syphon.jsonl",
)


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=_EPILOG)(syphon)


@with_pair(SYPHON)
def syphon(
    pair: PairArguments,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", metavar="", help="Leave when all backlog queues are empty.")
    ] = False,
    metrics_interval: Annotated[
        float,
        typer.Option("--metrics-interval", parser=duration, metavar="DURATION", help="Between two progress lines."),
    ] = "10s",  # type: ignore[assignment]  # the parser reads defaults too
    dashboard: Annotated[
        str | None,
        typer.Option(
            "--dashboard", metavar="[HOST:]PORT", help="Serve a page that shows it, as 'pairmq dashboard' does."
        ),
    ] = None,
    dashboard_token_file: Annotated[
        str | None,
        typer.Option(
            "--dashboard-token-file",
            metavar="FILE",
            help="Holds its operators' token; else PAIRMQ_DASHBOARD_TOKEN, else random.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", metavar="", help="Write each progress line as JSON on stdout.")
    ] = False,
) -> int:
    """Move messages from the backlog queues to the entities of the primary where they belong.

    Runs until a signal. Two at a time on one pair are safe. Exit status: 0 after SIGTERM, 130 after SIGINT, 1 when the
    pair faulted; with --until-empty 0 when all queues are empty, 1 when a message had to be dead-lettered, or when
    messages are left in backlog queues that this pair does not drain, which are named.
    """
    page = None
    if dashboard is not None:
        check_dashboard()
        page = Serving(*address_of(dashboard), "--dashboard", "--dashboard-token-file", dashboard_token_file)
    settings = pair.settings(enable_syphon=True)
    opened = Pair.connect(
        settings.primary,
        settings.secondary,
        options=settings.options,
        journal=settings.journal,
        observers=settings.observers,
    )
    job = SyphonJob(
        opened,
        lambda: transport_of(settings.secondary),
        until_empty=until_empty,
        interval=max(0.1, metrics_interval),
        json=json,
        page=page,
    )
    return run_async(job.run, graceful=True)

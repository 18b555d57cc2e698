"""``pairmq receive``: messages of the primary, written to a file before they are completed."""

from __future__ import annotations

from typing import Annotated

import typer

from pairmq.cli._common import RECEIVING, PairArguments, examples, pair_name, source_of, transport_of, with_pair
from pairmq.cli._errors import BadUsage
from pairmq.cli._journal_kept import kept_journal
from pairmq.cli._output import warn
from pairmq.cli._receive_job import Output, ReceiveJob
from pairmq.cli._signals import run_async
from pairmq.cli._values import duration

_EPILOG = examples(
    "pairmq receive --entity orders --output orders.txt --idle 5",
    "pairmq receive --entity prices --subscription audit --json",
    "pairmq receive --entity orders --peek --max 3",
)


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=_EPILOG)(receive)


@with_pair(RECEIVING)
def receive(
    pair: PairArguments,
    entity: Annotated[str, typer.Option("--entity", "-e", metavar="NAME", help="Queue, or topic with --subscription.")],
    subscription: Annotated[
        str | None, typer.Option("--subscription", "-s", metavar="NAME", help="Subscription of the topic to read.")
    ] = None,
    dead_letter: Annotated[bool, typer.Option("--dead-letter", metavar="", help="Read its dead-letter queue.")] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Append to this file; - is stdout.")
    ] = "-",
    max_messages: Annotated[int | None, typer.Option("--max", "-n", metavar="N", min=1, help="Stop after N.")] = None,
    idle: Annotated[
        float | None,
        typer.Option("--idle", parser=duration, metavar="DURATION", help="Stop when nothing came for so long."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", metavar="", help="Write a JSON object a line, the body in base64.")
    ] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", metavar="", help="End each body with a NUL, not a line end.")
    ] = False,
    peek: Annotated[
        bool, typer.Option("--peek", metavar="", help="Only look: lock nothing, remove nothing; 100 unless --max.")
    ] = False,
    unique: Annotated[
        bool,
        typer.Option("--unique", metavar="", help="Drop messages whose id this run has seen already, and count them."),
    ] = False,
    prefetch: Annotated[
        int, typer.Option("--prefetch", metavar="N", min=1, max=10_000, help="Messages a receive.")
    ] = 200,
) -> int:
    """Receive messages from the primary and write their bodies, a line each.

    Each is in the file before it is completed: at least once, never lost. Without --max and --idle it goes on until a
    signal. Exit status: 0, 1 when the broker fails, 130 or 143 when a signal stopped it.
    """
    if json and null:
        raise BadUsage("--json and --null exclude each other: a JSON line ends with a line end")
    source = source_of(entity, subscription, dead_letter)
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)
    pair_called = "" if settings.journal is None else pair_name(settings)
    if settings.journal is not None and not pair_called and not peek:
        warn("no secondary is named, so that the journal can't tell whose messages these are: give --secondary")
    with (
        Output(output, json=json, separator=b"\0" if null else b"\n") as file,
        kept_journal(settings.journal) as journal,
    ):
        job = ReceiveJob(
            transport,
            source,
            file,
            most=max_messages,
            idle=idle,
            prefetch=prefetch,
            unique=unique,
            time_limit=settings.options.attempt_timeout,
            journal=journal,
            pair=pair_called,
        )
        return run_async(job.peek if peek else job.run, graceful=True)

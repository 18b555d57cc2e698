"""``pairmq pipeline report``: one page of what the tables of a run tell."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairmq.cli._common import Json, examples
from pairmq.cli._errors import printable
from pairmq.cli._output import FAIL, OK, WARN, put_json, say, warn

if TYPE_CHECKING:
    from pairmq.pipeline.reporting import Written

_EPILOG = examples(
    "pairmq pipeline report --out tables",
    "pairmq pipeline report --out tables --to outage.html --open",
    "pairmq pipeline report --out tables --json | jq .outages",
)
STYLES = {"good": OK, "incomplete": WARN, "faults": WARN, "lost": FAIL}
"""How the verdict is printed."""


def add(group: typer.Typer) -> None:
    """Enter the command into the group."""
    group.command("report", epilog=_EPILOG)(report)


def report(
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory of the tables, where a run put them.")],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FILE", help="The page; the JSON stands beside it. Default DIR/report.html."),
    ] = None,
    open: Annotated[bool, typer.Option("--open", metavar="", help="Show the page in a browser.")] = False,
    json: Json = False,
) -> int:
    """Write a page that answers: was anything lost, what was out for how long, what did it cost, what can't be known.

    The page is one file that loads nothing and runs nothing; the same stands as JSON beside it. It needs no Spark. Exit
    status: 1 when a message that was accepted is lost.
    """
    # Arrow and Jinja are no part of what other commands need.
    from pairmq.pipeline import reporting

    written = reporting.report(out, to)
    if json:
        put_json(written.content, indent=1)
    else:
        tell(written)
    if open:
        show(written.page)
    return 1 if written.lost else 0


def tell(written: Written) -> None:
    """Print the verdict, and where the page is."""
    say(printable(written.content["headline"]), style=STYLES.get(written.content["verdict"]))
    say(f"report: {printable(str(written.page))}")


def show(page: Path) -> None:
    """Open the page in a browser, where there is one."""
    if not webbrowser.open(page.resolve().as_uri()):
        warn(f"no browser was found: open {page} yourself")

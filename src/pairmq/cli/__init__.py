"""The command line: ``pairmq --help``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

__all__ = ["main"]


def main(application: typer.Typer | None = None, *, name: str = "pairmq") -> None:
    """Run the command line and leave with its exit status.

    Args:
        application: what a distribution brings as a subcommand and runs by itself, with PairMQ's errors and exit
            statuses; PairMQ's own commands when left out.
        name: what the program is called in its help.
    """
    try:
        from pairmq.cli._app import app, run
    except ModuleNotFoundError as error:
        # Both come with an extra, so that the library alone needs neither.
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("error: the command line needs typer and rich: pip install 'pairmq[cli]'\n")
        raise SystemExit(1) from None
    raise SystemExit(run(application=application or app, name=name))

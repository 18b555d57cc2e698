"""The command line: ``pairmq --help``."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        from pairmq.cli._app import run
    except ModuleNotFoundError as error:
        # Both come with an extra, so that the library alone needs neither.
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write("error: the command line needs typer and rich: pip install 'pairmq[cli]'\n")
        raise SystemExit(1) from None
    raise SystemExit(run())

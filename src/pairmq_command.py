"""The program ``pairmq``: Ctrl-C ends it without a traceback also while it imports PairMQ.

It stands beside the package, because to import a module of a package is to import the package.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and exit with its status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from pairmq.cli import main as run

    run()

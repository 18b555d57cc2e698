"""Lets Ctrl-C through where a script runs the tests in its background, which begin with the signal ignored then."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # The programs that tests start inherit what is ignored, and no signal would ever end them.
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""Ctrl-C during simulations: noted when it comes, raised between two steps, where nothing is half done.

Python by itself raises `KeyboardInterrupt` between any two instructions: after a loop was made and before the `try`
that closes it, while a world is taken down, or in a callback of the garbage collector, which prints and drops it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_asked = False


def check() -> None:
    """Raise `KeyboardInterrupt` if Ctrl-C was pressed inside `interrupts_noted`."""
    if _asked:
        raise KeyboardInterrupt


@contextlib.contextmanager
def interrupts_noted() -> Iterator[None]:
    """Let Ctrl-C end simulations at their next step, and nothing else; outside the main thread no signal comes."""
    global _asked
    before = None
    with contextlib.suppress(ValueError):
        before = signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        _asked = False
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _note(number: int, frame: FrameType | None) -> None:
    global _asked
    _asked = True

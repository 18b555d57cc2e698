#!/usr/bin/env python3
"""Run tests in forks of which one at a time may run: the others are stopped, as on a machine that swaps.

    python scripts/under-stalls.py SECONDS pytest --forks 14    a turn of so many seconds for each

With 14 forks and turns of 0.08 s each is stopped for 1 s after each 0.08 s. A busy machine seldom stops a process for
so long, and then in one test of ten thousand; this stops it in all of them, and needs less of the processor than those.
The status is the command's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_LOOK = 2.0  # s between looks for new forks


def forks_of(pid: int) -> list[int]:
    """Processes that a process has forked, and that run its own program still."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split())
    return [child for child in children if Path(f"/proc/{child}/cmdline").read_bytes() == own]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def main(arguments: list[str]) -> int:
    """Run a command in turns."""
    if len(arguments) < 2:
        print("usage: under-stalls.py SECONDS COMMAND...", file=sys.stderr)
        return 2
    turn = float(arguments[0])
    command = subprocess.Popen(arguments[1:])
    forks: list[int] = []
    stops, looked_at = 0, -_LOOK
    try:
        while command.poll() is None:
            if time.monotonic() - looked_at > _LOOK:
                looked_at = time.monotonic()
                with suppress(OSError):  # one of them has ended just now
                    forks = forks_of(command.pid)
            if not forks:
                time.sleep(_LOOK / 10)
            for fork in forks:
                send(fork, signal.SIGCONT)
                time.sleep(turn)
                if len(forks) > 1:
                    send(fork, signal.SIGSTOP)
                    stops += 1
    finally:
        for fork in forks:
            send(fork, signal.SIGCONT)
    print(f"under-stalls: stopped a process {stops} times")
    return command.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

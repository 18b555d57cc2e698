"""Draw docs/demo.svg: the demo as a terminal shows it in mid-outage. Needs tmux.

Run it with: .venv/bin/python scripts/demo_picture.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH, HEIGHT = 100, 31
MOMENT = 4.9  # s by the demo's own clock: the primary is unavailable, everything goes to the backlog
LIMIT = 60.0  # s until then, on a busy machine


def screen() -> str:
    """What the terminal shows, with its colours."""
    tmux = ["tmux", "-L", "pairmq-picture"]
    program = f"{sys.executable} -m pairmq demo --seed 7; sleep 30"
    subprocess.run([*tmux, "new-session", "-d", "-x", str(WIDTH), "-y", str(HEIGHT), program], check=True, cwd=ROOT)
    try:
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            capture = [*tmux, "capture-pane", "-p"]
            moment = re.search(
                r"([0-9]+\.[0-9]) s$", subprocess.check_output(capture, text=True).partition("\n")[0].rstrip()
            )
            if moment and float(moment[1]) >= MOMENT:
                return subprocess.check_output([*capture, "-e"], text=True)
            time.sleep(0.05)
        raise SystemExit(f"the demo did not come to its {MOMENT:g} s within {LIMIT:g} s")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def main() -> None:
    """Take the picture and write it."""
    console = Console(record=True, width=WIDTH, file=open("/dev/null", "w"))  # noqa: SIM115  # lives as long as we do
    console.print(Text.from_ansi(screen().rstrip()))
    svg = console.export_svg(title="make demo", theme=MONOKAI)
    # No picture should fetch fonts from another server.
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = "\n".join(line.rstrip() for line in svg.splitlines())
    (ROOT / "docs/demo.svg").write_text(svg + "\n")


if __name__ == "__main__":
    main()

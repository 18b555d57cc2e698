"""The public names and their signatures are those of the list: a change to one is made on purpose."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_public_names_are_those_of_the_list() -> None:
    listed = (ROOT / "tests" / "docs" / "public_api.txt").read_text("utf-8").splitlines()
    command = [sys.executable, str(ROOT / "scripts" / "public_api.py")]
    now = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    changes = "\n".join(difflib.unified_diff(listed, now, "listed", "now", lineterm="", n=0))
    assert not changes, f"write a line in CHANGELOG.md, then run scripts/public_api.py --write\n{changes}"

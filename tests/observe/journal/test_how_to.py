"""The program of docs/how-to/keep-a-journal.md runs, and keeps a journal."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from journal_events import rows

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "keep-a-journal.md"


def test_the_program_of_the_page_keeps_a_journal(tmp_path):
    program = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert program is not None
    subprocess.run([sys.executable, "-c", program[1]], cwd=tmp_path, check=True, timeout=150)
    (row,) = rows(tmp_path / "journal", "SendCompleted")
    assert (row["entity"], row["outcome"], row["size"]) == ("orders", "accepted-primary", 8)

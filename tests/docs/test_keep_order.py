"""The example of the document about order runs, and keeps what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "how-to" / "examples" / "keep_order.py"


def test_a_session_arrives_in_order_through_an_outage():
    ended = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=100, check=True)
    lines = ended.stdout.splitlines()
    assert lines[-1] == "in order"
    assert {"order 0: primary", "order 15: backlog"} <= set(lines)


def test_the_document_shows_the_example_s_options():
    text = (DOCS / "explanation" / "order.md").read_text("utf-8")
    shown = re.search(r"```python\n(OPTIONS = .*?)```", text, re.DOTALL)
    assert shown is not None
    assert shown[1] in EXAMPLE.read_text("utf-8")

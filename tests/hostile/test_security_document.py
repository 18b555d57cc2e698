"""What the document on security says is held by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_statement_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/explanation/security.md").read_text("utf-8")
    named = set(re.findall(r"`((?:tests|plugins)/\S+\.py)::(\w+)`", text))
    assert len(named) >= 15
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file}::{test}"

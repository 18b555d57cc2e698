"""What the document of the drop-in prints as a program runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[4] / "docs/how-to/service-bus-drop-in.md"


@pytest.mark.real_server
def test_the_trial_runs_as_it_is_printed(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    program = tmp_path / "trial.py"
    program.write_text(programs[-1])
    run = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=150, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["primary", "backlog", "one", "two"]


def test_only_an_import_and_a_constructor_change() -> None:
    before, after = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[:2]
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert len(added) == 3
    assert all("import" in line or "from_connection_string" in line for line in added)

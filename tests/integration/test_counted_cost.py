"""The cost that `pairmq cost` computes is the one that a namespace counts (SPEC 7.9)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_server

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "counted_cost.py"


@pytest.mark.long
def test_what_a_namespace_counts_agrees_with_the_formula() -> None:
    arguments = ["--queues=4", "--wait=2", "--polls=3", "--messages=60"]
    run = subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stdout + run.stderr

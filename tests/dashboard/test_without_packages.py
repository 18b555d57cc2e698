"""What is said where the packages of ``pairmq[dashboard]`` are not installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["starlette"] = None
import pairmq, pairmq.cli._app
try:
    import pairmq.dashboard
except ModuleNotFoundError as error:
    print(error)
"""


def test_the_package_says_what_to_install_and_the_rest_needs_nothing_of_it():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=True)
    assert "pip install 'pairmq[dashboard]'" in run.stdout
    assert run.stderr == ""

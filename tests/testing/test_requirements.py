"""What the test kit needs beyond PairMQ is asked for where it is used, and in words."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("pairmq.testing.strategies", "hypothesis"),
        *(
            pytest.param(f"pairmq.testing.{module}", missing, marks=pytest.mark.real_server)  # each is a program
            for module, missing in [
                ("machine", "hypothesis"),
                ("conformance.suites", "pytest"),
                ("conformance.suites", "pytest_asyncio"),
            ]
        ),
    ],
)
def test_what_is_missing_is_reported_with_how_to_install_it(module: str, missing: str) -> None:
    told = run(f"import sys; sys.modules[{missing!r}] = None; import {module}").stderr.splitlines()[-1]
    assert told.startswith("ModuleNotFoundError: the ")
    assert told.endswith("pip install 'pairmq[testing]'")


def test_everything_else_does_with_pluggy_alone() -> None:
    absent = ["hypothesis", "pytest", "pytest_asyncio", "_pytest", "rich", "typer", "pyarrow", "redis", "fakeredis"]
    modules = ["chaos", "conformance", "proxy", "pytest_plugin", "servers", "simulator"]
    names = ["pairmq", "pairmq.testing", *(f"pairmq.testing.{module}" for module in modules)]
    result = run(f"import sys; sys.modules.update(dict.fromkeys({absent})); import {', '.join(names)}")
    assert result.returncode == 0, result.stderr

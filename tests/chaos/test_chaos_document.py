"""What docs/how-to/run-chaos.md prints is so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq.testing.chaos import ChaosBroker
from pairmq.testing.simulator import Verdict
from pairmq_rabbitmq.testing_chaos import RabbitChaos
from pairmq_redis.testing_chaos import RedisChaos

DOCUMENT = (Path(__file__).parents[2] / "docs/how-to/run-chaos.md").read_text()


@pytest.mark.real_server
def test_the_first_program_runs_as_it_is_printed(tmp_path: Path) -> None:
    program = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "redis>redis seed 7: no violation" in run.stdout


def test_every_verdict_is_explained() -> None:
    explained = re.findall(r"^\| ([a-z ]+) \|", DOCUMENT, re.MULTILINE)
    assert {verdict.value for verdict in Verdict} <= set(explained)


@pytest.mark.parametrize(("row", "product"), [("Redis", RedisChaos), ("RabbitMQ", RabbitChaos)])
def test_the_faults_of_a_product_are_all_named(row: str, product: type[ChaosBroker]) -> None:
    line = re.search(rf"^\| {row} \| (.*) \|$", DOCUMENT, re.MULTILINE)
    own = {kind.name for kind in product.faults} - {"kill", "pause"}
    assert set(re.findall(r"`([a-z-]+)`", line[1])) == own

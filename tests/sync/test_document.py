"""The programs of docs/how-to/use-without-asyncio.md run as they are printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq import Entity
from pairmq.sync import Pair

TEXT = (Path(__file__).parents[2] / "docs/how-to/use-without-asyncio.md").read_text()
FIRST, FORKING = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)

IN_CHILDREN = """
import multiprocessing
from pairmq import Entity
from pairmq.model import Source

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.map(place_order, range(30))
        pool.close()
        pool.join()
    pair.open()
    print(pair.primary.admin.counts(Source(Entity("orders"))).pending)
"""


def run(servers, text):
    urls = {f"PAIRMQ_{name}": server.url for name, server in zip(("PRIMARY", "SECONDARY"), servers, strict=True)}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        env=os.environ | urls,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.real_server
def test_the_first_program_runs_as_it_is_printed(processes):
    assert run(processes, FIRST) == "primary\nb'42'\n"


@pytest.mark.real_server
def test_the_program_that_forks_runs_as_it_is_printed(processes):
    with Pair.connect(*(server.url for server in processes)) as pair:
        pair.primary.admin.create(Entity("orders"))
    assert run(processes, FORKING + IN_CHILDREN) == "30\n"

"""The example of the how-to page on receiving once runs as it is printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq import Deduplicator, MemoryClaims
from pairmq_redis.testing import RedisServer

HOW_TO = Path(__file__).parents[2] / "docs/how-to"
PAGE = (HOW_TO / "receive-once.md").read_text()


@pytest.mark.real_server
def test_the_example_prints_what_the_page_says():
    printed = re.search(r"\$ python docs/how-to/examples/ship_once.py .*\n((?:.+\n)+)```", PAGE)[1]
    with RedisServer(appendfsync="no") as server:
        run = subprocess.run(
            [sys.executable, HOW_TO / "examples/ship_once.py", server.url],
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        )
    assert run.stdout == printed


def test_the_page_names_the_defaults():
    defaults = Deduplicator.__init__.__kwdefaults__
    assert f"`lease` seconds ({defaults['lease']:.0f})" in PAGE
    assert f"`window` seconds ({defaults['window']:,.0f}".replace(",", " ") in PAGE
    assert f"MemoryClaims(entries={MemoryClaims.__init__.__defaults__[0]:_})" in PAGE

"""docs/how-to/move-a-file-through-an-outage.md, walked from its first command to its last, the kill included."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doc_blocks import Block, blocks
from doc_commands import lines
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq.testing.servers import free_port

PAGE = "docs/how-to/move-a-file-through-an-outage.md"
WAIT = 100.0

INSTALL, SERVERS, FILE, SEND, KILL, RESTART, SUMMARY, LEFT, REST, SYPHON, RECEIVE, CLEAN_UP = blocks(PAGE)


class Walk:
    """A reader at a shell, in a folder of their own, with a shorter file and other ports.

    Args:
        folder: where the reader sits.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.east, self.west = free_port("127.0.0.1"), free_port("127.0.0.1")
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        known = {name: value for name, value in os.environ.items() if not name.startswith("PAIRMQ_")}
        self._environment = known | {"PATH": programs}
        self._exported: list[str] = []

    def start(self, block: Block) -> subprocess.Popen[str]:
        """Begin what a block says; what it exports lasts for the blocks after it."""
        typed = lines(block)
        script = "\n".join([*self._exported, *typed])
        self._exported += [line for line in typed if line.startswith("export ")]
        for printed, here in {"7001": self.east, "7002": self.west, "100000": 20_000}.items():
            script = script.replace(printed, str(here))
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, block: Block) -> str:
        """Type what a block says, and give what is printed."""
        with self.start(block) as shell:
            printed, _ = shell.communicate(timeout=WAIT)
        assert shell.returncode == 0, printed
        return printed

    def await_lines(self, port: int, least: int) -> None:
        """Wait until a server holds so many messages, in whatever queues."""

        async def held() -> int:
            async with registry.transport(f"redis://127.0.0.1:{port}/0") as transport:
                queues = await transport.admin.list_entities()
                return sum([(await transport.admin.counts(Source(queue))).pending for queue in queues])

        until = time.monotonic() + WAIT
        while asyncio.run(held()) < least:
            assert time.monotonic() < until
            time.sleep(0.05)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    yield Walk(tmp_path)
    for pid in tmp_path.glob("*/pid"):
        subprocess.run(["kill", "-9", pid.read_text().strip()], stderr=subprocess.DEVNULL, check=False)


@pytest.mark.long
@pytest.mark.real_server
@pytest.mark.timeout(5 * WAIT)
def test_the_file_is_whole_again(walk: Walk) -> None:
    walk.run(SERVERS)
    walk.run(FILE)
    sending = walk.start(SEND)
    walk.await_lines(walk.east, 1000)
    walk.run(KILL)
    walk.await_lines(walk.west, 1)
    walk.run(RESTART)
    told, _ = sending.communicate(timeout=WAIT)
    assert sending.returncode == 0, told
    assert re.search(r"by the backlog +[1-9]", told)

    assert "the backlog is empty" in walk.run(SYPHON)
    assert walk.run(RECEIVE).endswith("the same\n")
    walk.run(CLEAN_UP)

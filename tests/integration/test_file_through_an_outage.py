"""A file through an outage, by the programs that users run: send, syphon, receive, and two real redis-servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pairmq import Entity
from pairmq.model import Source
from pairmq.plugins import registry

pytestmark = pytest.mark.real_server

# `make soak` raises it; at 100 000 the test takes well under a minute where nothing else runs.
LINES = int(os.environ.get("PAIRMQ_TEST_LINES", "10000"))
PATIENCE = 120 + LINES / 500  # s

SHORT = [
    "--failover-interval=1s",
    "--ping-interval=500ms",
    "--attempt-timeout=2s",
    "--backlog-queues=4",
    "--send-timeout=30s",
]


def pairmq(*arguments: str, **more) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-m", "pairmq", *arguments], **more)


def count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def until(condition, what: str) -> None:
    seconds = PATIENCE
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, f"not in {seconds} s: {what}"
        time.sleep(0.02)


@pytest.mark.timeout(300 + LINES / 200)
@pytest.mark.parametrize(
    "kill_the_syphon",
    [pytest.param(False, id=""), pytest.param(True, id="syphon-killed", marks=pytest.mark.long)],
)
def test_every_line_of_a_file_arrives_through_an_outage(servers, tmp_path, kill_the_syphon):
    """The primary is killed (SIGKILL) at a third and restarted later; the syphon, too, in the second run."""
    east, west = servers
    brokers = ["--primary", east.url, "--secondary", west.url]
    lines = [f"order {n} für Käufer {n * 7919 % 1000}" for n in range(LINES)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    receipts = tmp_path / "receipts.jsonl"
    with open(tmp_path / "send.log", "wb") as log:
        send = pairmq(
            *("send", "--entity=orders", "--create", "--input", str(tmp_path / "in.txt"), "--id-prefix=line"),
            *("--receipts", str(receipts), *brokers, *SHORT),
            stderr=log,
        )
    syphon_options = ["syphon", *brokers, "--ping-interval=500ms", "--backlog-queues=4", "--receive-wait=2s"]
    said = tmp_path / "syphon.log"
    with said.open("ab") as log:
        syphon = pairmq(*syphon_options, stderr=log)
    try:
        until(lambda: count_lines(receipts) >= LINES // 3, "a third is sent")
        east.kill()
        until(lambda: count_lines(receipts) >= LINES * 2 // 3, "two thirds are sent")
        assert b'"backlog"' in receipts.read_bytes()
        east.restart()
        if kill_the_syphon:
            until(lambda: _stored(east) > LINES // 2, "the drain has begun")
            syphon.kill()
            syphon.wait()
            with said.open("ab") as log:
                syphon = pairmq(*syphon_options, stderr=log)
        assert send.wait(PATIENCE) == 0, (tmp_path / "send.log").read_text()

        # A program that has not come to its handlers yet ends by the signal below, and not as it should.
        until(lambda: said.read_text().count("syphon: ") == 1 + kill_the_syphon, "the syphon is at work")
        drain = pairmq(*syphon_options, "--until-empty", stderr=subprocess.PIPE)
        errors = drain.communicate(timeout=PATIENCE)[1]
        assert drain.returncode == 0, errors.decode()
        syphon.send_signal(signal.SIGTERM)
        assert syphon.wait(60) == 0, said.read_text()

        out = tmp_path / "out.jsonl"
        receive = pairmq(
            "receive", "--entity=orders", "--idle=2s", "--json", "--output", str(out), "--primary", east.url
        )
        assert receive.wait(PATIENCE) == 0
    finally:
        for process in (send, syphon):
            if process.poll() is None:
                process.kill()
                process.wait()

    received = [json.loads(line) for line in out.read_text().splitlines()]
    copies = Counter(entry["message_id"] for entry in received)
    assert set(copies) == {f"line-{n + 1}" for n in range(LINES)}
    sent = [json.loads(line) for line in receipts.read_text().splitlines()]
    assert len(sent) == LINES
    doubtful = {entry["message_id"] for entry in sent if entry["maybe_duplicate"]}
    unexplained = {message_id for message_id, count in copies.items() if count > 1} - doubtful
    # A killed syphon may have sent what it had in hand and not completed it: a batch of each of its four pumps.
    assert len(unexplained) <= (4 * 100 if kill_the_syphon else 0)


def _stored(server) -> int:
    """How many messages the primary's queue holds."""

    async def count() -> int:
        async with registry.transport(server.url) as transport:
            return (await transport.admin.counts(Source(Entity("orders")))).active

    return asyncio.run(count())

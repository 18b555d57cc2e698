"""A program with pika alone reads what a pair has diverted, as the page on the envelope says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pairmq import Message, Pair, PairOptions, Route
from pairmq.core import ALIASES
from pairmq.testing import MemoryBroker
from pairmq_rabbitmq.testing import RabbitServer

ROOT = Path(__file__).parents[2]
READER = ROOT / "docs/how-to/examples/read_backlog.py"
PAGE = (ROOT / "docs/reference/envelope.md").read_text("utf-8")
BACKLOG = "east/x-servicebus-transfer/0"
AT = datetime(2040, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_the_page_names_each_property_of_the_envelope():
    assert set(re.findall(r"^\|.*?`(x-[a-z-]+)`", PAGE, re.MULTILINE)) == ALIASES


def read(url: str, *more: str) -> list[dict[str, object]]:
    command = [sys.executable, str(READER), url, BACKLOG, *more]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.real_server
async def test_a_reader_without_pairmq_restores_what_was_diverted(rabbit: RabbitServer):
    primary = MemoryBroker("east")
    await primary.stop()
    options = PairOptions(failover_interval=0, backlog_queue_count=1)
    async with Pair.connect(primary=primary.url, secondary=rabbit.url, options=options) as pair:
        orders = pair.sender("orders")
        message = Message(b"1", message_id="a", session_id="s", time_to_live=12.5, scheduled_enqueue_at=AT, priority=3)
        assert (await orders.send(message)).route is Route.BACKLOG
        news = pair.sender("news", kind="topic")
        await news.send(Message(b"2", message_id="b", application_properties={"tenant": "x"}))
    first, second = read(rabbit.url)
    assert (
        first
        | {
            "entity": "orders",
            "kind": "queue",
            "message_id": "a",
            "session_id": "s",
            "time_to_live": 12.5,
            "scheduled_enqueue_at": "2040-01-02T03:04:05.000000+00:00",
            "priority": 3,
            "properties": {},
            "body": "1",
        }
        == first
    )
    assert (
        second
        | {
            "entity": "news",
            "kind": "topic",
            "message_id": "b",
            "properties": {"tenant": "x"},
        }
        == second
    )
    assert "session_id" not in second
    assert len(read(rabbit.url, "--take")) == 2
    assert read(rabbit.url) == []

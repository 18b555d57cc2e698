"""The commands are observed as programs are, by a variable alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pairmq import Entity
from pairmq.cli import main
from pairmq.plugins import registry

async def prepare():
    transport = registry.transport("memory://east")
    await transport.admin.create(Entity("orders"))
    await transport.close()

asyncio.run(prepare())
sys.argv = ["pairmq", "send", "--primary", "memory://east", "--secondary", "memory://west", "--entity", "orders"]
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
try:
    main()
except SystemExit as end:
    status = end.code
data = reader.get_metrics_data()
names = [metric.name for metric in data.resource_metrics[0].scope_metrics[0].metrics] if data else []
print(status, *names)
"""


def run(**environ):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ},
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout.split()


def test_a_command_is_observed_when_the_variable_is_set():
    status, *names = run(PAIRMQ_OBSERVERS="opentelemetry")
    assert status in ("0", "None")
    assert "messaging.client.sent.messages" in names


@pytest.mark.real_server  # a program
def test_a_command_is_not_observed_otherwise():
    assert run()[1:] == []

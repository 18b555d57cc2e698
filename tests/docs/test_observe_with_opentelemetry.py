"""The example and the tables of the how-to page on OpenTelemetry."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import yaml

from pairmq.observe.otel import OpenTelemetryObserver
from pairmq_redis.testing import RedisServer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "how-to/observe-with-opentelemetry.md").read_text()


@pytest.mark.real_server
def test_the_example_follows_an_order_through_a_killed_primary():
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        program = subprocess.Popen(
            [sys.executable, "-u", DOCS / "how-to/examples/traced_orders.py", east.url, west.url],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = []
        try:
            for line in program.stdout:
                lines.append(line.rstrip())
                if lines == ["orders go to the primary"]:
                    east.kill()
                elif line == "orders go to the backlog\n":
                    east.start()
            assert program.wait(100) == 0
        finally:
            program.kill()
            program.stdout.close()
            program.wait()
    assert lines[:3] == ["orders go to the primary", "orders go to the backlog", "orders go to the primary"]
    metrics = dict(line.split(" ", 1) for line in lines[3:] if not line.startswith("span:"))
    assert "'accepted-backlog'" in metrics["messaging.client.sent.messages"]
    assert "'healthy': 1" in metrics["pairmq.entity.state"]
    assert {"pairmq.syphon.moved", "pairmq.backlog.messages", "messaging.process.duration"} <= set(metrics)
    trace = [line.split()[1:] for line in lines if line.startswith("span:")]
    assert [span[0] for span in trace[:2]] == ["send", "move"]
    assert {span[0] for span in trace[2:]} == {"process"}
    assert len({span[-1] for span in trace[1:]}) == 1  # all link to the one send


def test_every_metric_is_in_the_table():
    listed = set(re.findall(r"^\| `((?:messaging|pairmq)\.[\w.]+)` \|", PAGE, re.MULTILINE))
    meters = MagicMock()
    OpenTelemetryObserver(meter_provider=meters)
    calls = meters.get_meter.return_value.method_calls
    assert listed == {arguments[0] for method, arguments, _ in calls if method.startswith("create_")}


def test_every_alert_is_in_the_table_with_its_severity():
    listed = dict(re.findall(r"^\| `(PairMQ\w+)` \|.*\| (\w+) \|$", PAGE, re.MULTILINE))
    rules = yaml.safe_load((DOCS / "observability/prometheus-alerts.yaml").read_text())["groups"][0]["rules"]
    assert listed == {rule["alert"]: rule["labels"]["severity"] for rule in rules}


def test_the_version_of_the_conventions_is_the_one_that_spans_carry():
    (version,) = re.findall(r"version in the instrumentation scope \(([\d.]+)\)", PAGE)
    tracers = MagicMock()
    OpenTelemetryObserver(tracer_provider=tracers)
    assert f"https://opentelemetry.io/schemas/{version}.0" in tracers.get_tracer.call_args.args

"""The names are the conventions' own where these have one."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas

from pairmq.observe.otel import _names as names


def known() -> dict[str, str]:
    """Every name that PairMQ uses, by its constant."""
    return {
        constant: value
        for constant, value in vars(names).items()
        if constant.isupper() and isinstance(value, str) and constant not in ("SCOPE", "SCHEMA_URL")
    }


def test_every_name_is_in_the_conventions_or_under_our_own():
    listed = set()
    for module in (messaging_attributes, messaging_metrics, error_attributes, server_attributes):
        listed |= {value for value in vars(module).values() if isinstance(value, str)}
    strange = {value for value in known().values() if not value.startswith("pairmq.")} - listed
    assert strange == set()


def test_the_version_of_the_conventions_is_one_that_exists():
    assert names.SCHEMA_URL in {schema.value for schema in Schemas}


def test_names_are_unique():
    assert len(set(known().values())) == len(known())


# Each is a program.
@pytest.mark.parametrize(
    "version", [*(pytest.param(each, marks=pytest.mark.real_server) for each in ("", "messaging")), "messaging/dup"]
)
def test_the_names_are_the_present_ones_whatever_generation_is_asked_for(version):
    """PairMQ never used the older names, so that there is nothing to keep and nothing to send twice."""
    program = """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pairmq.observe.otel._metrics import Instruments
reader = InMemoryMetricReader()
made = Instruments(MeterProvider([reader]).get_meter("test"))
made.sent.add(1), made.duration.record(1), made.consumed.add(1), made.processing.record(1)
scope = reader.get_metrics_data().resource_metrics[0].scope_metrics[0]
print(*sorted(metric.name for metric in scope.metrics))
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={"OTEL_SEMCONV_STABILITY_OPT_IN": version},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert run.stdout.split() == [
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.process.duration",
    ]


def test_without_the_api_it_says_what_to_install():
    program = "import sys; sys.modules['opentelemetry'] = None; import pairmq.observe.otel"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert "pip install 'pairmq[otel]'" in run.stderr

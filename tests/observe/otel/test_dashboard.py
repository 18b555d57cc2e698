"""The dashboard and the alerts name nothing that PairMQ does not export."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from opentelemetry.sdk.metrics.export import Gauge, Histogram, Sum

from pairmq import Entity, EntityState, Message
from pairmq.model import Source, events
from pairmq.model.events import Cause, SendOutcome, Settlement, Side
from pairmq.observe.otel import processing, watch_backlog
from pairmq.transport import Endpoint, QueueCounts
from promql import PromQLError, named_in

FILES = Path(__file__).parents[3] / "docs/observability"
DASHBOARD = json.loads((FILES / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((FILES / "prometheus-alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def happenings():
    """Each kind of event at least once, with every field that becomes a label."""
    base = {"at": 1.0, "pair": "east>west"}
    orders = Entity("orders")
    send = {
        "entity": orders,
        "message_id": "m",
        "attempts": 1,
        "elapsed": 0.1,
        "size": 1,
        "state": EntityState.HEALTHY,
        "maybe_duplicate": True,
    }
    yield events.PairOpened(
        **base, primary="redis://e:1/0", secondary="redis://w:2/0", version="", options='{"backlog_queue_count": 2}'
    )
    for outcome in SendOutcome:
        accepted = outcome in (SendOutcome.PRIMARY, SendOutcome.BACKLOG)
        queue = "q/0" if outcome is SendOutcome.BACKLOG else None
        yield events.SendCompleted(
            **base, **send, outcome=outcome, backlog_queue=queue, error=None if accepted else "X"
        )
    yield events.AttemptFailed(
        **base, entity=orders, message_id="m", queue=None, kind="unavailable", error="", maybe_applied=True
    )
    for settlement in Settlement:
        yield events.MessageDelivered(
            **base,
            entity=orders,
            subscription="s",
            dead_letter=False,
            message_id="m",
            delivery_count=1,
            sequence_number="",
            settlement=settlement,
            received_at=None,
            error="X",
        )
    yield events.StateChanged(
        **base,
        entity=orders,
        previous=EntityState.HEALTHY,
        current=EntityState.FAILING,
        cause=Cause.SEND_FAILED,
        epoch=1,
        lasted=1.0,
    )
    for ok in (True, False):
        yield events.PingCompleted(**base, entity=orders, ok=ok, elapsed=0.1)
    yield events.RotationChanged(**base, queue="q/0", in_use=False, left=1)
    for queue in ("q/0", "east/x-pairmq-outbox"):
        yield events.MessageMoved(
            **base, queue=queue, entity=orders, message_id="m", waited=1.0, maybe_duplicate=False, redelivered=False
        )
    yield events.MessageDeadLettered(**base, queue="q/0", entity=None, message_id="m", reason="r", description="")
    yield events.SyphonFailed(**base, queue="q/0", error="", retry_after=1.0)
    yield events.Warned(**base, subject="", text="")
    yield events.OperationsCounted(
        **base, side=Side.PRIMARY, seconds=60, sends=1, receives=1, settlements=1, pings=1, admin=1
    )
    yield events.PairOpened(at=1.0, pair="north>south", primary="", secondary="", version="", options="{}")
    yield events.PairEnded(at=1.0, pair="north>south", fault="the connection was closed")


class Counted:
    """A pair whose backlog has one queue, and that has an outbox."""

    name = "east>west"
    backlog_queues = (Entity("q/0"),)
    outbox_queue = Entity("east/x-pairmq-outbox")

    @property
    def secondary(self):
        return SimpleNamespace(admin=self)

    async def counts(self, source):
        return QueueCounts()


@pytest.fixture
async def exported(telemetry):
    """Every metric that comes of all this, by its name for Prometheus, with all labels that it had."""
    observer = telemetry.observer()
    for event in happenings():
        observer.on_event(event)
    endpoint = Endpoint("east", ("redis", "east", "1"), "redis://east:1/0")
    delivery = SimpleNamespace(message=Message(b""), source=Source(Entity("orders")), endpoint=endpoint)
    providers = {"meter_provider": telemetry.meters, "tracer_provider": telemetry.tracers}
    with pytest.raises(ZeroDivisionError), processing(delivery, **providers):
        raise ZeroDivisionError
    found: dict[str, set[str]] = {}
    async with watch_backlog(Counted(), meter_provider=telemetry.meters):
        await asyncio.sleep(0)  # the first round begins
        await asyncio.sleep(0)
        for resource in telemetry.reader.get_metrics_data().resource_metrics:
            for metric in resource.scope_metrics[0].metrics:
                for name in prometheus_names(metric):
                    labels = found.setdefault(name, {"le"} if name.endswith("_bucket") else set())
                    for point in metric.data.data_points:
                        labels |= {re.sub(r"[^a-zA-Z0-9_]", "_", key) for key in point.attributes}
    return found


def prometheus_names(metric):
    """A metric's names by OpenTelemetry's rules for Prometheus."""
    parts = [re.sub(r"[^a-zA-Z0-9_:]", "_", metric.name)]
    if metric.unit and not metric.unit.startswith("{"):
        parts.append({"s": "seconds", "By": "bytes", "1": "ratio"}[metric.unit])
    name = "_".join(parts)
    if isinstance(metric.data, Histogram):
        return [f"{name}_{part}" for part in ("bucket", "sum", "count")]
    if isinstance(metric.data, Sum):
        assert metric.data.is_monotonic
        return [f"{name}_total"]
    assert isinstance(metric.data, Gauge)
    return [name]


def expressions():
    """Every expression of both files, with what is written of its labels."""
    for rule in RULES:
        text = " ".join(rule["annotations"].values())
        yield pytest.param(rule["expr"], re.findall(r"\$labels\.(\w+)", text), id=rule["alert"])
    for panel in PANELS:
        for target in panel["targets"]:
            legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            yield pytest.param(target["expr"], legend, id=f"{panel['title']} {target['refId']}")
    for annotation in DASHBOARD["annotations"]["list"]:
        legend = re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"])
        yield pytest.param(annotation["expr"], legend, id=annotation["name"])


@pytest.mark.parametrize(("expression", "written"), [*expressions()])
async def test_an_expression_names_what_is_exported(exported, expression, written):
    named = named_in(expression)
    assert named.metrics
    for metric, labels in named.metrics:
        assert metric in exported
        assert labels <= exported[metric]
    everything = set().union(*(exported[metric] for metric, _ in named.metrics))
    assert named.labels <= everything
    assert set(written) <= named.labels  # any other is lost in the aggregation


@pytest.mark.parametrize(("expression", "written"), [*expressions()])
def test_an_expression_matches_values_that_there_are(expression, written):
    """A state, an outcome or a result that is misspelt would match nothing, and nobody would notice."""
    known = {
        "pairmq_state": {state.value for state in EntityState},
        "pairmq_outcome": {outcome.value for outcome in SendOutcome},
        "pairmq_message_state": {"active", "locked", "scheduled", "dead_letter"},
        "messaging_operation_name": {"send", "ping"},
        "error_type": {"BacklogUnavailable", ""},
    }
    for label, _, values in re.findall(r'(\w+)(=|!=|=~|!~)"([^"$]*)"', expression):
        assert set(values.split("|")) <= known[label]


async def test_the_variables_of_the_dashboard_ask_for_what_is_exported(exported):
    queries = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert len(queries) == 2
    for query in queries:
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query).groups()
        assert label in exported[metric]


async def test_every_metric_of_ours_is_on_the_dashboard_or_rings(exported):
    used = {metric for case in expressions() for metric, _ in named_in(case.values[0]).metrics}
    families = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in used}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported if name.startswith("pairmq_")}
    assert ours - families == {"pairmq_warnings_total"}  # the log says what it is about


def test_every_range_is_a_duration_or_grafanas():
    for case in expressions():
        for text in named_in(case.values[0]).ranges:
            assert re.fullmatch(r"\d+[smh]|\$__rate_interval|\$__interval", text)


def test_panels_have_an_id_a_place_and_a_meaning_of_their_own():
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert all(panel["description"] for panel in PANELS)


def test_every_alert_says_what_is_so_and_what_to_do():
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_alerts_own_tests_are_about_alerts_that_exist():
    tests = (FILES / "prometheus-alerts.test.yaml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tests)) <= {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(
    "wrong", ["sum(x", "sum by (a) (x))", 'x{a="1"', "x{a}", "rat(x[5m])", "x[5m)", "sum by (a, 1) (x)", "x ! y"]
)
def test_an_expression_that_is_not_well_formed_is_found(wrong):
    with pytest.raises(PromQLError):
        named_in(wrong)

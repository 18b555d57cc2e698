"""The caller's span and the handler's are found from threads as well."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pairmq import Entity, Message
from pairmq.observe.otel import OpenTelemetryObserver, processing
from pairmq.sync import Pair


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


@pytest.mark.real_server
def test_a_trace_goes_from_the_caller_through_the_message_to_the_handler(processes, spans):
    tracers, exporter = spans
    observer = OpenTelemetryObserver(tracer_provider=tracers)
    with Pair.connect(processes[0].url, processes[1].url, observers=[observer]) as pair:
        pair.primary.admin.create(Entity("orders"))
        with tracers.get_tracer("test").start_as_current_span("request") as request:
            pair.sender("orders").send(Message(b"1"))
        with pair.receiver("orders") as receiver:
            (delivery,) = receiver.receive(wait=10)
            with processing(delivery, tracer_provider=tracers):
                delivery.complete()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert found["send orders"].parent == request.get_span_context()
    assert found["process orders"].parent.span_id == found["send orders"].get_span_context().span_id
    assert found["process orders"].attributes["messaging.system"] == "redis"
    assert found["process orders"].attributes["server.port"] == processes[0].port

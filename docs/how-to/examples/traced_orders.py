"""Send orders until an outage has come and gone, receive them, and print what OpenTelemetry got.

    python traced_orders.py PRIMARY SECONDARY

Stop the primary while it runs, and start it again.
"""

import asyncio
import sys
from collections import Counter

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pairmq import Entity, EntityState, Message, Pair, PairOptions, Route
from pairmq.observe.otel import processing, watch_backlog

# A program of yours has an exporter to its collector here, or none of this: opentelemetry-instrument sets all up.
reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(spans))

OPTIONS = PairOptions(failover_interval=1, ping_primary_interval=1, backlog_queue_count=2, enable_syphon=True)


async def send(pair: Pair) -> set[bytes]:
    """Send an order after the other, until some were diverted and the primary is well again."""
    sender, sent, route, diverted = pair.sender("orders"), set(), None, False
    while not diverted or route is Route.BACKLOG or pair.state("orders") is not EntityState.HEALTHY:
        body = f"order {len(sent)}".encode()
        receipt = await sender.send(Message(body))
        sent.add(body)
        if receipt.route is not route:
            route = receipt.route
            print("orders go to the", route.value, flush=True)
        diverted = diverted or route is Route.BACKLOG
        await asyncio.sleep(0.02)
    return sent


async def receive(pair: Pair, expected: set[bytes]) -> None:
    """Handle every order inside a span that leads back to its send."""
    async with pair.receiver("orders") as receiver:
        async for delivery in receiver:
            with processing(delivery):
                expected.discard(delivery.body)
                await delivery.complete()
            if not expected:
                return


async def main() -> None:
    """Through an outage and back."""
    async with Pair.connect(sys.argv[1], sys.argv[2], options=OPTIONS, observers=["opentelemetry"]) as pair:
        await pair.primary.admin.create(Entity("orders"))
        async with watch_backlog(pair, every=1):
            sent = await send(pair)
            await receive(pair, set(sent))
            print_metrics()
    print_a_trace()


def print_metrics() -> None:
    """Every metric, by what it tells apart."""
    for resource in reader.get_metrics_data().resource_metrics:
        for metric in resource.scope_metrics[0].metrics:
            values = Counter()
            for point in metric.data.data_points:
                what = point.attributes.get("pairmq.outcome") or point.attributes.get("pairmq.state") or "all"
                values[what] += point.count if hasattr(point, "count") else point.value
            print(metric.name, dict(values))


def print_a_trace() -> None:
    """The spans of one order that was diverted: all three are of one trace."""
    finished = spans.get_finished_spans()
    move = next(span for span in finished if span.name == "move orders")
    for span in finished:
        if span.context.trace_id == move.context.trace_id:
            print("span:", span.name, "links to", [f"{link.context.span_id:016x}" for link in span.links])


asyncio.run(main())

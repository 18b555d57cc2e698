"""What OpenTelemetry costs a healthy send: a pair without it, and one with, on the same Redis servers.

One message at a time, 1 KiB. The SDK records everything and a batching processor throws it away, as the cost of sending
it somewhere is the exporter's. One pair has metrics alone. A turn takes some messages of each in a row, in changing
order, so that what the machine does meanwhile meets all alike. Run it with: make bench-one NAME=otel_cost
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence

from _measuring import Contender, arguments, interleaved, report
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NoOpTracerProvider

from pairmq import Entity, Message, Pair, PairSender
from pairmq.observe.otel import OpenTelemetryObserver
from pairmq_redis.testing import RedisServer

WITHOUT, METRICS, ALL = "without", "with metrics", "with metrics and traces"
BODY = b"x" * 1024


class Nowhere(SpanExporter):
    """Throws spans away."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Throw them away."""
        return SpanExportResult.SUCCESS


def sending(sender: PairSender, count: int) -> Contender:
    """Microseconds of this process's processor time that a send takes: other processes' work is not in it."""

    async def measured() -> float:
        started = time.process_time()
        for _ in range(count):
            await sender.send(Message(BODY))
        return 1e6 * (time.process_time() - started) / count

    return measured


async def measure(east: RedisServer, west: RedisServer, count: int, rounds: int, as_json: bool) -> None:
    """Measure and print."""
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Nowhere()))
    metered = OpenTelemetryObserver(
        meter_provider=MeterProvider([InMemoryMetricReader()]), tracer_provider=NoOpTracerProvider()
    )
    traced = OpenTelemetryObserver(meter_provider=MeterProvider([InMemoryMetricReader()]), tracer_provider=tracers)
    async with (
        Pair.connect(east.url, west.url) as plain,
        Pair.connect(east.url, west.url, observers=[metered]) as second,
        Pair.connect(east.url, west.url, observers=[traced]) as third,
    ):
        await plain.primary.admin.create(Entity("orders"))
        figures = await interleaved(
            {
                WITHOUT: sending(plain.sender("orders"), count),
                METRICS: sending(second.sender("orders"), count),
                ALL: sending(third.sender("orders"), count),
            },
            rounds,
        )
    report(figures, [(METRICS, WITHOUT), (ALL, WITHOUT)], "µs of processor time a send", as_json=as_json)


def main() -> int:
    """Read the command line and measure."""
    parser = arguments(__doc__, rounds=25)
    parser.add_argument("--count", type=int, default=400, help="messages a turn")
    chosen = parser.parse_args()
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        asyncio.run(measure(east, west, chosen.count, chosen.rounds, chosen.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())

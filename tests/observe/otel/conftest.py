"""A pair of simulated brokers that OpenTelemetry watches, and what its SDK was told."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pairmq import Entity, Message, Pair
from pairmq.observe.otel import OpenTelemetryObserver
from pairmq.runner import Clock
from pairmq.testing import TEST_OPTIONS, SimulatedBroker, virtual_wall


@dataclass
class Telemetry:
    """An SDK that keeps everything in memory."""

    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)
    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    def __post_init__(self) -> None:
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.tracers.get_tracer("test")

    def observer(self, **options: Any) -> OpenTelemetryObserver:
        return OpenTelemetryObserver(meter_provider=self.meters, tracer_provider=self.tracers, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        """The ended spans of a name, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, metric: str, **attributes: Any) -> list[Any]:
        """The present points of a metric that have these attributes, dots written as ``_``."""
        data = self.reader.get_metrics_data()
        found = []
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for each in scope.metrics:
                    if each.name == metric:
                        found += each.data.data_points
        return [point for point in found if _has(point.attributes, attributes)]

    def value(self, metric: str, **attributes: Any) -> float:
        """The sum of the values of those points; of a histogram, how many values it holds."""
        points = self.points(metric, **attributes)
        return sum(point.count if hasattr(point, "count") else point.value for point in points)

    def close(self) -> None:
        self.meters.shutdown()
        self.tracers.shutdown()


def _has(attributes: Any, wanted: dict[str, Any]) -> bool:
    plain = {name.replace(".", "_"): value for name, value in attributes.items()}
    return all(plain.get(name) == value for name, value in wanted.items())


@dataclass
class World:
    """Two brokers and the pair."""

    east: SimulatedBroker
    west: SimulatedBroker
    pair: Pair

    def home(self, path: str = "orders") -> list[Any]:
        return self.east.messages(path)

    def backlog(self) -> list[Any]:
        return [m for entity in self.pair.backlog_queues for m in self.west.messages(entity.path)]

    async def divert_elsewhere(self, *observers: Any) -> None:
        """Divert a message by the pair of another process, whose settings have no ``allowed_entities``."""
        options = replace(TEST_OPTIONS, enable_syphon=False)
        async with Pair(self.east.transport(), self.west.transport(), options, observers=observers) as pair:
            pair.hold("orders")
            await pair.sender("orders").send(Message(b"1"))


@pytest.fixture
def telemetry():
    made = Telemetry()
    yield made
    made.close()


@pytest.fixture
def world() -> Callable[..., AbstractAsyncContextManager[World]]:
    """Opens a pair whose primary has the queues ``orders`` and ``prices``; in virtual time."""

    @asynccontextmanager
    async def make(*observers: Any, **options: Any) -> AsyncIterator[World]:
        east, west = SimulatedBroker("east"), SimulatedBroker("west")
        transports = east.transport(), west.transport()
        for path in ("orders", "prices"):
            await transports[0].admin.create(Entity(path))
        numbers = itertools.count(1)
        clock = Clock(virtual_wall, random.Random(1), lambda: f"id-{next(numbers)}")
        pair = Pair(*transports, replace(TEST_OPTIONS, **options), clock=clock, observers=observers)
        async with pair:
            yield World(east, west, pair)

    return make

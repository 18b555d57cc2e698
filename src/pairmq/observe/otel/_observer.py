"""The observer for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from pairmq._version import version
from pairmq.model import Entity, Message
from pairmq.model.events import (
    AttemptFailed,
    Event,
    MessageDeadLettered,
    MessageMoved,
    PairEnded,
    PairOpened,
    PingCompleted,
    SendCompleted,
)
from pairmq.observe.otel import _names as names
from pairmq.observe.otel import _spans as spans
from pairmq.observe.otel._metrics import Metrics, instruments
from pairmq.observe.otel._names import Brokers


class OpenTelemetryObserver:
    """Reports a pair's metrics and traces to OpenTelemetry, and propagates trace context in its messages.

    Args:
        meter_provider: for the metrics. Default: the global one, also if it is set later.
        tracer_provider: for the spans; likewise.
        propagate: whether messages carry the context of their send in application properties, by the program's
            propagator (W3C's ``traceparent`` and ``tracestate`` by default). A message that already carries a context
            keeps it.
        max_entities: entities with their own metrics; all others share the name ``other``.

    Raises:
        ValueError: ``max_entities`` is below 1.

    Metrics have attributes for pairs, entities, backlog queues and brokers, but not messages; spans have the message
    id, but nothing of the body. One observer may serve several pairs of different names.
    """

    def __init__(
        self,
        *,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
        propagate: bool = True,
        max_entities: int = 1000,
    ) -> None:
        if max_entities < 1:
            raise ValueError(f"max_entities is {max_entities}: it must be at least 1")
        self._propagate = propagate
        self._brokers = Brokers()
        self._tracer = trace.get_tracer(names.SCOPE, version(), tracer_provider, names.SCHEMA_URL)
        self._instruments = instruments(meter_provider)
        self._metrics = Metrics(self._instruments, self._brokers, max_entities)
        self._open_pairs = 0
        self._gauges: list[Callable[[], None]] = []

    def on_event(self, event: Event) -> None:
        """Count it, and make a span of a ping."""
        if isinstance(event, SendCompleted):
            self._metrics.sent(event)
            return
        if isinstance(event, PairOpened):
            self._brokers.opened(event.pair, event.primary, event.secondary)
            self._count_pairs(1)
        self._metrics.take(event)
        if isinstance(event, AttemptFailed):
            spans.attempt_failed(event)
        elif isinstance(event, PingCompleted):
            spans.pinged(self._tracer, event, self._brokers)
        elif isinstance(event, PairEnded):
            self._count_pairs(-1)

    def begin_send(self, pair: str, entity: Entity, messages: Sequence[Message]) -> spans.SendSpan:
        """Begin the span of a send; it is the current one until the send ends."""
        brokers = self._brokers.primary(pair), self._brokers.secondary(pair)
        return spans.SendSpan(self._tracer, pair, entity, messages, brokers, propagate=self._propagate)

    def on_message_event(self, event: Event, message: Message) -> None:
        """Make a span of what the syphon did."""
        if isinstance(event, MessageMoved):
            spans.moved(self._tracer, event, message, self._brokers)
        elif isinstance(event, MessageDeadLettered):
            spans.dead_lettered(self._tracer, event, message, self._brokers)

    async def close(self) -> None:
        """Nothing is held back: what was measured is the provider's, which the program flushes."""

    def _count_pairs(self, change: int) -> None:
        """Answer for the gauges while a pair is open: without an end, the last values would be reported forever."""
        self._open_pairs += change
        if self._open_pairs and not self._gauges:
            self._gauges = [
                self._instruments.ask(names.ENTITY_STATE, self._metrics.states),
                self._instruments.ask(names.QUEUES_IN_USE, self._metrics.queues_in_use),
            ]
        elif not self._open_pairs:
            for end in self._gauges:
                end()
            self._gauges = []

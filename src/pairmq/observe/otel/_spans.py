"""Sends, moves, pings and the processing of deliveries as spans; their context in application properties.

The context is written by the propagator that the program has set up: W3C's ``traceparent`` and ``tracestate``, and
``baggage``, unless the program or ``OTEL_PROPAGATORS`` chose another. These are properties like any other: the envelope
of a diverted message carries them there and back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final, Protocol

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.util.types import AttributeValue

from pairmq._version import version
from pairmq.model import Entity, Message, PropertyValue, Receipt, Route, SendError, Source
from pairmq.model.events import AttemptFailed, MessageDeadLettered, MessageMoved, PingCompleted, Side
from pairmq.observe.otel import _names as names
from pairmq.observe.otel._metrics import instruments
from pairmq.observe.otel._names import Broker, Brokers, broker_of
from pairmq.transport import Endpoint

_MOST_LINKS: Final = 100
_ROOT: Final = Context()

_sending: ContextVar[Span | None] = ContextVar("pairmq_sending", default=None)
"""The span of this task's current send: attempts are reported by events, which have no spans."""


class SendSpan:
    """The span of one call of a sender; a message that carries a context already keeps it, and the span links to it."""

    def __init__(
        self,
        tracer: Tracer,
        pair: str,
        entity: Entity,
        messages: Sequence[Message],
        brokers: tuple[Broker, Broker],
        *,
        propagate: bool,
    ) -> None:
        self._secondary = brokers[1]
        attributes: dict[str, AttributeValue] = {
            **brokers[0].attributes,
            names.DESTINATION: entity.path,
            names.OPERATION_NAME: "send",
            names.OPERATION_TYPE: "send",
            names.PAIR: pair,
        }
        if len(messages) > 1:
            attributes[names.BATCH_COUNT] = len(messages)
        else:
            attributes[names.BODY_SIZE] = len(messages[0].body)
        carried = [span_context_of(message) for message in messages]
        linked = {(found.trace_id, found.span_id): found for found in carried if found is not None}
        links = [Link(found) for found in list(linked.values())[:_MOST_LINKS]]
        self._span = tracer.start_span(
            f"send {entity.path}", kind=SpanKind.PRODUCER, attributes=attributes, links=links
        )
        here = trace.set_span_in_context(self._span)
        self.messages = messages
        if propagate:
            ours = carried_by(here)
            self.messages = [
                with_context(message, ours) if before is None else message
                for message, before in zip(messages, carried, strict=True)
            ]
        self._outside: Token[Context] = context.attach(here)
        self._before = _sending.set(self._span)

    def end(self, results: Sequence[Receipt | SendError] | BaseException) -> None:
        _sending.reset(self._before)
        context.detach(self._outside)
        span = self._span
        if span.is_recording():
            if isinstance(results, BaseException):
                _failed(span, results)
            elif len(results) == 1:
                self._ended(span, results[0])
            else:
                self._batch_ended(span, results)
        span.end()

    def _ended(self, span: Span, result: Receipt | SendError) -> None:
        if result.message_id is not None:
            span.set_attribute(names.MESSAGE_ID, result.message_id)
        if isinstance(result, SendError):
            _failed(span, result)
            return
        span.set_attribute(names.ATTEMPTS, result.attempts)
        self._accepted(span, [result])

    def _batch_ended(self, span: Span, results: Sequence[Receipt | SendError]) -> None:
        errors = [result for result in results if isinstance(result, SendError)]
        self._accepted(span, [result for result in results if isinstance(result, Receipt)])
        if errors:
            _failed(span, errors[0])

    def _accepted(self, span: Span, receipts: Sequence[Receipt]) -> None:
        diverted = [receipt for receipt in receipts if receipt.route is Route.BACKLOG]
        if diverted:
            queue = diverted[0].backlog_queue
            span.set_attributes({**self._secondary.attributes, names.QUEUE: queue or ""})
        sides = {receipt.route for receipt in receipts}
        if len(sides) == 1:
            span.set_attribute(names.OUTCOME, f"accepted-{sides.pop().value}")
        if any(receipt.maybe_duplicate for receipt in receipts):
            span.set_attribute(names.MAYBE_DUPLICATE, True)


def attempt_failed(event: AttemptFailed) -> None:
    """Write a failed attempt into the span of the send that this task is in."""
    span = _sending.get()
    if span is None or not span.is_recording():
        return
    attributes: dict[str, AttributeValue] = {
        names.MESSAGE_ID: event.message_id,
        names.SIDE: (Side.PRIMARY if event.queue is None else Side.SECONDARY).value,
        names.FAILURE_KIND: event.kind,
        "error.message": event.error,
    }
    if event.queue is not None:
        attributes[names.QUEUE] = event.queue
    span.add_event("attempt failed", attributes)


def pinged(tracer: Tracer, event: PingCompleted, brokers: Brokers) -> None:
    span = tracer.start_span(
        f"ping {event.entity.path}",
        # A root: the ping task was started by some send, but is not part of it.
        _ROOT,
        SpanKind.CLIENT,
        {
            **brokers.primary(event.pair).attributes,
            names.DESTINATION: event.entity.path,
            names.OPERATION_NAME: "ping",
            names.PAIR: event.pair,
        },
        start_time=_nanoseconds(event.at - event.elapsed),
    )
    if not event.ok:
        span.set_attribute(names.ERROR_TYPE, "PingFailed")
        span.set_status(StatusCode.ERROR, event.error)
    span.end(_nanoseconds(event.at))


def moved(tracer: Tracer, event: MessageMoved, message: Message, brokers: Brokers) -> None:
    """The span from divert to delivery: a child of the send's, so that a sampled send has its end, too."""
    attributes = {
        **brokers.primary(event.pair).attributes,
        names.DESTINATION: event.entity.path,
        names.OPERATION_NAME: "move",
        names.OPERATION_TYPE: "send",
        names.MESSAGE_ID: event.message_id,
        names.PAIR: event.pair,
        names.QUEUE: event.queue,
        names.WAITED: event.waited,
    }
    if event.maybe_duplicate:
        attributes[names.MAYBE_DUPLICATE] = True
    span = tracer.start_span(
        f"move {event.entity.path}",
        context_of(message),
        SpanKind.PRODUCER,
        attributes,
        links=_links(message),
        start_time=_nanoseconds(event.at - event.waited),
    )
    span.end(_nanoseconds(event.at))


def dead_lettered(tracer: Tracer, event: MessageDeadLettered, message: Message, brokers: Brokers) -> None:
    """Make the span of a message's end in a dead-letter queue; its name holds nothing that a message said."""
    at = _nanoseconds(event.at)
    attributes: dict[str, AttributeValue] = {
        **brokers.secondary(event.pair).attributes,
        names.DESTINATION: event.queue,
        names.OPERATION_NAME: "dead_letter",
        names.OPERATION_TYPE: "settle",
        names.PAIR: event.pair,
        names.REASON: event.reason,
        names.ERROR_TYPE: event.reason,
    }
    if event.message_id is not None:
        attributes[names.MESSAGE_ID] = event.message_id
    span = tracer.start_span(
        f"dead_letter {event.queue}",
        context_of(message),
        SpanKind.CLIENT,
        attributes,
        links=_links(message),
        start_time=at,
    )
    span.set_status(StatusCode.ERROR, event.description)
    span.end(at)


def _links(message: Message) -> list[Link]:
    found = span_context_of(message)
    return [] if found is None else [Link(found)]


def _failed(span: Span, error: BaseException) -> None:
    span.set_attribute(names.ERROR_TYPE, type(error).__name__)
    span.set_status(StatusCode.ERROR, str(error) or None)


def _nanoseconds(at: float) -> int:
    return int(at * 1e9)


_LONGEST = 128  # characters of a property's name, as every message's


class _Texts(Getter[Message]):
    """Reads properties that are text, as only those can be a propagator's."""

    def get(self, carrier: Message, key: str) -> list[str] | None:
        value = carrier.application_properties.get(key)
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Message) -> list[str]:
        return list(carrier.application_properties)


_TEXTS = _Texts()
_NOWHERE = Context()


def context_of(message: Message) -> Context:
    """The context that a message carries; an empty one if it carries none, or what can't be read."""
    if not message.application_properties:
        return _NOWHERE
    return propagate.extract(message, _NOWHERE, _TEXTS)


def span_context_of(message: Message) -> trace.SpanContext | None:
    """The span that a message carries the context of; None if it carries none."""
    found = trace.get_current_span(context_of(message)).get_span_context()
    return found if found.is_valid else None


def carried_by(context: Context) -> dict[str, PropertyValue]:
    """The properties that propagate a context in a message; empty without one."""
    found: dict[str, str] = {}
    propagate.inject(found, context)
    return {name: value for name, value in found.items() if 0 < len(name) <= _LONGEST and value.isascii()}


def with_context(message: Message, carried: dict[str, PropertyValue]) -> Message:
    """A message that carries a context, and everything else as it is."""
    if not carried:
        return message
    return message.with_properties({**message.application_properties, **carried})


class ReceivedMessage(Protocol):
    """A delivery of a pair's receiver, asynchronous or blocking."""

    @property
    def message(self) -> Message:
        """The message."""

    @property
    def source(self) -> Source:
        """The source that it was read from."""

    @property
    def endpoint(self) -> Endpoint:
        """The broker that it was read from."""


@contextmanager
def processing(
    delivery: ReceivedMessage,
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
) -> Iterator[Span]:
    """Run the body in a span *process* of a delivery.

    Args:
        delivery: from ``Pair.receiver``, asynchronous or blocking.
        meter_provider: for the duration. Default: the global one.
        tracer_provider: for the span; likewise.

    Yields:
        The span, which is the current one in the body. It links to the send of the message. It is a child of the span
        that was current, or else of the send itself.

    Raises:
        BaseException: raised by the body; recorded in the span. Settle the delivery inside, so that its failures are
            recorded, too.
    """
    message, entity = delivery.message, delivery.source.entity
    attributes: dict[str, AttributeValue] = {
        **broker_of(delivery.endpoint.url).attributes,
        names.DESTINATION: entity.path,
        names.OPERATION_NAME: "process",
        names.OPERATION_TYPE: "process",
    }
    if delivery.source.subscription is not None:
        attributes[names.SUBSCRIPTION] = delivery.source.subscription
    measured = dict(attributes)
    attributes[names.BODY_SIZE] = len(message.body)
    if message.message_id is not None:
        attributes[names.MESSAGE_ID] = message.message_id
    sent = span_context_of(message)
    tracer = trace.get_tracer(names.SCOPE, version(), tracer_provider, names.SCHEMA_URL)
    ambient = trace.get_current_span().get_span_context().is_valid
    started = time.perf_counter()
    try:
        with tracer.start_as_current_span(
            f"process {entity.path}",
            None if ambient else context_of(message),
            SpanKind.CONSUMER,
            attributes,
            links=[] if sent is None else [Link(sent)],
        ) as span:
            yield span
    except BaseException as error:
        measured[names.ERROR_TYPE] = type(error).__name__
        raise
    finally:
        instruments(meter_provider).processing.record(time.perf_counter() - started, measured)

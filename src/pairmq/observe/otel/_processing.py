"""Consumers: the processing of a delivery, as a span that is linked to its send."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from opentelemetry import trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, TracerProvider
from opentelemetry.util.types import AttributeValue

from pairmq._version import version
from pairmq.model import Message, Source
from pairmq.observe.otel import _names as names
from pairmq.observe.otel._metrics import instruments
from pairmq.observe.otel._names import broker_of
from pairmq.observe.otel._spans import context_of, span_context_of
from pairmq.transport import Endpoint


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

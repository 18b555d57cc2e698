"""A trace's context in a message's application properties, by the propagator that the program has set up.

That is W3C's ``traceparent`` and ``tracestate``, and ``baggage``, unless the program or ``OTEL_PROPAGATORS`` chose
another. They are properties like any other: the envelope of a diverted message carries them there and back.
"""

from __future__ import annotations

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter

from pairmq.model import Message, PropertyValue

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
    """What a message has to carry for its readers to know a context; empty when there is nothing to tell."""
    found: dict[str, str] = {}
    propagate.inject(found, context)
    return {name: value for name, value in found.items() if 0 < len(name) <= _LONGEST and value.isascii()}


def with_context(message: Message, carried: dict[str, PropertyValue]) -> Message:
    """A message that carries a context, and everything else as it is."""
    if not carried:
        return message
    return message.with_properties({**message.application_properties, **carried})

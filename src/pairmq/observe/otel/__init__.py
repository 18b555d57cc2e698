"""OpenTelemetry: metrics and traces by the semantic conventions for messaging, and PairMQ's own under ``pairmq.``.

Needs opentelemetry-api: ``pip install 'pairmq[otel]'``; what becomes of the data is decided by the SDK that a program
sets up, and without one nothing is recorded. Nothing else of PairMQ imports this package before it is asked for.
"""

try:
    import opentelemetry.trace as _trace  # noqa: F401  # only to say clearly what is missing
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "OpenTelemetry needs its API: install it with: pip install 'pairmq[otel]'", name="opentelemetry"
    ) from None

from pairmq.observe.otel._metrics import watch_backlog
from pairmq.observe.otel._observer import OpenTelemetryObserver
from pairmq.observe.otel._spans import processing

__all__ = ["OpenTelemetryObserver", "processing", "watch_backlog"]

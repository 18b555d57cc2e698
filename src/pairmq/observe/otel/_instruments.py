"""The metrics themselves: made once for each provider, whoever many pairs report to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from pairmq._version import version
from pairmq.observe.otel import _names as names

_OPERATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds; the conventions' own for operations and for processing."""

_WAIT_BUCKETS: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Seconds that an outage lasts."""


_GAUGES: Final = (
    (names.ENTITY_STATE, "{entity}", "1 for the state that an entity is in, 0 for the others."),
    (names.QUEUES_IN_USE, "{queue}", "Backlog queues that take messages."),
    (names.BACKLOG_MESSAGES, "{message}", "Messages in the backlog, as they were last counted."),
)

Question: TypeAlias = Callable[[], Iterable[Observation]]
"""Asks somebody for the present values of a gauge."""


class Instruments:
    """Every metric of one provider.

    Args:
        meter: makes them.
    """

    def __init__(self, meter: Meter) -> None:
        self._asked: dict[str, list[Question]] = {}

        def counter(name: str, unit: str, description: str) -> metrics.Counter:
            return meter.create_counter(name, unit, description)

        self.duration = meter.create_histogram(
            names.OPERATION_DURATION,
            "s",
            "Duration of a send, from the call to its end, or of a ping.",
            explicit_bucket_boundaries_advisory=_OPERATION_BUCKETS,
        )
        self.sent = counter(names.SENT_MESSAGES, "{message}", "Messages given to a sender, by how their send ended.")
        self.consumed = counter(names.CONSUMED_MESSAGES, "{message}", "Messages that consumers settled.")
        self.processing = meter.create_histogram(
            names.PROCESS_DURATION,
            "s",
            "Duration of what a consumer did with a message.",
            explicit_bucket_boundaries_advisory=_OPERATION_BUCKETS,
        )
        self.transitions = counter(names.TRANSITIONS, "{transition}", "Changes of an entity's state.")
        self.failed_attempts = counter(names.FAILED_ATTEMPTS, "{attempt}", "Attempts at a broker that failed.")
        self.doubtful = counter(
            names.DOUBTFUL_SENDS, "{message}", "Sends of which a broker may hold a copy that it did not confirm."
        )
        self.pings = counter(names.PINGS, "{ping}", "Pings of failed-over entities, by their result.")
        self.rotation = counter(names.ROTATION_CHANGES, "{change}", "Backlog queues that left or joined those in use.")
        self.wait = meter.create_histogram(
            names.BACKLOG_WAIT,
            "s",
            "Time from a message's divert to its delivery by the syphon.",
            explicit_bucket_boundaries_advisory=_WAIT_BUCKETS,
        )
        self.moved = counter(names.MOVED, "{message}", "Messages that the syphon brought home.")
        self.dead_lettered = counter(names.DEAD_LETTERED, "{message}", "Messages that the syphon set aside.")
        self.syphon_errors = counter(names.SYPHON_ERRORS, "{error}", "Errors of the secondary that a pump met.")
        self.operations = counter(names.OPERATIONS, "{operation}", "Operations asked of a broker; a batch is one.")
        self.faults = counter(names.PAIR_FAULTS, "{fault}", "Pairs that lost a broker for good.")
        self.warnings = counter(names.WARNINGS, "{warning}", "Warnings that a person should look at.")
        for name, unit, description in _GAUGES:
            meter.create_observable_gauge(name, [self._observing(name)], unit, description)

    def ask(self, gauge: str, question: Question) -> Callable[[], None]:
        """Ask for a gauge's values whenever they are collected.

        Args:
            gauge: its name.
            question: called in a thread of the SDK's; gives all values.

        Returns:
            What ends that; what was told of ends with it.
        """
        asked = self._asked[gauge]
        asked.append(question)
        return lambda: asked.remove(question) if question in asked else None

    def _observing(self, gauge: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        asked = self._asked[gauge] = []

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            for question in tuple(asked):
                yield from question()

        return observe


_lock = threading.Lock()
_global: list[Instruments] = []
_of_providers: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()


def instruments(provider: MeterProvider | None) -> Instruments:
    """The metrics of a provider; None is the program's global one, also when it is set up later.

    One set for each provider: an SDK asks only the first maker of a gauge for its values.
    """
    with _lock:
        if provider is None:
            if not _global:
                _global.append(Instruments(metrics.get_meter(names.SCOPE, version(), schema_url=names.SCHEMA_URL)))
            return _global[0]
        found = _of_providers.get(provider)
        if found is None:
            found = Instruments(provider.get_meter(names.SCOPE, version(), names.SCHEMA_URL))
            _of_providers[provider] = found
        return found

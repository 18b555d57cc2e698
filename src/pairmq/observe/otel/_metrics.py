"""Events as metrics, which are made once for each provider, however many pairs report to it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from pairmq._version import version
from pairmq.core import OUTBOX_QUEUE
from pairmq.model import Entity, EntityState, FailureKind, FailureReason, Source, TransportError, events
from pairmq.observe.otel import _names as names
from pairmq.observe.otel._names import Brokers
from pairmq.transport import Transport, start_task

_OPERATION_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds; the conventions' own for operations and for processing."""

_WAIT_BUCKETS: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Seconds that an outage lasts."""

_OUTBOX_BUCKETS: Final = (*_OPERATION_BUCKETS, *_WAIT_BUCKETS[3:])
"""Seconds: of a syphon that works, and of an outage."""

_GAUGES: Final = (
    (names.ENTITY_STATE, "{entity}", "1 for the state that an entity is in, 0 for the others."),
    (names.QUEUES_IN_USE, "{queue}", "Backlog queues that accept messages."),
    (names.BACKLOG_MESSAGES, "{message}", "Messages in the backlog, as they were last counted."),
    (names.OUTBOX_MESSAGES, "{message}", "Messages in the outbox, as they were last counted."),
)

Question: TypeAlias = Callable[[], Iterable[Observation]]
"""A callback for the current values of a gauge."""


class Instruments:
    """Every metric of one provider."""

    def __init__(self, meter: Meter) -> None:
        self._asked: dict[str, list[Question]] = {}
        counter = meter.create_counter

        def seconds(name: str, description: str, buckets: Sequence[float]) -> metrics.Histogram:
            return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=buckets)

        self.duration = seconds(
            names.OPERATION_DURATION, "Duration of a send, from the call to its end, or of a ping.", _OPERATION_BUCKETS
        )
        self.sent = counter(names.SENT_MESSAGES, "{message}", "Messages passed to a sender, by outcome.")
        self.consumed = counter(names.CONSUMED_MESSAGES, "{message}", "Messages that consumers settled.")
        self.processing = seconds(
            names.PROCESS_DURATION, "Duration of a consumer's settlement of a message.", _OPERATION_BUCKETS
        )
        self.transitions = counter(names.TRANSITIONS, "{transition}", "Changes of an entity's state.")
        self.failed_attempts = counter(names.FAILED_ATTEMPTS, "{attempt}", "Failed attempts at a broker.")
        self.doubtful = counter(
            names.DOUBTFUL_SENDS, "{message}", "Sends of which a broker may hold an unconfirmed copy."
        )
        self.pings = counter(names.PINGS, "{ping}", "Pings of failed-over entities, by their result.")
        self.rotation = counter(names.ROTATION_CHANGES, "{change}", "Backlog queues that left or joined those in use.")
        self.wait = seconds(
            names.BACKLOG_WAIT, "Time from a message's divert to its delivery by the syphon.", _WAIT_BUCKETS
        )
        self.outbox_wait = seconds(
            names.OUTBOX_WAIT,
            "Time from when a message was stored in the outbox to its delivery by the syphon.",
            _OUTBOX_BUCKETS,
        )
        self.moved = counter(names.MOVED, "{message}", "Messages that the syphon moved to the primary.")
        self.dead_lettered = counter(names.DEAD_LETTERED, "{message}", "Messages that the syphon dead-lettered.")
        self.syphon_errors = counter(names.SYPHON_ERRORS, "{error}", "Errors of the secondary seen by a pump.")
        self.operations = counter(names.OPERATIONS, "{operation}", "Operations at a broker; a batch counts once.")
        self.faults = counter(names.PAIR_FAULTS, "{fault}", "Pairs that lost a broker permanently.")
        self.warnings = counter(names.WARNINGS, "{warning}", "Warnings that a person should look at.")
        for name, unit, description in _GAUGES:
            meter.create_observable_gauge(name, [self._observing(name)], unit, description)

    def ask(self, gauge: str, question: Question) -> Callable[[], None]:
        """Ask for a gauge's values whenever they are collected, in a thread of the SDK's; returns what ends that."""
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
    """One set for each provider, None for the global one: an SDK asks only the first maker of a gauge."""
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


Attributes: TypeAlias = Mapping[str, str | int | bool]

OTHER: Final = "other"
"""Placeholder for every entity beyond the limit."""

_SETTLEMENTS: Final = {"completed": "complete", "abandoned": "abandon", "dead-lettered": "dead_letter"}
_SECONDARY: Final = (events.SendOutcome.BACKLOG, events.SendOutcome.OUTBOX)
_OPERATIONS: Final = ("sends", "receives", "settlements", "pings", "admin")


class Metrics:
    """Feeds the metrics; entities beyond ``max_entities`` share a name, so that made-up paths can't fill the memory."""

    def __init__(self, to: Instruments, brokers: Brokers, max_entities: int) -> None:
        self._to = to
        self._brokers = brokers
        self._max_entities = max_entities
        self._names: dict[Entity, str] = {}
        self._sends: dict[tuple[str, Entity, events.SendOutcome, str | None], Attributes] = {}
        self._states: dict[tuple[str, Entity], EntityState] = {}
        self._queues: dict[str, int] = {}  # of each open pair
        self._out: dict[str, set[str]] = {}  # those of them that are out of use
        self._takers: dict[type[events.Event], Callable[[Any], None]] = {
            events.SendCompleted: self.sent,
            events.StateChanged: self._state_changed,
            events.AttemptFailed: self._attempt_failed,
            events.PingCompleted: self._pinged,
            events.BacklogQueueChecked: self._queue_checked,
            events.RotationChanged: self._rotated,
            events.MessageMoved: self._moved,
            events.MessageDeadLettered: self._dead_lettered,
            events.MessageDelivered: self._delivered,
            events.SyphonFailed: self._syphon_failed,
            events.OperationsCounted: self._counted,
            events.PairOpened: self._opened,
            events.PairEnded: self._ended,
            events.Warned: self._warned,
        }

    def take(self, event: events.Event) -> None:
        taker = self._takers.get(type(event))
        if taker is not None:
            taker(event)

    def sent(self, event: events.SendCompleted) -> None:
        """Take the end of a send, which is on the path of every one."""
        pair, entity, outcome, error = event.pair, event.entity, event.outcome, event.error
        attributes = self._sends.get((pair, entity, outcome, error))
        if attributes is None:
            attributes = self._new_send(pair, entity, outcome, error)
        if event.state is not None and (pair, entity) not in self._states:
            self._saw(pair, entity, event.state)
        self._to.sent.add(1, attributes)
        self._to.duration.record(event.elapsed, attributes)
        if event.maybe_duplicate:
            self._to.doubtful.add(1, self._of(pair, entity))

    # What has a present value.

    def states(self) -> Iterator[Observation]:
        for (pair, entity), current in tuple(self._states.items()):
            for state in EntityState:
                attributes = {**self._of(pair, entity), names.STATE: state.value}
                yield Observation(int(state is current), attributes)

    def queues_in_use(self) -> Iterator[Observation]:
        for pair, count in tuple(self._queues.items()):
            yield Observation(count - len(self._out.get(pair, ())), {names.PAIR: pair})

    # Single events.

    def _new_send(self, pair: str, entity: Entity, outcome: events.SendOutcome, error: str | None) -> Attributes:
        broker = self._brokers.secondary(pair) if outcome in _SECONDARY else self._brokers.primary(pair)
        attributes = {
            **self._of(pair, entity),
            **broker.attributes,
            names.OPERATION_NAME: "send",
            names.OPERATION_TYPE: "send",
            names.OUTCOME: outcome.value,
        }
        if error is not None:
            attributes[names.ERROR_TYPE] = error
        # Not kept for entities beyond the limit, nor before the pair's brokers are known.
        if entity in self._names and self._brokers.knows(pair):
            self._sends[pair, entity, outcome, error] = attributes
        return attributes

    def _state_changed(self, event: events.StateChanged) -> None:
        self._saw(event.pair, event.entity, event.current)
        attributes = {
            names.PREVIOUS_STATE: event.previous.value,
            names.STATE: event.current.value,
            names.CAUSE: event.cause.value,
        }
        self._to.transitions.add(1, {**self._of(event.pair, event.entity), **attributes})

    def _attempt_failed(self, event: events.AttemptFailed) -> None:
        side = events.Side.PRIMARY if event.queue is None else events.Side.SECONDARY
        attributes = {names.SIDE: side.value, names.FAILURE_KIND: event.kind}
        self._to.failed_attempts.add(1, {**self._of(event.pair, event.entity), **attributes})

    def _pinged(self, event: events.PingCompleted) -> None:
        of = self._of(event.pair, event.entity)
        self._to.pings.add(1, {**of, names.RESULT: "good" if event.ok else "failed"})
        attributes: dict[str, str | int | bool] = {
            **of,
            **self._brokers.primary(event.pair).attributes,
            names.OPERATION_NAME: "ping",
        }
        if not event.ok:
            attributes[names.ERROR_TYPE] = "PingFailed"
        self._to.duration.record(event.elapsed, attributes)

    def _queue_checked(self, event: events.BacklogQueueChecked) -> None:
        # A new pair starts as good, regardless of an earlier one of the same name that did not open. In an open pair a
        # queue that is there may still take no messages.
        if event.pair not in self._queues:
            self._out.get(event.pair, set()).discard(event.queue)

    def _rotated(self, event: events.RotationChanged) -> None:
        out = self._out.setdefault(event.pair, set())
        if event.in_use:
            out.discard(event.queue)
        else:
            out.add(event.queue)
        attributes: Attributes = {
            names.PAIR: event.pair,
            names.QUEUE: event.queue,
            names.QUEUE_IN_USE: event.in_use,
        }
        self._to.rotation.add(1, attributes)

    def _moved(self, event: events.MessageMoved) -> None:
        of = self._of(event.pair, event.entity)
        if event.queue.endswith(OUTBOX_QUEUE):
            self._to.outbox_wait.record(event.waited, of)  # a road, not a detour (SPEC 12.4)
            return
        self._to.moved.add(1, of)
        self._to.wait.record(event.waited, of)

    def _dead_lettered(self, event: events.MessageDeadLettered) -> None:
        # Without the entity: what a message in the backlog says of it may be anything.
        self._to.dead_lettered.add(1, {names.PAIR: event.pair, names.REASON: event.reason})

    def _delivered(self, event: events.MessageDelivered) -> None:
        attributes = {
            **self._of(event.pair, event.entity),
            **self._brokers.primary(event.pair).attributes,
            names.OPERATION_NAME: _SETTLEMENTS[event.settlement.value],
            names.SETTLEMENT: event.settlement.value,
        }
        if event.subscription is not None:
            attributes[names.SUBSCRIPTION] = event.subscription
        if event.error is not None:
            attributes[names.ERROR_TYPE] = "SettlementFailed"
        self._to.consumed.add(1, attributes)

    def _syphon_failed(self, event: events.SyphonFailed) -> None:
        self._to.syphon_errors.add(1, {names.PAIR: event.pair, names.QUEUE: event.queue})

    def _counted(self, event: events.OperationsCounted) -> None:
        for operation in _OPERATIONS:
            count = getattr(event, operation)
            if count:
                attributes = {names.PAIR: event.pair, names.SIDE: event.side.value, names.OPERATION: operation}
                self._to.operations.add(count, attributes)

    def _opened(self, event: events.PairOpened) -> None:
        count = json.loads(event.options).get("backlog_queue_count")
        if isinstance(count, int):
            self._queues[event.pair] = count

    def _ended(self, event: events.PairEnded) -> None:
        if event.fault is not None:
            self._to.faults.add(1, {names.PAIR: event.pair})
        self._queues.pop(event.pair, None)
        self._out.pop(event.pair, None)
        for known in [known for known in self._states if known[0] == event.pair]:
            del self._states[known]

    def _warned(self, event: events.Warned) -> None:
        self._to.warnings.add(1, {names.PAIR: event.pair})

    # Names.

    def _saw(self, pair: str, entity: Entity, state: EntityState) -> None:
        if self._name(entity) != OTHER:
            self._states[pair, entity] = state

    def _of(self, pair: str, entity: Entity) -> dict[str, str | int | bool]:
        return {names.PAIR: pair, names.DESTINATION: self._name(entity)}

    def _name(self, entity: Entity) -> str:
        name = self._names.get(entity)
        if name is None:
            if len(self._names) >= self._max_entities:
                return OTHER
            name = self._names[entity] = entity.path
        return name


_log = logging.getLogger("pairmq")


class BackloggedPair(Protocol):
    """The required interface of a pair."""

    @property
    def name(self) -> str:
        """``primary>secondary``."""

    @property
    def secondary(self) -> Transport:
        """The backlog's broker."""

    @property
    def backlog_queues(self) -> Sequence[Entity]:
        """The queues of the backlog."""

    @property
    def outbox_queue(self) -> Entity | None:
        """The queue of the outbox; None without one."""


@asynccontextmanager
async def watch_backlog(
    pair: BackloggedPair, *, every: float = 60.0, limit: float = 10.0, meter_provider: MeterProvider | None = None
) -> AsyncIterator[None]:
    """Count the messages in a pair's backlog queues periodically, as ``pairmq.backlog.messages``.

    And those in its outbox, if it has one, as ``pairmq.outbox.messages``.

    Only the broker knows them, so this is not part of the observer: each round makes one request per queue, which some
    brokers charge for. One process per pair is enough, preferably the one with the syphon.

    Args:
        pair: an open `pairmq.Pair`.
        every: seconds between two rounds; above 0.
        limit: seconds for the count of one queue.
        meter_provider: for the counts. Default: the global one.

    Raises:
        ValueError: ``every`` or ``limit`` is not above 0.

    A queue that can't be counted has no value meanwhile: a stale one would look like an idle backlog.
    """
    if not every > 0 or not limit > 0:
        raise ValueError(f"every is {every} and limit {limit}: both must be above 0 seconds")
    counts: dict[Entity, Mapping[str, int]] = {}

    def values(*, outbox: bool) -> Iterator[Observation]:
        for queue, of in tuple(counts.items()):
            if (queue == pair.outbox_queue) is outbox:
                for state, count in of.items():
                    labels = {names.PAIR: pair.name, names.QUEUE: queue.path, names.MESSAGE_STATE: state}
                    yield Observation(count, labels)

    ask = instruments(meter_provider).ask
    stop_reporting = (
        ask(names.BACKLOG_MESSAGES, lambda: values(outbox=False)),
        ask(names.OUTBOX_MESSAGES, lambda: values(outbox=True)),
    )
    task = start_task(_count_forever(pair, counts, every, limit), name="count backlog")
    try:
        yield
    finally:
        for stop in stop_reporting:
            stop()
        task.cancel()
        await asyncio.wait((task,))


async def _count_forever(
    pair: BackloggedPair, counts: dict[Entity, Mapping[str, int]], every: float, limit: float
) -> None:
    logged = False
    refused: set[Entity] = set()
    while True:
        outbox = () if pair.outbox_queue is None else (pair.outbox_queue,)
        for queue in (*pair.backlog_queues, *outbox):
            try:
                counts[queue] = await _counted(pair.secondary, queue, limit)
            except (Exception, asyncio.CancelledError) as error:
                counts.pop(queue, None)
                if _is_refused(error) and queue not in refused:
                    refused.add(queue)  # it does not pass by itself, as an outage does
                    _log.warning("backlog queue %s can't be counted, and has no metric: %s", queue, error)
                elif isinstance(error, TransportError | TimeoutError):
                    _log.debug("backlog queue %s could not be counted: %s", queue, error)
                elif not logged and not _is_over():
                    # A driver's own, a cancellation of its own task among them.
                    _log.exception("backlog queue %s could not be counted; further failures are not reported", queue)
                    logged = True
            if _is_over():  # also if a driver made another exception of it, or went on
                return
        await asyncio.sleep(every)


def _is_refused(error: BaseException) -> bool:
    """Whether this user may not count a queue; one that is missing is created again."""
    if not isinstance(error, TransportError):
        return False
    return error.kind is FailureKind.REFUSED and error.reason is not FailureReason.NOT_FOUND


def _is_over() -> bool:
    """Whether the task that watches the backlog has cancelled the counting."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _counted(secondary: Transport, queue: Entity, limit: float) -> Mapping[str, int]:
    async with asyncio.timeout(limit):
        found = await secondary.admin.counts(Source(queue))
    return {
        "active": found.active,
        "locked": found.locked,
        "scheduled": found.scheduled,
        "dead_letter": found.dead_letter,
    }

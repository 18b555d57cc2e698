"""Events as metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from operator import itemgetter
from typing import Any, Final, TypeAlias

from opentelemetry.metrics import Observation

from pairmq.model import Entity, EntityState
from pairmq.model.events import (
    AttemptFailed,
    BacklogQueueChecked,
    Event,
    MessageDeadLettered,
    MessageDelivered,
    MessageMoved,
    OperationsCounted,
    PairEnded,
    PairOpened,
    PingCompleted,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    Side,
    StateChanged,
    SyphonFailed,
    Warned,
)
from pairmq.model.records import Values, values_of
from pairmq.observe.otel import _names as names
from pairmq.observe.otel._brokers import Brokers
from pairmq.observe.otel._instruments import Instruments

Attributes: TypeAlias = Mapping[str, str | int | bool]

OTHER: Final = "other"
"""Stands for every entity beyond the limit."""

_SETTLEMENTS: Final = {"completed": "complete", "abandoned": "abandon", "dead-lettered": "dead_letter"}
_OPERATIONS: Final = ("sends", "receives", "settlements", "pings", "admin")


def _of_send(*wanted: str) -> Callable[[Values], tuple[Any, ...]]:
    """Picks fields of a `SendCompleted` that was not made, whatever fields it may get."""
    places = {entry.name: index for index, entry in enumerate(fields(SendCompleted), start=1)}
    return itemgetter(*(places[name] for name in wanted))


_SEND = _of_send("pair", "entity", "outcome", "error", "elapsed", "maybe_duplicate", "state")


class Metrics:
    """Feeds the metrics with what happens to the pairs of one observer.

    Args:
        to: where values go.
        brokers: tells the product and the address of each side.
        max_entities: entities that have values of their own; the others share the name `OTHER`, so that paths that a
            program makes up by the million can't fill the memory.
    """

    def __init__(self, to: Instruments, brokers: Brokers, max_entities: int) -> None:
        self._to = to
        self._brokers = brokers
        self._max_entities = max_entities
        self._names: dict[Entity, str] = {}
        self._sends: dict[tuple[str, Entity, SendOutcome, str | None], Attributes] = {}
        self._states: dict[tuple[str, Entity], EntityState] = {}
        self._queues: dict[str, int] = {}  # of each open pair
        self._out: dict[str, set[str]] = {}  # those of them that are out of use
        self._takers: dict[type[Event], Callable[[Any], None]] = {
            StateChanged: self._state_changed,
            AttemptFailed: self._attempt_failed,
            PingCompleted: self._pinged,
            BacklogQueueChecked: self._queue_checked,
            RotationChanged: self._rotated,
            MessageMoved: self._moved,
            MessageDeadLettered: self._dead_lettered,
            MessageDelivered: self._delivered,
            SyphonFailed: self._syphon_failed,
            OperationsCounted: self._counted,
            PairOpened: self._opened,
            PairEnded: self._ended,
            Warned: self._warned,
        }

    def take(self, event: Event) -> None:
        """Take any event."""
        taker = self._takers.get(type(event))
        if taker is not None:
            taker(event)
        elif isinstance(event, SendCompleted):
            self.take_send(values_of(event))

    def take_send(self, values: Values) -> None:
        """Take a `SendCompleted` by its values: this is on the path of every send."""
        pair, entity, outcome, error, elapsed, maybe_duplicate, state = _SEND(values)
        attributes = self._sends.get((pair, entity, outcome, error))
        if attributes is None:
            attributes = self._new_send(pair, entity, outcome, error)
        if state is not None and (pair, entity) not in self._states:
            self._saw(pair, entity, state)
        self._to.sent.add(1, attributes)
        self._to.duration.record(elapsed, attributes)
        if maybe_duplicate:
            self._to.doubtful.add(1, self._of(pair, entity))

    # What has a present value.

    def states(self) -> Iterator[Observation]:
        """What `names.ENTITY_STATE` is now."""
        for (pair, entity), current in tuple(self._states.items()):
            for state in EntityState:
                attributes = {**self._of(pair, entity), names.STATE: state.value}
                yield Observation(int(state is current), attributes)

    def queues_in_use(self) -> Iterator[Observation]:
        """What `names.QUEUES_IN_USE` is now."""
        for pair, count in tuple(self._queues.items()):
            yield Observation(count - len(self._out.get(pair, ())), {names.PAIR: pair})

    # Single events.

    def _new_send(self, pair: str, entity: Entity, outcome: SendOutcome, error: str | None) -> Attributes:
        broker = self._brokers.secondary(pair) if outcome is SendOutcome.BACKLOG else self._brokers.primary(pair)
        attributes = {
            **self._of(pair, entity),
            **broker.attributes,
            names.OPERATION_NAME: "send",
            names.OPERATION_TYPE: "send",
            names.OUTCOME: outcome.value,
        }
        if error is not None:
            attributes[names.ERROR_TYPE] = error
        # Not kept for entities without a name of their own, nor before the pair has told what its brokers are.
        if entity in self._names and self._brokers.knows(pair):
            self._sends[pair, entity, outcome, error] = attributes
        return attributes

    def _state_changed(self, event: StateChanged) -> None:
        self._saw(event.pair, event.entity, event.current)
        attributes = {
            names.PREVIOUS_STATE: event.previous.value,
            names.STATE: event.current.value,
            names.CAUSE: event.cause.value,
        }
        self._to.transitions.add(1, {**self._of(event.pair, event.entity), **attributes})

    def _attempt_failed(self, event: AttemptFailed) -> None:
        side = Side.PRIMARY if event.queue is None else Side.SECONDARY
        attributes = {names.SIDE: side.value, names.FAILURE_KIND: event.kind}
        self._to.failed_attempts.add(1, {**self._of(event.pair, event.entity), **attributes})

    def _pinged(self, event: PingCompleted) -> None:
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

    def _queue_checked(self, event: BacklogQueueChecked) -> None:
        # A pair that is opening finds it good, whatever one of the same name found that did not open. In an open pair
        # a queue that is there may still take no messages.
        if event.pair not in self._queues:
            self._out.get(event.pair, set()).discard(event.queue)

    def _rotated(self, event: RotationChanged) -> None:
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

    def _moved(self, event: MessageMoved) -> None:
        of = self._of(event.pair, event.entity)
        self._to.moved.add(1, of)
        self._to.wait.record(event.waited, of)

    def _dead_lettered(self, event: MessageDeadLettered) -> None:
        # Without the entity: what a message in the backlog says of it may be anything.
        self._to.dead_lettered.add(1, {names.PAIR: event.pair, names.REASON: event.reason})

    def _delivered(self, event: MessageDelivered) -> None:
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

    def _syphon_failed(self, event: SyphonFailed) -> None:
        self._to.syphon_errors.add(1, {names.PAIR: event.pair, names.QUEUE: event.queue})

    def _counted(self, event: OperationsCounted) -> None:
        for operation in _OPERATIONS:
            count = getattr(event, operation)
            if count:
                attributes = {names.PAIR: event.pair, names.SIDE: event.side.value, names.OPERATION: operation}
                self._to.operations.add(count, attributes)

    def _opened(self, event: PairOpened) -> None:
        count = json.loads(event.options).get("backlog_queue_count")
        if isinstance(count, int):
            self._queues[event.pair] = count

    def _ended(self, event: PairEnded) -> None:
        if event.fault is not None:
            self._to.faults.add(1, {names.PAIR: event.pair})
        self._queues.pop(event.pair, None)
        self._out.pop(event.pair, None)
        for known in [known for known in self._states if known[0] == event.pair]:
            del self._states[known]

    def _warned(self, event: Warned) -> None:
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

"""What a machine of the core does in each of its states: found out once, and remembered.

A *cell* is a few machines of one process and the few lines that drive them as the runner does. The search only knows
its number. Two cells are the same state where their snapshots are equal; the first one that was found stands for all of
them, with its own instants, and each step is taken by a copy of it. A snapshot holds everything that a machine keeps,
but for what `VIEWS` leaves out or says in another way: instants and counters that no decision depends on but for their
order. An instant that no view explains is an error, so that a new one is noticed.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime
from types import FunctionType, NoneType
from typing import Any, Final, Generic, Protocol, TypeVar

from pairmq.core.gates import Gate, Gates
from pairmq.core.lanes import EmptyWatch, LaneWatch
from pairmq.core.machine import EntityMachine
from pairmq.core.order import DrainView, DrainWait, Key, KeyOrder
from pairmq.core.pump import Item, PumpMachine
from pairmq.core.rotation import Out, Rotation
from pairmq.core.send import Job, SendMachine
from pairmq.model import Delivery, Entity, Message

Outputs = tuple[tuple[Any, ...], ...]
View = Callable[[Any], Hashable] | None


class Cell(Protocol):
    """A few machines, and what drives them."""

    def take(self, *input: Any) -> Outputs:
        """Hand them one fact; returns what came of it."""

    def order(self) -> Hashable:
        """What is to be known of what its views leave out."""

    def shared(self) -> Iterable[object]:
        """What never changes, and is not to be copied."""


C = TypeVar("C", bound=Cell)
F = TypeVar("F")


class Cells(Generic[C, F]):
    """The states of one kind of cell, by number."""

    def __init__(self, facts: Callable[[C], F]) -> None:
        self._facts_of = facts
        self._numbers: dict[Hashable, int] = {}
        self._cells: list[C] = []
        self.facts: list[F] = []
        self._moves: dict[tuple[Any, ...], tuple[int, Outputs]] = {}

    def __len__(self) -> int:
        return len(self._cells)

    @property
    def moves(self) -> int:
        """How often a machine was asked."""
        return len(self._moves)

    def number(self, cell: C) -> int:
        """The number of a cell's state."""
        key = cell.order(), snapshot(cell)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._cells)
            self._cells.append(cell)
            self.facts.append(self._facts_of(cell))
        return number

    def after(self, number: int, *input: Any) -> tuple[int, Outputs]:
        """The state after an input, and what came of it."""
        move = self._moves.get((number, *input))
        if move is None:
            cell = self._cells[number]
            cell = _copied(cell, {id(each): each for each in cell.shared()})
            outputs = cell.take(*input)
            move = self._moves[number, *input] = (self.number(cell), outputs)
        return move


# Copies are made as by `copy.deepcopy`, which took a third of a search.
_NEVER_CHANGED = {bool, int, float, str, bytes, NoneType, type, FunctionType, datetime, Delivery, Entity, Message}
_SLOTS: dict[type, tuple[str, ...]] = {}


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _NEVER_CHANGED:
        return value
    if (known := memo.get(id(value))) is not None:
        return known
    if isinstance(value, enum.Enum):
        _NEVER_CHANGED.add(kind)
        return value
    new: Any
    if isinstance(value, tuple):
        return tuple.__new__(kind, [_copied(each, memo) for each in value])
    if isinstance(value, list | deque | set | frozenset):
        new = memo[id(value)] = kind([_copied(each, memo) for each in value])
        return new
    if isinstance(value, dict):
        new = memo[id(value)] = kind()
        for key, each in value.items():
            new[_copied(key, memo)] = _copied(each, memo)
        return new
    new = memo[id(value)] = object.__new__(kind)
    slots = _SLOTS.get(kind)
    if slots is None:
        slots = tuple(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
        _SLOTS[kind] = slots
    for name in slots:
        object.__setattr__(new, name, _copied(getattr(value, name), memo))
    if hasattr(value, "__dict__"):
        new.__dict__.update({name: _copied(each, memo) for name, each in value.__dict__.items()})
    return new


def is_set(value: object) -> bool:
    """Of a timer that may fire at any moment: whether it runs."""
    return value is not None


VIEWS: Final[Mapping[type, Mapping[str, View]]] = {
    EntityMachine: {
        **dict.fromkeys(("_options", "_rows", "_to_primary", "epoch", "_entered_at", "_settled_at", "_pings")),
        **dict.fromkeys(("_sent", "_diverted", "_failed", "_late", "_asked_pings", "_ping_wanted_from")),
        "_unauthorized_pings": None,
        **dict.fromkeys(("_recovered_at", "_good_pings")),  # see `order`
        **dict.fromkeys(("_interval_ends_at", "_next_ping_at", "_ping", "_ping_ends_at"), is_set),
    },
    SendMachine: dict.fromkeys(("_rules", "_entity", "_sender", "_started", "_deadline", "_retry", "_fair")),
    Job: dict.fromkeys(("causes", "attempts", "message", "fits")),
    Rotation: {**dict.fromkeys(("_retry_interval", "_created_at"))},
    Out: dict.fromkeys(("failed_trials", "retries", "retry_at", "trial_at")),
    EmptyWatch: {"_since": None},
    Key: {"used_at": None},
    KeyOrder: {"_since": None},
    DrainView: dict.fromkeys(("_oldest", "_since")),
    DrainWait: dict.fromkeys(("asks_until", "ends_at", "pause")),
    LaneWatch: {**dict.fromkeys(("_patience", "_empty_looks")), "_since": is_set},
    Gates: {**dict.fromkeys(("_backoff", "_idle", "_newest", "_patience", "_missing")), "_troubled": len, "_held": len},
    Gate: dict.fromkeys(("entity", "failures", "try_after")),
    PumpMachine: {
        **dict.fromkeys(("moved", "dead_lettered", "requeue_wait", "_batch", "complete_at_once", "lock_duration")),
        **dict.fromkeys(("time_limit", "stretch", "batch", "ahead", "_ceiling")),  # these follow from the others
        **dict.fromkeys(("_options", "_gates", "_is_system", "_counts_time", "_limited", "_sent_in", "_completed_in")),
        **dict.fromkeys(("_renewals_took", "_primary_was_unavailable", "_doubts", "unsettled")),
        **dict.fromkeys(("_fits", "_carries", "_bytes", "_size", "_clock")),
    },
    Item: {
        **dict.fromkeys(("message", "diversion", "renew_at", "copy_after", "lost")),
        "delivery": lambda delivery: delivery.sequence_number,
        "locked_until": lambda instant: instant > 0,
        "poison": is_set,
    },
}


def snapshot(cell: object) -> Hashable:
    """Everything that a cell's next steps may depend on."""
    return _snapshot(cell, {})


_PLAIN = (bool, int, str, NoneType, enum.Enum, Entity)


def _snapshot(value: Any, seen: dict[int, int]) -> Hashable:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list | deque):
        return tuple([_snapshot(each, seen) for each in value])
    if isinstance(value, dict):
        return tuple([(_snapshot(key, seen), _snapshot(each, seen)) for key, each in value.items()])
    if isinstance(value, set | frozenset):
        return tuple(sorted(value))
    if isinstance(value, float):
        raise TypeError(f"an instant that no view explains: {value}")
    if id(value) in seen:
        return ("as", seen[id(value)])
    seen[id(value)] = len(seen)
    return tuple([view(getattr(value, name), seen) for name, view in _views(value)])


_VIEWS: dict[type, list[tuple[str, Callable[[Any, dict[int, int]], Hashable]]]] = {}


def _views(value: object) -> list[tuple[str, Callable[[Any, dict[int, int]], Hashable]]]:
    views = _VIEWS.get(type(value))
    if views is None:
        special: dict[str, View] = {}
        names = dict.fromkeys(vars(value)) if hasattr(value, "__dict__") else {}
        for base in reversed(type(value).__mro__):
            special |= VIEWS.get(base, getattr(base, "VIEW", {}))
            names |= dict.fromkeys(getattr(base, "__slots__", ()))
        views = _VIEWS[type(value)] = [
            (name, _special(special[name]) if name in special else _snapshot)
            for name in names
            if special.get(name, _snapshot) is not None
        ]
    return views


def _special(view: View) -> Callable[[Any, dict[int, int]], Hashable]:
    assert view is not None
    return lambda value, _: view(value)

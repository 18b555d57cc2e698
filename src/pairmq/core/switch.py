"""What an operator has decided for all processes of a pair, and which of them follow (SPEC 13.4).

Decisions and reports are messages in two small queues of the pair's record. Nothing in them is changed: decisions have
an order on which all readers agree, whatever they see first, and the last one of an entity is in force. A decision that
is not seen does not mean to resume: a process keeps what it follows until a later one replaces it. As in the record,
what is read is untrusted and parsed strictly.
"""

from __future__ import annotations

import difflib
import enum
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final, Self

from pairmq.core.options import RECORD_QUEUE
from pairmq.core.record import (
    FORMAT,
    MAX_ENTRIES,
    MOST_FORMATS,
    NewerError,
    RecordError,
    content_of,
    foreign,
    of_type,
    plain,
    text_of,
)
from pairmq.model import ConfigurationError, Delivery, Entity, EntityKind, Message

REPORT_INTERVAL: Final = 300.0
"""Seconds between two reports of a process that has nothing new to report."""

REPORT_LIFETIME: Final = 3 * REPORT_INTERVAL
"""Seconds after which a process that no longer reports is no longer listed. Clocks may differ by a good part of it."""

FAILOVER_FOLLOWED: Final = 3600.0
"""Seconds for which a process that starts later follows a failover, which pings may have ended elsewhere."""

_CONTENT_TYPE = "application/vnd.pairmq-switch+json"
_DECISION, _REPORT = "decision", "process"
_MOST_BYTES = 16_384
_MOST_ENTITIES = 10_000  # whose last decision is remembered, beside those in use: others may write decisions too
_MOST_FOLLOWED = 100
_LARGEST = 2**53
_AHEAD = 10 * 365 * 86_400.0  # s that a decision's number may be ahead of a reader's clock
_FAST = 86_400.0  # s that the clock of a process that reports may be ahead
_RELEASED = 1.79e9  # s since 1970: a clock that shows less was not set yet
_ALIKE = 0.8  # of two names, from 0 to 1: a letter or two are wrong, or are in another order
_MOST_COMPARED = 500  # names: each takes up to 0.1 ms
_MOST_ALIKE = 3
_FULL = (
    f"the queue of decisions has {MAX_ENTRIES} messages or more, and no others are read: the next decision removes "
    "those that decide nothing"
)


class SwitchAction(enum.StrEnum):
    """What an operator decides for an entity (SPEC 4.7)."""

    HOLD = "hold"
    """Divert until another decision, without pings."""
    FAILOVER = "failover"
    """Divert; pings begin after one interval and may end it."""
    RESUME = "resume"
    """Send to the primary again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An operator's decision for all processes of a pair.

    Args:
        number: larger than that of every decision that its author knew.
        id: unique; decides between two of one number.
        syphon: of a hold: syphons deliver nothing to them either.
        at: when, in seconds since 1970 by the author's clock.
    """

    number: int
    id: str
    action: SwitchAction
    entities: tuple[Entity, ...]
    syphon: bool
    at: float
    host: str
    pid: int

    @property
    def order(self) -> tuple[int, str]:
        """Of two decisions the one with the larger order is in force, on whichever machine they are read."""
        return (self.number, self.id)

    def message(self) -> Message:
        """The decision as a message. Raises `ConfigurationError`: it has more entities than fit one."""
        entities = [[each.kind.value, each.path] for each in self.entities]
        message = _message(_DECISION, {**asdict(self), "entities": entities}, self.id)
        if len(message.body) > _MOST_BYTES:
            raise ConfigurationError(f"{len(self.entities)} entities are too many for one decision: switch fewer")
        return message


@dataclass(frozen=True, slots=True)
class Decisions:
    """What was read of the decisions."""

    all: tuple[Decision, ...] = ()  # each once, in their order
    problems: tuple[str, ...] = ()  # why messages could not be read, each sentence once
    full: bool = False  # there may be others behind them
    # The order of the decision in each message, None without one; messages that a later release wrote are left out.
    _orders: Mapping[bytes, tuple[int, str] | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, bodies: Sequence[bytes], now: float) -> Self:
        """Read the messages of the decisions' queue; what can't be read is a problem and no error. ``now`` is seconds
        since 1970.

        A number that is far ahead of the clock would be in force forever: no later one could be written.
        """
        latest = (max(now, _RELEASED) + _AHEAD) * 1000
        found: dict[tuple[int, str], Decision] = {}
        orders: dict[bytes, tuple[int, str] | None] = {}
        problems: dict[str, None] = {}
        for body in bodies:
            try:
                content = content_of(body)
                if content.get("kind") == _DECISION:
                    decision = _decision(content)
                    if decision.number > latest:
                        raise RecordError("a decision's number is years ahead of this computer's clock: it is ignored")
                    orders[body] = decision.order
                    found.setdefault(decision.order, decision)
            except RecordError as error:
                problems[str(error)] = None
                if not isinstance(error, NewerError):
                    orders[body] = None
        full = len(bodies) >= MAX_ENTRIES
        if full:
            problems[_FULL] = None
        return cls(tuple(found[order] for order in sorted(found)), tuple(problems), full, orders)

    def in_force(self) -> dict[Entity, Decision]:
        """The last decision of each entity."""
        return {entity: decision for decision in self.all for entity in decision.entities}

    def removable(self) -> frozenset[bytes]:
        """The messages that decide nothing, or nothing any more."""
        kept = {decision.order for decision in self.in_force().values()}
        return frozenset(body for body, order in self._orders.items() if order not in kept)

    def next_number(self, now: float) -> int:
        """The number of a decision that is made now, also if the secondary has lost the earlier ones. ``now`` is
        seconds since 1970."""
        return max(self.all[-1].number + 1 if self.all else 0, int(now * 1000))


@dataclass(frozen=True, slots=True)
class Order:
    """What a process has to do with one entity."""

    entity: Entity
    action: SwitchAction
    syphon: bool  # of a hold: its syphon delivers nothing to the entity either


class Following:
    """Which decisions one process has followed."""

    def __init__(self) -> None:
        self._last: dict[Entity, tuple[int, str]] = {}
        self._first = True
        self._known: set[tuple[int, str]] = set()
        self.followed: tuple[str, ...] = ()
        """Ids of the last decisions that it knows, for its report."""

    def follow(self, decisions: Decisions, now: float, in_use: Callable[[Entity], bool]) -> list[Order]:
        """Take what was read, of which any may be missing for a while; what to do. ``now`` is seconds since 1970.

        Where decisions name too many entities, those that are ``in_use`` by this process are followed all the same.
        """
        first, self._first = self._first, False
        orders = []
        for entity, decision in decisions.in_force().items():
            last = self._last.get(entity)
            if last is None:
                if len(self._last) >= _MOST_ENTITIES and not in_use(entity):
                    continue
            elif decision.order <= last:
                continue
            self._last[entity] = decision.order
            ended = decision.action is SwitchAction.FAILOVER and now - decision.at > FAILOVER_FOLLOWED
            if first and (decision.action is SwitchAction.RESUME or ended):
                continue  # it starts as the decision wants it
            orders.append(Order(entity, decision.action, decision.syphon))
        # The last ones, in the order of decisions: by that in which they are seen, the one that an operator waits for
        # would give its place to those that were reported and dropped before, and have been seen again.
        known = sorted(self._known.union(decision.order for decision in decisions.all))[-_MOST_FOLLOWED:]
        self._known, self.followed = set(known), tuple(id for _, id in known)
        return orders


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What one process of a pair reports.

    Args:
        process: its identity, unique on all machines.
        number: of its reports; the last one counts.
        at: when, in seconds since 1970 by its own clock.
        started_at: when it opened the pair, likewise.
        interval: its ``control_interval``.
        syphon: it hosts a syphon.
        followed: ids of the decisions that it knows and follows.
        ended: it has closed the pair.
    """

    process: str
    host: str
    pid: int
    number: int
    at: float
    started_at: float
    interval: float
    syphon: bool
    followed: tuple[str, ...] = ()
    ended: bool = False

    def message(self) -> Message:
        """The report as a message."""
        return _message(_REPORT, asdict(self), f"{self.process}-{self.number}")


class Fleet:
    """The processes of a pair, as far as they report; takes what was read again and again, and keeps the newest.

    A process whose clock is wrong is listed by the broker's, where that dates what it stores.
    """

    def __init__(self) -> None:
        self._last: dict[str, ProcessReport] = {}

    def read(self, deliveries: Iterable[Delivery], now: float, ahead: float = 0.0) -> None:
        """Take the messages of the reports' queue; what is old or can't be read is passed over. ``now`` is
        seconds since 1970, of which the broker's clock shows so many more as it is ``ahead``."""
        for delivery in deliveries:
            try:
                content = content_of(delivery.message.body)
                report = _report(content) if content.get("kind") == _REPORT else None
            except RecordError:
                continue
            if report is not None:
                if _is_old(report.at, now) and delivery.enqueued_at is not None:
                    report = replace(report, at=delivery.enqueued_at.timestamp() - ahead)
                last = self._last.get(report.process)
                if last is None or last.number < report.number:
                    self._last[report.process] = report
        self._last = {name: each for name, each in self._last.items() if not _is_old(each.at, now)}

    @property
    def processes(self) -> tuple[ProcessReport, ...]:
        """Those that have not ended, in order of machine and process number."""
        running = (report for report in self._last.values() if not report.ended)
        return tuple(sorted(running, key=lambda report: (report.host, report.pid, report.process)))


def is_old_report(delivery: Delivery, now: float) -> bool:
    """Whether a message of the reports' queue can be removed: it is of no use to any process. ``now`` is seconds since
    1970.

    What a later release may write there has an ``at``, too: it would stay at the queue's head otherwise, and all that
    is old behind it.
    """
    try:
        at = _seconds(content_of(delivery.message.body, MOST_FORMATS).get("at"))
    except RecordError:
        return True
    stored_at = at if delivery.enqueued_at is None else delivery.enqueued_at.timestamp()
    return _is_old(at, now) and _is_old(stored_at, now)


def _is_old(at: float, now: float) -> bool:
    # One of a time to come would be listed until then; but a process whose clock is fast has to be listed.
    return not now - REPORT_LIFETIME <= at <= now + _FAST


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """A decision, and how far the processes of the pair follow it.

    Args:
        decision: what was written.
        followed: processes that report that they follow it.
        missing: processes that do not report so: not yet, or they are stopped or have crashed.
        overruled: entities for which a later decision is in force, with that decision.
        problem: why there may be processes that are not listed; empty if all were read.
    """

    decision: Decision
    followed: tuple[ProcessReport, ...] = ()
    missing: tuple[ProcessReport, ...] = ()
    overruled: tuple[tuple[Entity, Decision], ...] = ()
    problem: str = ""

    @classmethod
    def of(cls, decision: Decision, decisions: Decisions, fleet: Fleet, problem: str = "") -> Self:
        """Judge what was read."""
        later = decisions.in_force()
        overruled = tuple(
            (entity, later[entity])
            for entity in decision.entities
            if entity in later and later[entity].order > decision.order
        )
        followed = tuple(each for each in fleet.processes if decision.id in each.followed)
        missing = tuple(each for each in fleet.processes if decision.id not in each.followed)
        return cls(decision, followed, missing, overruled, problem)

    @property
    def complete(self) -> bool:
        """Every process that reports follows it, all reports were read, and no later decision has replaced it."""
        return not (self.missing or self.overruled or self.problem)

    @property
    def wait(self) -> float:
        """Seconds within which the processes that report should follow."""
        return max((each.interval for each in (*self.followed, *self.missing)), default=0.0) + 2.0


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """The decisions in force, and the processes of the pair.

    Args:
        decisions: the last one of each entity.
        processes: that report, and have not ended.
        problems: why messages could not be read.
    """

    decisions: tuple[tuple[Entity, Decision], ...] = ()
    processes: tuple[ProcessReport, ...] = ()
    problems: tuple[str, ...] = ()


def switch_queues(name: str) -> tuple[Entity, Entity] | None:
    """The queues of the decisions and of the reports; None where the primary's name is too long for them."""
    try:
        return Entity(f"{name}/switch/{RECORD_QUEUE}"), Entity(f"{name}/processes/{RECORD_QUEUE}")
    except ValueError:
        return None


def switch_action(action: SwitchAction | str, entities: Sequence[Entity], *, syphon: bool) -> SwitchAction:
    """Check what an operator asks for: an action there is, an entity, and ``syphon`` of a hold alone."""
    try:
        checked = SwitchAction(action)
    except ValueError:
        known = ", ".join(map(repr, map(str, SwitchAction)))
        raise ConfigurationError(f"action is {str(action)[:40]!r}: it must be one of {known}") from None
    if not entities:
        raise ConfigurationError("no entity: name at least one")
    if syphon and checked is not SwitchAction.HOLD:
        raise ConfigurationError("syphon=True is only for hold")
    return checked


def alike(entity: Entity, known: Iterable[Entity]) -> tuple[Entity, ...]:
    """Those of the known entities that may be meant by a name that is unknown, the likeliest first.

    One that differs in its digits alone is another shard, and no mistake.
    """
    path, letters = entity.path, _letters(entity)
    near = (each for each in known if _may_be_alike(path, each.path) and _letters(each) != letters)
    others = {each.path: each for each in islice(near, _MOST_COMPARED)}
    same = [path] if path in others else []  # it is of another kind
    found = difflib.get_close_matches(path, others, _MOST_ALIKE, _ALIKE)
    return tuple(others[each] for each in dict.fromkeys((*same, *found)))


def _may_be_alike(one: str, other: str) -> bool:
    """A quick look: they begin or end alike, and are about as long."""
    return abs(len(one) - len(other)) <= 1 + len(one) // 4 and (one[:2] == other[:2] or one[-2:] == other[-2:])


def _letters(entity: Entity) -> tuple[str, EntityKind]:
    return "".join(sign for sign in entity.path if not sign.isdigit()), entity.kind


def host_text(host: str) -> str:
    """A machine's name as it is written, and every reader takes it."""
    return plain(host or "host")


def _message(kind: str, fields: dict[str, Any], id: str) -> Message:
    content = {"pairmq_record": FORMAT, "kind": kind, **fields}
    body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    return Message(body, f"pairmq-{id}", content_type=_CONTENT_TYPE)


def _decision(content: dict[str, Any]) -> Decision:
    entities = [_entity(of_type(list, each)) for each in of_type(list, content.get("entities"))]
    try:
        action = SwitchAction(text_of(content.get("action")))
    except ValueError:
        raise NewerError("a decision is not known to this release: upgrade this process") from None
    if not entities:
        raise foreign()
    return Decision(
        _whole(content.get("number")),
        text_of(content.get("id")),
        action,
        tuple(dict.fromkeys(entities)),
        of_type(bool, content.get("syphon")) and action is SwitchAction.HOLD,
        _seconds(content.get("at")),
        text_of(content.get("host")),
        _whole(content.get("pid")),
    )


def _report(content: dict[str, Any]) -> ProcessReport:
    return ProcessReport(
        text_of(content.get("process")),
        text_of(content.get("host")),
        _whole(content.get("pid")),
        _whole(content.get("number")),
        _seconds(content.get("at")),
        _seconds(content.get("started_at")),
        _seconds(content.get("interval")),
        of_type(bool, content.get("syphon")),
        tuple(map(text_of, of_type(list, content.get("followed"))[:_MOST_FOLLOWED])),
        of_type(bool, content.get("ended")),
    )


def _entity(pair: list[Any]) -> Entity:
    if len(pair) != 2:
        raise foreign()
    try:
        return Entity(text_of(pair[1]), EntityKind(text_of(pair[0])))
    except ValueError:
        raise foreign() from None


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise foreign()
    return value


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= _LARGEST:  # a NaN is not in it either
        raise foreign()
    return float(value)

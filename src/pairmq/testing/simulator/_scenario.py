"""What a simulation does, as values: who there is, who sends what and when, and what goes wrong; and its messages.

A `Scenario` says everything: run twice, it gives the same trace twice. It is made from a seed (`_generate`), goes
through JSON unchanged, and can be cut down by `shrink`."""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pairmq.core import PairOptions
from pairmq.core.options import Ordering
from pairmq.model import Entity, EntityKind, Message
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.history import PRIMARY

Mode = Literal["safety", "liveness"]
Continuity = Literal["drawn", "on", "off"]

FORMAT: Final = 1

_MOST: Final = 1e9
"""Seconds, and messages of one shipment: more would take forever."""

_UNWATCHED: Final[Mapping[str, Any]] = {"control_interval": 0.0}
"""Looks at an operator's decisions would be most of the events of a simulated hour; a scenario may set it."""

SEND, RECEIVE, SETTLE, ADMIN, PROBE = OPERATIONS = ("send", "receive", "settle", "admin", "probe")
WRITES = (SEND, SETTLE)

# Of each kind of fault: how often it comes, in proportion, and of one that lasts the operations that it strikes. The
# brokers' faults are the bulk; the heavy ones are rare. The order is a part of what a seed gives.
_KINDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "refuse": (10, OPERATIONS),
    "hang": (8, OPERATIONS),
    # A ping is good all the while: only real messages find out (hazard 12).
    "reject": (5, (SEND,)),
    "lost-before": (5, WRITES),
    "lost-after": (8, WRITES),
    "late": (5, WRITES),
    "partial": (4, (SEND,)),
    "slow": (5, OPERATIONS),
    "busy": (3, (SEND, RECEIVE, SETTLE, ADMIN)),
    "transient": (4, OPERATIONS),
    "queue-out": (8, OPERATIONS),
    "quota": (2, (SEND,)),
    "unauthorized": (1, OPERATIONS),
    "reset": (6, ()),
    "lock-lost": (5, ()),
    "delete": (2, ()),
    "broker-kill": (5, ()),
    "blip": (6, ()),
    "stall": (6, ()),
    "demote": (4, ()),
    "emptied": (3, ()),
    "kill": (6, ()),
    "restart": (3, ()),
    "operator": (2, ()),
    "forge": (2, ()),
}
FAULT_KINDS: Final = tuple(_KINDS)
"""All kinds of faults, by name."""

WEIGHTS: Final = {kind: weight for kind, (weight, _) in _KINDS.items()}
"""How often each kind comes, in proportion."""

CONDITIONS: Final = {kind: struck for kind, (_, struck) in _KINDS.items() if struck}
"""Faults that last, of a broker or of the way to it, and the operations that each strikes; the others strike once."""

BLIPS: Final = {"blip": "refuse", "stall": "hang"}
"""Faults of a way, shorter than any timer of a pair, and the condition that each of them is."""

# What they strike, where it is not any broker, or any way to it, and one entity or all.
OF_A_PROCESS: Final = ("kill", "restart", "operator")
OF_THE_SECONDARY: Final = ("lock-lost", "forge", "emptied")
OF_ALL_PROCESSES: Final = ("broker-kill", "forge", "emptied")
OF_A_QUEUE: Final = ("lock-lost", "forge", "delete", "queue-out", "operator")
OF_A_WHOLE_BROKER: Final = ("refuse", "reset", "broker-kill", "kill", "restart", *BLIPS, "demote", "emptied")
DELAYING: Final = ("slow", "late")

LACKS: Final = ("time_to_live", "scheduling")
"""What a primary may disclaim, of `Capabilities`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to simulate.

    Args:
        seed: all chance comes from it.
        hours: of virtual time with faults.
        mode: ``"safety"``: faults to the end; ``"liveness"``: then all is healed and must drain within a bound.
        faults: the kinds of faults that may happen, of `FAULT_KINDS`.
        faults_per_hour: on both brokers and all processes together.
        sends_per_hour: spread evenly; as many again, about, come around the faults.
        ordering: of the pairs; with ``"session"`` most messages have a session, which one process owns.
        continuity: whether queues have lanes, which consumers read (SPEC 11): ``"drawn"`` for a share of the seeds;
            never with order.
        trace: keep the trace in the report; one that fails has one anyway.

    Raises:
        ValueError: a value out of its range.
    """

    seed: int = 0
    hours: float = 1.0
    mode: Mode = "safety"
    faults: tuple[str, ...] = FAULT_KINDS
    faults_per_hour: float = 60.0
    sends_per_hour: float = 400.0
    ordering: Ordering = "none"
    continuity: Continuity = "drawn"
    trace: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("safety", "liveness"):
            raise ValueError(f"mode is {self.mode!r}: it must be 'safety' or 'liveness'")
        if self.ordering not in get_args(Ordering):
            raise ValueError(f"ordering is {self.ordering!r}: it must be 'none' or 'session'")
        if self.continuity not in get_args(Continuity):
            raise ValueError(f"continuity is {self.continuity!r}: it must be 'drawn', 'on' or 'off'")
        if self.continuity == "on" and self.ordering == "session":
            raise ValueError("continuity is 'on': a queue whose sessions keep their order can't have it")
        for name in ("hours", "faults_per_hour", "sends_per_hour"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise ValueError(f"{name} is {value!r}: it must be a number from 0 to a million")
        unknown = sorted(set(self.faults) - set(FAULT_KINDS))
        if unknown:
            raise ValueError(f"unknown faults {', '.join(unknown)}: known are {', '.join(FAULT_KINDS)}")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Args:
        at: virtual seconds since the start.
        kind: of `FAULT_KINDS`.
        duration: seconds until it is over or fixed.
        broker: ``"primary"`` or ``"secondary"``, where that matters; empty for both, of a *blip* or a *stall*.
        process: the process that it strikes, or whose way to the broker; empty for all.
        entity: the path that it strikes; empty for all.
        share: of the operations that it strikes, in (0, 1].
        delay: seconds that *slow* adds, and that *late* writes are late.
        seed: of its own chance, so that another fault can be left out without changing this one.
    """

    at: float
    kind: str
    duration: float
    broker: str = ""
    process: str = ""
    entity: str = ""
    share: float = 1.0
    delay: float = 0.0
    seed: int = 0

    @property
    def ends_at(self) -> float:
        """Virtual seconds since the start."""
        return self.at + self.duration

    def __str__(self) -> str:
        words = [self.kind]
        words += [word for word in (self.broker, self.process, self.entity) if word]
        words.append(f"for {self.duration:.3f} s")
        if self.share < 1:
            words.append(f"share {self.share:.2f}")
        if self.delay:
            words.append(f"delay {self.delay:.3f} s")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Shipment:
    """One thing that a sender does: a send, a batch, or several sends at once."""

    at: float  # virtual seconds since the start; later when the sender is still busy
    sender: str  # the sender's name
    number: int  # of its first message; the others have the next ones
    count: int = 1  # messages
    together: bool = False  # several in one batch instead of side by side
    timeout: float | None = None  # seconds, None for the pair's
    cancel_after: float | None = None  # seconds after which its caller cancels it; None for never
    size: int = 0  # bytes of each body, at least
    # Of each message: ``ttl``, ``schedule``, ``session``, ``priority``, ``property``, ``no-id``.
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SenderPlan:
    """One sender: its name, its process and its entity (``topic:`` before a topic's path)."""

    name: str
    process: str
    entity: str

    @property
    def target(self) -> Entity:
        """Where it sends to."""
        return entity_of(self.entity)


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process."""

    name: str  # of the process
    syphon: bool = False  # it hosts a syphon
    consumer: bool = False  # it reads the primary: a queue and a subscription
    skew: float = 0.0  # seconds by which its wall clock is wrong
    readers: tuple[str, ...] = ()  # the queues that it reads, one for each receiver
    backlog_queue_count: int | None = None  # where it differs from the setup's options; None where not
    backlog_name_template: str | None = None  # likewise
    continuity: tuple[str, ...] | None = None  # likewise

    @property
    def own_options(self) -> dict[str, Any]:
        """The options that differ from the setup's."""
        names = ("backlog_queue_count", "backlog_name_template", "continuity")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def queues_read(self) -> tuple[str, ...]:
        """The queues that it reads, one for each receiver."""
        return (*self.readers, *(("orders",) if self.consumer else ()))


@dataclass(frozen=True, slots=True)
class Setup:
    """The brokers, the processes and the pair's options."""

    processes: tuple[ProcessPlan, ...]  # at least one
    senders: tuple[SenderPlan, ...]  # who sends
    entities: tuple[str, ...]  # of the primary
    options: Mapping[str, Any] = field(default_factory=dict)  # of `PairOptions`, ``enable_syphon`` left out
    # Seconds of a lock at the secondary; None for locks that end with their connection.
    lock_duration: float | None = 60.0
    scheduling: bool = True  # the secondary can schedule messages
    counts_scheduled: bool = True  # and counts those that wait
    latency: tuple[float, float] = (0.004, 0.004)  # seconds to the primary and to the secondary and back
    jitter: float = 0.0  # share by which each way takes longer or shorter than half of that
    most_bytes: tuple[int, int] = (50_000, 50_000)  # the largest message of the primary and of the secondary
    primary_lacks: tuple[str, ...] = ()  # what the primary disclaims, of `LACKS`
    handling: float = 0.0  # seconds that a consumer takes for a message at most

    def pair_options(self, *, syphon: bool) -> PairOptions:
        """The options that the processes' pairs have in common."""
        return PairOptions(**{**_UNWATCHED, **self.options, "enable_syphon": syphon})

    def options_of(self, plan: ProcessPlan) -> PairOptions:
        """The options of a process's pair."""
        return PairOptions(**{**_UNWATCHED, **self.options, **plan.own_options, "enable_syphon": plan.syphon})

    def backlog_queues(self, *processes: ProcessPlan) -> tuple[str, ...]:
        """The backlog queues of some processes, of all when left out, each once."""
        plans = processes or self.processes
        names = (name for plan in plans for name in self.options_of(plan).backlog_queue_names(PRIMARY))
        return tuple(dict.fromkeys(names))

    @property
    def consumed(self) -> frozenset[Entity]:
        """The queues of the primary that consumers read."""
        return frozenset(Entity(path) for plan in self.processes for path in plan.queues_read)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole simulation."""

    seed: int  # of what chance is left: the processes' own dice, and the network's jitter
    seconds: float  # virtual seconds with faults
    mode: Mode  # what is demanded at the end
    setup: Setup  # who there is
    faults: tuple[Fault, ...] = ()  # by their instant
    traffic: tuple[Shipment, ...] = ()  # by its instant

    def to_json(self) -> str:
        """Write it as one JSON document, from which `from_json` makes an equal one."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        """Read what `to_json` wrote; anything else is a `ValueError`, which says what is wrong."""
        try:
            data = json.loads(text)
            if data.pop("format") != FORMAT:
                raise ValueError(f"a scenario of another format than {FORMAT}")
            scenario: Scenario = read(data, cls, "scenario")
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no scenario of a simulation: {type(error).__name__}: {error}") from error
        _check(scenario)
        return scenario


def _check(scenario: Scenario) -> None:
    """Refuse what no simulation could carry out. Raises `ValueError`, which says what is wrong."""
    setup = scenario.setup
    setup.backlog_queues()
    if not set(setup.primary_lacks) <= {*LACKS} or not 0 <= setup.jitter <= 1 or not 0 <= setup.handling <= 60:
        text = "and jitter a number from 0 to 1, handling one from 0 to 60"
        raise ValueError(f"primary_lacks must be of {', '.join(LACKS)}, {text}")
    processes = {plan.name for plan in setup.processes}
    senders = {plan.name for plan in setup.senders}
    for plan in setup.senders:
        if plan.process not in processes or entity_of(plan.entity) not in map(entity_of, setup.entities):
            raise ValueError(f"the sender {plan.name!r} belongs to no process, or sends to no entity, of the scenario")
    unknown = {fault.kind for fault in scenario.faults} - {*FAULT_KINDS}
    unknown |= {shipment.sender for shipment in scenario.traffic} - senders
    if unknown:
        raise ValueError(f"no such fault or sender: {', '.join(sorted(unknown))}")
    numbers = [scenario.seconds, *(shipment.count for shipment in scenario.traffic)]
    if not all(0 <= number <= _MOST for number in numbers):
        raise ValueError("seconds and counts must be numbers from 0 to a billion")


@functools.cache  # senders ask for theirs with every message
def entity_of(text: str) -> Entity:
    """Read ``orders`` as a queue and ``topic:news`` as a topic."""
    kind, _, path = text.rpartition(":")
    return Entity(path, EntityKind(kind) if kind else EntityKind.QUEUE)


def lasts(fault: Fault) -> float:
    """Seconds for which a fault is on; 0 for one that strikes once."""
    return fault.duration if fault.kind in (*CONDITIONS, *BLIPS, "broker-kill") else 0.0


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times in turn, and those that touch as one."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


_hints = functools.cache(get_type_hints)


def read(data: Any, hint: Any, where: str) -> Any:
    """Make what a type says, such as a dataclass, of what came out of a JSON file.

    Raises `ValueError`, which says what is wrong; also `KeyError` or `TypeError` for a field too many or too few.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return None if data is None else read(data, inner[0], where)
    if origin is tuple and isinstance(data, list):
        hints = inner[:1] * len(data) if inner[-1] is Ellipsis else inner
        if len(hints) != len(data):
            raise ValueError(f"{where} must have {len(hints)} values")
        return tuple(read(*each, f"{where}[{at}]") for at, each in enumerate(zip(data, hints, strict=True)))
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(data, dict):
        types_of = _hints(hint)
        return hint(**{name: read(value, types_of[name], f"{where}.{name}") for name, value in data.items()})
    if origin is Mapping and isinstance(data, dict):
        return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    is_number = hint is float and type(data) in (int, float) and math.isfinite(data)
    if is_number or type(data) is hint or (origin is Literal and data in inner):
        return data
    wanted = " or ".join(map(repr, inner)) if origin is Literal else getattr(hint, "__name__", str(hint))
    raise ValueError(f"{where} is {data!r:.40}: it must be {wanted}")


_NUMBER = slice(1, 9)
_SCHEDULED = 90.0  # s that a scheduled message waits
_TIMES_TO_LIVE = {"ttl": 3600.125, "short-ttl": 4.5}


def number_of(message: Message) -> int | None:
    """Read a message's number from its body; None for one that was never sent."""
    body = message.body
    return int(body[_NUMBER]) if body[:1] == b"m" else None


def size_of(message: Message) -> int:
    """Count the bytes of a message that a simulated broker's limit is about."""
    properties = message.application_properties
    return len(message.body) + sum(len(key) + len(str(value)) for key, value in properties.items())


def message_of(shipment: Shipment, number: int, owner: str | None = None) -> Message:
    """The message of a number."""
    body = b"m%08d" % number
    fields = shipment.fields
    time_to_live = next((seconds for name, seconds in _TIMES_TO_LIVE.items() if name in fields), None)
    return Message(
        body.ljust(shipment.size, b"."),
        message_id=None if "no-id" in fields else f"id-{number}",
        session_id=_session(number, owner) if "session" in fields else None,
        time_to_live=time_to_live,
        scheduled_enqueue_at=datetime.fromtimestamp(WALL_EPOCH + shipment.at + _SCHEDULED, UTC)
        if "schedule" in fields
        else None,
        priority=number % 10 if "priority" in fields else None,
        subject="simulation" if "property" in fields else None,
        application_properties={"number": number, "text": "n"} if "property" in fields else {},
    )


def _session(number: int, owner: str | None) -> str:
    return f"session-{number % 7}" if owner is None else f"{owner}-{number % 3}"

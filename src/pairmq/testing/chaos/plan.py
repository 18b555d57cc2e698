"""What a chaos run does, as values: senders, faults, targets, and times.

A plan is drawn from a seed and goes through JSON unchanged, so that it can be carried out again. What comes of it is
another matter: real servers, the kernel and the machine's load have a say, and no two runs are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any, Final, get_args

from pairmq.core.options import Ordering
from pairmq.model import ConfigurationError
from pairmq.testing.chaos.broker import FaultKind
from pairmq.testing.chaos.network import BLIP_FAULTS, BOTH, DELAY, JITTER, NETWORK_FAULTS
from pairmq.testing.simulator._scenario import read

SIDES: Final = ("primary", "secondary")
ENTITIES: Final = ("orders", "invoices")
"""The queues of the primary that are sent to."""

PAIR: Final = ">".join(SIDES)
"""The pair's name in events and journals: the same for all clients, although each has addresses of its own."""

BACKLOG: Final = "chaos/x-servicebus-transfer/{index}"
"""Names of the backlog queues: all clients share them, although each reaches the primary by a way of its own."""

CLIENT_KILL = FaultKind("client-kill", 0.2, 3.0)
CLIENT_RESTART = FaultKind("client-restart", 0.2, 2.0)
CLIENT_FAULTS = (CLIENT_KILL, CLIENT_RESTART)
"""SIGKILL of a client process, and SIGTERM, upon which it closes its pair; in both cases a new one is started."""

DISTANCES: Final = ("", *SIDES, BOTH)

_ROUND_TRIPS = 8  # of one operation over a distance that has to connect first
_MOST_QUEUES = 6
_LANE_PATIENCE = 2.0  # s
_BLIPS_RARER = 4  # than faults of one broker: nothing is promised while there is neither


@dataclass(frozen=True, slots=True)
class Settings:
    """How much chaos.

    Raises:
        ConfigurationError: a value out of its range.
    """

    seed: int = 0  # the plan is drawn from it
    seconds: float = 120.0  # during which there are faults
    faults: tuple[str, ...] | None = None  # names of the faults that may happen; None for all that the brokers can do
    every: float = 4.0  # seconds between two faults of one broker, and of the clients, on average
    longest: float = 10.0  # the longest fault in seconds; SIGSTOP of a minute needs a long run to matter
    clients: int = 3  # processes; the first one hosts the syphon
    rate: float = 20.0  # sends a second of each process
    # Seconds of a lock in the backlog queues, more where brokers are far: what a killed syphon held restarts after as
    # long.
    lock_duration: float = 5.0
    patience: float = 120.0  # seconds for each step when all is healed; of a drain, those in which nothing is moved
    consumers: int = 0  # processes that read the primary meanwhile; they are killed and restarted as the clients are
    continuity: bool = False  # the queues have lanes, which the consumers read as well (SPEC 11); it needs consumers
    ordering: Ordering = "none"  # of the clients' pairs; with ``"session"`` the order of each session is judged
    distance: str = ""  # the side that is far from all clients, or ``both``; empty for none
    differing: bool = False  # the clients have different numbers of backlog queues
    # The clients' tasks take their first step before they are returned, where Python can do that (3.12).
    eager: bool = False

    def __post_init__(self) -> None:
        if self.distance not in DISTANCES:
            raise ConfigurationError(f"distance is {self.distance!r}: it must be primary, secondary, both or empty")
        if self.ordering not in get_args(Ordering):
            raise ConfigurationError(f"ordering is {self.ordering!r}: it must be none or session")
        if self.continuity and (not self.consumers or self.ordering != "none"):
            raise ConfigurationError("continuity needs consumers, and no order")
        for name, low, high in (
            ("seconds", 1.0, 1e6),
            ("every", 0.1, 1e6),
            ("longest", 0.1, 3600.0),
            ("clients", 1, 8),
            ("rate", 0.1, 1000.0),
            ("lock_duration", 1.0, 300.0),
            ("patience", 1.0, 1e5),
            ("consumers", 0, 4),
        ):
            if not low <= getattr(self, name) <= high:
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}: it must be from {low:g} to {high:g}")

    @property
    def distant(self) -> tuple[str, ...]:
        """The sides that are far from all clients."""
        return tuple(side for side in SIDES if self.distance in (side, BOTH))


@dataclass(frozen=True, slots=True)
class Strike:
    """One thing that is done."""

    at: float  # seconds since the start; later when what came before it took longer
    kind: str  # of the fault
    seconds: float  # how long it lasts
    side: str = ""  # `primary`, `secondary` or `both`; empty for what is done to a client itself
    client: str = ""  # whose way to the broker, or which client; empty for all

    def __str__(self) -> str:
        where = " ".join(word for word in (self.side, self.client) if word)
        return f"{self.kind} {where} for {self.seconds:.2f} s".replace("  ", " ")


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    products: tuple[str, str]  # of the primary and of the secondary
    settings: Settings  # that it was drawn from
    options: Mapping[str, Any]  # of the clients' pairs, without `enable_syphon`
    timeouts: tuple[float, ...]  # seconds of one send after another
    strikes: tuple[Strike, ...] = field(default=())  # by their instant
    # `backlog_queue_count` of clients whose number differs from that of the options.
    queue_counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def clients(self) -> tuple[str, ...]:
        """The processes' names: the first one hosts the syphon."""
        return client_names(self.settings)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The names of the processes that read the primary."""
        return consumer_names(self.settings)

    @property
    def lock_duration(self) -> float:
        """Seconds of a lock: longer than the settings say where one attempt may take as long as that."""
        return float(max(self.settings.lock_duration, 2 * self.options["attempt_timeout"]))

    def options_of(self, client: str) -> dict[str, Any]:
        """The options of one client's pair, without ``enable_syphon``."""
        count = self.queue_counts.get(client)
        return {**self.options, **({} if count is None else {"backlog_queue_count": count})}

    def of(self, side: str) -> tuple[Strike, ...]:
        """What is done to one side, or, for the empty text, to clients."""
        return tuple(strike for strike in self.strikes if strike.side == side)

    def to_json(self) -> str:
        """Write it as a JSON document, from which `from_json` makes an equal one."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote; anything else is a `ConfigurationError`."""
        try:
            plan: Plan = read(json.loads(text), cls, "plan")
            return plan
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"no plan of a chaos run: {type(error).__name__}: {error}") from error


def client_names(settings: Settings) -> tuple[str, ...]:
    """The processes' names."""
    return tuple(f"client-{'abcdefgh'[index]}" for index in range(settings.clients))


def consumer_names(settings: Settings) -> tuple[str, ...]:
    """The names of the processes that read the primary."""
    return tuple(f"consumer-{'abcd'[index]}" for index in range(settings.consumers))


def planned(
    products: tuple[str, str],
    settings: Settings,
    faults: tuple[Sequence[FaultKind], Sequence[FaultKind]],
    attempt_timeout: float = 1.0,
    behind_proxies: tuple[bool, bool] = (True, True),
) -> Plan:
    """Draw a plan: the same arguments give the same one.

    ``faults`` are what the primary's and the secondary's `ChaosBroker` can do; ``attempt_timeout`` is in seconds, of
    the slower of both; what is not behind proxies has no faults of the network. Raises `ConfigurationError` for a fault
    that these brokers do not know.
    """
    _check_names(settings, faults)
    names = (*client_names(settings), *consumer_names(settings))
    strikes: list[Strike] = []
    for side, own, behind in zip(SIDES, faults, behind_proxies, strict=True):
        chance = Random(f"{settings.seed} {side}")
        kinds = [kind for kind in own if getattr(kind, side)] + list(NETWORK_FAULTS * behind)
        for at, kind, seconds in _drawn(chance, settings, kinds, settings.every):
            # Half of the network's faults strike one client's way only: it fails over while the others don't.
            alone = kind in NETWORK_FAULTS and chance.random() < 0.5
            strikes.append(Strike(at, kind.name, seconds, side, chance.choice(names) if alone else ""))
    chance = Random(f"{settings.seed} clients")
    for at, kind, seconds in _drawn(chance, settings, CLIENT_FAULTS, settings.every):
        strikes.append(Strike(at, kind.name, seconds, "", chance.choice(names)))
    chance = Random(f"{settings.seed} {BOTH}")
    for at, kind, seconds in _drawn(chance, settings, BLIP_FAULTS, settings.every * _BLIPS_RARER):
        strikes.append(Strike(at, kind.name, seconds, BOTH, chance.choice(names) if chance.random() < 0.5 else ""))
    if settings.distance:
        attempt_timeout += round(_ROUND_TRIPS * 2 * (DELAY + JITTER), 3)
    options: dict[str, Any] = {
        "failover_interval": 0.5 * attempt_timeout,
        "ping_primary_interval": 0.7,
        "ping_timeout": attempt_timeout,
        "attempt_timeout": attempt_timeout,
        "send_timeout": 6.0 * attempt_timeout,
        "backlog_queue_count": 3,
        "backlog_retry_interval": 1.0,
        "backlog_name_template": BACKLOG,
        "syphon_receive_wait": 2.0,
        "close_grace": 2.0,
        "flap_window": 5.0,
    }
    if settings.continuity:
        options |= {"continuity": ENTITIES, "lane_patience": _LANE_PATIENCE}
    if settings.ordering != "none":
        options["ordering"] = settings.ordering
    # Some limits end long before a failover can, and show whether a send gives up.
    timeouts = tuple(factor * attempt_timeout for factor in (6.0, 0.4, 6.0, 1.5))
    counts: dict[str, int] = {}
    if settings.differing:
        chance = Random(f"{settings.seed} queue counts")
        drawn = chance.sample(range(1, _MOST_QUEUES + 1), min(settings.clients, _MOST_QUEUES))
        counts = {name: drawn[place % _MOST_QUEUES] for place, name in enumerate(client_names(settings))}
    in_turn = tuple(sorted(strikes, key=lambda strike: strike.at))
    return Plan(products, settings, options, timeouts, in_turn, counts)


def drawn_settings(seed: int) -> dict[str, Any]:
    """What of `Settings` is not about how much: distance, differing and eager, drawn from the seed."""
    chance = Random(f"{seed} settings")
    return {
        "distance": chance.choice(DISTANCES),
        "differing": chance.random() < 0.5,
        "eager": chance.random() < 0.5,
    }


def _check_names(settings: Settings, faults: tuple[Sequence[FaultKind], Sequence[FaultKind]]) -> None:
    known = {kind.name for kind in (*faults[0], *faults[1], *NETWORK_FAULTS, *BLIP_FAULTS, *CLIENT_FAULTS)}
    unknown = sorted(set(settings.faults or ()) - known)
    if unknown:
        raise ConfigurationError(f"no faults {', '.join(unknown)}: these brokers know {', '.join(sorted(known))}")


def _drawn(
    chance: Random, settings: Settings, kinds: Sequence[FaultKind], every: float
) -> list[tuple[float, FaultKind, float]]:
    """One fault after another, none before the one before it is over."""
    allowed = [kind for kind in kinds if settings.faults is None or kind.name in settings.faults]
    found: list[tuple[float, FaultKind, float]] = []
    at = chance.uniform(0.5, 1.0 + every / 2)
    while allowed and at < settings.seconds:
        kind = chance.choice(allowed)
        most = min(kind.most, settings.longest)
        # As likely from 0.1 to 1 s as from 1 to 10.
        low, high = math.log(kind.least), math.log(max(kind.least, most))
        seconds = round(math.exp(chance.uniform(low, high)), 3)
        found.append((round(at, 3), kind, seconds))
        at += seconds + chance.expovariate(1 / every)
    return found

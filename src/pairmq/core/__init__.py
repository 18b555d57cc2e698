"""Decisions without IO: time and randomness come in as values, effects go out as values."""

from pairmq.core._effects import Changed, Effect, LateResult, SendPing, StopPing, ToBacklog, ToPrimary
from pairmq.core._inputs import (
    DIVERT_ENDED,
    FORCE_FAILOVER,
    HOLD,
    MARK_HEALTHY,
    ROUTE_REQUESTED,
    BacklogSeenEmpty,
    DivertEnded,
    ForceFailover,
    Hold,
    Input,
    MarkHealthy,
    PingFailed,
    PingSucceeded,
    PrimaryAbandoned,
    PrimaryAccepted,
    PrimaryFailed,
    RouteRequested,
    TimerFired,
)
from pairmq.core._states import Backlog, Health, visible
from pairmq.core.backoff import TRANSIENT_RETRIES, Backoff
from pairmq.core.drain import EmptyWatch
from pairmq.core.envelope import (
    ALIASES,
    MAYBE_DUPLICATE,
    Diversion,
    divert,
    elapsed_time_to_live,
    reserved_properties,
    restore,
)
from pairmq.core.machine import EntityMachine, ImpossibleInputError
from pairmq.core.options import OPTION_NAMES, PairOptions
from pairmq.core.rotation import Rotation

__all__ = [
    "ALIASES",
    "DIVERT_ENDED",
    "FORCE_FAILOVER",
    "HOLD",
    "MARK_HEALTHY",
    "MAYBE_DUPLICATE",
    "OPTION_NAMES",
    "ROUTE_REQUESTED",
    "TRANSIENT_RETRIES",
    "Backlog",
    "BacklogSeenEmpty",
    "Backoff",
    "Changed",
    "Diversion",
    "DivertEnded",
    "Effect",
    "EmptyWatch",
    "EntityMachine",
    "ForceFailover",
    "Health",
    "Hold",
    "ImpossibleInputError",
    "Input",
    "LateResult",
    "MarkHealthy",
    "PairOptions",
    "PingFailed",
    "PingSucceeded",
    "PrimaryAbandoned",
    "PrimaryAccepted",
    "PrimaryFailed",
    "Rotation",
    "RouteRequested",
    "SendPing",
    "StopPing",
    "TimerFired",
    "ToBacklog",
    "ToPrimary",
    "divert",
    "elapsed_time_to_live",
    "reserved_properties",
    "restore",
    "visible",
]

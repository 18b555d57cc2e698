"""Whether messages move now: probed at the brokers, not concluded from open connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pairmq.model import Entity, EntityState, FailureKind, FailureReason, Route, TransportError
from pairmq.runner import Engine, TimeLimits

_TICK = 0.001  # s


@dataclass(frozen=True, slots=True)
class EntityReadiness:
    """Whether a send to one entity would be accepted.

    Args:
        entity: which one.
        state: as this process knows it (SPEC 4).
        route: which broker accepts its messages; None if neither does.
        reasons: why each probed broker does not accept them, without secrets.
    """

    entity: Entity
    state: EntityState
    route: Route | None
    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether either broker accepts its messages."""
        return self.route is not None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "entity": self.entity.path,
            "kind": self.entity.kind.value,
            "ready": self.ready,
            "state": self.state.value,
            "route": None if self.route is None else self.route.value,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True, slots=True)
class Readiness:
    """The result of `Pair.check`.

    Args:
        pair: its name.
        entities: one entry for each requested entity, in that order.
        reasons: without any entity, why neither broker would accept a message; else empty.
    """

    pair: str
    entities: tuple[EntityReadiness, ...]
    reasons: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether all of them are; without any, whether a broker accepts messages."""
        return not self.reasons and all(entity.ready for entity in self.entities)

    def as_json(self) -> dict[str, Any]:
        """For programs; holds no secret."""
        return {
            "ready": self.ready,
            "pair": self.pair,
            "entities": [entity.as_json() for entity in self.entities],
            "reasons": list(self.reasons),
        }


async def find_readiness(engine: Engine, pair: str, entities: Sequence[Entity], timeout: float) -> Readiness:
    """Ask both sides about all entities at once, each for ``timeout`` seconds; a failure is part of the answer."""
    if not entities:
        down, backlog = await asyncio.gather(
            _failure(engine.primary.admin.check, timeout), _failure(engine.backlog.probe, timeout)
        )
        both = down is not None and backlog is not None
        return Readiness(pair, (), (f"primary: {down}", f"backlog: {backlog}") if both else ())
    backlog, *primary = await asyncio.gather(
        _failure(engine.backlog.probe, timeout),
        *(_primary_failure(engine, entity, timeout) for entity in entities),
    )
    found = [_judged(engine, *parts, backlog) for parts in zip(entities, primary, strict=True)]
    return Readiness(pair, tuple(found))


def _judged(
    engine: Engine, entity: Entity, primary: TransportError | None, backlog: TransportError | None
) -> EntityReadiness:
    # The state of the moment in which the answers are there: a ping may have ended the failover meanwhile.
    state = engine.state(entity)
    if primary is None and state is not EntityState.FAILED_OVER:
        return EntityReadiness(entity, state, Route.PRIMARY)
    if primary is None:
        reasons: tuple[str, ...] = ("primary: no sends go there while the entity is failed over",)
    else:
        reasons = (f"primary: {primary}",)
        if primary.kind is FailureKind.REFUSED:
            return EntityReadiness(entity, state, None, reasons)  # such a send is never diverted (SPEC 3.6)
    if backlog is None:
        return EntityReadiness(entity, state, Route.BACKLOG, reasons)
    return EntityReadiness(entity, state, None, (*reasons, f"backlog: {backlog}"))


async def _primary_failure(engine: Engine, entity: Entity, timeout: float) -> TransportError | None:
    if engine.state(entity) is EntityState.FAILED_OVER:
        return None  # its sends don't go there, and its own pings ask already
    return await _failure(partial(engine.primary.admin.probe, entity), timeout)


async def _failure(ask: Callable[[], Awaitable[None]], timeout: float) -> TransportError | None:
    limit = asyncio.get_running_loop().time() + timeout
    try:
        await TimeLimits().run(ask(), limit)
    except TransportError as error:
        # A loop may call a timer up to one tick of its clock early.
        if error.reason is FailureReason.TIMEOUT and asyncio.get_running_loop().time() >= limit - _TICK:
            return TransportError(f"no answer within {timeout:g} s", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        return error
    return None

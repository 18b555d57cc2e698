"""One mechanism for what a transport claims and what it disclaims: both are tested, and neither removes a test."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import TypeVar, cast

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.testing.conformance._broker import Broker
from pairmq.transport import Capabilities

F = TypeVar("F", bound=Callable[..., Awaitable[None]])
Arm = Callable[[Broker], Awaitable[object]]
"""A test of what holds where a capability is disclaimed."""

NAMES = tuple(entry.name for entry in fields(Capabilities))
_MARK = "_pairmq_capabilities"


def capability(name: str, *, disclaimed: Arm) -> Callable[[F], F]:
    """Let a test run where a capability is claimed, and another one in its place where it is not.

    Args:
        name: the field of `Capabilities`; what is falsy there is disclaimed.
        disclaimed: what must hold without it; mostly made by `refused`.
    """

    def decorate(test: F) -> F:
        @functools.wraps(test)
        async def both(self: object, broker: Broker) -> None:
            claimed = bool(getattr(broker.capabilities, name))
            try:
                await (test(self, broker) if claimed else disclaimed(broker))
            except Exception as error:
                # Which of the two arms it was can't be seen from the test's name.
                error.add_note(f"the transport {'claims' if claimed else 'disclaims'} the capability {name!r}")
                raise

        return cast(F, _marked(both, test, name))  # it is called as the test is

    return decorate


def limit(name: str) -> Callable[[F], F]:
    """Say that a test is about a capability that is a number and not a claim.

    Args:
        name: the field of `Capabilities`.
    """
    return lambda test: _marked(test, test, name)


def capabilities_of(test: object) -> frozenset[str]:
    """Tell which capabilities a test names."""
    found: frozenset[str] = getattr(test, _MARK, frozenset())
    return found


def refused(call: Arm) -> Arm:
    """Make the test that a call is refused as not supported.

    Args:
        call: makes the call; a transport may refuse it there or when it is awaited.
    """

    async def arm(broker: Broker) -> None:
        await must_fail(lambda: call(broker), FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)

    return arm


async def must_fail(
    call: Callable[[], Awaitable[object]], kind: FailureKind | None = None, reason: FailureReason | None = None
) -> TransportError:
    """Await a call that must fail in one way, and give the error.

    Args:
        call: makes the awaitable.
        kind: what the error must be for failover; any where it is left out.
        reason: and why; likewise.
    """
    try:
        answer = await call()
    except TransportError as error:
        told = error
    else:
        raise AssertionError(f"it returned {answer!r} where it had to fail as {_named(kind, reason)}")
    assert kind in (None, told.kind) and reason in (None, told.reason), (
        f"{told!r}: it had to fail as {_named(kind, reason)}"
    )
    return told


def _named(*how: FailureKind | FailureReason | None) -> str:
    return ", ".join(each.value for each in how if each) or "anything"


def _marked(marked: F, test: object, name: str) -> F:
    if name not in NAMES:
        raise TypeError(f"Capabilities has no field {name!r}")
    setattr(marked, _MARK, capabilities_of(test) | {name})
    return marked

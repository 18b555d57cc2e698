"""What stands behind a link on our side, how faults strike it, and how addresses and errors are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from servicebus_local.amqp import AmqpError, Delivery, Link, Outcome, Source, Target
from servicebus_local.broker import BrokerError
from servicebus_local.faults import FaultAction, FaultRule
from servicebus_local.front._shared import Shared
from servicebus_local.front._tokens import Grants

T = TypeVar("T")

_STATUS = {
    "amqp:not-found": 404,
    "amqp:not-allowed": 400,
    "amqp:unauthorized-access": 401,
    "amqp:not-implemented": 501,
    "amqp:resource-limit-exceeded": 403,
    "amqp:link:message-size-exceeded": 400,
    "amqp:precondition-failed": 412,
    "com.microsoft:argument-error": 400,
    "com.microsoft:argument-out-of-range": 400,
    "com.microsoft:auth-failed": 401,
    "com.microsoft:entity-already-exists": 409,
    "com.microsoft:entity-disabled": 403,
    "com.microsoft:message-lock-lost": 410,
    "com.microsoft:message-not-found": 404,
    "com.microsoft:server-busy": 503,
    "com.microsoft:session-cannot-be-locked": 409,
    "com.microsoft:session-lock-lost": 410,
    "com.microsoft:timeout": 408,
}

MANAGEMENT = "/$management"
CBS = "$cbs"

_SCHEME_AND_HOST = re.compile(r"^[a-z]+://[^/]*/?", re.IGNORECASE)


class Endpoint:
    """A link that was answered, or waits for its answer; what a kind of link has no use for does nothing."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        """Take a message of the peer's."""

    def on_disposition(self, delivery: Delivery, outcome: Outcome | None, settled: bool) -> None:
        """Take what the peer says about a message that was sent to it."""

    def on_flow(self, credit: int) -> None:
        """Take how much the peer lets through from now on."""
        self.pump()

    def pump(self) -> None:
        """Send what there is to send, as far as the peer lets it through."""

    def check(self) -> None:
        """Detach the link if what it belongs to is gone."""

    def end(self) -> None:
        """Release what the link held; it is detached."""


class Owner(Protocol):
    """A client, as its links see it."""

    @property
    def shared(self) -> Shared:
        """What it shares with all clients."""

    @property
    def grants(self) -> Grants:
        """What its tokens allow."""

    @property
    def endpoints(self) -> Mapping[Link, Endpoint]:
        """What stands behind each of its links."""

    @property
    def congested(self) -> bool:
        """Whether it does not read what it is sent."""

    def soon(self, action: Callable[[], None]) -> None:
        """Do something when the broker's present call is over."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, if the client is still there."""

    def add(self, endpoint: Endpoint) -> None:
        """Put something behind a link, in place of what was there."""

    def suffer(self, fault: FaultRule, link: Link | None) -> None:
        """Let a fault strike that is the same everywhere."""

    def detach(self, link: Link, error: AmqpError) -> None:
        """End a link with an error for the client; one that was not answered is refused."""

    def forget(self, link: Link) -> None:
        """Release what a link held."""


def done(
    client: Owner,
    link: Link,
    fault: FaultRule | None,
    do: Callable[[], T],
    answer: Callable[[T], None],
    refuse: Callable[[FaultRule], None],
) -> None:
    """Do what a client asks for over a link and answer it, or what the fault of this moment makes of both."""
    if fault is None:
        answer(do())
    elif fault.action is FaultAction.DELAY:
        applied = [do()] if fault.apply else []
        client.later(fault.seconds, lambda: answer(applied[0] if applied else do()))
    else:
        if fault.apply:
            do()
        if fault.action is FaultAction.ERROR:
            refuse(fault)
        else:
            client.suffer(fault, link)


def wire_error(error: BrokerError) -> AmqpError:
    """The error of a broker as AMQP has it."""
    return AmqpError(error.condition, error.description, {})


def fault_error(rule: FaultRule) -> AmqpError:
    """The error that a fault asks for."""
    return AmqpError(rule.condition, rule.description, {} if rule.info else None)


def status_of(condition: str) -> int:
    """The status code that goes with a condition in the answer of a node; 500 for unknown ones."""
    return _STATUS.get(condition, 500)


def path_of(terminus: Source | Target | object) -> str:
    """The path that a link's source or target names, without scheme, host and outer slashes; empty when none."""
    address = getattr(terminus, "address", None)
    if not isinstance(address, str):
        return ""
    return _SCHEME_AND_HOST.sub("", address).strip("/")


def managed_entity(path: str) -> str | None:
    """The entity whose management node a path names; None for any other path."""
    return path[: -len(MANAGEMENT)] if path.lower().endswith(MANAGEMENT) else None

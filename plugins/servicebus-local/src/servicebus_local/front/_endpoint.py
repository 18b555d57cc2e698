"""What all clients share, and what stands behind a link on our side.

Changes become durable in a beat, before anybody hears of them. Faults, addresses and errors are written here, too."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from servicebus_local.amqp import AmqpError, Delivery, Link, Outcome, Source, Target
from servicebus_local.broker import Broker, BrokerError, StoreError
from servicebus_local.faults import FaultAction, FaultPlan, FaultRule
from servicebus_local.front._tokens import Authorizer, Grants

_log = logging.getLogger(__name__)

_RETRY = 1.0  # s after which a store that failed is tried again


class Holder(Protocol):
    """A link that holds a session."""

    def check_session(self) -> None:
        """Detach it if the session's lock ran out."""


class Shared:
    """What all clients share.

    What clients ask for in one turn of the event loop is done in the broker at once; at the turn's end the broker makes
    all of it durable in one go, and only then the answers are written.
    """

    def __init__(
        self, broker: Broker, authorizer: Authorizer, faults: FaultPlan, container_id: str, max_message_bytes: int
    ) -> None:
        self.broker = broker
        self.authorizer = authorizer
        self.faults = faults
        self.container_id = container_id
        self.max_message_bytes = max_message_bytes
        self.clients: set[Owner] = set()
        self.holders: set[Holder] = set()
        self._writers: dict[Owner, None] = {}
        self._turn: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due: float | None = None

    def changed(self) -> None:
        """Note that the broker may have changed: it is made durable at the end of this turn."""
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._end_turn)

    def entities_changed(self) -> None:
        """Note that entities were made, changed or deleted: links to what is gone are detached."""
        for client in list(self.clients):
            client.check_entities()
        self.changed()

    def wants_to_write(self, client: Owner) -> None:
        """Let a client write at the end of this turn."""
        self._writers[client] = None
        self.changed()

    def end(self) -> bool:
        """Make everything durable; False if that fails: nothing may be confirmed then."""
        if self._turn is not None:
            self._end_turn()
        return self._turn is None

    def cancel(self) -> None:
        """Let no timer ring any more."""
        for handle in (self._timer, self._turn):
            if handle is not None:
                handle.cancel()

    def _end_turn(self) -> None:
        for holder in list(self.holders):
            holder.check_session()
        try:
            self.broker.flush()
        except StoreError as error:
            # Answers wait until it is durable.
            _log.error("can't write what clients sent, trying again: %s", error)
            self._turn = asyncio.get_running_loop().call_later(_RETRY, self._end_turn)
            return
        self._turn = None
        writers, self._writers = self._writers, {}
        for client in writers:
            client.write()
        self._arm()

    def _arm(self) -> None:
        """Have the broker look at its timers when the next of them is due."""
        due = self.broker.next_deadline()
        if due == self._due and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, due
        if due is not None:
            delay = max(0.0, due - time.time())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.broker.advance()
        self.changed()


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

    def write(self) -> None:
        """Write what the engine has to say; the broker's changes are durable by now."""

    def close(self) -> None:
        """Say good-bye."""

    def drop(self) -> None:
        """Reset the socket."""

    def check_entities(self) -> None:
        """Detach the links of entities that were deleted or take no part any more."""


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

"""What all clients share, each client, its socket and engine, and what stands behind a link on our side.

Changes become durable in a beat, before any client learns of them. Faults, addresses and errors are written here."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import time
from collections.abc import Callable
from typing import TypeVar

from servicebus_local.amqp import (
    AmqpError,
    Connection,
    ConnectionEnded,
    Delivery,
    Disposition,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Outcome,
    SessionEnded,
    Source,
    Target,
    Transfer,
)
from servicebus_local.broker import Broker, BrokerError, StoreError
from servicebus_local.faults import FaultAction, FaultPlan, FaultPoint, FaultRule
from servicebus_local.front._tokens import Authorizer, Grants

_log = logging.getLogger(__name__)

_RETRY = 1.0  # s after which a store that failed is tried again

HANDSHAKE = 60.0
"""Seconds in which a client must have opened its connection."""
LINGER = 10.0
"""Seconds in which a client must have taken our last words."""

_HIGH_WATER = 1024 * 1024  # bytes that may wait for a client that does not read
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time at all


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
        self.clients: set[Client] = set()
        self.checks: dict[Callable[[], None], None] = {}
        """Detach each link whose session's lock ran out."""
        self._writers: dict[Client, None] = {}
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

    def wants_to_write(self, client: Client) -> None:
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
        for check in list(self.checks):
            check()
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


class Client(asyncio.Protocol):
    """A socket with an engine behind it; ``attach`` answers the links that it wants."""

    def __init__(self, shared: Shared, attach: Callable[[Client, Link], None]) -> None:
        self.shared = shared
        self._attach = attach
        self.grants = Grants(shared.authorizer)
        self.endpoints: dict[Link, Endpoint] = {}
        self.congested = False
        self._loop = asyncio.get_running_loop()
        self._engine = Connection(container_id=shared.container_id)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._leaving = False
        self._mute = False

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # what asyncio makes of a TCP socket
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_WATER)
        self.shared.clients.add(self)
        # A peer that never opens must not keep a socket forever, however often it says something.
        self._patience = self._loop.call_later(HANDSHAKE, self._check_handshake)

    def data_received(self, data: bytes) -> None:
        if not self._mute:
            fault = self.shared.faults.strike(FaultPoint.CONNECTION)
            if fault is not None:
                self.suffer(fault, None)
        if self._mute or self._transport is None or self._transport.is_closing():
            return
        self._handle(self._engine.receive_data(data, self._loop.time()))

    def eof_received(self) -> bool:
        self._handle(self._engine.receive_eof())
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.shared.clients.discard(self)
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._forget_all()
        self.shared.changed()

    def pause_writing(self) -> None:
        # A client that does not read is sent nothing more, and can't ask for more either.
        self.congested = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.congested = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        for endpoint in list(self.endpoints.values()):
            endpoint.pump()
        self._after()

    def write(self) -> None:
        """Write what the engine has to say; the broker's changes are durable by now."""
        data = self._engine.data_to_send()
        transport = self._transport
        if transport is None:
            return
        if data and not self._mute:
            transport.write(data)
        if self._engine.closed:
            self._leave(transport)

    def drop(self) -> None:
        if self._transport is None:
            return
        own = self._transport.get_extra_info("socket")
        if own is not None and not self._transport.is_closing():
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def close(self) -> None:
        self._engine.close(AmqpError("amqp:connection:forced", "the server is stopping", {}))
        self.write()
        if self._transport is not None:
            self._leave(self._transport)

    def _leave(self, transport: asyncio.Transport) -> None:
        transport.close()
        if not self._leaving:
            self._leaving = True
            # A peer that does not read keeps nothing open.
            if self._patience is not None:
                self._patience.cancel()
            self._patience = self._loop.call_later(LINGER, transport.abort)

    def _after(self) -> None:
        self.shared.wants_to_write(self)
        due = self._engine.next_timer
        if due is None or (self._timer is not None and self._timer.when() <= due):
            # A timer that rings too early is set anew when it does: most of the time the due time only moves away.
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._handle(self._engine.handle_timer(self._loop.time()))

    def _check_handshake(self) -> None:
        if self._engine.remote is None and not self._mute:
            self.drop()

    # Helpers of the links.

    def soon(self, action: Callable[[], None]) -> None:
        """Do something when the broker's present call is over."""
        self._loop.call_soon(self._act, action)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, if the client is still there."""
        self._loop.call_later(seconds, self._act, action)

    def _act(self, action: Callable[[], None]) -> None:
        if self._transport is not None and not self._engine.closed:
            action()
            self._after()

    def add(self, endpoint: Endpoint) -> None:
        """Put something behind a link, in place of what was there."""
        self.endpoints[endpoint.link] = endpoint

    def suffer(self, fault: FaultRule, link: Link | None) -> None:
        """Let a fault strike that is the same everywhere."""
        if fault.action is FaultAction.DROP:
            self.drop()
        elif fault.action is FaultAction.CLOSE:
            self._engine.close(fault_error(fault))
            self._after()
        elif fault.action is FaultAction.DETACH and link is not None:
            self.detach(link, fault_error(fault))
        elif fault.action is FaultAction.SILENCE and link is None:
            self._mute = True

    def detach(self, link: Link, error: AmqpError) -> None:
        """End a link with an error for the client; one that was not answered is refused."""
        self.forget(link)
        link.detach(error)
        self._after()

    def forget(self, link: Link) -> None:
        endpoint = self.endpoints.pop(link, None)
        if endpoint is not None:
            endpoint.end()

    def check_entities(self) -> None:
        """Detach the links of entities that were deleted or take no part any more."""
        for endpoint in list(self.endpoints.values()):
            endpoint.check()

    # Events.

    def _handle(self, events: list[Event]) -> None:
        try:
            for event in events:
                self._handle_one(event)
        except Exception as error:
            # A defect of ours costs this client its connection, and other clients nothing.
            self._loop.call_exception_handler({"message": "a client's request failed", "exception": error})
            self._engine.close(AmqpError("amqp:internal-error", "the server failed; its log says more", {}))
            self._forget_all()
        self._after()

    def _handle_one(self, event: Event) -> None:
        if isinstance(event, Transfer):
            self._at(event.link).on_transfer(event.delivery, event.payload)
        elif isinstance(event, Disposition):
            self._at(event.delivery.link).on_disposition(event.delivery, event.outcome, event.settled)
        elif isinstance(event, LinkFlow):
            self._at(event.link).on_flow(event.credit)
        elif isinstance(event, LinkAttached):
            self._attach(self, event.link)
        elif isinstance(event, LinkDetached):
            self.forget(event.link)
        elif isinstance(event, SessionEnded):
            for link in [link for link in self.endpoints if link.session is event.session]:
                self.forget(link)
        elif isinstance(event, ConnectionEnded):
            self._forget_all()

    def _at(self, link: Link) -> Endpoint:
        """What is behind a link; behind one that was not answered is what does nothing."""
        return self.endpoints.get(link) or Endpoint(link)

    def _forget_all(self) -> None:
        for link in list(self.endpoints):
            self.forget(link)


def done(
    client: Client,
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
    return AmqpError(error.condition, error.description, {})


def fault_error(rule: FaultRule) -> AmqpError:
    return AmqpError(rule.condition, rule.description, {} if rule.info else None)


def path_of(terminus: Source | Target | object) -> str:
    """The path that a link's source or target names, without scheme, host and outer slashes; empty when none."""
    address = getattr(terminus, "address", None)
    if not isinstance(address, str):
        return ""
    return _SCHEME_AND_HOST.sub("", address).strip("/")


def managed_entity(path: str) -> str | None:
    """The entity whose management node a path names; None for any other path."""
    return path[: -len(MANAGEMENT)] if path.lower().endswith(MANAGEMENT) else None

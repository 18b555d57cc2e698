"""Links over which clients send to an entity, or receive from a queue, a subscription or a dead-letter queue.

A receiver that wants a session asks for it by the filter ``com.microsoft:session-filter`` of the link's source: it
holds the session's id, or nothing for the next one that is free, and its answer holds the id in the same form (Service
Bus documentation: "AMQP 1.0 in Azure Service Bus: protocol guide", sessions).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from servicebus_local.amqp import (
    Accepted,
    AmqpDecodeError,
    AmqpError,
    Delivery,
    Described,
    Link,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
    Symbol,
)
from servicebus_local.amqp import Source as Terminus
from servicebus_local.broker import BrokerError, SessionLock, Source, Stored
from servicebus_local.faults import FaultPoint
from servicebus_local.front import _messages
from servicebus_local.front._endpoint import Client, Endpoint, done, fault_error, wire_error

_SETTLED = 1  # AMQP 1.0 part 2.8.2: the sender sends all deliveries settled
_AT_ONCE = 200
_TURN_BYTES = 256 * 1024
"""After so much other clients have their turn."""
_REASON, _DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"

_CREDIT = 1000
_TOO_MUCH = 16 * 1024 * 1024
"""Bytes beyond the limit after which a message is not even read to its end."""

_NAME = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_DEFAULT_WAIT = 60.0
_TICKS_PER_SECOND = 10_000_000
_TICKS_OF_1970 = 621_355_968_000_000_000


class ReceivingLink(Endpoint):
    def __init__(self, client: Client, link: Link, path: str, source: Source, session: SessionLock | None) -> None:
        super().__init__(link)
        self.path = path
        self.source = source
        self.session = session
        self._client = client
        self._settled = link.snd_settle_mode == _SETTLED
        self._cancel: Callable[[], None] = source.on_ready(self._on_ready)
        self._at_once = 16
        self._asked = False  # for messages, and none came since
        self._pumps_soon = False
        if session is not None:
            client.shared.checks[self.check_session] = None

    def on_flow(self, credit: int) -> None:
        """Take a grant of credit, which ends the asking before, or a drain, which asks once more without waiting."""
        if not self.link.drain:
            self._end_asking()
        self._asked = self._asked or credit > 0
        self.pump()

    def _end_asking(self) -> None:
        if self._asked:
            self._asked = False
            self.source.count_empty_receive()

    def pump(self) -> None:
        """Send what there is, as far as the credit goes; answer a drain when there is nothing more."""
        client, link = self._client, self.link
        if link.state != "open" or self._lost():
            return
        sent = 0
        client.shared.changed()
        try:
            while link.credit > 0:
                if client.congested or sent >= _TURN_BYTES:
                    # When the client reads on, it comes back here by itself.
                    if not client.congested:
                        self._pump_soon()
                    return
                count = min(link.credit, self._at_once)
                found = self.source.take(count, delete=self._settled, session=self.session)
                size = sum(self._send(message) for message in found)
                sent += size
                if len(found) < count:
                    break
                self._at_once = max(1, min(_AT_ONCE, _TURN_BYTES * count // max(1, size)))
        except BrokerError as error:
            client.detach(link, wire_error(error))
            return
        if link.drain:
            self._end_asking()
            link.drained()

    def _send(self, message: Stored) -> int:
        token = message.lock_token
        tag = token.bytes_le if token is not None else message.sequence_number.to_bytes(16, "big")
        payload = _messages.outgoing(message)
        delivery = self.link.send(payload, tag=tag, settled=self._settled)
        delivery.user_data = token
        self._asked = False
        return len(payload)

    def _on_ready(self) -> None:
        # The broker is in the middle of another call.
        self._pump_soon()

    def _pump_soon(self) -> None:
        if not self._pumps_soon:
            self._pumps_soon = True
            self._client.soon(self._pump_now)

    def _pump_now(self) -> None:
        self._pumps_soon = False
        self.pump()

    def check(self) -> None:
        """Detach the link if nothing can be received over it any more."""
        if self._lost():
            return
        try:
            source = self._client.shared.broker.resolve_receive(self.path)
            if source is not self.source:
                raise BrokerError("amqp:not-found", f"'{self.path}' does not exist any more.")
            if not source.settings.receivable:
                raise BrokerError("com.microsoft:entity-disabled", f"'{self.path}' is disabled for receiving.")
        except BrokerError as error:
            self._client.detach(self.link, wire_error(error))

    def check_session(self) -> None:
        """Detach the link if the lock of its session ran out."""
        if not self.source.deleted:
            self._lost()

    def _lost(self) -> bool:
        if self.session is None or not self.session.lost or self.source.deleted:
            return False
        text = f"The lock of session '{self.session.session_id}' of '{self.path}' is lost."
        self._client.detach(self.link, AmqpError("com.microsoft:session-lock-lost", text, {}))
        return True

    def on_disposition(self, delivery: Delivery, outcome: Outcome | None, settled: bool) -> None:
        if isinstance(outcome, Received) or (outcome is None and not settled):
            # How far it has got settles nothing.
            return
        done(
            self._client,
            self.link,
            self._client.shared.faults.strike(FaultPoint.SETTLE, self.path),
            lambda: self._apply(delivery, outcome),
            lambda error: self._answer(delivery, outcome, error),
            lambda fault: delivery.settle(Rejected(fault_error(fault))),
        )

    def _answer(self, delivery: Delivery, outcome: Outcome | None, error: AmqpError | None) -> None:
        if error is not None:
            delivery.settle(Rejected(error))
        else:
            # What was done is echoed; clients would take an error in it for a refusal.
            delivery.settle(Rejected() if isinstance(outcome, Rejected) else outcome)

    def _apply(self, delivery: Delivery, outcome: Outcome | None) -> AmqpError | None:
        token = delivery.user_data
        if not isinstance(token, UUID):
            return None
        self._client.shared.changed()
        try:
            settle(self.source, token, outcome)
        except BrokerError as error:
            return wire_error(error)
        return None

    def end(self) -> None:
        """Take nothing more; a session is released, single messages stay locked until their locks expire."""
        self._cancel()
        if self.session is None:
            return
        self._client.shared.checks.pop(self.check_session, None)
        self._client.shared.changed()
        # Where it was lost, or its entity was deleted, there is nothing to release.
        with contextlib.suppress(BrokerError):
            self.source.release_session(self.session)


def settle(source: Source, token: UUID, outcome: Outcome | None) -> None:
    """Settle a message by an outcome of AMQP: accepted completes, released releases without counting, modified
    abandons, or defers where the client says that it can't be delivered here, rejected dead-letters. Raises
    `BrokerError`."""
    if isinstance(outcome, Accepted):
        source.complete(token)
    elif isinstance(outcome, Released):
        source.release(token)
    elif isinstance(outcome, Modified):
        properties = _messages.plain_properties(outcome.annotations)
        if outcome.undeliverable_here:
            source.defer(token, properties)
        else:
            source.abandon(token, properties)
    elif isinstance(outcome, Rejected):
        error = outcome.error
        info = _messages.plain_properties(None if error is None else error.info)
        reason = info.pop(_REASON, None)
        description = info.pop(_DESCRIPTION, None if error is None else error.description)
        source.dead_letter(
            token,
            reason if isinstance(reason, str) else None,
            description if isinstance(description, str) else None,
            info,
        )
    else:
        raise BrokerError("amqp:not-implemented", f"the outcome {type(outcome).__name__} settles nothing here")


class SendingLink(Endpoint):
    """One of them; ``limit`` is in bytes of the largest message, or batch, that was announced."""

    def __init__(self, client: Client, link: Link, path: str, limit: int) -> None:
        super().__init__(link)
        self.path = path
        self._client = client
        self._limit = limit
        # A message that is a little too large is refused, and costs the client neither its link nor the others on it.
        link.max_incoming_size = limit + _TOO_MUCH
        link.grant(_CREDIT)

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)
        done(
            self._client,
            self.link,
            self._client.shared.faults.strike(FaultPoint.SEND, self.path),
            lambda: self._store(delivery, payload),
            lambda error: delivery.settle(Accepted() if error is None else Rejected(error)),
            lambda fault: delivery.settle(Rejected(fault_error(fault))),
        )

    def check(self) -> None:
        """Detach the link if nothing may be sent over it any more."""
        try:
            self._client.shared.broker.resolve_send(self.path)
        except BrokerError as error:
            self._client.detach(self.link, wire_error(error))

    def _store(self, delivery: Delivery, payload: bytes) -> AmqpError | None:
        if len(payload) > self._limit:
            text = f"{self.path}: the message or batch has {len(payload)} bytes, and {self._limit} are allowed."
            return AmqpError("amqp:link:message-size-exceeded", text, {})
        try:
            self._client.shared.broker.send(self.path, _messages.incoming(payload, delivery.message_format))
        except AmqpDecodeError as error:
            return AmqpError("amqp:decode-error", f"{self.path}: {error}", {})
        except BrokerError as error:
            return wire_error(error)
        finally:
            self._client.shared.changed()
        return None


@dataclass(frozen=True, slots=True)
class SessionWish:
    """What a link asks for: ``session_id`` None means any; ``wait`` in seconds."""

    session_id: str | None
    wait: float


def session_wish(link: Link) -> SessionWish | None:
    """Read the filter of a link; None when it asks for no session."""
    source = link.source
    filters = source.filter if source is not None else None
    if not filters:
        return None
    for name, value in filters.items():
        if str(name) == _NAME:
            asked = value.value if isinstance(value, Described) else value
            timeout = (link.properties or {}).get(_TIMEOUT)
            wait = timeout / 1000 if isinstance(timeout, int) else _DEFAULT_WAIT
            return SessionWish(asked if isinstance(asked, str) else None, wait)
    return None


def answered(source: Terminus, session_id: str) -> Terminus:
    """The source as the answer shows it: with the session that was locked."""
    filters: dict[Any, Any] = {}
    for name, value in (source.filter or {}).items():
        if str(name) == _NAME:
            value = Described(value.descriptor, session_id) if isinstance(value, Described) else session_id
        filters[name] = value
    return replace(source, filter=filters)


def locked_until_property(locked_until: float) -> dict[Any, Any]:
    """The link property for the end of a lock, from Unix seconds to ticks of 100 ns since the year 1."""
    return {Symbol("com.microsoft:locked-until-utc"): _TICKS_OF_1970 + int(locked_until * _TICKS_PER_SECOND)}

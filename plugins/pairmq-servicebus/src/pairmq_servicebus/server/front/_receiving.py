"""Links over which clients receive from a queue, a subscription or a dead-letter queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Literal
from uuid import UUID

from pairmq_servicebus.server.amqp import (
    Accepted,
    AmqpError,
    Delivery,
    Link,
    Modified,
    Outcome,
    Received,
    Rejected,
    Released,
)
from pairmq_servicebus.server.broker import BrokerError, SessionLock, Source, Stored
from pairmq_servicebus.server.faults import FaultAction, FaultPoint, FaultRule
from pairmq_servicebus.server.front import _errors, _messages
from pairmq_servicebus.server.front._endpoint import Endpoint
from pairmq_servicebus.server.front._owner import Owner

_SETTLED = 1  # AMQP 1.0 part 2.8.2: the sender sends all deliveries settled
_AT_ONCE = 200
_TURN_BYTES = 256 * 1024
"""After so much other clients have their turn."""
_REASON, _DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"


class ReceivingLink(Endpoint):
    """One of them.

    Args:
        client: whose link it is.
        link: answered already.
        path: of the source.
        source: what it reads.
        session: that it has locked; None where the source has no sessions.
    """

    def __init__(self, client: Owner, link: Link, path: str, source: Source, session: SessionLock | None) -> None:
        super().__init__(link)
        self.path = path
        self.source = source
        self.session = session
        self._client = client
        self._settled = link.snd_settle_mode == _SETTLED
        self._mode: Literal["receive-and-delete", "peek-lock"] = "receive-and-delete" if self._settled else "peek-lock"
        self._cancel: Callable[[], None] = source.on_ready(self._on_ready)
        self._at_once = 16
        self._asked = False  # for messages, and none came since
        self._pumps_soon = False
        if session is not None:
            client.shared.holders.add(self)

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
                found = self.source.take(count, mode=self._mode, session=self.session)
                size = sum(self._send(message) for message in found)
                sent += size
                if len(found) < count:
                    break
                self._at_once = max(1, min(_AT_ONCE, _TURN_BYTES * count // max(1, size)))
        except BrokerError as error:
            client.detach(link, _errors.wire_error(error))
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
        # The broker is in the middle of somebody else's call.
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
            self._client.detach(self.link, _errors.wire_error(error))

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
        """Settle a message as the client wants, and say what came of it."""
        if isinstance(outcome, Received) or (outcome is None and not settled):
            # How far it has got settles nothing.
            return
        fault = self._client.shared.faults.strike(FaultPoint.SETTLE, self.path)
        if fault is None:
            self._answer(delivery, outcome, self._apply(delivery, outcome))
        else:
            self._fail(delivery, outcome, fault)

    def _fail(self, delivery: Delivery, outcome: Outcome | None, fault: FaultRule) -> None:
        if fault.action is FaultAction.DELAY and not fault.apply:
            self._client.later(fault.seconds, lambda: self._answer(delivery, outcome, self._apply(delivery, outcome)))
            return
        error = self._apply(delivery, outcome) if fault.apply else None
        if fault.action is FaultAction.DELAY:
            self._client.later(fault.seconds, lambda: self._answer(delivery, outcome, error))
        elif fault.action is FaultAction.ERROR:
            delivery.settle(Rejected(_errors.fault_error(fault)))
        else:
            self._client.suffer(fault, self.link)

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
            return _errors.wire_error(error)
        return None

    def end(self) -> None:
        """Take nothing more; a session is given back, single messages stay locked until their locks end."""
        self._cancel()
        if self.session is None:
            return
        self._client.shared.holders.discard(self)
        self._client.shared.changed()
        # Where it was lost, or its entity was deleted, there is nothing to give back.
        with contextlib.suppress(BrokerError):
            self.source.release_session(self.session)


def settle(source: Source, token: UUID, outcome: Outcome | None) -> None:
    """Settle a message by an outcome of AMQP.

    Args:
        source: where it is locked.
        token: its lock.
        outcome: accepted completes, released gives back without counting, modified abandons, or defers where the
            client says that it can't be delivered here, rejected dead-letters.

    Raises:
        BrokerError: the lock is lost, or the outcome means nothing.
    """
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

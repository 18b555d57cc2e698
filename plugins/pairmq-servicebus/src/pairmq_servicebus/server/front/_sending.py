"""Links over which clients send to a queue or topic."""

from __future__ import annotations

from pairmq_servicebus.server.amqp import Accepted, AmqpDecodeError, AmqpError, Delivery, Link, Rejected
from pairmq_servicebus.server.broker import BrokerError
from pairmq_servicebus.server.faults import FaultAction, FaultPoint, FaultRule
from pairmq_servicebus.server.front import _errors, _messages
from pairmq_servicebus.server.front._endpoint import Endpoint
from pairmq_servicebus.server.front._owner import Owner

_CREDIT = 1000
_TOO_MUCH = 16 * 1024 * 1024
"""Bytes beyond the limit after which a message is not even read to its end."""


class SendingLink(Endpoint):
    """One of them.

    Args:
        client: whose link it is.
        link: answered already.
        path: of the entity.
        limit: bytes of the largest message, or batch, that was announced.
    """

    def __init__(self, client: Owner, link: Link, path: str, limit: int) -> None:
        super().__init__(link)
        self.path = path
        self._client = client
        self._limit = limit
        # A message that is a little too large is refused, and costs the client neither its link nor the others on it.
        link.max_incoming_size = limit + _TOO_MUCH
        link.grant(_CREDIT)

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        """Take a message, or a batch of them."""
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)
        fault = self._client.shared.faults.strike(FaultPoint.SEND, self.path)
        if fault is None:
            self._take(delivery, payload)
        else:
            self._fail(delivery, payload, fault)

    def _take(self, delivery: Delivery, payload: bytes) -> None:
        self._answer(delivery, self._store(delivery, payload))

    def _answer(self, delivery: Delivery, error: AmqpError | None) -> None:
        delivery.settle(Accepted() if error is None else Rejected(error))

    def check(self) -> None:
        """Detach the link if nothing may be sent over it any more."""
        try:
            if self._client.shared.broker.resolve_send(self.path).disabled:
                raise BrokerError("com.microsoft:entity-disabled", f"'{self.path}' is disabled for sending.")
        except BrokerError as error:
            self._client.detach(self.link, _errors.wire_error(error))

    def _store(self, delivery: Delivery, payload: bytes) -> AmqpError | None:
        if len(payload) > self._limit:
            text = f"{self.path}: the message or batch has {len(payload)} bytes, and {self._limit} are allowed."
            return AmqpError("amqp:link:message-size-exceeded", text, {})
        try:
            self._client.shared.broker.send(self.path, _messages.incoming(payload, delivery.message_format))
        except AmqpDecodeError as error:
            return AmqpError("amqp:decode-error", f"{self.path}: {error}", {})
        except BrokerError as error:
            return _errors.wire_error(error)
        finally:
            self._client.shared.changed()
        return None

    def _fail(self, delivery: Delivery, payload: bytes, fault: FaultRule) -> None:
        if fault.action is FaultAction.DELAY and not fault.apply:
            self._client.later(fault.seconds, lambda: self._take(delivery, payload))
            return
        error = self._store(delivery, payload) if fault.apply else None
        if fault.action is FaultAction.DELAY:
            self._client.later(fault.seconds, lambda: self._answer(delivery, error))
        elif fault.action is FaultAction.ERROR:
            delivery.settle(Rejected(_errors.fault_error(fault)))
        else:
            self._client.suffer(fault, self.link)

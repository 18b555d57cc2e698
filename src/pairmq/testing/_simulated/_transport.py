"""One connection to a simulated broker."""

from __future__ import annotations

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing._simulated._admin import SimulatedAdmin
from pairmq.testing._simulated._broker import Broker
from pairmq.testing._simulated._faults import Operation
from pairmq.testing._simulated._receiver import SimulatedReceiver
from pairmq.testing._simulated._sender import SimulatedSender
from pairmq.transport import Admin, Capabilities, Endpoint, Receiver, Sender, Transport


class SimulatedTransport(Transport):
    """A connection to a simulated broker."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(Endpoint(broker.name, ("simulated", broker.name), f"simulated://{broker.name}"))
        self.broker = broker

    @property
    def capabilities(self) -> Capabilities:
        return self.broker.capabilities

    @property
    def admin(self) -> Admin:
        return SimulatedAdmin(self)

    def sender(self, entity: Entity) -> Sender:
        return SimulatedSender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return SimulatedReceiver(self, source)

    def measure(self, message: Message) -> int:
        return len(message.body) + sum(len(k) + len(str(v)) for k, v in message.application_properties.items())

    async def _close(self) -> None:
        pass

    async def act(self, operation: Operation, entity: Entity | None = None, *, count: bool = True) -> bool:
        """One operation over this connection."""
        self._check()
        lost = await self.broker.act(operation, entity, count=count)
        self._check()
        return lost

    def _check(self) -> None:
        if self.ended:
            raise TransportError("the connection is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)

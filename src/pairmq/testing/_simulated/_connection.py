"""What the senders, receivers and administration of one simulated connection need of it."""

from __future__ import annotations

from typing import Protocol

from pairmq.model import Entity, Message
from pairmq.testing._simulated._broker import Broker
from pairmq.testing._simulated._faults import Operation


class Connection(Protocol):
    """A connection to a simulated broker."""

    broker: Broker

    async def act(self, operation: Operation, entity: Entity | None = None, *, count: bool = True) -> bool:
        """One operation over it; tells whether its confirmation will be lost."""

    def check_message(self, entity: Entity, message: Message) -> None:
        """Refuse what the broker could never take."""

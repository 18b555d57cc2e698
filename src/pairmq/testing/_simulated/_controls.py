"""A simulated broker as a test sees it: how it is made to fail, what it holds, and its connections."""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.model import Entity, EntityKind, Message
from pairmq.testing._simulated._broker import Broker
from pairmq.testing._simulated._faults import Fault, Operation, Strike
from pairmq.testing._simulated._transport import SimulatedTransport


class SimulatedBroker(Broker):
    """One broker process, with its data, and its faults.

    Args:
        name: in its endpoint.
        latency: seconds that each operation takes.
        capabilities: what its transports claim.
    """

    def transport(self) -> SimulatedTransport:
        """A new connection to it."""
        return SimulatedTransport(self)

    def fail(
        self,
        fault: Fault,
        operations: Operation = Operation.ALL,
        *,
        entities: Sequence[str] | None = None,
        times: int | None = None,
        delay: float = 1.0,
    ) -> None:
        """Add a fault; the first one that matches an operation strikes.

        Args:
            fault: what happens.
            operations: what it strikes.
            entities: the paths that it strikes; None for all, and for operations on the broker itself.
            times: how often it strikes; None until `heal`.
            delay: seconds that SLOW takes.
        """
        names = None if entities is None else frozenset(entities)
        strike = Strike(fault, operations, names, delay, [-1 if times is None else times])
        self._strikes.append(strike)
        self.notify()

    def heal(self) -> None:
        """End all faults; data is as it was."""
        self._strikes.clear()
        self.notify()

    def messages(self, path: str, kind: str = "queue") -> list[Message]:
        """What a queue holds, oldest first, locked or not."""
        return [stored.message for stored in self.queues[Entity(path, EntityKind(kind))].stored.values()]

    def dead_letters(self, path: str) -> list[tuple[Message, str | None]]:
        """What a queue's dead-letter queue holds, with the reasons."""
        return [(stored.message, stored.reason) for stored in self.queues[Entity(path)].dead.values()]

"""Sending to a simulated broker."""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.testing._simulated._connection import Connection
from pairmq.testing._simulated._faults import Operation, lost_connection
from pairmq.transport import Sender


class SimulatedSender(Sender):
    """Sends to one entity."""

    def __init__(self, connection: Connection, entity: Entity) -> None:
        self._connection = connection
        self._entity = entity
        self._closed = False

    async def send(self, message: Message) -> None:
        lost = await self._act()
        self._store(message)
        if lost:
            raise lost_connection()

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        try:
            lost = await self._act()
        except TransportError as error:
            return [error] * len(messages)
        results: list[TransportError | None] = []
        for message in messages:
            try:
                self._store(message)
                results.append(lost_connection() if lost else None)
            except TransportError as error:
                results.append(error)
        return results

    async def close(self) -> None:
        self._closed = True

    async def _act(self) -> bool:
        self._check()
        lost = await self._connection.act(Operation.SEND, self._entity)
        self._check()
        return lost

    def _check(self) -> None:
        if self._closed:
            raise TransportError("the sender is closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)

    def _store(self, message: Message) -> None:
        self._connection.check_message(self._entity, message)
        self._connection.broker.store(self._entity, message)

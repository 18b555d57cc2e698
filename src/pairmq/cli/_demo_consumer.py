"""The demo's consumer: takes everything out of the primary, and tells the account what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pairmq.cli._common import within
from pairmq.cli._demo_scene import Scene
from pairmq.cli._demo_tally import Tally
from pairmq.cli._journal_kept import journal_package
from pairmq.model import Delivery, Entity, Source, TransportError
from pairmq.transport import Receiver, Transport

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

_PREFETCH = 200
_POLL = 2.0  # s of one long poll
_LIMIT = 5.0  # s of one operation


class Consumer:
    """Reads all entities at the same time, through every outage.

    Args:
        transport: to the primary; its own, as a consumer is another program.
        entities: what to read.
        tally: the account of all messages.
        scene: shows how many came.
        journal: takes what is settled; None for none.
        pair: its name in the journal.
    """

    def __init__(
        self,
        transport: Transport,
        entities: Sequence[Entity],
        tally: Tally,
        scene: Scene,
        *,
        journal: Journal | None = None,
        pair: str = "",
    ) -> None:
        self.transport = transport
        self._journal = journal
        self._pair = pair
        self._entities = entities
        self._tally = tally
        self._scene = scene
        self._tasks: list[asyncio.Task[None]] = []
        self._uncompleted: set[tuple[Entity, str]] = set()  # counted, and still in the broker

    def start(self) -> None:
        """Begin to read."""
        self._tasks = [asyncio.create_task(self._consume(entity)) for entity in self._entities]

    async def has_all(self) -> bool | None:
        """Whether nothing is left in the primary; None if it does not answer."""
        admin = self.transport.admin
        try:
            counts = [await within(_POLL, admin.counts(Source(entity))) for entity in self._entities]
        except TransportError:
            return None
        return not any(one.pending for one in counts)

    async def stop(self) -> None:
        """Read no more."""
        await cancel(self._tasks)

    async def _consume(self, entity: Entity) -> None:
        receiver = self.transport.receiver(Source(entity))
        if self._journal is not None:
            journalled = journal_package().journal_deliveries
            receiver = journalled(receiver, self._journal, source=Source(entity), pair=self._pair)
        while True:
            try:
                deliveries = await within(_POLL + _LIMIT, receiver.receive(_PREFETCH, _POLL))
                await self._take(receiver, entity, deliveries)
            except TransportError:
                await asyncio.sleep(0.2)

    async def _take(self, receiver: Receiver, entity: Entity, deliveries: Sequence[Delivery]) -> None:
        ours = []
        for delivery in deliveries:
            index = self._tally.index(delivery.message.message_id)
            if index is None:
                await receiver.abandon(delivery)  # somebody else's
                continue
            ours.append(delivery)
            copy = _copy(entity, delivery)
            # Without a sequence number only the broker's count tells the same copy from another one.
            numbered, again = bool(delivery.sequence_number), delivery.delivery_count > 1
            if copy in self._uncompleted and (numbered or again):  # completing it had failed
                continue
            # Until completing it is confirmed, it may be delivered again.
            self._uncompleted.add(copy)
            # A killed broker may forget even a completion that it confirmed, and then says that it delivers again.
            self._tally.arrived(index, again=again and not numbered)
            self._scene.entities[entity].delivered += 1
        if not ours:
            return
        results = await within(_LIMIT, receiver.complete_batch(ours))
        for delivery, result in zip(ours, results, strict=True):
            if result is None:
                self._uncompleted.discard(_copy(entity, delivery))


def _copy(entity: Entity, delivery: Delivery) -> tuple[Entity, str]:
    """What names one copy of a message; not all brokers number theirs."""
    return entity, delivery.sequence_number or f"id {delivery.message.message_id}"


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)

"""Reading from a simulated broker under peek-lock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing._simulated._broker import Stored
from pairmq.testing._simulated._connection import Connection
from pairmq.testing._simulated._faults import Operation, lost_connection
from pairmq.transport import Receiver


class SimulatedReceiver(Receiver):
    """Reads one source."""

    def __init__(self, connection: Connection, source: Source) -> None:
        self._connection = connection
        self._source = source
        self._holding: set[int] = set()

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        await self._connection.act(Operation.RECEIVE, self._source.entity)
        while True:
            found = self._take(max_messages)
            if found or loop.time() >= ends_at:
                return found
            await self._connection.broker.changed(min(ends_at, self._next_instant()))
            # The faults that came meanwhile strike a poll under way too; it is still one receive.
            await self._connection.act(Operation.RECEIVE, self._source.entity, count=False)

    async def complete(self, delivery: Delivery) -> None:
        lost = await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, messages = self._locked(delivery)
        del messages[stored.number]
        self._holding.discard(stored.number)
        self._settled()
        if lost:
            raise lost_connection()

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        results: list[TransportError | None] = []
        for delivery in deliveries:
            try:
                await self.complete(delivery)
                results.append(None)
            except TransportError as error:
                results.append(error)
        return results

    async def abandon(self, delivery: Delivery) -> None:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, _ = self._locked(delivery)
        self._release(stored)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, messages = self._locked(delivery)
        queue, _ = self._connection.broker.source(self._source)
        del messages[stored.number]
        self._holding.discard(stored.number)
        queue.dead[stored.number] = replace(stored, locked_until=None, reason=reason, description=description)
        self._settled()

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        await self._connection.act(Operation.SETTLE, self._source.entity)
        stored, _ = self._locked(delivery)
        stored.locked_until = self._lock_ends_at()
        return replace(delivery, locked_until=_instant(stored.locked_until))

    async def close(self) -> None:
        try:
            _, messages = self._connection.broker.source(self._source)
        except TransportError:
            return
        for number in tuple(self._holding):
            if number in messages and messages[number].holder is self:  # or its lock ended, and another one has it
                self._release(messages[number])
        self._holding.clear()

    def _take(self, most: int) -> list[Delivery]:
        now = asyncio.get_running_loop().time()
        queue, messages = self._connection.broker.source(self._source)
        found = []
        if queue.properties.single_consumer and any(
            (stored.locked_until or 0.0) > now and stored.holder is not self for stored in messages.values()
        ):
            return []
        for stored in list(messages.values()):
            if stored.visible_at > now or (stored.locked_until is not None and stored.locked_until > now):
                continue
            if not self._source.dead_letter and stored.expires_at is not None and stored.expires_at <= now:
                del messages[stored.number]
                if queue.properties.dead_letter_on_expiration:
                    queue.dead[stored.number] = replace(stored, reason="TTLExpiredException")
                continue
            stored.deliveries += 1
            stored.locked_until = self._lock_ends_at()
            stored.holder = self
            self._holding.add(stored.number)
            found.append(
                Delivery(
                    message=stored.message,
                    lock_token=(stored.number, stored.deliveries),
                    delivery_count=stored.deliveries,
                    sequence_number=str(stored.number),
                    enqueued_at=_instant(stored.enqueued_at),
                    locked_until=_instant(stored.locked_until),
                    dead_letter_reason=stored.reason,
                    dead_letter_description=stored.description,
                )
            )
            if len(found) == most:
                break
        return found

    def _next_instant(self) -> float:
        _, messages = self._connection.broker.source(self._source)
        now = asyncio.get_running_loop().time()
        instants = (max(s.visible_at, s.locked_until or 0.0) for s in messages.values())
        return min((at for at in instants if at > now), default=float("inf"))

    def _locked(self, delivery: Delivery) -> tuple[Stored, dict[int, Stored]]:
        _, messages = self._connection.broker.source(self._source)
        number, count = cast("tuple[int, int]", delivery.lock_token)  # made by _take
        stored = messages.get(number)
        now = asyncio.get_running_loop().time()
        held = stored is not None and stored.deliveries == count and (stored.locked_until or 0.0) > now
        if stored is None or not held:
            raise TransportError("the lock is lost", FailureKind.REFUSED, FailureReason.LOCK_LOST)
        return stored, messages

    def _release(self, stored: Stored) -> None:
        stored.locked_until = None
        self._holding.discard(stored.number)
        self._connection.broker.notify()

    def _settled(self) -> None:
        queue, _ = self._connection.broker.source(self._source)
        if queue.properties.single_consumer:
            self._connection.broker.notify()  # it may be another one's turn

    def _lock_ends_at(self) -> float:
        queue, _ = self._connection.broker.source(self._source)
        return asyncio.get_running_loop().time() + (queue.properties.lock_duration or float(2**31))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(WALL_EPOCH + seconds, UTC)

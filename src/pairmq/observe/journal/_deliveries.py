"""Journals the settlements of a consumer, so that reconciliation covers messages from send to settlement."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

from pairmq.model import Delivery, Source, TransportError
from pairmq.model.events import Event, MessageDelivered, Settlement
from pairmq.observe.journal._journal import Journal
from pairmq.transport import Receiver, ReceiverWrapper

_REMEMBERED = 100_000  # unsettled deliveries whose instant is kept; the oldest are dropped


@runtime_checkable
class Reporting(Protocol):
    """A receiver that reports settlements itself, as a pair's does."""

    def report_to(self, sink: Callable[[Event], None]) -> None:
        """Call ``sink`` with a `MessageDelivered` for each settlement."""


R = TypeVar("R", bound=Reporting)


@overload
def journal_deliveries(receiver: R, journal: Journal) -> R: ...
@overload
def journal_deliveries(receiver: Receiver, journal: Journal, *, source: Source, pair: str = "") -> Receiver: ...


def journal_deliveries(receiver: Any, journal: Journal, *, source: Source | None = None, pair: str = "") -> Any:
    """Journal each settlement of a receiver as `MessageDelivered`.

    A pair with a journal already does so for its receivers; nothing is journalled twice.

    Args:
        receiver: of a pair, or of a transport without a pair.
        journal: the journal.
        source: the source of a transport's receiver; not needed for a pair's.
        pair: the pair's name as the senders' journals have it, for a transport's receiver.

    Returns:
        A receiver with the same interface, to be used instead.

    Raises:
        TypeError: a transport's receiver without its source, or not a receiver.
    """
    if isinstance(receiver, Reporting):
        receiver.report_to(journal.on_event)
        return receiver
    if not isinstance(receiver, Receiver):
        raise TypeError(f"a {type(receiver).__name__} is not a receiver of a pair or a transport")
    if source is None:
        raise TypeError("a transport's receiver does not know its source: pass source")
    return JournalledReceiver(receiver, source, journal.on_event, pair)


class JournalledReceiver(ReceiverWrapper):
    """A transport's receiver that reports settlements."""

    def __init__(self, inner: Receiver, source: Source, sink: Callable[[Event], None], pair: str) -> None:
        super().__init__(inner)
        self._source = source
        self._sink = sink
        self._pair = pair
        self._id = uuid.uuid4().hex
        # By identity, as deliveries can't be hashed; each is kept with its instant, so that its identity stays its own.
        self._received: dict[int, tuple[Delivery, float]] = {}

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        deliveries = await self.inner.receive(max_messages, wait)
        now = time.time()
        for delivery in deliveries:
            self._remember(delivery, now)
        return deliveries

    async def complete(self, delivery: Delivery) -> None:
        await self._settle(delivery, self.inner.complete(delivery), Settlement.COMPLETED)

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        errors: Sequence[TransportError | None] = ()
        try:
            errors = await self.inner.complete_batch(deliveries)
        finally:
            texts: list[str | None] = [None if error is None else str(error) for error in errors]
            texts += ["cancelled"] * (len(deliveries) - len(texts))
            for delivery, text in zip(deliveries, texts, strict=True):
                self._report(delivery, Settlement.COMPLETED, None, text)
        return errors

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, self.inner.abandon(delivery), Settlement.ABANDONED)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        operation = self.inner.dead_letter(delivery, reason, description)
        await self._settle(delivery, operation, Settlement.DEAD_LETTERED, reason)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        renewed = await self.inner.renew_lock(delivery)
        _, received_at = self._received.get(id(delivery), (delivery, time.time()))
        self._remember(renewed, received_at)
        return renewed

    def _pass_on(self, delivery: Delivery) -> None:
        self._report(delivery, Settlement.DEAD_LETTERED, delivery.dead_letter_reason, None)
        super()._pass_on(delivery)

    async def close(self) -> None:
        self._received.clear()
        await self.inner.close()

    async def _settle(
        self, delivery: Delivery, operation: Awaitable[None], settlement: Settlement, reason: str | None = None
    ) -> None:
        error: str | None = "cancelled"
        try:
            await operation
            error = None
        except Exception as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            self._report(delivery, settlement, reason, error)

    def _remember(self, delivery: Delivery, received_at: float) -> None:
        if len(self._received) >= _REMEMBERED:
            del self._received[next(iter(self._received))]
        self._received[id(delivery)] = delivery, received_at

    def _report(self, delivery: Delivery, settlement: Settlement, reason: str | None, error: str | None) -> None:
        known = self._received.pop(id(delivery), None) if error is None else self._received.get(id(delivery))
        self._sink(
            MessageDelivered(
                at=time.time(),
                pair=self._pair,
                entity=self._source.entity,
                subscription=self._source.subscription,
                dead_letter=self._source.dead_letter,
                message_id=delivery.message.message_id,
                delivery_count=delivery.delivery_count,
                sequence_number=delivery.sequence_number,
                settlement=settlement,
                received_at=None if known is None else known[1],
                reason=reason,
                error=error,
                receiver=self._id,
            )
        )

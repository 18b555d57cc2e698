"""From a broker into the spool: receive, put on the disk, acknowledge; in this order and no other.

Nothing is lost if the process is killed: messages not on the disk are not acknowledged, and are redelivered. Killed
between disk and acknowledgement, it leaves messages that are in the spool and are redelivered. Those are known by
number, id and time of arrival, where the broker numbers messages, and are acknowledged without being kept twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import pyarrow as pa

from pairmq.model import Delivery, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.pipeline.datasource._rows import Place, to_batch
from pairmq.pipeline.datasource._spool import Spool
from pairmq.transport import Receiver, Transport

T = TypeVar("T")
_Key = tuple[str, str | None, datetime | None]

_log = logging.getLogger("pairmq.pipeline")

_SEGMENT_ROWS = 10_000
_SEGMENT_BYTES = 32 << 20
_FIRST_STEP, _STEP = 100, 1000  # messages a receive: few until their size is known
_GATHERING = 1.0  # s from a segment's first message to its last: far below any lock
_PAUSE = 0.05  # s without a message after which what came is enough
_SETTLED = 1000  # acknowledgements in one operation, and so in one time limit
_REMEMBERED = 1_000_000


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A segment's messages, not yet on the disk."""

    deliveries: list[Delivery]  # in the broker's order
    began_at: float  # when the first of them had come, by the loop's clock; infinite where none came
    dry: bool = False  # the queue seemed empty at the end, or could not be read any more
    trickled: bool = False  # a receive returned fewer than allowed: no more were waiting


class Intake:
    """Moves messages of one source into a spool; one operation at the broker may take so many seconds."""

    def __init__(self, transport: Transport, source: Source, place: Place, spool: Spool, limit: float) -> None:
        self._transport = transport
        self._source = source
        self._place = place
        self._spool = spool
        self._limit = limit
        self._receiver: Receiver | None = None
        self._kept: set[_Key] = set()
        # The first conversion imports pandas, which takes seconds on a busy computer: now, while nothing is locked.
        to_batch([Delivery(Message(), None, enqueued_at=datetime.now(UTC))], place)

    def remember(self, batches: Iterator[pa.RecordBatch]) -> None:
        """Learn what an earlier process left in the spool, perhaps without acknowledging it."""
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("sequence_number", "message_id", "enqueued_at"))
            self._kept.update(key for key in zip(*columns, strict=True) if key[0])

    async def available(self) -> int:
        """Count what can be received now. Raises `TransportError`."""
        counts = await self._within(0.0, self._transport.admin.counts(self._source))
        return counts.active

    async def fill(self, most: int, wait: float, start: int, *, whole: bool = False) -> int:
        """Move messages until no more are waiting, or there were enough; ``whole``: also where they come one by one.

        Segments get numbers from the start on. It waits so many seconds for the first message, and raises
        `TransportError` only where nothing was moved, and `OSError` where nothing of a segment was acknowledged.
        """
        loop = asyncio.get_running_loop()
        moved, ends_at = 0, math.inf
        while moved < most:
            try:
                segment = await self._gather(min(most - moved, _SEGMENT_ROWS), wait if not moved else _PAUSE)
            except TransportError:
                if not moved:
                    raise
                break  # the next call meets it again
            ends_at = min(ends_at, segment.began_at + _GATHERING)
            deliveries = _newest(segment.deliveries)
            fresh = [each for each in deliveries if each.delivery_count <= 1 or _key(each) not in self._kept]
            if fresh:
                batch = to_batch(fresh, self._place)
                # Not in this thread: a slow disk must not keep the loop from answering the broker's heartbeats.
                await asyncio.to_thread(self._spool.append, batch, start)
            if deliveries:
                await self._acknowledge(deliveries)
            moved += len(fresh)
            # Messages that are sent one after the other never end; those that wait are taken as fast as may be.
            ended = segment.dry or (segment.trickled and not whole and loop.time() >= ends_at)
            # A receive that brought copies alone says nothing of what is behind them.
            if ended and (moved or not deliveries):
                break
        return moved

    async def close(self) -> None:
        """Release unsettled messages, and close the connection; never raises."""
        if self._receiver is not None:
            await self._receiver.close()
        await self._transport.close()

    async def _gather(self, most: int, wait: float) -> _Gathered:
        if self._receiver is None:
            self._receiver = self._transport.receiver(self._source)
        loop = asyncio.get_running_loop()
        found: list[Delivery] = []
        size, began_at, trickled = 0, math.inf, False
        while len(found) < most and size < _SEGMENT_BYTES and loop.time() < began_at + _GATHERING:
            fitting = (_SEGMENT_BYTES - size) * len(found) // size if size else _STEP
            step = max(1, min(most - len(found), _STEP if found else _FIRST_STEP, fitting))
            pause = _PAUSE if found else wait
            try:
                more = await self._within(pause, self._receiver.receive(step, pause))
            except TransportError:
                if not found:
                    raise
                # What came before is kept first; the next call meets the failure again.
                return _Gathered(found, began_at, dry=True)
            if not more:
                return _Gathered(found, began_at, dry=True)
            began_at = min(began_at, loop.time())
            trickled = trickled or len(more) < step
            found += more
            size += sum(len(delivery.message.body) for delivery in more)
        return _Gathered(found, began_at, trickled=trickled)

    async def _acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        assert self._receiver is not None  # noqa: S101  # it gave these
        failed: TransportError | None = None
        count = 0
        for at in range(0, len(deliveries), _SETTLED):
            some = deliveries[at : at + _SETTLED]
            outcomes: Sequence[TransportError | None]
            try:
                outcomes = await self._within(0.0, self._receiver.complete_batch(some))
            except TransportError as error:
                outcomes = [error] * len(some)
            for delivery, outcome in zip(some, outcomes, strict=True):
                key = _key(delivery)
                if outcome is None:
                    self._kept.discard(key)
                    continue
                failed, count = outcome, count + 1
                if key[0] and len(self._kept) < _REMEMBERED:
                    self._kept.add(key)
        if failed is not None:
            _log.warning(
                "%d messages are in the spool but were not acknowledged, and will be redelivered: %s", count, failed
            )

    async def _within(self, wait: float, operation: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(wait + self._limit):
                return await operation
        except TimeoutError:
            raise TransportError(
                f"{self._transport.endpoint}: no answer within {wait + self._limit:g} s",
                FailureKind.UNAVAILABLE,
                FailureReason.TIMEOUT,
            ) from None


def _newest(deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Drop deliveries whose locks expired while others were gathered, and which were redelivered."""
    found: dict[object, Delivery] = {}
    for delivery in deliveries:
        # A first delivery is not a copy, whatever its number; one without a number can't be identified.
        again = delivery.sequence_number and delivery.delivery_count > 1
        key = _key(delivery)
        found[key if again or key not in found else id(delivery)] = delivery
    return list(found.values())


def _key(delivery: Delivery) -> _Key:
    return delivery.sequence_number, delivery.message.message_id, delivery.enqueued_at

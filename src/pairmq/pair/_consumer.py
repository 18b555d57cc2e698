"""Consumers that are given messages, instead of asking for them: what client libraries and workers are made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from pairmq.core import Backoff
from pairmq.core.lanes import LANE_POLL
from pairmq.model import ConfigurationError, LockLost, PairClosed, PairFaulted, PairMQError
from pairmq.pair._receiver import PairDelivery, PairReceiver
from pairmq.pair._renewals import Renewals
from pairmq.runner import Clock, Engine
from pairmq.transport import start_task

_log = logging.getLogger("pairmq")

_MOST = 100  # messages that one receive brings, without a prefetch
_RETRIES = Backoff(first=0.1, factor=2.0, cap=5.0)
_SETTLING = 5.0  # s that a close waits for settlements


def checked_prefetch(most: int) -> int:
    """Refuse what would let nothing be read, forever."""
    if type(most) is not int or most < 0:
        raise ConfigurationError(f"prefetch is {most!r}: it must be a whole number, or 0 for no limit")
    return most


class PairConsumer:
    """Gives each message of a source to a callback, and renews its lock until it is settled; made by `Pair.consumer`.

    It reads what a `PairReceiver` reads, of a queue with ``continuity`` both brokers, until `cancel` or `close`. While
    nothing can be read it waits and retries. Its methods, and those of its deliveries, are for the pair's event loop.
    """

    def __init__(
        self,
        engine: Engine,
        receiver: PairReceiver,
        on_message: Callable[[PairDelivery], object],
        prefetch: int,
        on_end: Callable[[Exception], object] | None,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._receiver = receiver
        self._on_message = on_message
        self._on_end = on_end
        self._prefetch = checked_prefetch(prefetch)
        self._clock = clock
        self._held: set[PairDelivery] = set()
        self._settling: set[PairDelivery] = set()
        self._changed = asyncio.Event()
        self._locks = Renewals(clock, self._not_renewed)
        self._closing: asyncio.Task[None] | None = None  # the receiver, once nothing that it gave is left
        self._ending: asyncio.Task[None] | None = None
        receiver.holder = self
        engine.readers[self] = None
        self._reading = start_task(self._read(), name=f"consume {receiver.source}")

    @property
    def prefetch(self) -> int:
        """Messages that are unsettled at most; 0 for any number. It may be changed at any time.

        Raises `ConfigurationError` for a number below 0, or one that is not whole.
        """
        return self._prefetch

    @prefetch.setter
    def prefetch(self, most: int) -> None:
        self._prefetch = checked_prefetch(most)
        self._changed.set()

    @property
    def idle(self) -> bool:
        """Whether it has stopped reading, and everything that it gave is settled."""
        return self._reading.done() and not self._held and not self._settling

    async def cancel(self) -> None:
        """Stop reading; what was given stays locked and can still be settled. Idempotent.

        The receiver is closed once all of it is. Cancelled, it stops reading all the same. Of a consumer whose event
        loop was closed nothing is left to stop.
        """
        if self._engine.is_gone:
            return
        self._reading.cancel()
        self._reading.add_done_callback(self._stopped)
        await asyncio.wait((self._reading,))

    async def close(self) -> None:
        """Stop reading, wait up to 5 s for settlements under way, and release what is not settled. Idempotent.

        Cancelling the call does not stop it. Of a consumer whose event loop was closed nothing is left to close.
        """
        if self._engine.is_gone:
            return
        self._reading.cancel()
        if self._ending is None:
            self._ending = start_task(self._end(), name=f"end {self._receiver.source}")
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        await asyncio.wait((self._reading,))
        until = self._clock.now() + _SETTLING
        try:
            async with asyncio.timeout_at(until):
                while self._settling:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _log.warning("%d messages of %s are still being settled", len(self._settling), self._receiver.source)
        self._held.clear()
        self._locks.clear()
        await self._receiver.close()

    # For deliveries and the pair.

    def settles(self, delivery: PairDelivery) -> None:
        """A settlement begins: whatever comes of it, the message no longer counts."""
        self._locks.drop(delivery)
        self._held.discard(delivery)
        self._settling.add(delivery)
        self._changed.set()

    def settled(self, delivery: PairDelivery) -> None:
        """It has ended."""
        self._settling.discard(delivery)
        self._changed.set()
        self._close_idle()

    def stop(self) -> None:
        """Stop reading, at once: the pair closes."""
        try:
            self._engine.check_open()
        except (PairClosed, PairFaulted) as error:
            self._ends(error)
        self._reading.cancel()
        self._locks.clear()

    def _ends(self, error: Exception) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None and not self._reading.done():
            on_end(error)

    def _stopped(self, _: object) -> None:
        self._receiver._read_ahead(0)
        self._close_idle()

    def _close_idle(self) -> None:
        if self.idle and self._closing is None:
            self._closing = start_task(self._receiver.close(), name=f"close {self._receiver.source}")

    async def _read(self) -> None:
        try:
            await self._give()
        except Exception as error:
            if not isinstance(error, PairClosed | PairFaulted):
                _log.exception("the consumer of %s has ended", self._receiver.source)
            self._ends(error)

    async def _give(self) -> None:
        retry = 0
        while True:
            while self._prefetch and len(self._held) >= self._prefetch:
                self._changed.clear()
                await self._changed.wait()
            free = self._prefetch - len(self._held) if self._prefetch else _MOST
            self._receiver._read_ahead(self._prefetch)
            try:
                found = await self._receiver.receive(free, LANE_POLL)
            except (PairClosed, PairFaulted):
                raise
            except PairMQError as error:
                if not retry:
                    _log.warning("%s can't be read; it is tried again: %s", self._receiver.source, error)
                await asyncio.sleep(_RETRIES.wait(retry, self._clock.chance()))
                retry += 1
                continue
            retry = 0
            self._held.update(found)
            self._locks.keep(found)
            given = 0
            try:
                for delivery in found:
                    self._on_message(delivery)
                    given += 1
            except BaseException:
                # Of these nothing is taken care of: their locks would be renewed for as long as the pair is open.
                for delivery in found[given:]:
                    if delivery in self._held:
                        start_task(self._release(delivery), name=f"release {self._receiver.source}")
                raise

    async def _release(self, delivery: PairDelivery) -> None:
        with contextlib.suppress(PairMQError):  # its lock, which is not renewed any more, ends by itself
            await delivery.abandon()

    def _not_renewed(self, delivery: PairDelivery, error: Exception) -> bool:
        if not isinstance(error, LockLost):
            return True  # until the lock is lost
        _log.warning(
            "message %s of %s may be handled twice: %s", delivery.message.message_id, self._receiver.source, error
        )
        return False

    def __repr__(self) -> str:
        return f"PairConsumer({str(self._receiver.source)!r})"

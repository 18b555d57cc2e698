"""The secondary's side of a pump: receiving from its queue, holding and settling what came, and beginning anew."""

from __future__ import annotations

from collections.abc import Callable

from pairmq.core import PairOptions
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, TransportError
from pairmq.model.events import SyphonFailed
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._limits import settled_within
from pairmq.runner.pump._hand import Hand
from pairmq.runner.pump._reader import Reader
from pairmq.runner.pump._settler import Settler
from pairmq.transport import Transport

_CLOSE_TIMEOUT = 3.0  # s; a transport promises 2


class Intake:
    """Receives from one backlog queue and settles what was received.

    Args:
        queue: the backlog queue.
        secondary: its transport.
        options: the pair's.
        clock: time and chance.
        emit: takes events.
        changed: told whenever there may be less in hand, or more that can't be settled.
    """

    def __init__(
        self,
        queue: Entity,
        secondary: Transport,
        options: PairOptions,
        clock: Clock,
        emit: Emitter,
        changed: Callable[[], None],
    ) -> None:
        self.reader = Reader(queue, secondary, options, clock)
        self.hand = Hand(self.reader, clock, changed)
        self.settler = Settler(self.reader, self.hand, clock, self._failed, changed)
        self._queue = queue
        self._clock = clock
        self._emit = emit

    def start(self) -> None:
        """Begin to renew locks."""
        self.hand.start()

    async def receive(self, most: int, ahead: int) -> list[Delivery]:
        """One long poll.

        Args:
            most: deliveries at most.
            ahead: messages that the broker may lock here before they are asked for, a hint.

        Raises:
            TransportError: the queue can't be read, or order was lost with a lock: then `reset`.
        """
        await self.reader.open()
        if self.hand.broken:
            raise _order_lost()
        deliveries = await self.reader.receive(most, ahead)
        if self.hand.broken:
            raise _order_lost()  # what came may stand behind what was lost
        return deliveries

    async def close(self, grace: float) -> None:
        """Try for ``grace`` seconds to settle what is done, and give the rest back."""
        await self.settler.finish(self._clock.now() + grace)
        await self.hand.stop()
        await self.reset()

    async def reset(self) -> None:
        """Begin anew after an error: what is in hand is lost to this pump, and will be delivered again."""
        receiver = self.reader.detach()
        await self.settler.stop_retries()
        self.hand.drop_all()
        if receiver is not None:
            # A driver that cancels itself here would end the pump, with the backlog stranded.
            failed = await settled_within(_CLOSE_TIMEOUT, receiver.close())
            if failed is not None:
                self._failed(f"close: {failed}")  # the broker gives back what it held when the locks end
        await self.settler.give_up()

    def _failed(self, error: str) -> None:
        self._emit(SyphonFailed, queue=self._queue.path, error=error, retry_after=0.0)


def _order_lost() -> TransportError:
    return TransportError("a lock was lost, and order with it", FailureKind.UNAVAILABLE, FailureReason.LOCK_LOST)

"""What a consumer of a chaos run does: it reads a queue of the primary, and settles what it gets."""

from __future__ import annotations

import asyncio
from random import Random

from pairmq.model import LockLost, PairClosed, PairFaulted, TransportError
from pairmq.pair import Pair

_MOST = 10  # messages of one receive
_WAIT = 1.0  # s
_PAUSE = 0.2  # s, while the primary is unavailable
_GIVEN_BACK = 0.1  # of the messages


async def keep_consuming(pair: Pair, path: str, chance: Random) -> None:
    """Read a queue until the pair ends.

    Args:
        pair: open.
        path: the queue's.
        chance: selects what is released.

    A cancelled call leaves what it holds to the broker, which delivers it again.
    """
    async with pair.receiver(path) as receiver:
        while True:
            try:
                for delivery in await receiver.receive(_MOST, _WAIT):
                    await (delivery.abandon() if chance.random() < _GIVEN_BACK else delivery.complete())
            except (PairClosed, PairFaulted):
                return
            except (TransportError, LockLost):
                # Unsettled messages of this batch are redelivered when their locks expire.
                await asyncio.sleep(_PAUSE)

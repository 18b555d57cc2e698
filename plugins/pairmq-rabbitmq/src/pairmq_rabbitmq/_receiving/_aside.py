"""What nobody is to get: put into the dead-letter queue, and tried again until that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from pairmq_rabbitmq._receiving._dead_letter import DeadLetters
from pairmq_rabbitmq._receiving._delivery_channel import DeliveryChannel
from pairmq_rabbitmq._receiving._settling import Locked, State
from pairmq_rabbitmq._receiving._waits import Waits
from pairmq_rabbitmq._scope import Scope

_MOMENT = 1.0  # s that a call waits for it
_FIRST_RETRY, _LAST_RETRY = 0.5, 10.0


class _Entry(NamedTuple):
    channel: DeliveryChannel
    reason: str
    description: str


class Aside:
    """Messages of one receiver that nobody is to get.

    Args:
        dead_letters: gives the queue for the copies.
        scope: the receiver's.
        waits: the receiver's.
    """

    def __init__(self, dead_letters: Callable[[], DeadLetters], scope: Scope, waits: Waits) -> None:
        self._dead_letters = dead_letters
        self._scope = scope
        self._waits = waits
        self._entries: dict[Locked, _Entry] = {}
        self._turn = asyncio.Lock()
        self._retries: asyncio.Task[None] | None = None

    def add(self, channel: DeliveryChannel, locked: Locked, reason: str, description: str) -> None:
        """Take a message from those that wait for a caller.

        Args:
            channel: that it is locked on.
            locked: the message.
            reason: a word or two.
            description: a sentence.
        """
        channel.set_aside(locked)
        self._entries[locked] = _Entry(channel, reason, description)

    async def put_away(self) -> None:
        """Dead-letter them, and wait a moment for that; what can't be now stays locked, and is tried again.

        A cancelled call lets it go on.
        """
        await self._waits.until(self._waits.begin(self._put_away()), seconds=_MOMENT)

    async def _put_away(self) -> None:
        await self._try()
        if self._entries and self._retries is None:
            self._retries = self._waits.begin(self._retry())

    async def _retry(self) -> None:
        pause = _FIRST_RETRY
        try:
            while self._entries and not self._scope.closed:
                await self._waits.until(seconds=pause)
                pause = min(pause * 2, _LAST_RETRY)
                await self._try()
        finally:
            self._retries = None

    async def _try(self) -> None:
        async with self._turn:
            # What was lost with its channel comes again.
            tried = {
                one: entry for one, entry in self._entries.items() if one.state is State.BUSY and entry.channel.usable
            }
            queue = self._dead_letters()
            copies = [queue.pack(one.properties, one.body, *entry[1:]) for one, entry in tried.items()]
            outcomes = await queue.publish(copies) if copies else []
            left: dict[Locked, _Entry] = {}
            settled: dict[DeliveryChannel, list[Locked]] = {}
            for (locked, entry), failed in zip(tried.items(), outcomes, strict=True):
                channel = entry.channel
                if locked.state is not State.BUSY or not channel.usable:
                    continue
                if failed is None:
                    settled.setdefault(channel, []).append(locked)
                elif channel.is_held_long(locked):
                    channel.settle([locked], requeue=True)
                else:
                    left[locked] = entry
            # More may have come meanwhile.
            new = {one: entry for one, entry in self._entries.items() if one not in tried and one.state is State.BUSY}
            self._entries = left | new
            for channel, messages in settled.items():
                await self._waits.until(channel.settle(messages, requeue=False).done)

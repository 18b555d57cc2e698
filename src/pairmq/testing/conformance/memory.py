"""The harness of ``memory://``, for the suites, and for plugins' authors to read."""

from __future__ import annotations

from pairmq.testing._memory import MemoryBroker, memory_broker
from pairmq.testing.conformance.harness import Harness, Interruption


class MemoryHarness(Harness):
    """A broker in this process: a new one for every test, so that none is ever emptied.

    Args:
        scheme: as for `pairmq.testing.MemoryBroker`.
    """

    def __init__(self, scheme: str = "memory") -> None:
        self._scheme = scheme
        self._broker: MemoryBroker | None = None

    async def make(self) -> str:
        """Make the next broker."""
        if self._broker is not None:
            await self._broker.forget()
        self._broker = memory_broker(scheme=self._scheme)
        return self._broker.url

    async def interrupt(self, how: Interruption) -> None:
        """Drop its connections, or leave everything unanswered."""
        broker = self._made()
        await (broker.stop() if how is Interruption.STOP else broker.hang())

    async def crash(self) -> None:
        """Drop its connections and its data: none of it is durable."""
        broker = self._made()
        await broker.forget()
        await broker.stop()

    async def refuse_writes(self) -> bool:
        """Let it be out of memory."""
        await self._made().refuse()
        return True

    async def lose_confirms(self) -> bool:
        """Let it drop the connection instead of confirming."""
        await self._made().lose_confirms()
        return True

    async def restore(self) -> None:
        """End the fault."""
        await self._made().restore()

    def _made(self) -> MemoryBroker:
        if self._broker is None:
            raise RuntimeError("make() comes first")
        return self._broker

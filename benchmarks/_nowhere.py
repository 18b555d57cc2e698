"""A broker that is no broker: it takes every message at once, or on command, and keeps none.

What a pair itself costs is seen best where the broker costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pairmq.model import Entity, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import Admin, Capabilities, Receiver, Sender, Transport


class Nowhere(Transport):
    """An endpoint whose sends end when `open` is set; the rest is an in-process broker's.

    Args:
        name: of the endpoint.
    """

    def __init__(self, name: str) -> None:
        self._inner = registry.transport(f"memory://{name}")
        super().__init__(self._inner.endpoint)
        self.open = asyncio.Event()
        self.open.set()
        self.waiting = 0

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def admin(self) -> Admin:
        return self._inner.admin

    def sender(self, entity: Entity) -> Sender:
        return _Sender(self)

    def receiver(self, source: Source) -> Receiver:
        return self._inner.receiver(source)

    def measure(self, message: Message) -> int:
        return self._inner.measure(message)

    async def _close(self) -> None:
        await self._inner.close()


class _Sender(Sender):
    def __init__(self, transport: Nowhere) -> None:
        self._transport = transport

    async def send(self, message: Message) -> None:
        transport = self._transport
        if not transport.open.is_set():
            transport.waiting += 1
            await transport.open.wait()

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return [None] * len(messages)

    async def close(self) -> None:
        """Nothing is held."""

"""Where markers are published and answered: a connection of its own, made when order is first asked about.

A broker with an alarm stops reading a connection that publishes; neither the deliveries that are locked on another one
nor the answers to questions may depend on that. Nothing here is worth saving: when an operation was cut off, later
markers get another connection, and whoever asked publishes another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._link import Link
from pairmq_rabbitmq._markers import REPLY_TO, Marker, marker_properties
from pairmq_rabbitmq._session import Session

T = TypeVar("T")

_MOST_OPEN = 4096  # markers whose answers are waited for; older ones are forgotten


class MarkerLine:
    """Of one transport.

    Args:
        link: the connection.
    """

    def __init__(self, link: Link) -> None:
        self.epoch = 0
        """Grows with every new channel: answers to markers of earlier ones can't come any more."""
        self._link = link
        self._session: Session | None = None
        self._raw: Channel | None = None
        self._opening = asyncio.Lock()
        self._told: dict[str, Callable[[], None]] = {}

    def answers(self, epoch: int) -> bool:
        """Whether answers to markers of an epoch can still come."""
        raw, session = self._raw, self._session
        return epoch == self.epoch and raw is not None and not raw.is_closed and session is not None and session.usable

    async def ready(self, doing: str) -> None:
        """Open the channel if there is none.

        Raises:
            Exception: the driver's, or an `Unsent`, or a `TransportError`: it can't be opened.
        """
        async with self._opening:
            if not self.answers(self.epoch):
                session = await self._link.session()
                await self._on(session, self._open(session))
        assert self._session is not None  # noqa: S101  # for mypy
        if self._session.wire.blocked:
            raise _errors.blocked(doing)

    async def publish(self, queue: str, marker_id: str, answered: Callable[[], None]) -> None:
        """Publish a marker, after `ready`; returns when the broker has confirmed it.

        Args:
            queue: the broker's name of the queue.
            marker_id: random.
            answered: called once when it is answered, if it is.

        Raises:
            Exception: the driver's: the queue may hold the marker unless the broker said no.

        A cancelled call leaves the connection to those who wait on it.
        """
        self._told[marker_id] = answered
        while len(self._told) > _MOST_OPEN:
            del self._told[next(iter(self._told))]
        await self._publish(queue, marker_properties(marker_id), mandatory=True)

    async def answer(self, markers: Sequence[Marker], doing: str) -> None:
        """Tell those who asked; one who is gone hears nothing, and that is no failure.

        Raises:
            Exception: as `ready` and `publish`.
        """
        await self.ready(doing)
        for marker in markers:
            await self._publish(marker.reply_to, Basic.Properties(correlation_id=marker.id), mandatory=False)

    async def _open(self, session: Session) -> None:
        raw = await session.open_channel(confirms=True)
        await session.run(raw.basic_consume(REPLY_TO, self._came, no_ack=True))
        self._session, self._raw = session, raw
        self._told.clear()
        self.epoch += 1

    async def _publish(self, routing_key: str, properties: Basic.Properties, *, mandatory: bool) -> None:
        raw, session = self._raw, self._session
        if raw is None or session is None:
            raise ConnectionAbortedError("the channel was closed")
        publishing = raw.basic_publish(b"", routing_key=routing_key, properties=properties, mandatory=mandatory)
        await self._on(session, session.run(publishing))

    async def _on(self, session: Session, operation: Coroutine[Any, Any, T]) -> T:
        try:
            return await operation
        except asyncio.CancelledError:
            # Others may still wait for their markers to be confirmed there.
            if self._session is session:
                self._session = self._raw = None
            self._link.retire(session, silent=False)
            raise

    async def _came(self, message: DeliveredMessage) -> None:
        told = self._told.pop(message.header.properties.correlation_id or "", None)
        if told is not None:
            told()

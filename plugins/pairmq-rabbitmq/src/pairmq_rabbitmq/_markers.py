"""Markers: messages that travel through a queue for one consumer at a time to prove how far it is settled (SPEC 8.3).

AMQP does not show what other consumers hold. So a marker is published: it is behind everything that was confirmed
before, and the consumer that receives it answers when everything delivered to it before is settled. A queue for one
consumer delivers in order, so what earlier consumers received is settled by then, or was delivered to this one.

No message of PairMQ's senders looks like a marker: a diverted one has headers, and none has its correlation id for a
message id. A client that may write to the queue can forge one, and gains nothing: it is answered to its own channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.exceptions import DeliveryError
from pamqp.commands import Basic

from pairmq.transport import start_task
from pairmq_rabbitmq import _errors, _header
from pairmq_rabbitmq._driver import close_channel
from pairmq_rabbitmq._link import Link, Session

WINDOW: Final = 250
"""Unsettled messages of every consumer of such a queue, in every process and version.

A quorum queue redelivers requeued messages in the order in which they were requeued. When the holder of a, b, c is
lost, and the next one is lost as well with a and b, then c comes first. So each must take at least what the last had.
"""

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's direct reply-to: it substitutes the asking channel's address."""

_TYPE: Final = "pairmq.marker"
_RAW_TYPE: Final = _TYPE.encode()
_ID = re.compile(r"[0-9a-f]{32}")
_BROKERS_HEADERS: Final = frozenset(("x-delivery-count", "x-acquired-count"))
_PERSISTENT = 2

T = TypeVar("T")

_MOST_OPEN = 4096  # markers whose answers are waited for; older ones are forgotten


class Marker(NamedTuple):
    """One marker as a consumer receives it; the answer repeats its random id."""

    id: str
    reply_to: str


def marker_properties(marker_id: str) -> Basic.Properties:
    return Basic.Properties(
        message_type=_TYPE,
        message_id=marker_id,  # identifies it when the broker returns it
        correlation_id=marker_id,
        reply_to=REPLY_TO,
        delivery_mode=_PERSISTENT,
    )


def marker_of(header: bytes, body: bytes) -> Marker | None:
    """Recognize a marker; None for any other message."""
    if body or _RAW_TYPE not in header:
        return None
    found = _header.read(header)
    marker_id, reply_to = found.correlation_id or "", found.reply_to or ""
    if found.message_type != _TYPE or found.message_id != marker_id or not _ID.fullmatch(marker_id):
        return None
    if not reply_to.startswith(REPLY_TO + ".") or not _BROKERS_HEADERS.issuperset(found.headers or ()):
        return None
    return Marker(marker_id, reply_to)


class MarkerLine:
    """A channel to publish markers of one queue, or to answer markers."""

    def __init__(self, link: Link) -> None:
        self.epoch = 0
        """Grows with every new channel: answers to markers of earlier ones can't arrive any more."""
        self._link = link
        self._session: Session | None = None
        self._raw: Channel | None = None
        self._opening = asyncio.Lock()
        self._again = asyncio.Lock()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def answers(self, epoch: int) -> bool:
        """Whether answers to markers of an epoch can still arrive."""
        raw, session = self._raw, self._session
        return epoch == self.epoch and raw is not None and not raw.is_closed and session is not None and session.usable

    async def ready(self, doing: str) -> None:
        """Open the channel unless it is open. Raises the driver's exceptions, `Unsent` or `TransportError`."""
        async with self._opening:
            if not self.answers(self.epoch):
                session = await self._link.session()
                await self._on(session, self._open(session))
        assert self._session is not None  # noqa: S101  # for mypy
        if self._session.wire.blocked:
            raise _errors.blocked(doing)

    async def publish(self, queue: str, marker_id: str, answered: Callable[[], None]) -> None:
        """Publish a marker, after `ready`; returns when the broker has confirmed it.

        When the driver raises, the queue may hold the marker unless the broker rejected it. A cancelled call leaves the
        connection to the other calls on it.
        """
        self._waiting[marker_id] = answered
        while len(self._waiting) > _MOST_OPEN:
            del self._waiting[next(iter(self._waiting))]
        raw = self._raw
        try:
            await self._publish(queue, marker_properties(marker_id), mandatory=True)
        except DeliveryError:
            # RabbitMQ 3.10 rejects all publishes of a channel to a quorum queue whose leader had just been lost at the
            # first one, also when it has another one. If the queue is full, a new channel costs little.
            if raw is not None and raw is self._raw:
                self._raw = self._session = None
                start_task(_close(raw), keep=self._closing)
            raise

    async def answer(self, marker: Marker, doing: str) -> None:
        """Answer an asker; one that no longer exists gets nothing.

        RabbitMQ 3.10 ends the connection when the asker's node is down, and loses other answers with it. So an answer
        that failed is tried again, one at a time.
        """
        try:
            await self._answer(marker, doing)
        except Exception:
            async with self._again:
                await self._answer(marker, doing)

    async def _answer(self, marker: Marker, doing: str) -> None:
        await self.ready(doing)
        await self._publish(marker.reply_to, Basic.Properties(correlation_id=marker.id), mandatory=False)

    async def _open(self, session: Session) -> None:
        raw = await session.open_channel(confirms=True)
        await session.run(raw.basic_consume(REPLY_TO, self._came, no_ack=True))
        self._session, self._raw = session, raw
        self._waiting.clear()
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
            # Other calls may still wait for their markers to be confirmed there.
            if self._session is session:
                self._session = self._raw = None
            self._link.retire(session, silent=False)
            raise

    async def _came(self, message: DeliveredMessage) -> None:
        callback = self._waiting.pop(message.header.properties.correlation_id or "", None)
        if callback is not None:
            callback()


async def _close(raw: Channel) -> None:
    with contextlib.suppress(Exception):  # the connection is lost, and the channel with it
        await close_channel(raw)

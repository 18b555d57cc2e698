"""What the objects of one transport share: its connections, and how to ask the broker something.

Three connections, each made when first needed:

- *publishing*: a broker with an alarm stops reading it as a whole, so that nothing else may depend on it;
- *consuming*: deliveries are locked as long as it lives, so that nothing else may put it in doubt;
- *control*: declarations and questions, which get answers during an alarm.

Where order is kept there is a fourth, for markers: see `MarkerLine`. And two for what has long names: see
`Context.consuming_of`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, TypeVar, cast

from aiormq.channel import Channel
from aiormq.exceptions import ConnectionInternalError
from pamqp.base import Frame

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq.transport import Receiver, Scope, bracketed, raise_failure, start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._driver import ExchangeDeclare, count_in
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._link import Asked, Link, Nodes, Session
from pairmq_rabbitmq._markers import MarkerLine
from pairmq_rabbitmq._publisher import Publisher
from pairmq_rabbitmq._url import RabbitUrl

T = TypeVar("T")

_SAFE_NAME = 60  # bytes, with those of the virtual host's: the broker's longest sentences have 190 beside them
_EXPLAINED_WITHIN = 30.0  # seconds
_MAX_PUBLISHERS = 1500  # with a channel each; RabbitMQ's default limit is 2047 a connection
_MOST_IDLE = 1000  # channels kept for the next questions; with all of them a probe would find none for its own


class Context:
    def __init__(self, url: RabbitUrl, scope: Scope, tls: ssl.SSLContext | None) -> None:
        self.url = url
        self.scope = scope
        nodes = Nodes(url.nodes)
        self.publishing = Link(url, tls, "pairmq publishing", nodes, leaves=True)
        self.consuming = Link(url, tls, "pairmq consuming", nodes)
        self.control = Link(url, tls, "pairmq control", nodes, leaves=True)
        self.ordering = Link(url, tls, "pairmq ordering", nodes)
        self._apart = (
            Link(url, tls, "pairmq consuming, long names", nodes),
            Link(url, tls, "pairmq control, long names", nodes, leaves=True),
        )
        self.answers = MarkerLine(self.ordering)
        self.one_consumer: dict[str, bool] = {}
        """Queues of which it is known whether they are for one consumer at a time: see `is_for_one_consumer`."""
        self.receivers: set[Receiver] = set()
        self.full: dict[str, tuple[int, float]] = {}
        """Queues that rejected a publish: how many messages they held then, and until when they are taken for full."""
        self.rejecting: dict[str, tuple[bool, float]] = {}
        """Whether queues are known to reject what has no room, and until when that is taken for granted."""
        self.max_body_bytes: int | None = None
        """The server's own limit for a body, as its last refusal named it; None before the first."""
        self._publishers: OrderedDict[Entity, Publisher] = OrderedDict()
        self._idle: list[tuple[Session, Channel]] = []
        self._explaining: dict[tuple[str, Entity], asyncio.Task[TransportError]] = {}

    @property
    def node(self) -> str | None:
        """The node of a cluster that it is connected to; that of publishes, where its connections differ."""
        if len(self.url.nodes) == 1:
            return None
        sessions = (link.current for link in (self.publishing, self.control, self.consuming))
        found = next((session.node for session in sessions if session is not None), None)
        return None if found is None else f"{bracketed(found[0])}:{found[1]}"

    def publisher(self, entity: Entity) -> Publisher:
        """The entity's publisher; one for all senders of it."""
        publisher = self._publishers.get(entity)
        if publisher is None:
            doing = f"send to {entity}"
            topic = entity.kind is EntityKind.TOPIC
            publisher = Publisher(
                self.publishing, doing, (lambda: self.find_exchange(entity.path, doing)) if topic else None
            )
            self._publishers[entity] = publisher
        self._publishers.move_to_end(entity)
        self._limit_publishers()
        return publisher

    def consuming_of(self, queue: str) -> Link:
        """The link to read a queue over.

        RabbitMQ 4 cuts its reply texts at 255 characters where AMQP allows 255 bytes. A text with a name in it that is
        long and not ASCII it can't send: it closes the connection instead (541), with all that others have on it.
        """
        return self._apart[0] if self._is_risky(queue) else self.consuming

    async def ask(self, doing: str, method: Frame, link: Link | None = None) -> Any:
        """Call a method of the broker, over the control link unless another is given, and return its reply.

        A cancelled call gets control back at once; the broker may have done it.
        """
        names = (getattr(method, each, None) for each in ("queue", "destination", "exchange"))
        about = next(name for name in names if name is not None)
        return await self.ask_on(doing, lambda channel: channel.rpc(cast("Any", method)), about, link)

    async def ask_on(
        self,
        doing: str,
        question: Callable[[Channel], Coroutine[Any, Any, T]],
        about: str,
        link: Link | None = None,
    ) -> T:
        """Ask the broker what takes more than one method, on a channel that no other call uses meanwhile; as `ask`.

        ``about`` is the name of a queue or exchange that a refusal would hold: see `consuming_of`.
        """
        if self.scope.closed:
            raise _errors.closed(doing)
        link = self._apart[1] if self._is_risky(about) else link or self.control
        session = await self._session(link, doing)
        asked = Asked(session)
        try:
            return await session.run(self._answer(session, question))
        except asyncio.CancelledError:
            link.doubt(asked)
            raise
        except ConnectionInternalError as error:
            if not self._is_risky(about):
                raise _errors.failure(error, doing) from error
            text = f"{doing}: RabbitMQ refuses, and can't say why: the name is not ASCII and too long for its answers"
            raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.OTHER) from error
        except Exception as error:
            raise_failure(_errors.failure(error, doing))

    async def connect(self, link: Link) -> None:
        """Open a link's connection, if it is not."""
        await self._session(link, "connect")

    async def server_version(self, doing: str) -> tuple[int, ...]:
        return (await self._session(self.control, doing)).server_version

    async def find_exchange(self, name: str, doing: str) -> None:
        await self.ask(doing, ExchangeDeclare(exchange=name, passive=True))

    async def count(self, queue: str, doing: str) -> tuple[int, int]:
        """How many messages of a queue wait, and how many consumers it has."""
        found = await self.ask(doing, count_in(queue))
        return found.message_count or 0, found.consumer_count or 0

    async def explained(
        self, what: str, entity: Entity, doing: str, why: Callable[[], Coroutine[Any, Any, TransportError]]
    ) -> TransportError:
        """Find once, for all calls that ask meanwhile, why the broker did not take messages to an entity.

        Each on its own would open a channel, which a refusal closes. It goes on when all callers are cancelled: on
        a slow broker the answer may take longer than an attempt, and the next one, or a probe, needs it.
        """
        key = what, entity
        task = self._explaining.get(key)
        if task is None:
            task = self._explaining[key] = start_task(self._explain(f"{doing}: the broker {what} it", why))
            task.add_done_callback(lambda _: self._explaining.pop(key))
        await asyncio.wait((task,))
        return task.result()

    async def why_returned(self, entity: Entity, doing: str) -> TransportError:
        """Say why the broker returned a message to an entity: no such queue, or one that is down."""
        try:
            if entity.kind is EntityKind.TOPIC:
                await self.find_exchange(entity.path, doing)
                text = "no queue is bound to the exchange that would take it: make a subscription"
                return _errors.refused(doing, text, FailureReason.NOT_FOUND)
            await self.count(entity.path, doing)
        except TransportError as error:
            return TransportError(str(error), error.kind, error.reason)
        # It exists now: it was just created, or its node has become available again.
        return TransportError(f"{doing}: the queue was not there", FailureKind.TRANSIENT, FailureReason.OTHER)

    async def close(self, timeout: float) -> None:
        self._idle.clear()
        links = (self.publishing, self.consuming, self.control, self.ordering, *self._apart)
        await asyncio.gather(*(link.close(timeout) for link in links))

    async def _explain(self, text: str, why: Callable[[], Coroutine[Any, Any, TransportError]]) -> TransportError:
        try:
            async with asyncio.timeout(_EXPLAINED_WITHIN):
                return await why()
        except TimeoutError:
            text = f"{text}, and does not say why"
            return TransportError(text, FailureKind.UNAVAILABLE, maybe_applied=True)

    async def _session(self, link: Link, doing: str) -> Session:
        try:
            return await link.session()
        except Unsent as error:
            raise_failure(_errors.failure(error, doing))

    def _is_risky(self, name: str) -> bool:
        return not name.isascii() and len(name.encode()) + len(self.url.vhost.encode()) > _SAFE_NAME

    async def _answer(self, session: Session, question: Callable[[Channel], Coroutine[Any, Any, T]]) -> T:
        channel = await self._channel(session)
        try:
            return await question(channel)
        finally:
            # Here, as the caller may have given up: it would be lost until the connection ends.
            if len(self._idle) >= _MOST_IDLE:
                session.give_back(channel)
            elif not channel.is_closed:
                self._idle.append((session, channel))

    async def _channel(self, session: Session) -> Channel:
        self._idle = [(owner, channel) for owner, channel in self._idle if owner.usable and not channel.is_closed]
        for index, (owner, channel) in enumerate(self._idle):
            if owner is session:
                del self._idle[index]
                return channel
        return await session.open_channel(confirms=False)

    def _limit_publishers(self) -> None:
        """Also for one that is known: those that were all in use when the last one was made are idle later."""
        for entity in list(islice(self._publishers, max(0, len(self._publishers) - _MAX_PUBLISHERS))):
            publisher = self._publishers[entity]
            if publisher.idle:
                publisher.release()
                del self._publishers[entity]

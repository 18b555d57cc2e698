"""Finding out whether an entity accepts writes, without writing anything that a consumer could see (SPEC 6.2)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

from pamqp.commands import Basic

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, TransportError
from pairmq.transport import Scope
from pairmq_rabbitmq import _errors, _names
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import QueueDeclare
from pairmq_rabbitmq._publish import Answer, Lost, Nacked, Parcel, Returned, publish_method
from pairmq_rabbitmq._publisher import Publisher

PING_QUEUE: Final = _names.OWN_PREFIX + "ping"
"""The target of pings; no consumer reads it, and it holds the last one."""

_PING_ARGUMENTS: dict[str, Any] = {
    # Set explicitly, so that no default or policy changes it.
    "x-queue-type": "classic",
    "x-max-length": 1,
    "x-overflow": "drop-head",
    "x-expires": 24 * 60 * 60 * 1000,
}


class Probe:
    """Pings entities of one transport.

    What a successful ping proves, at this moment:

    - the broker is reachable, accepts this user, and reads what publishers write: no memory or disk alarm, no flow
      control that lasts longer than the ping's time limit;
    - the entity exists;
    - publishing works to the end, on the connection that sends use: the broker confirmed a persistent message, or
      returned it because no queue takes it;
    - a queue that rejected a message for lack of room, as far as this process knows, holds fewer messages now.

    What it can't prove: that the next, larger message fits; that the nodes and disks which hold the entity's own
    messages work as well as those of the ping queue; that a quorum queue has its majority, as RabbitMQ counts messages
    without one, and only to fetch a message would show it (ADR 38); that no policy changes in between; that another
    process did not fill the queue.
    For a topic it proves that the exchange exists and its node accepts writes: a queue that is bound to it may be full
    or missing.

    Pings go to `PING_QUEUE`, which is created when missing. A user who may not create it, or for whom it is unusable,
    pings a routing key that no queue has: the broker's return is the proof.
    """

    def __init__(self, context: Context, scope: Scope) -> None:
        self._context = context
        self._scope = scope
        self._publisher = Publisher(context.publishing, "ping")

    async def probe(self, entity: Entity) -> None:
        doing = f"probe {entity}"
        _names.check(entity)
        if entity.kind is EntityKind.TOPIC:
            await self._context.find_exchange(entity.path, doing)
        else:
            waiting, _ = await self._context.count(entity.path, doing)
            self._check_room(entity.path, waiting, doing)
        try:
            await self._ping(doing)
        except TransportError as error:
            # A topic's user may write to its exchange only; a refusal shows that the broker read the publish.
            if entity.kind is not EntityKind.TOPIC or error.reason is not FailureReason.UNAUTHORIZED:
                raise

    def _check_room(self, queue: str, waiting: int, doing: str) -> None:
        """Check whether messages have been removed from a queue since it was full."""
        full, until = self._context.full.get(queue, (0, 0.0))
        if waiting and full and waiting >= full and asyncio.get_running_loop().time() < until:
            self._context.full[queue] = waiting, until
            text = f"{doing}: the queue is full: it rejected a message, and still holds {waiting}"
            raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.QUOTA)
        self._context.full.pop(queue, None)

    async def _ping(self, doing: str) -> None:
        """Publish twice: during an alarm the broker confirms one more message before it stops reading a connection."""
        for _ in range(2):
            await self._ping_once(doing)

    async def _ping_once(self, doing: str) -> None:
        answer = await self._publish(PING_QUEUE)
        if isinstance(answer, Returned) and await self._make(doing):
            answer = await self._publish(PING_QUEUE)
        if isinstance(answer, Returned | Nacked):
            # It can't be created, its node is down, or a policy makes it reject: the broker's return is as good.
            answer = await self._publish(f"{PING_QUEUE}.{uuid.uuid4().hex}")
        match answer:
            case None | Returned():
                return
            case TransportError():
                raise answer
            case Lost():
                raise _errors.failure(answer.cause, doing)
        raise TransportError(f"{doing}: the broker rejected the ping", FailureKind.UNAVAILABLE)

    async def _publish(self, routing_key: str) -> Answer:
        properties = Basic.Properties(message_id=uuid.uuid4().hex, delivery_mode=2)
        parcel = Parcel.of(publish_method("", routing_key), properties, b"")
        [answer] = await self._publisher.publish([parcel], self._scope)
        return answer

    async def _make(self, doing: str) -> bool:
        """Create the ping queue; returns whether it can be used."""
        try:
            await self._context.ask(doing, QueueDeclare(queue=PING_QUEUE, durable=True, arguments=_PING_ARGUMENTS))
        except TransportError as error:
            # Refused, or its node is down (404): neither says anything about the entity.
            if error.kind is not FailureKind.REFUSED and error.reason is not FailureReason.OTHER:
                raise
            return error.reason is FailureReason.ALREADY_EXISTS
        return True

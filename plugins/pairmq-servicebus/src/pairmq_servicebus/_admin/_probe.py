"""Finding out whether an entity accepts writes, by a message that the service never delivers (SPEC 6.2)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from pairmq.model import Entity, FailureReason, Message, TransportError
from pairmq_servicebus import _codec, _errors
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._measure import measure
from pairmq_servicebus._outbox import Outbox, Parcel
from pairmq_servicebus._sender import open_send_link

TIME_TO_LIVE: Final = 1.0
"""Seconds that a ping lives, should a server not know its content type."""

_IDLE = 120.0  # s after which a ping's link is closed; pings come every minute by default
_MOST_ENTITIES = 1000


class Probe:
    """Pings entities of one namespace.

    A ping is an empty message of content type ``application/vnd.ms-servicebus-ping`` and a time-to-live of 1 s, with a
    random session id where the entity requires sessions. What a ping that succeeds proves, at this moment:

    - the namespace is there, and lets this key or identity in and send to the entity;
    - the entity exists, is enabled for sending, and the service answers transfers to it: it took the ping as it takes
      any message, and is documented to drop it instead of delivering it.

    What it can't prove: that the entity's quota has room for the next message, as the service stores no ping; that a
    larger message fits; that a message with a session id, a schedule or duplicate detection is handled as well; that
    what is accepted is delivered. A server that does not know the content type stores the ping, and a consumer may see
    it within its second: the local server of this distribution knows it.

    Pings have links of their own, so that a send that hangs holds up none.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._boxes: dict[Entity, Outbox] = {}
        self._with_session: set[Entity] = set()

    async def probe(self, entity: Entity) -> None:
        if self._namespace.closed:
            raise _errors.closed(f"probe {entity}")
        box = self._box(entity)
        failed = await self._ping(box, entity)
        if failed is not None and self._may_want_session(entity, failed):
            self._with_session.add(entity)
            failed = await self._ping(box, entity)
            if failed is not None:
                self._with_session.discard(entity)
        if failed is not None:
            raise failed

    async def close(self) -> None:
        boxes = list(self._boxes.values())
        self._boxes.clear()
        if boxes:
            await asyncio.gather(*(box.close() for box in boxes))

    async def _ping(self, box: Outbox, entity: Entity) -> TransportError | None:
        parts = _codec.take_apart(
            Message(
                message_id=uuid.uuid4().hex,
                content_type=_codec.PING_CONTENT_TYPE,
                time_to_live=TIME_TO_LIVE,
                session_id=uuid.uuid4().hex if entity in self._with_session else None,
            )
        )
        return await box.send(Parcel(parts, measure(parts), None))

    def _may_want_session(self, entity: Entity, failed: TransportError) -> bool:
        """Whether a refusal may be about the missing session id; remembered, so that it is asked once."""
        about_message = failed.reason in (FailureReason.NOT_SUPPORTED, FailureReason.MALFORMED, FailureReason.OTHER)
        return about_message and not failed.maybe_applied and entity not in self._with_session

    def _box(self, entity: Entity) -> Outbox:
        box = self._boxes.get(entity)
        if box is None:
            doing, namespace = f"probe {entity}", self._namespace
            if len(self._boxes) >= _MOST_ENTITIES:
                namespace.spawn(self._boxes.pop(next(iter(self._boxes))).close())
            box = self._boxes[entity] = Outbox(
                lambda: open_send_link(namespace, entity, doing),
                doing,
                limit=namespace.url.operation_timeout,
                idle_limit=_IDLE,
            )
        return box

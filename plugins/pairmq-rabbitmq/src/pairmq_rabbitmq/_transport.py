"""The transport: its settings and connections, and the objects that use them; and its senders.

Each message is a persistent, mandatory publish that the broker has confirmed. A queue is published to through the
default exchange, with its name as the routing key; a topic is an exchange, and the message's subject the routing key.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from aiormq.exceptions import AMQPChannelError

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import Admin, Receiver, Scope, Sender, Transport, nothing_sent, raise_failure
from pairmq_rabbitmq import _codec, _errors, _names, _plain
from pairmq_rabbitmq._admin import RabbitAdmin
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._header import is_costly
from pairmq_rabbitmq._inspection import why_nacked
from pairmq_rabbitmq._names import CAPABILITIES, MAX_MESSAGE_BYTES
from pairmq_rabbitmq._publish import Answer, Lost, Nacked, Parcel, Returned, publish_method
from pairmq_rabbitmq._receiving import RabbitReceiver
from pairmq_rabbitmq._schedule import Schedule, check_delay
from pairmq_rabbitmq._url import parse_rabbitmq_url

_RECEIVERS = 1.2  # s
_CLOSE = 0.5


_MAX_ROUTING_KEY = 255  # bytes
_CONFIGURED_SIZE = re.compile(r"larger than configured max size ([0-9]{1,12})")


class RabbitTransport(Transport):
    """A transport to a RabbitMQ server, 3.8 or newer; the options of its URL are in the README."""

    capabilities = CAPABILITIES

    def __init__(self, url: str) -> None:
        parsed = parse_rabbitmq_url(url)
        super().__init__(parsed.endpoint)
        tls = None if parsed.tls is None else parsed.tls.context(for_url=parsed.endpoint.url)
        self._context = Context(parsed, self.scope, tls)
        self._schedule = Schedule(self._context)
        self._admin = RabbitAdmin(self._context)

    @property
    def node(self) -> str | None:
        return self._context.node

    @property
    def admin(self) -> Admin:
        return self._admin

    async def make_ready(self, *, sends: bool = False, receives: bool = False) -> None:
        """Open the connections that are for these; each takes some five round trips."""
        context = self._context
        await asyncio.gather(
            *([context.connect(context.publishing)] if sends else []),
            *([context.connect(context.consuming)] if receives else []),
        )

    def sender(self, entity: Entity) -> Sender:
        return RabbitSender(self._context, self._schedule, entity)

    def receiver(self, source: Source) -> Receiver:
        return RabbitReceiver(self._context, source)

    def measure(self, message: Message) -> int:
        return _codec.size(message)

    def check_message(self, entity: Entity, message: Message) -> None:
        check_message(self._context, entity, message)

    async def _close(self) -> None:
        closing = [asyncio.ensure_future(receiver.close()) for receiver in list(self._context.receivers)]
        if closing:
            await asyncio.wait(closing, timeout=_RECEIVERS)
        await self._context.close(_CLOSE)


def check_message(context: Context, entity: Entity, message: Message) -> None:
    """Raise `TransportError` for a message that RabbitMQ can never accept, as far as is known without a request."""
    most = context.max_body_bytes or MAX_MESSAGE_BYTES
    if _plain.is_bare(message) and len(message.body) <= min(most, MAX_MESSAGE_BYTES):
        return
    doing = f"send to {entity}"
    if message.subject and entity.kind is EntityKind.TOPIC:
        _check_routing_key(message.subject, doing)
    if message.scheduled_enqueue_at is not None:
        check_delay((message.scheduled_enqueue_at - datetime.now(UTC)).total_seconds(), doing)
    _pack(context, message, b"", doing)
    _check_body(message, most, doing)


def _pack(
    context: Context, message: Message, method: bytes, doing: str, delayed: bool = False, priority_aside: bool = False
) -> Parcel:
    """Serialize a message, with the answers of `RabbitSender._where`. Raises `TransportError`."""
    parcel = _plain.pack(method, message)
    if parcel is None:
        properties = _codec.encode(message, login=context.url.username, delayed=delayed, priority_aside=priority_aside)
        parcel = Parcel.of(method, properties, message.body)
    most = context.publishing.max_payload
    if len(parcel.header) > most:
        text = f"its properties have {len(parcel.header)} bytes, RabbitMQ takes at most {most}"
        raise _errors.refused(doing, text, FailureReason.TOO_LARGE)
    if is_costly(parcel.header, sending=True):
        text = "its application properties hold more values than a receiver can read in good time"
        raise _errors.refused(doing, text, FailureReason.TOO_LARGE)
    _check_body(message, MAX_MESSAGE_BYTES, doing)
    return parcel


def _check_body(message: Message, most: int, doing: str) -> None:
    if len(message.body) > most:
        text = f"its body has {len(message.body)} bytes, RabbitMQ takes at most {most}"
        raise _errors.refused(doing, text, FailureReason.TOO_LARGE)


def _check_routing_key(subject: str, doing: str) -> None:
    if len(subject.encode()) > _MAX_ROUTING_KEY:
        text = f"a topic's messages have their subject as routing key: at most {_MAX_ROUTING_KEY} bytes"
        raise _errors.refused(doing, text, FailureReason.MALFORMED)


class RabbitSender(Sender):
    scope: Scope

    def __init__(self, context: Context, schedule: Schedule, entity: Entity) -> None:
        _names.check(entity)
        self._context = context
        self._schedule = schedule
        self._entity = entity
        self._topic = entity.kind is EntityKind.TOPIC
        self._method = publish_method(entity.path, "") if self._topic else publish_method("", entity.path)
        self._doing = f"send to {entity}"
        self.scope = Scope(context.scope, self._doing)

    async def send(self, message: Message) -> None:
        self.scope.check()
        parcel = self._parcel(message, *(await self._where(message) if self._is_special(message) else (self._method,)))
        [answer] = await self._context.publisher(self._entity).publish([parcel], self.scope)
        if answer is not None:
            [failed] = await self._explain([answer])
            if failed is not None:
                raise failed

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        try:
            self.scope.check()
        except TransportError as error:
            return [error for _ in messages]
        packed: list[Parcel | TransportError] = []
        parcels: list[Parcel] = []
        for message in messages:
            try:
                where = await self._where(message) if self._is_special(message) else (self._method,)
                parcel = self._parcel(message, *where)
            except TransportError as error:
                packed.append(error)
            else:
                packed.append(parcel)
                parcels.append(parcel)
        answers = await self._context.publisher(self._entity).publish(parcels, self.scope) if parcels else []
        if answers.count(None) == len(packed):
            return [None] * len(packed)
        outcomes = iter(await self._explain(answers))
        return [next(outcomes) if isinstance(parcel, Parcel) else parcel for parcel in packed]

    async def make_ready(self) -> None:
        self.scope.check()
        try:
            await self._context.publisher(self._entity).open(self.scope)
        except Unsent as error:
            raise_failure(_errors.failure(error, self._doing))

    def _parcel(self, message: Message, method: bytes, *more: bool) -> Parcel:
        return _pack(self._context, message, method, self._doing, *more)

    def _is_special(self, message: Message) -> bool:
        return message.scheduled_enqueue_at is not None or (self._topic and bool(message.subject))

    async def _where(self, message: Message) -> tuple[bytes, bool, bool]:
        """The method that publishes it, whether that is to a delay queue, as it is not due yet, and whether without
        priority.

        Nothing of any message is written before all of a call's are known; a cancellation reports so.
        """
        if message.scheduled_enqueue_at is not None:
            delay = (message.scheduled_enqueue_at - datetime.now(UTC)).total_seconds()
            if delay > 0:
                try:
                    check_delay(delay, self._doing)
                    method = await self.scope.race(self._schedule.route(self._entity, delay, self._doing))
                    return method, True, self._schedule.priority_aside
                except asyncio.CancelledError as cancellation:
                    nothing_sent(cancellation)
                    raise
        if not self._topic or not message.subject:
            return self._method, False, False
        _check_routing_key(message.subject, self._doing)
        return publish_method(self._entity.path, message.subject), False, False

    async def _explain(self, answers: Sequence[Answer]) -> list[TransportError | None]:
        """Turn each answer into a result; the broker is asked once for all that it returned or rejected."""
        context, entity, doing = self._context, self._entity, self._doing
        returned = nacked = None
        outcomes: list[TransportError | None] = []
        for answer in answers:
            match answer:
                case None | TransportError():
                    outcomes.append(answer)
                case Returned():
                    why = partial(context.why_returned, entity, doing)
                    returned = returned or await context.explained("returned", entity, doing, why)
                    outcomes.append(returned)
                case Nacked():
                    why = partial(why_nacked, context, entity, doing)
                    nacked = nacked or await context.explained("rejected", entity, doing, why)
                    outcomes.append(nacked)
                case Lost():
                    outcomes.append(self._lost(answer))
                case _:
                    raise AssertionError(answer)
        return outcomes

    def _lost(self, lost: Lost) -> TransportError:
        failed = _errors.failure(lost.cause, self._doing)
        if configured := _CONFIGURED_SIZE.search(str(failed)):
            self._context.max_body_bytes = int(configured[1])
        if failed.kind is not FailureKind.REFUSED or lost.alone:
            return failed
        # A channel was closed because of one message in flight, and it is unknown which: all are in doubt, and retried.
        # A connection was closed for another reason, whatever its text.
        kind = FailureKind.TRANSIENT if isinstance(lost.cause, AMQPChannelError) else FailureKind.UNAVAILABLE
        doubtful = TransportError(str(failed), kind, failed.reason, maybe_applied=True)
        doubtful.__cause__ = failed.__cause__
        return doubtful

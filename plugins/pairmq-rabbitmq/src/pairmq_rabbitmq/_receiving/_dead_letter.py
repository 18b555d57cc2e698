"""Messages that can't be returned to a caller are moved to the dead-letter queue, which is created when missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import uuid4

from pamqp.commands import Basic

from pairmq.model import FailureKind, FailureReason, Message, TransportError
from pairmq.transport import Scope
from pairmq_rabbitmq import _codec, _errors, _names
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._driver import QueueDeclare
from pairmq_rabbitmq._header import is_costly
from pairmq_rabbitmq._properties import dead_letter_arguments, queue_type_for
from pairmq_rabbitmq._publish import Answer, Lost, Nacked, Parcel, Returned, publish_method
from pairmq_rabbitmq._publisher import Publisher
from pairmq_rabbitmq._receiving._delivery_channel import DeliveryChannel
from pairmq_rabbitmq._receiving._settling import BUSY, Locked, Waits

_MOMENT = 1.0  # s that a call waits for it
_FIRST_RETRY, _LAST_RETRY = 0.5, 10.0


class _Entry(NamedTuple):
    channel: DeliveryChannel
    reason: str
    description: str


class DeadLetters:
    """The messages that one receiver dead-letters: those it can't return, and those that its caller asks for."""

    def __init__(
        self,
        context: Context,
        queue: str,
        scope: Scope,
        waits: Waits,
        doing: str,
        report: Callable[[Message, str, str, int], None],
    ) -> None:
        self._context = context
        self._report = report
        self._name = _names.dead_letter_of(queue)
        self._scope = scope
        self._waits = waits
        self._doing = doing
        self._publisher = Publisher(context.publishing, doing)
        self._preparing = asyncio.Lock()
        self._entries: dict[Locked, _Entry] = {}
        self._turn = asyncio.Lock()
        self._retries: asyncio.Task[None] | None = None

    def add(self, channel: DeliveryChannel, locked: Locked, reason: str, description: str) -> None:
        channel.withdraw(locked)
        self._entries[locked] = _Entry(channel, reason, description)

    async def flush(self) -> None:
        """Dead-letter what was added, and wait a moment; what fails stays locked, and is retried, also if cancelled."""
        await self._waits.until(self._waits.begin(self._flush()), seconds=_MOMENT)

    async def _flush(self) -> None:
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
            # What was lost with its channel is redelivered.
            tried = {one: entry for one, entry in self._entries.items() if one.state is BUSY and entry.channel.usable}
            copies = [self.pack(one.properties, one.body, *entry[1:]) for one, entry in tried.items()]
            outcomes = await self.publish(copies) if copies else []
            left: dict[Locked, _Entry] = {}
            settled: dict[DeliveryChannel, list[Locked]] = {}
            for (locked, entry), failed in zip(tried.items(), outcomes, strict=True):
                channel = entry.channel
                if locked.state is not BUSY or not channel.usable:
                    continue
                if failed is None:
                    shown = _codec.decode_leniently(locked.properties, locked.body)
                    self._report(shown, entry.reason, entry.description, locked.count)
                    settled.setdefault(channel, []).append(locked)
                elif channel.is_held_long(locked):
                    channel.settle([locked], requeue=True)
                else:
                    left[locked] = entry
            # More may have been added in the meantime.
            new = {one: entry for one, entry in self._entries.items() if one not in tried and one.state is BUSY}
            self._entries = left | new
            for channel, messages in settled.items():
                await self._waits.until(channel.settle(messages, requeue=False).done)

    def pack(self, properties: Basic.Properties, body: bytes, reason: str, description: str) -> Parcel:
        """Pack a copy of a message, without its properties where no receiver could read them.

        The broker's return of the copy is read too: its message id must be readable.
        """
        most = self._context.publishing.max_payload
        login = self._context.url.username
        try:
            parcel = self._pack(_codec.with_dead_letter(properties, reason, description, login=login), body)
            if len(parcel.header) > most:
                problem = "with the reason they are larger than the broker accepts"
            elif is_costly(parcel.header, sending=True):
                problem = "with the reason they hold more values than a receiver can read in good time"
            else:
                return parcel
        except Exception as error:  # they are untrusted, and the message must leave the queue
            problem = str(error) or type(error).__name__
        bare = Basic.Properties(message_id=properties.message_id, content_type=properties.content_type)
        description = f"{description[: _codec.MAX_REASON_LENGTH // 2]} (properties are not kept: {problem})"
        return self._pack(_codec.with_dead_letter(bare, reason, description, login=login), body)

    def _pack(self, properties: Basic.Properties, body: bytes) -> Parcel:
        if not properties.message_id:
            # The copy has an id where the original had none: otherwise a publish that no queue took would go unnoticed.
            properties.message_id = uuid4().hex
        return Parcel.of(publish_method("", self._name), properties, body)

    async def publish(self, copies: Sequence[Parcel]) -> list[TransportError | None]:
        """Publish copies; one outcome each, None for confirmed."""
        answers = await self._publisher.publish(copies, self._scope)
        again = [index for index, answer in enumerate(answers) if isinstance(answer, Returned | Nacked)]
        if again:
            missing = any(isinstance(answer, Returned) for answer in answers)
            try:
                await self._scope.race(self._prepare(missing=missing))
            except TransportError as error:
                second: Sequence[Answer] = [error for _ in again]
            else:
                second = await self._publisher.publish([copies[index] for index in again], self._scope)
            for index, answer in zip(again, second, strict=True):
                answers[index] = answer
        return [self._outcome(answer) for answer in answers]

    def release(self) -> None:
        self._publisher.release()

    async def _prepare(self, *, missing: bool) -> None:
        """Ensure that the queue exists; one that is being created rejects publishes."""
        async with self._preparing:
            if not missing:
                await self._context.count(self._name, self._doing)
                return
            await self._declare()

    async def _declare(self) -> None:
        version = await self._context.server_version(self._doing)
        arguments = dead_letter_arguments(queue_type_for(self._context.url.queue_type, version, "classic"))
        try:
            await self._context.ask(self._doing, QueueDeclare(queue=self._name, durable=True, arguments=arguments))
        except TransportError as error:
            if error.reason is not FailureReason.ALREADY_EXISTS:  # created by another client, with other arguments
                raise

    def _outcome(self, answer: Answer) -> TransportError | None:
        match answer:
            case None | TransportError():
                return answer
            case Returned():
                return TransportError(f"{self._doing}: the dead-letter queue does not exist", FailureKind.UNAVAILABLE)
            case Nacked():
                text = f"{self._doing}: the dead-letter queue rejected the copy"
                return TransportError(text, FailureKind.UNAVAILABLE, FailureReason.QUOTA)
            case Lost():
                return _errors.failure(answer.cause, self._doing)
            case _:
                raise AssertionError(answer)

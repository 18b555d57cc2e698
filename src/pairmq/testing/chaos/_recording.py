"""A transport that records all operations of a pair at its broker, and their results."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from pairmq.core import MAYBE_DUPLICATE
from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.testing.chaos._ledger import Ledger, made, number_of
from pairmq.testing.history import CONFIRMED, KILLED, PRIMARY, WriteResult
from pairmq.transport import Receiver, ReceiverWrapper, Sender, SenderWrapper, Transport, TransportWrapper

T = TypeVar("T")

SENDING: ContextVar[bool] = ContextVar("pairmq chaos sending", default=False)
"""Whether the running task is a caller's; what else writes is the syphon."""

_attempts = itertools.count()


class RecordingTransport(TransportWrapper):
    """Passes everything on."""

    def __init__(self, inner: Transport, side: str, ledger: Ledger) -> None:
        # Each client reaches its brokers through proxies of its own, whose addresses would make each pair another one.
        super().__init__(inner, replace(inner.endpoint, name=side, identity=("chaos", side), scope=""))
        self.side = side
        self.ledger = ledger

    def sender(self, entity: Entity) -> Sender:
        """Make a sender that writes down its writes."""
        return _Sender(self, entity, self.inner.sender(entity))

    def receiver(self, source: Source) -> Receiver:
        """Make a receiver that writes down what it is given, and how that is settled."""
        return _Receiver(self, source.entity.path, self.inner.receiver(source))

    def trouble(self, path: str, operation: str, result: WriteResult) -> None:
        """Write down that something failed."""
        self.ledger.write("trouble", broker=self.side, path=path, operation=operation, result=result)

    def strange(self, path: str, operation: str, error: Exception) -> None:
        """Write down what no transport may raise."""
        text = f"{operation} at the {self.side} {path} raised {type(error).__name__}: {error}"
        self.ledger.write("crash", text=text)


class _Sender(SenderWrapper):
    def __init__(self, link: RecordingTransport, entity: Entity, inner: Sender) -> None:
        super().__init__(inner)
        self._link = link
        self._entity = entity

    async def send(self, message: Message) -> None:
        await self._recorded((message,), self.inner.send(message))

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._recorded(messages, self.inner.send_batch(messages))

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await self._recorded(messages, self.inner.send_in_order(messages))

    async def _recorded(self, messages: Sequence[Message], write: Awaitable[T]) -> T:
        link, count = self._link, len(messages)
        attempt = next(_attempts)
        link.ledger.write(
            "try",
            attempt=attempt,
            broker=link.side,
            path=self._entity.path,
            syphon=not SENDING.get(),
            messages=[number_of(message) for message in messages],
            marked=[MAYBE_DUPLICATE in message.application_properties for message in messages],
        )
        noted: Sequence[WriteResult] = [KILLED] * count
        try:
            results = await write
            errors = results if isinstance(results, Sequence) else (None,)
            noted = [CONFIRMED if error is None else WriteResult.of(error) for error in errors]
            return results
        except BaseException as error:
            noted = [WriteResult.of(error)] * count
            if not isinstance(error, TransportError) and isinstance(error, Exception):
                link.strange(self._entity.path, "send", error)
            raise
        finally:
            link.ledger.write("tried", attempt=attempt, results=noted)


class _Receiver(ReceiverWrapper):
    def __init__(self, link: RecordingTransport, path: str, inner: Receiver) -> None:
        super().__init__(inner)
        self._link = link
        self._path = path

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        found = await self._noted("receive", self.inner.receive(max_messages, wait))
        if found:
            self._link.ledger.write(
                "got",
                broker=self._link.side,
                path=self._path,
                messages=[(each.sequence_number, number_of(each.message), each.delivery_count) for each in found],
            )
            if self._link.side == PRIMARY:
                self._look_at(found)
        return found

    async def complete(self, delivery: Delivery) -> None:
        self._settles("complete", (delivery,))
        await self._noted("settle", self.inner.complete(delivery))

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        self._settles("complete", deliveries)
        results = await self._noted("settle", self.inner.complete_batch(deliveries))
        for error in results:
            if error is not None:
                self._link.trouble(self._path, "settle", WriteResult.of(error))
        return results

    async def abandon(self, delivery: Delivery) -> None:
        self._settles("abandon", (delivery,))
        await self._noted("settle", self.inner.abandon(delivery))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        self._settles("dead-letter", (delivery,), reason)
        await self._noted("settle", self.inner.dead_letter(delivery, reason, description))

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        return await self._noted("settle", self.inner.renew_lock(delivery))

    def _look_at(self, found: Sequence[Delivery]) -> None:
        """Record a message at the primary that differs from the one of its number; such a line is a violation."""
        for each in found:
            number = number_of(each.message)
            if number is None or each.message != made(number):
                self._link.ledger.write("altered", number=number, path=self._path, message=repr(each.message)[:500])

    def _settles(self, how: str, deliveries: Sequence[Delivery], reason: str = "") -> None:
        self._link.ledger.write(
            "settle",
            broker=self._link.side,
            path=self._path,
            how=how,
            reason=reason,
            messages=[(each.sequence_number, number_of(each.message)) for each in deliveries],
        )

    async def _noted(self, operation: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (TransportError, asyncio.CancelledError) as error:
            self._link.trouble(self._path, operation, WriteResult.of(error))
            raise
        except Exception as error:
            self._link.strange(self._path, operation, error)
            raise

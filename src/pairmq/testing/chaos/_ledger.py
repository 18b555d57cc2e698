"""The messages of a chaos run, each made of its number alone, and the ledgers: a file for each life of a process.

Each line is one write without a buffer, so that what a process wrote down before a SIGKILL is there afterwards.
Instants are of the machine's monotonic clock, which all processes share; it is the event loop's clock too. Events
are written as rows of `pairmq.model.records`; what a pair does at its brokers is written by `RecordingTransport`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pairmq.core import MAYBE_DUPLICATE
from pairmq.model import Delivery, Entity, Message, Source, TransportError
from pairmq.testing.history import CANARIES, CONFIRMED, KILLED, PRIMARY, WriteResult
from pairmq.transport import Receiver, ReceiverWrapper, Sender, SenderWrapper, Transport, TransportWrapper

OPENED = "opened"
"""What a client says first, when its pair is open."""

CANARIES_OF_A_SENDER = 8
"""One for each session of its client, and one without a session."""

_NUMBER = slice(1, 9)
_LENGTHS = (9, 40, 700, 3000)
_A_LIFE = 100_000
_A_CLIENT = 10_000_000
_SESSIONS = CANARIES_OF_A_SENDER - 1


T = TypeVar("T")
SENDING: ContextVar[bool] = ContextVar("pairmq chaos sending", default=False)
"""Whether the running task is a caller's; what else writes is the syphon."""
_attempts = itertools.count()


def first_number(client: int, life: int) -> int:
    """The first number of a life of a client: no two lives ever send the same one."""
    if not 0 < life < _A_CLIENT // _A_LIFE:
        raise ValueError(f"client {client} has lived {life} times: no number is left")
    return client * _A_CLIENT + life * _A_LIFE


def first_canary(client: int, life: int) -> int:
    """The number of a life's first canary; with `CANARIES_OF_A_SENDER` from there on each session has one."""
    return CANARIES + first_number(client, life) // 100


def message_of(number: int) -> Message:
    some = number % 3 == 0
    return Message(
        (b"m%08d" % number).ljust(_LENGTHS[number % len(_LENGTHS)], b"."),
        message_id=f"id-{number}",
        session_id=_session(number),
        # Not of a canary, which has to arrive with every product.
        time_to_live=3600.0 if number % 5 == 0 and number < CANARIES else None,
        correlation_id=f"about-{number}" if some else None,
        subject="chaos",
        application_properties={"number": number, "text": "n", "some": some},
    )


def _session(number: int) -> str | None:
    """Its client's own: order is a promise while one process at a time owns a session's sends."""
    if number >= CANARIES:
        client, turn = (number - CANARIES) // (_A_CLIENT // 100), number % CANARIES_OF_A_SENDER
        return f"session-{client}-{turn}" if turn < _SESSIONS else None
    return f"session-{number // _A_CLIENT}-{number % _SESSIONS}" if number % 3 == 0 else None


def number_of(message: Message) -> int | None:
    """Read a message's number out of its body; None for one that was never sent."""
    digits = message.body[_NUMBER]
    return int(digits) if message.body[:1] == b"m" and len(digits) == 8 and digits.isdigit() else None


class Ledger:
    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **values: Any) -> None:
        self._file.write(json.dumps({"t": time.monotonic(), "k": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lines(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All lines of all ledgers by their instants, with the ledger's name; one truncated by a kill is ignored."""
    found: list[tuple[float, str, int, dict[str, Any]]] = []
    for path in sorted(directory.glob("*.jsonl")):
        for position, line in enumerate(path.read_bytes().split(b"\n")):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found.append((entry["t"], path.stem, position, entry))
    for _, name, _, entry in sorted(found, key=lambda each: each[:3]):
        yield name, entry


class RecordingTransport(TransportWrapper):
    def __init__(self, inner: Transport, side: str, ledger: Ledger) -> None:
        # Each client reaches its brokers through proxies of its own, whose addresses would make each pair another one.
        super().__init__(inner, replace(inner.endpoint, name=side, identity=("chaos", side), scope=""))
        self.side = side
        self.ledger = ledger

    def sender(self, entity: Entity) -> Sender:
        return _Sender(self, entity, self.inner.sender(entity))

    def receiver(self, source: Source) -> Receiver:
        return _Receiver(self, source.entity.path, self.inner.receiver(source))

    def trouble(self, path: str, operation: str, result: WriteResult) -> None:
        self.ledger.write("trouble", broker=self.side, path=path, operation=operation, result=result)

    def strange(self, path: str, operation: str, error: Exception) -> None:
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
        await self._settled("complete", (delivery,), self.inner.complete(delivery))

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        results = await self._settled("complete", deliveries, self.inner.complete_batch(deliveries))
        for error in results:
            if error is not None:
                self._link.trouble(self._path, "settle", WriteResult.of(error))
        return results

    async def abandon(self, delivery: Delivery) -> None:
        await self._settled("abandon", (delivery,), self.inner.abandon(delivery))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._settled("dead-letter", (delivery,), self.inner.dead_letter(delivery, reason, description), reason)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        return await self._noted("settle", self.inner.renew_lock(delivery))

    def _look_at(self, found: Sequence[Delivery]) -> None:
        """Record a message at the primary that differs from the one of its number; such a line is a violation."""
        for each in found:
            number = number_of(each.message)
            if number is None or each.message != message_of(number):
                self._link.ledger.write("altered", number=number, path=self._path, message=repr(each.message)[:500])

    async def _settled(self, how: str, deliveries: Sequence[Delivery], call: Awaitable[T], reason: str = "") -> T:
        self._link.ledger.write(
            "settle",
            broker=self._link.side,
            path=self._path,
            how=how,
            reason=reason,
            messages=[(each.sequence_number, number_of(each.message)) for each in deliveries],
        )
        return await self._noted("settle", call)

    async def _noted(self, operation: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (TransportError, asyncio.CancelledError) as error:
            self._link.trouble(self._path, operation, WriteResult.of(error))
            raise
        except Exception as error:
            self._link.strange(self._path, operation, error)
            raise

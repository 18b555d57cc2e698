"""Receiving under peek-lock: a lock is an instant in the message's row, before which no other receiver gets it.

A lock has a name: the receiver's, which is random, and the number of its receive. Settling requires that name, so that
a delivery whose lock has ended can't affect a message that another receiver holds by now.

A process is not notified of what another one has stored. A waiting receiver polls, soon at first, then less often, up
to the ``poll_interval``. What the same transport has sent wakes it at once.

Locks outlast an outage of the file. What a receive with an unknown outcome has locked, and what a receiver held that
closed meanwhile, is released with the next receive of this process (SPEC 7.6). What another receiver holds is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple, TypeVar

from pairmq.model import Delivery, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import MalformedHeader, Receiver, decode_header
from pairmq_sqlite import _errors
from pairmq_sqlite._errors import Failed, LockEnded
from pairmq_sqlite._store import Place, Row, Store, instant, now_us, shown
from pairmq_sqlite._worker import Context

T = TypeVar("T")

_FIRST_LOOK = 0.01
_RELEASE_WITHIN = 0.9
_MOST_MESSAGES = 1000
_MOST_BYTES = 16 * 1024 * 1024
_MOST_LETTERS = 1024


class _Token(NamedTuple):
    number: int
    lock: str


@dataclass(frozen=True, slots=True)
class _Taken:
    """What one look has found, seconds until something is known to become free, and what it has dead-lettered."""

    deliveries: list[Delivery]
    next_in: float
    malformed: list[tuple[Row, str]]


class SQLiteReceiver(Receiver):
    def __init__(self, context: Context, source: Source) -> None:
        self._context = context
        self._source = source
        self._path = source.entity.path
        self._receiving, self._settling = f"receive from {source}", f"settle a delivery of {source}"
        self._name = secrets.token_hex(8)
        self._receives = 0
        self._doubtful: list[str] = []
        """Locks of receives that may have been done, and whose messages no caller got."""
        self._calls = context.calls(self._receiving)
        self.scope = self._calls.scope
        context.receivers.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}: at least 1")
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        pause = _FIRST_LOOK
        while True:
            arrival = self._context.arrivals.next(self._path)
            taken = await self._take(min(max_messages, _MOST_MESSAGES))
            for row, problem in taken.malformed:
                self.dead_lettered(shown(row.header, row.body), "malformed", problem, row.deliveries)
            left = ends_at - loop.time()
            if taken.deliveries or left <= 0:
                return taken.deliveries
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause, left, taken.next_in)):
                    await arrival.wait()
            pause = min(pause * 2, self._context.url.poll_interval)

    async def complete(self, delivery: Delivery) -> None:
        (failed,) = await self.complete_batch([delivery])
        if failed is not None:
            raise failed

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        tokens = [self._own_token(delivery) for delivery in deliveries]
        try:
            done = await self._settle(lambda store: [token is not None and store.complete(*token) for token in tokens])
        except TransportError as error:
            return [error] * len(deliveries)
        return [None if is_done else self._lock_lost() for is_done in done]

    async def abandon(self, delivery: Delivery) -> None:
        number, lock = self._token(delivery)
        await self._settle(lambda store: store.abandon(number, lock))
        self._context.arrivals.notify(self._path)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Move a delivery to the dead letters, in one step; reason and description are cut to 1024 letters each."""
        if self._source.dead_letter:
            text = f"{self._settling}: it is in the dead-letter queue already"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        number, lock = self._token(delivery)
        why = (_storable(reason), _storable(description))
        await self._settle(lambda store: store.dead_letter(store.place(self._source), number, lock, *why))
        self._context.arrivals.notify(self._path)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        number, lock = self._token(delivery)
        until = await self._settle(lambda store: store.renew(store.place(self._source), number, lock))
        return replace(delivery, locked_until=instant(until))

    async def _take(self, most: int) -> _Taken:
        self._receives += 1
        lock = f"{self._name}:{self._receives}"
        left = self._context.left_locks.pop(self._source, [])
        doubtful, self._doubtful = self._doubtful, []

        def take(store: Store) -> _Taken:
            place = store.place(self._source)
            for each in doubtful:
                store.take_back(place, each)
            for each in left:
                store.release(place, each)
            return _take(store, place, lock, most)

        try:
            return await self._calls.run(take, self._receiving)
        except TransportError as error:
            self._doubtful += [*doubtful, lock] if error.maybe_applied else doubtful
            self._context.leave_locks(self._source, left)
            raise
        except asyncio.CancelledError:
            self._doubtful += [*doubtful, lock]
            self._context.leave_locks(self._source, left)
            # It may have been done. Jobs are done in turn, so that this one comes after it and undoes it.
            with contextlib.suppress(TransportError):
                self._context.worker.submit(lambda store: store.take_back(store.place(self._source), lock))
            raise

    async def _release(self) -> None:
        """Release what is not settled; if that can't be done now, the next receiver does so, or the locks end."""
        self._context.arrivals.notify(self._path)  # a receive that waits finds out
        self._context.receivers.discard(self)
        if not self._receives:
            return
        locks = f"{self._name}:*"
        try:
            job = self._context.worker.submit(lambda store: store.release(store.place(self._source), locks))
            async with asyncio.timeout(_RELEASE_WITHIN):
                await job.outcome()
        except (Failed, TransportError, TimeoutError):
            self._context.leave_locks(self._source, [locks])
        self._context.arrivals.notify(self._path)

    async def _settle(self, work: Callable[[Store], T]) -> T:
        return await self._calls.run(work, self._settling)

    def _token(self, delivery: Delivery) -> _Token:
        token = self._own_token(delivery)
        if token is None:
            raise self._lock_lost()
        return token

    def _own_token(self, delivery: Delivery) -> _Token | None:
        """What settles a delivery; None if this receiver did not give it."""
        token = delivery.lock_token
        return token if isinstance(token, _Token) and token.lock.startswith(f"{self._name}:") else None

    def _lock_lost(self) -> TransportError:
        return _errors.failure(LockEnded(), self._settling)


def delivery_of(row: Row, message: Message, token: object = None, *, locked_until: datetime | None = None) -> Delivery:
    return Delivery(
        message=message,
        lock_token=token,
        delivery_count=row.deliveries,
        sequence_number=str(row.number),
        enqueued_at=instant(row.enqueued_at),
        locked_until=locked_until,
        dead_letter_reason=row.reason,
        dead_letter_description=row.description,
    )


def _take(store: Store, place: Place, lock: str, most: int) -> _Taken:
    """Lock and decode what is free; in the worker's thread, in one transaction.

    What can't be decoded is dead-lettered on the way, and what is behind it is looked at. In the dead letters there is
    no further place to put it: it is handed out as far as it can be read.
    """
    until = instant(now_us() + place.settings.lock_duration)
    decode = shown if place.reads_dead else decode_header
    deliveries: list[Delivery] = []
    malformed: list[tuple[Row, str]] = []
    while not deliveries:
        rows = store.take(place, lock, most, _MOST_BYTES)
        for row in rows:
            try:
                message = decode(row.header, row.body)
            except MalformedHeader as problem:
                store.dead_letter(place, row.number, lock, "malformed", str(problem))
                malformed.append((row, str(problem)))
            else:
                token = _Token(row.number, lock)
                deliveries.append(delivery_of(row, message, token, locked_until=until))
        if not rows:
            next_at = store.next_at(place)
            free_in = float("inf") if next_at is None else max(next_at - now_us(), 1000) / 1_000_000
            return _Taken([], free_in, malformed)
    return _Taken(deliveries, 0.0, malformed)


def _storable(text: str) -> str:
    """Cut a text, and replace lone surrogates, which no database stores."""
    return text[:_MOST_LETTERS].encode(errors="replace").decode()

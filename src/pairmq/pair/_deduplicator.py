"""Handling each message once, as far as possible (SPEC 3.3: copies have one message id).

Delivery is at least once, so consumers see duplicates. A key for each message id goes from free to *held*, by the
consumer that handles the message, to *done*. Both steps are needed: an id recorded only after the handler would let two
consumers handle two copies concurrently; one recorded permanently before it would lose the message if the consumer
dies. So the first is a lease that expires, and only the second lasts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pairmq.core import Backoff
from pairmq.memory import MemoryClaims
from pairmq.model import ConfigurationError, FailureKind, LockLost, Message, TransportError
from pairmq.model.events import Settlement
from pairmq.pair._receiver import PairDelivery
from pairmq.runner import TimeLimits
from pairmq.transport import Claim, ClaimStore, Inbox, driver_connection, start_task

T = TypeVar("T")

_log = logging.getLogger("pairmq")

_STORE_TIMEOUT = 5.0  # s for one call of the store
_CONFIRM_RETRIES = 3
_BACKOFF = Backoff(first=0.05, factor=2.0, cap=1.0)


class Deduplicator:
    """Lets a consumer handle each message once, by its message id.

        dedupe = Deduplicator()
        async for delivery in receiver:
            async with dedupe.once(delivery) as first:
                if first:
                    await handle(delivery.message)

    Args:
        store: holds the claims; this process's memory by default. Consumers that share a queue share a store, such as
            ``pairmq_redis.RedisClaims``. With ``pairmq_postgres.PostgresInbox`` or ``pairmq_sqlite.SQLiteInbox`` claims
            are part of the consumer's transactions: see `first`, the only method that works with these.
        window: seconds for which an id is remembered after its message was handled. A duplicate may arrive as late as
            the end of an outage and its drain.
        lease: seconds after which a dead consumer loses its claim; renewed while a handler runs inside `once`.
        scope: names the consumers that share their work. Two of different scopes each handle every message.

    Raises:
        ValueError: ``window`` or ``lease`` is not above 0.

    Limits: if a consumer dies after its handler's work and before the store has recorded it, the message is handled
        again. Only a handler that records the message id atomically with its own work closes that gap. A copy that
        arrives after the window is handled again, and so is any message without an id. Messages with the same id are
        copies of each other only if they were read from the same source.
    """

    def __init__(
        self, store: ClaimStore | Inbox | None = None, *, window: float = 86_400.0, lease: float = 60.0, scope: str = ""
    ) -> None:
        if not window > 0 or not lease > 0:
            raise ValueError(f"window is {window} and lease {lease}: both must be above 0 seconds")
        self._inbox = store if isinstance(store, Inbox) else None
        self._claims = store if isinstance(store, ClaimStore) else None if self._inbox else MemoryClaims()
        self._window = window
        self._lease = lease
        self._scope = scope
        self._limits = TimeLimits(_STORE_TIMEOUT)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._endings: set[asyncio.Task[None]] = set()  # of claims whose callers were cancelled

    @asynccontextmanager
    async def once(self, delivery: PairDelivery) -> AsyncIterator[bool]:
        """Claim a delivery's message; on exit, settle the claim and the delivery.

        Args:
            delivery: from `Pair.receiver`, not settled.

        Yields:
            True if the message is to be handled; False for a copy of one that was. If another consumer is handling the
            message, this waits until it is done or its lease ends.

        If the body succeeds, the delivery is completed, and then the message is remembered. A body may settle the
        delivery itself: the message is then remembered once the broker has confirmed that it was completed or
        dead-lettered. If the body raises, abandons the delivery, or settles it without the broker's confirmation, the
        claim is released, and the message is handled again when it is redelivered. After an exception the delivery is
        left unsettled: abandon it, dead-letter it, or let its lock expire. A copy is completed.

        Raises:
            TransportError: the store is unavailable, so it is unknown whether the message was handled.
            BaseException: whatever the body raises.

        A lost lock or an unavailable broker is not an error if `once` completes the delivery itself: the work is done,
        so the message is remembered, and completed when it is redelivered. Cancellation in the body releases the claim;
        on entry, the lease has to expire; on exit, the message is remembered.
        """
        held = await self._claimed(delivery)
        if held is None:
            yield False
            await _completed(delivery)
            return
        held.renewals = _Renewals(held, self._lease)
        handled = False
        try:
            yield True
            if delivery.settlement is None:
                # The body succeeded: its work is done, whether or not the completion succeeds.
                handled = True
                await _completed(delivery)
            else:
                handled = _ended(delivery)
        finally:
            await held.end(handled=handled)

    async def first_only(self, receiver: AsyncIterable[PairDelivery]) -> AsyncIterator[FirstDelivery]:
        """Iterate over the deliveries to be handled; copies are completed and skipped.

        Args:
            receiver: from `Pair.receiver`.

        Yields:
            Claimed deliveries; settling one settles its claim. Settle each within ``lease`` seconds, or renew it: as
            with its lock, this is not done automatically. At a copy of an unsettled delivery, here or at another
            consumer, the iteration waits: settle each delivery before the next one is requested, or in its own task.

        Raises:
            TransportError: the store refuses this user. While it is unavailable the iteration waits.
        """
        async for delivery in receiver:
            held = await self._claimed(delivery, patient=True)
            if held is None:
                await _completed(delivery)
            else:
                yield FirstDelivery(delivery, held)

    @asynccontextmanager
    async def first(self, delivery: PairDelivery, *, connection: Any) -> AsyncIterator[bool]:
        """Claim a delivery's message in the consumer's own transaction, with an inbox as the store (SPEC 12.6).

            async with engine.begin() as connection, dedupe.first(delivery, connection=connection) as first:
                if first:
                    await apply(delivery.message, connection)
            await delivery.complete()

        The claim commits with what the body does, or is rolled back with it: the effect in this database is applied
        once, however often the message is delivered. Complete the delivery after the commit, also that of a copy.

        Args:
            delivery: from `Pair.receiver`.
            connection: as for `PairOutbox.send`; of any database that has the inbox's table.

        Yields:
            True if the message is to be handled; False for a copy of one that was. While another transaction has
            claimed the message, this waits for its end, as long as the database does.

        Raises:
            ConfigurationError: the store is not an inbox.
            TransportError: the database refused; roll back.
            TypeError: it is not such a connection.
        """
        yield await self._claim_in(delivery, connection)

    async def _claim_in(self, delivery: PairDelivery, connection: Any, *, blocking: bool = False) -> bool:
        if self._inbox is None:
            raise ConfigurationError("first() needs an inbox: Deduplicator(PostgresInbox()) or (SQLiteInbox())")
        driver = await driver_connection(connection, blocking=blocking)
        key = self._key(delivery)
        return key is None or await self._inbox.claim(key, self._window, driver)

    async def close(self) -> None:
        """Close the store; idempotent, never raises."""
        if self._endings:
            await asyncio.wait(self._endings, timeout=_STORE_TIMEOUT)
        if self._claims is not None:
            await self._claims.close()

    @property
    def _store(self) -> ClaimStore:
        if self._claims is None:
            raise ConfigurationError("an inbox works in transactions only: use first() with the consumer's connection")
        return self._claims

    async def _claimed(self, delivery: PairDelivery, *, patient: bool = False) -> _Held | None:
        """The claim of a message that is to be handled; None for a copy."""
        # One token for all attempts: a claim whose response was lost is still ours.
        held = _Held(self, self._key(delivery), uuid.uuid4().hex)
        retry = 0
        while held.key is not None:
            try:
                answer = await self._asked(self._store.claim(held.key, held.token, self._lease))
            except TransportError as error:
                if not patient or error.kind is FailureKind.REFUSED:
                    raise
            else:
                if answer is Claim.DONE:
                    return None
                if answer is Claim.WON:
                    break
            await _pause(retry)
            retry += 1
        return held

    def _key(self, delivery: PairDelivery) -> str | None:
        """Name a message in the store: hashed, as ids and paths may have any length and characters."""
        message_id = delivery.message.message_id
        if message_id is None:
            return None
        # Each part by itself: the queue orders/audit is not the subscription audit of the topic orders.
        source = delivery.source
        parts = [self._scope, str(source.entity)]
        if source.subscription is not None or source.dead_letter:
            parts += [source.subscription or "", "dead-letter" if source.dead_letter else ""]
        parts.append(message_id)
        digest = hashlib.blake2b(digest_size=20)
        for part in parts:
            raw = part.encode("utf-8", "surrogatepass")
            digest.update(b"%d:" % len(raw) + raw)
        return digest.hexdigest()

    async def _asked(self, operation: Awaitable[T]) -> T:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the timer of a former one, as of the test before this, would never fire
            self._loop, self._limits = loop, TimeLimits(_STORE_TIMEOUT)
        try:
            return await self._limits.run(operation)
        except TransportError as error:
            # A timeout does not name its server, and a consumer has two brokers besides its store.
            text = f"{self._store!r}: {error}"
            raise TransportError(text, error.kind, error.reason, maybe_applied=error.maybe_applied) from error


class _Held:
    """A claim of this consumer; without a key (a message without an id) it does nothing."""

    __slots__ = ("_of", "key", "renewals", "token")

    def __init__(self, of: Deduplicator, key: str | None, token: str) -> None:
        self._of = of
        self.key = key
        self.token = token
        self.renewals: _Renewals | None = None

    async def end(self, *, handled: bool) -> None:
        """Confirm or release it. It ends so although its caller is cancelled, as anyio does at each await."""
        try:
            await self._end(handled)
        except asyncio.CancelledError:
            start_task(self._end(handled), name="end claim", keep=self._of._endings)
            raise

    async def _end(self, handled: bool) -> None:
        if self.renewals is not None:
            await self.renewals.end()
            self.renewals = None  # only the collector would free the two
        await (self.confirm() if handled else self.release())

    async def renew(self) -> bool:
        """Extend the lease from now; False if the claim is lost."""
        of = self._of
        return self.key is None or await of._asked(of._store.renew(self.key, self.token, of._lease))

    async def confirm(self) -> None:
        """Record that the message was handled; an unavailable store is not an error, as the work is done."""
        of = self._of
        for retry in range(_CONFIRM_RETRIES) if self.key is not None else ():
            try:
                await of._asked(of._store.confirm(self.key or "", self.token, of._window))
            except TransportError as error:
                _log.debug("a claim could not be confirmed: %s", error)
                await _pause(retry)
            else:
                return
        if self.key is not None:
            _log.warning("the store did not record that a message was handled: a duplicate would be handled again")

    async def release(self) -> None:
        """Release the claim if the store is reachable; otherwise the lease expires."""
        if self.key is None:
            return
        try:
            await self._of._asked(self._of._store.release(self.key, self.token))
        except TransportError as error:
            _log.debug("a claim could not be released, and ends with its lease: %s", error)


class _Renewals:
    """Renews a claim three times per lease, until `end`.

    Most handlers end before the first renewal: they cost a timer only, and the others a task.
    """

    __slots__ = ("_every", "_held", "_task", "_timer")

    def __init__(self, held: _Held, lease: float) -> None:
        self._held = held
        self._every = lease / 3
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(self._every, self._begin)

    async def end(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _begin(self) -> None:
        self._task = start_task(self._renew(), name="renew claim")

    async def _renew(self) -> None:
        while True:
            try:
                if not await self._held.renew():
                    _log.warning("a claim ended before its handler did: another consumer may handle the message too")
                    return
            except TransportError as error:
                _log.debug("a claim could not be renewed: %s", error)
            await asyncio.sleep(self._every)


class FirstDelivery:
    """A delivery whose message this consumer has claimed; returned by `Deduplicator.first_only`."""

    __slots__ = ("_delivery", "_held")

    def __init__(self, delivery: PairDelivery, held: _Held) -> None:
        self._delivery = delivery
        self._held = held

    @property
    def delivery(self) -> PairDelivery:
        """The delivery itself."""
        return self._delivery

    @property
    def message(self) -> Message:
        """What was sent."""
        return self._delivery.message

    @property
    def body(self) -> bytes:
        """The message's body."""
        return self._delivery.body

    async def complete(self) -> None:
        """Remove the message from the broker, and remember that it was handled.

        Raises:
            LockLost, TransportError: as `PairDelivery.complete`. The claim is released, so the message is handled again
                when it is redelivered; retry the settlement if the broker may still accept it.

        Cancellation releases the claim, too; while the store records the message, that is done all the same.
        """
        await self._settle(self._delivery.complete())

    async def abandon(self) -> None:
        """Release the claim and the message immediately, to be handled again. Raises as `PairDelivery.complete`."""
        await self._held.release()
        await self._delivery.abandon()

    async def dead_letter(self, reason: str, description: str = "") -> None:
        """Dead-letter the message, and remember it: a copy would have the same fate. Raises as `complete`."""
        await self._settle(self._delivery.dead_letter(reason, description))

    async def renew_lock(self) -> None:
        """Extend the lock and the lease to their full duration from now.

        Raises:
            LockLost: the lock or the claim has ended; another consumer may have the message.
            TransportError: the broker or the store is unavailable.
        """
        if not await self._held.renew():
            raise LockLost(f"the claim on message {self.message.message_id} has ended")
        await self._delivery.renew_lock()

    async def _settle(self, settlement: Awaitable[None]) -> None:
        try:
            await settlement
        finally:
            await self._held.end(handled=_ended(self._delivery))

    def __repr__(self) -> str:
        return f"FirstDelivery({self._delivery!r})"


def _ended(delivery: PairDelivery) -> bool:
    """Whether the broker has confirmed that it will not deliver the message again (SPEC 12.7).

    If it were remembered earlier, the redelivered message would count as a copy and be removed: not dead-lettered, and
    perhaps not handled, as the failed settlement may have undone the handler's work.
    """
    return delivery.settled and delivery.settlement is not Settlement.ABANDONED


async def _completed(delivery: PairDelivery) -> None:
    """Complete a handled message; if that fails, it is redelivered and completed then."""
    try:
        await delivery.complete()
    except (LockLost, TransportError) as error:
        _log.debug("a handled message could not be completed, and will be redelivered: %s", error)


async def _pause(retry: int) -> None:
    await asyncio.sleep(_BACKOFF.wait(retry, random.random()))  # noqa: S311  # jitter

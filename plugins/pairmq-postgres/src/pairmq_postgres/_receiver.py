"""Receiving under peek-lock: a lock is an instant in the message's row, before which no other receiver gets it.

A lock has a name: the receiver's, which is random, and the number of its receive. Settling requires that name, so that
a delivery whose lock has ended can't affect a message that another receiver has locked by now.

A waiting receiver is notified (see `_pool`), and looks again after the poll interval, or when the first lock or
schedule that it met ends.

Locks outlast a lost connection. What a receive with an unknown outcome has locked, and what a receiver held that closed
meanwhile, is released with the next receive of this process (SPEC 7.6). What another receiver holds is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg

from pairmq.model import Delivery, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.model.drafts import draft_of
from pairmq.transport import (
    MalformedHeader,
    Receiver,
    SessionReceiver,
    decode_header,
    is_nothing_sent,
    nothing_sent,
    start_task,
)
from pairmq_postgres import _errors, _sql
from pairmq_postgres._capabilities import MAX_MESSAGE_BYTES
from pairmq_postgres._connection import Numbers
from pairmq_postgres._errors import LockEnded, NoSessions, NoSuchEntity, NotSent, SessionsOnly
from pairmq_postgres._pool import Calls, Rows, Statement

_RELEASE_WITHIN = 0.9
_ANSWER_WITHIN = 10.0
"""Seconds that one look may take: a long poll would not notice for its whole length that its connection is dead."""
_SOON = 0.005
"""Seconds after which to look for what an open transaction has stored; doubled for as long as it stays open."""
_MOST_MESSAGES = 4000
_MOST_BYTES = 16 * 1024 * 1024
_MOST_LETTERS = 1024
_DOUBT = 60.0
"""Seconds in which a statement whose answer never came may still be run: an unresponsive server may yet read it."""


_DeliveryDraft = draft_of(Delivery)


class _Token(NamedTuple):
    """What settles a delivery: its message's number, and the lease of its receive."""

    number: int
    lock: str


@dataclass(slots=True)
class LeftLocks:
    """What closed receivers of a source could not release, for the next one to do so.

    Args:
        receivers: whose leases are to be released.
        doubtful: leases of receives whose answer never came, with the instant after which none comes.
    """

    receivers: set[str] = field(default_factory=set)
    doubtful: dict[str, float] = field(default_factory=dict)

    def current(self) -> list[str]:
        """Forget the doubtful leases that are over, and return the others."""
        now = time.monotonic()
        self.doubtful = {lock: until for lock, until in self.doubtful.items() if until > now}
        return list(self.doubtful)

    def doubt(self, lock: str) -> None:
        """Add a receive whose answer never came."""
        self.doubtful[lock] = time.monotonic() + _DOUBT

    def add(self, other: LeftLocks) -> None:
        """Take over what another one has."""
        self.receivers |= other.receivers
        self.doubtful |= other.doubtful


class _Leases:
    """What a receiver holds: the leases of its receives, which end with their last message."""

    def __init__(self) -> None:
        self._held: dict[str, set[int]] = {}
        self._over: set[str] = set()
        self._in_doubt: set[str] = set()  # made by a renewal whose answer never came, perhaps

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, lock: str, numbers: set[int], again: set[int]) -> None:
        """A receive has locked these; the locks that some had before have ended."""
        if again:
            for other in list(self._held):
                self._forget(other, again)
        self._held[lock] = numbers

    def has(self, token: _Token) -> bool:
        """Whether a delivery is still to be settled."""
        number, lock = token
        return (lock in self._held and number in self._held[lock]) or own_lease(token) in self._held

    def of(self, tokens: Sequence[_Token]) -> dict[str, set[int]]:
        """The leases that deliveries are under, as far as is known, with the numbers of their messages."""
        found: dict[str, set[int]] = {}
        for token in tokens:
            number, lock = token
            if number not in self._held.get(lock, ()):
                lock = own_lease(token)
            found.setdefault(lock, set()).add(number)
        return found

    def doubtful(self, tokens: Sequence[_Token]) -> set[str]:
        """The leases that deliveries may be under besides."""
        return self._in_doubt and self._in_doubt.intersection(map(own_lease, tokens))

    def over(self, settled: Mapping[str, set[int]] = MappingProxyType({})) -> list[str]:
        """The leases that have no message once these are settled."""
        return [*self._over, *(lock for lock, numbers in settled.items() if numbers == self._held.get(lock))]

    def removed(self, locks: Sequence[str]) -> None:
        """The server has no such leases any more."""
        self._over.difference_update(locks)

    def forget(self, settled: Mapping[str, set[int]]) -> None:
        """They are settled, or their locks are lost."""
        for lock, numbers in settled.items():
            self._forget(lock, numbers)
            self._in_doubt.difference_update([f"{lock}:{number}" for number in numbers] if self._in_doubt else ())

    def doubt(self, token: _Token) -> None:
        """Its renewal may have given it a lease of its own."""
        self._in_doubt.add(own_lease(token))

    def renewed(self, token: _Token, is_split: bool) -> None:
        """It was renewed, which may have given it a lease of its own."""
        own = own_lease(token)
        self._in_doubt.discard(own)
        if is_split and self.has(token):
            self._forget(token.lock, {token.number})
            self._held[own] = {token.number}

    def _forget(self, lock: str, numbers: set[int]) -> None:
        if (held := self._held.get(lock)) is not None:
            held -= numbers
            if not held:
                del self._held[lock]
                self._over.add(lock)


def own_lease(token: _Token) -> str:
    """The name of the lease that a renewal gives to a message."""
    return f"{token.lock}:{token.number}"


class _Together:
    """The completions that are asked for in one turn of the event loop: each commit of its own would wait for the disk.

    Args:
        receiver: whose.
    """

    def __init__(self, receiver: PostgresReceiver) -> None:
        self.deliveries: list[Delivery] = []
        self.waiting = 0
        """Callers."""
        self._receiver = receiver

    def start(self) -> None:
        """Begin in the next turn."""
        self.task = start_task(self._run())

    async def _run(self) -> Sequence[TransportError | None]:
        await asyncio.sleep(0)
        self._receiver.together = None
        return await self._receiver.complete_batch(self.deliveries)

    async def end(self, cancellation: asyncio.CancelledError) -> None:
        """The last caller was cancelled."""
        if self._receiver.together is self:
            self._receiver.together = None
            nothing_sent(cancellation)
        self.task.cancel()
        await asyncio.wait((self.task,))
        with contextlib.suppress(Exception):
            try:
                self.task.result()
            except asyncio.CancelledError as ended:
                if is_nothing_sent(ended):
                    nothing_sent(cancellation)


class PostgresReceiver(Receiver):
    """Reads a queue, a subscription or a dead-letter queue.

    Args:
        calls: this receiver's.
        source: what to read.
        left: what the transport's closed receivers left, by source.
        receivers: the transport's open ones.
    """

    _take = _sql.TAKE

    def __init__(
        self, calls: Calls, source: Source, left: dict[Source, LeftLocks], receivers: set[PostgresReceiver]
    ) -> None:
        self._calls = calls
        self.scope = calls.scope
        self._source = source
        self._path = source.entity.path
        self._receiving, self._settling = f"receive from {source}", f"settle a delivery of {source}"
        self._place = place_of(source)
        self._name = secrets.token_hex(8)
        self._receives = 0
        self._shelf = 0
        self._leases = _Leases()
        self._unanswered = LeftLocks()
        self._left = left
        self._receivers = receivers
        self._closing: asyncio.Task[None] | None = None
        self.together: _Together | None = None
        """The completions that more of this turn of the event loop join."""
        self._emptied: tuple[asyncio.Event, float] | None = None
        self._expects = False  # an open transaction has stored messages here
        self._pause = _SOON
        receivers.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}: at least 1")
        most = min(max_messages, _MOST_MESSAGES)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            pool = self._calls.pool
            arrival = pool.arrivals.next(self._path)
            deliveries: list[Delivery] = []
            emptied, self._emptied = self._emptied, None
            if wait > 0 and emptied is not None and emptied[0] is arrival and pool.listens:
                free_in = emptied[1] - loop.time()
            else:
                deliveries, free_in = await self._look(most)
                self._pause = _SOON if deliveries or not self._expects else self._pause * 2
                if self._expects:
                    free_in = min(free_in, self._pause)
                if deliveries and len(deliveries) < most:
                    self._emptied = self._all_taken(arrival, deliveries, free_in)
            left = ends_at - loop.time()
            if deliveries or left <= 0:
                return deliveries
            await self._wait(arrival, left, free_in)

    async def complete(self, delivery: Delivery) -> None:
        together = self.together
        if together is None:
            together = self.together = _Together(self)
            together.start()
        position = len(together.deliveries)
        together.deliveries.append(delivery)
        together.waiting += 1
        try:
            failed = (await asyncio.shield(together.task))[position]
        except asyncio.CancelledError as cancellation:
            if together.waiting == 1:
                await together.end(cancellation)
            raise
        finally:
            together.waiting -= 1
        if failed is not None:
            raise failed

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        tokens = [self._own_token(delivery) for delivery in deliveries]
        own = [token for token in tokens if token is not None]
        done: set[int] = set()
        if own:
            leases = self._leases.of(own)
            over = self._leases.over(leases)
            parameters = {
                "shelf": self._shelf,
                "numbers": Numbers([token.number for token in own]),
                "locks": [*leases, *self._leases.doubtful(own)],
                "over": over,
            }
            try:
                (((count, some),),) = await self._calls.run(self._settling, (_sql.COMPLETE, parameters))
            except TransportError as error:
                return [error] * len(deliveries)
            self._leases.forget(leases)
            self._leases.removed(over)
            if count == len(deliveries):
                return [None] * count
            done = {token.number for token in own} if count and some is None else set(some or ())
        return [None if token and token.number in done else self._lock_lost() for token in tokens]

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, _sql.ABANDON, {})
        self._calls.pool.notify(self._path)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        """Move a delivery to the dead letters, in one step; reason and description are cut to 1024 letters each."""
        if self._source.dead_letter:
            text = f"{self._settling}: it is in the dead-letter queue already"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.NOT_SUPPORTED)
        why = {"reason": _storable(reason), "description": _storable(description)}
        await self._settle(delivery, _sql.DEAD_LETTER, why)
        self._calls.pool.notify(self._path)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        token = self._own_token(delivery)
        if token is None:
            raise self._lock_lost()
        self._leases.doubt(token)
        ((until, is_split),) = await self._settle(delivery, _sql.RENEW, {"own": own_lease(token)}, forget=False)
        self._leases.renewed(token, is_split)
        return replace(delivery, locked_until=until)

    async def close(self) -> None:
        if self._closing is None:
            self._calls.scope.close()
            self._closing = start_task(self._release_all())
        await asyncio.shield(self._closing)

    # Receiving.

    def _all_taken(
        self, arrival: asyncio.Event, deliveries: Sequence[Delivery], free_in: float
    ) -> tuple[asyncio.Event, float] | None:
        """What there is to wait for when all that was free was taken: a look for more would find nothing and cost as
        much. The next arrival, what may be free by then, and when the first of these locks ends."""
        if sum(len(each.message.body) for each in deliveries) >= _MOST_BYTES:
            return None
        first = min(each.locked_until for each in deliveries if each.locked_until is not None)
        return arrival, asyncio.get_running_loop().time() + min(free_in, (first - datetime.now(UTC)).total_seconds())

    async def _look(self, most: int) -> tuple[list[Delivery], float]:
        """Lock and decode what is free, in one round trip; else seconds until something is known to become free."""
        while True:
            self._receives += 1
            lock = f"{self._name}:{self._receives}"
            rows = await self._run_take(lock, most)
            if not rows:
                raise self._failure(NoSuchEntity(), self._receiving)
            *_, is_lost, worn, free_in = rows[0]
            until = next((row[7] for row in rows if row[7] is not None), None)  # of all, in the first row alone
            if is_lost:
                raise self._failure(LockEnded(), self._receiving)
            if worn:
                self._calls.pool.notify(self._path)  # for who reads the dead letters
            read = [] if until is None else [self._read(row, lock, until) for row in rows]
            deliveries = [delivery for delivery in read if isinstance(delivery, Delivery)]
            if len(deliveries) < len(read):
                for malformed in read:
                    if isinstance(malformed, tuple):
                        await self._bury(*malformed)
            if deliveries or not (read or worn):
                return deliveries, float("inf") if free_in is None else free_in

    def _take_parameters(self, lock: str, most: int) -> dict[str, Any]:
        return {**self._place, "receiver": f"{self._name}:", "lock": lock, "most": most, "most_bytes": _MOST_BYTES}

    async def _run_take(self, lock: str, most: int) -> Rows:
        statements: list[Statement] = [(_sql.SWEEP, self._place), (self._take, self._take_parameters(lock, most))]
        left = self._left.pop(self._source, LeftLocks())
        for receiver in left.receivers:
            statements.insert(0, self._release_of(receiver, left))
        self._unanswered.doubtful |= left.doubtful
        if doubtful := self._unanswered.current():
            statements.insert(0, (_sql.TAKE_BACK, {**self._place, "locks": doubtful}))
        if over := self._leases.over():
            statements.insert(0, (_sql.OVER, {"shelf": self._shelf, "over": over}))
        try:
            *_, swept, rows = await self._calls.run(self._receiving, *statements, answer_within=_ANSWER_WITHIN)
        except BaseException as error:
            if getattr(error, "maybe_applied", True):
                self._unanswered.doubt(lock)
            if left.receivers:
                self._left.setdefault(self._source, LeftLocks()).add(left)
            raise
        self._leases.removed(over)
        if not swept:
            return []
        ((*_, self._expects, needs_session, self._shelf),) = swept
        if needs_session and self._take is _sql.TAKE:
            raise self._failure(SessionsOnly(), self._receiving)
        if numbers := {row[0] for row in rows if row[0] is not None}:
            self._leases.add(lock, numbers, {row[0] for row in rows if row[2] > 1})
        return rows

    def _read(self, row: tuple[Any, ...], lock: str, until: datetime) -> Delivery | tuple[Delivery, MalformedHeader]:
        """Decode a row, or say why that can't be done. A dead letter is shown as far as it can be read."""
        header, body = row[5], row[6]
        token = _Token(row[0], lock)
        try:
            message = shown(header, body) if self._source.dead_letter else decode_header(header, body)
        except MalformedHeader as problem:
            return delivery_of(row, shown(header, body), until, token), problem
        return delivery_of(row, message, until, token)

    async def _bury(self, malformed: Delivery, problem: MalformedHeader) -> None:
        with contextlib.suppress(TransportError):  # it is locked, and met again when that has ended
            await self.dead_letter(malformed, "malformed", str(problem))
            self.dead_lettered(malformed.message, "malformed", str(problem), malformed.delivery_count)

    # Waiting.

    async def _wait(self, arrival: asyncio.Event, left: float, free_in: float) -> None:
        """Wait until there may be something."""
        pool = self._calls.pool

        async def wait() -> None:
            if not await pool.listen():
                await arrival.wait()

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(left, pool.url.poll_interval, max(free_in, 0.001))):
                await self._calls.scope.race(wait())

    # Settling.

    async def _settle(self, delivery: Delivery, statement: Any, more: dict[str, Any], *, forget: bool = True) -> Rows:
        token = self._own_token(delivery)
        if token is None:
            raise self._lock_lost()
        locks = {"shelf": self._shelf, "locks": [token.lock, own_lease(token)]}
        (rows,) = await self._calls.run(self._settling, (statement, {**locks, "number": token.number, **more}))
        if forget or not rows:
            self._leases.forget(self._leases.of([token]))
        if not rows:
            raise self._lock_lost()
        return rows

    def _own_token(self, delivery: Delivery) -> _Token | None:
        """What settles a delivery; None if this receiver did not return it, or has settled it."""
        token = delivery.lock_token
        return token if isinstance(token, _Token) and self._leases.has(token) else None

    def _lock_lost(self) -> TransportError:
        return self._failure(LockEnded(), self._settling)

    def _failure(self, error: BaseException, doing: str) -> TransportError:
        return _errors.failure(error, doing)

    # Closing.

    async def _release_all(self) -> None:
        """Release what is not settled; if that can't be done now, the next receiver does so, or the locks end."""
        self._receivers.discard(self)
        statements = self._releases()
        if not statements:
            return
        try:
            async with asyncio.timeout(_RELEASE_WITHIN):
                await self._calls.pool.run(statements)
        except (NotSent, psycopg.Error, TimeoutError):
            left = self._left.setdefault(self._source, LeftLocks())
            left.add(self._unanswered)
            if self._leases:
                left.receivers.add(self._name)
        else:
            self._calls.pool.notify(self._path)

    def _releases(self) -> list[Statement]:
        doubtful = self._unanswered.current()
        return [self._release_of(self._name, self._unanswered)] if self._leases or doubtful else []

    def _release_of(self, receiver: str, locks: LeftLocks) -> Statement:
        """The statement that releases what a closed receiver held."""
        return _sql.RELEASE, {**self._place, "receiver": f"{receiver}:", "locks": locks.current()}


class PostgresSessionReceiver(PostgresReceiver, SessionReceiver):
    """Reads one session of a source; made by `accept`."""

    _take = _sql.TAKE_OF_SESSION
    _session: bytes | None = None
    _until: datetime

    @property
    def session_id(self) -> str:
        return (self._session or b"").decode()

    @property
    def locked_until(self) -> datetime:
        return self._until

    async def accept(self, session_id: str | None, wait: float) -> bool:
        """Lock a session; called once, before everything else."""
        named = None if session_id is None else session_id.encode()
        parameters = {**self._place, "session": named, "receiver": f"{self._name}:"}
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            arrival = self._calls.pool.arrivals.next(self._path)
            accept = (_sql.ACCEPT, parameters)
            (rows,) = await self._calls.run(self._receiving, accept, answer_within=_ANSWER_WITHIN)
            if not rows:
                raise self._failure(NoSuchEntity(), self._receiving)
            ((has_sessions, found, until),) = rows
            if not has_sessions:
                raise self._failure(NoSessions(), self._receiving)
            if found is not None:
                self._session, self._until = found, until
                return True
            left = ends_at - loop.time()
            if left <= 0:
                return False
            await self._wait(arrival, left, float("inf"))

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        token = self._own_token(delivery)
        if token is None:
            raise self._lock_lost()
        return replace(delivery, locked_until=await self.renew_session_lock())

    async def renew_session_lock(self) -> datetime:
        ((until,),) = await self._with_session(_sql.RENEW_SESSION)
        self._until = until
        return self._until

    async def get_state(self) -> bytes | None:
        ((state,),) = await self._with_session(_sql.GET_STATE)
        return None if state is None else bytes(state)

    async def set_state(self, state: bytes | None) -> None:
        if state is not None and len(state) > MAX_MESSAGE_BYTES:
            text = f"set the state of a session: it has {len(state)} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.TOO_LARGE)
        await self._with_session(_sql.SET_STATE, state=state)

    def _take_parameters(self, lock: str, most: int) -> dict[str, Any]:
        return {**super()._take_parameters(lock, most), "session": self._session}

    async def _with_session(self, statement: Any, **more: Any) -> Rows:
        parameters = {**self._place, "session": self._session, "receiver": f"{self._name}:", **more}
        (rows,) = await self._calls.run(self._settling, (statement, parameters))
        if not rows:
            raise self._lock_lost()
        return rows

    def _releases(self) -> list[Statement]:
        if self._session is None:
            return []
        parameters = {**self._place, "session": self._session, "receiver": f"{self._name}:"}
        return [(_sql.RELEASE_SESSION, parameters)]


def place_of(source: Source) -> dict[str, Any]:
    """The parameters that name a source."""
    return {
        "path": source.entity.path,
        "kind": source.entity.kind.value,
        "subscription": source.subscription or "",
        "sign": -1 if source.dead_letter else 1,
    }


def delivery_of(
    row: tuple[Any, ...], message: Message, locked_until: datetime | None = None, token: object = None
) -> Delivery:
    """Make a delivery of a row."""
    number, enqueued_at, deliveries, reason, description = row[:5]
    new = _DeliveryDraft()
    new.message = message
    new.lock_token = token
    new.delivery_count = deliveries
    new.sequence_number = str(number)
    new.enqueued_at = enqueued_at
    new.locked_until = locked_until
    new.dead_letter_reason = reason
    new.dead_letter_description = description
    new.__class__ = Delivery
    made: Delivery = new
    return made


def shown(header: str, body: bytes) -> Message:
    """Decode a row that may be malformed, so that a person can look at it: its header becomes a property."""
    try:
        return decode_header(header, body)
    except MalformedHeader:
        return Message(body, application_properties={"raw:header": header})


def _storable(text: str) -> str:
    """Cut a text, and replace what no text in PostgreSQL holds."""
    return text[:_MOST_LETTERS].encode(errors="replace").decode().replace("\0", "\ufffd")

"""Receiving under peek-lock: what a receive has locked is listed in a lease, a row that has an end; until then no other
receiver gets it.

A lease has a name: the receiver's, which is random, and the number of its receive. Settling requires that name, so that
a delivery whose lock has ended can't affect a message that another receiver has locked by now.

Receives of one queue take turns, and each settlement waits for the disk. So what the receivers of a source ask for at
the same time, in one process, is one call: one look for all of them, with a lease for each, and one completion.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import psycopg

from pairmq.model import Delivery, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import MalformedHeader, Receiver, SessionReceiver, decode_header
from pairmq_postgres import _errors, _sql
from pairmq_postgres._capabilities import MAX_MESSAGE_BYTES
from pairmq_postgres._connection import Numbers, Rows, Statement, Texts
from pairmq_postgres._errors import LockEnded, NoSessions, NoSuchEntity, NotSent, SessionsOnly
from pairmq_postgres._pool import Calls, Pool, Shared, Together

_RELEASE_WITHIN = 0.9
_ANSWER_WITHIN = 10.0
"""Seconds that one look may take: a long poll would not notice for its whole length that its connection is dead."""
_SOON = 0.005
"""Seconds after which to look for what an open transaction has stored; doubled for as long as it stays open."""
_SWEPT = 0.05
"""Seconds for which looks that find all they ask for leave out the sweep, a third of what they cost the server."""
_MOST_MESSAGES = 4000
_MOST_BYTES = 16 * 1024 * 1024
_MOST_LETTERS = 1024
_DOUBT = 60.0
"""Seconds in which a statement whose answer never came may still be run: an unresponsive server may yet read it."""


class _Token(NamedTuple):
    """What settles a delivery: its message's number, and the lease of its receive."""

    number: int
    lock: str


@dataclass(slots=True)
class LeftLocks:
    """What closed receivers of a source could not release, for the next one to do so."""

    receivers: set[str] = field(default_factory=set)  # whose leases are to be released
    # Leases of receives whose answer never came, with the instant after which none comes.
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

    def add(self, lock: str, numbers: set[int]) -> None:
        self._held[lock] = numbers

    def lose(self, numbers: set[int]) -> None:
        """Their locks have ended."""
        for lock in list(self._held):
            self._forget(lock, numbers)

    def has(self, token: _Token) -> bool:
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
    return f"{token.lock}:{token.number}"


@dataclass(slots=True, eq=False)
class _Look:
    """A receiver's part of a look: what it wants, and the rows that there were for it."""

    receiver: PostgresReceiver
    lock: str
    most: int
    rows: Rows = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Completion:
    """A receiver's part of a completion; a token that settles nothing any more becomes None."""

    receiver: PostgresReceiver
    tokens: list[_Token | None]


class _Seen(NamedTuple):
    sessions_only: bool  # the source requires sessions
    in_vain: bool  # one that is done differently may find something
    is_lost: bool  # the lock of the session is
    buried: bool  # some were dead-lettered
    expects: bool  # an open transaction has stored messages here
    until: datetime | None  # when the locks end, by this machine's clock
    emptied: bool  # all that was free was taken
    free_in: float  # seconds until more may be


class _Common:
    """What the open receivers of a source do as one."""

    def __init__(self, pool: Pool, source: Source, left: dict[Source, LeftLocks]) -> None:
        self.source = source
        self.place = place_of(source)
        self.shelf = 0
        self.unanswered = LeftLocks()
        self.for_one = False
        """Whether one receiver alone may be given anything: each looks by itself."""
        self.looks = Together(self._look, _MOST_MESSAGES)
        self.completions = Together(self._complete, _MOST_MESSAGES)
        self._sweep_at = 0.0
        self._worn: int | None = None  # the first number that the next sweep is to dead-letter
        self._pool = pool
        self._left = left

    async def _look(self, begin: Callable[[], list[_Look]]) -> _Seen | None:
        """Lock what is free, in one round trip; None without the source."""
        looks: list[_Look] = []
        over: list[str] = []
        left = LeftLocks()
        worn = self._worn
        sweeps = worn is not None or time.monotonic() >= self._sweep_at
        alone = False
        asked_at = datetime.now(UTC)

        def statements() -> list[Statement]:
            nonlocal alone, asked_at
            looks.extend(begin())
            asked_at = datetime.now(UTC)
            alone = self.for_one and len(looks) == 1
            left.add(self._left.pop(self.source, left))
            self.unanswered.doubtful |= left.doubtful
            for receiver in {look.receiver for look in looks}:
                over.extend(receiver.leases.over())
            found = [self.release_of(receiver, left) for receiver in left.receivers]
            if doubtful := self.unanswered.current():
                found.insert(0, (_sql.TAKE_BACK, {**self.place, "locks": doubtful}))
            if over:
                found.insert(0, (_sql.OVER, {"shelf": self.shelf, "over": over}))
            turn = (_sql.SWEEP, {**self.place, "worn": worn}) if sweeps else (_sql.TURN, self.place)
            return [*found, turn, looks[0].receiver.take_for(looks, alone=alone)]

        try:
            *_, turns, rows = await self._pool.ask(statements)
        except BaseException:
            if left.receivers:
                self._left.setdefault(self.source, LeftLocks()).add(left)
            raise
        for look in looks:
            look.receiver.leases.removed(over)
        if not turns:
            return None
        ((*_, expects, sessions_only, self.for_one, self.shelf),) = turns
        *_, is_lost, self._worn, free_in, _ = rows[0]
        locked_for = next((row[7] for row in rows if row[7] is not None), None)  # of all, in the first row alone
        until = None if locked_for is None else asked_at + timedelta(seconds=locked_for)
        emptied = True
        if until is not None:
            for row in rows:
                looks[row[-1] - 1].rows.append(row)
            emptied = len(rows) < sum(look.most for look in looks) and sum(len(row[6]) for row in rows) < _MOST_BYTES
            free_in = locked_for if emptied else 0.0
        if emptied or self.for_one or sessions_only:  # where order is promised, what was locked before goes first
            self._sweep_at = 0.0
        elif sweeps:
            self._sweep_at = time.monotonic() + _SWEPT
        in_vain = self._worn is not None or self.for_one != alone or (until is None and not sweeps)
        free_in = float("inf") if free_in is None else free_in
        return _Seen(sessions_only, in_vain, is_lost, worn is not None, expects, until, emptied and sweeps, free_in)

    async def _complete(self, begin: Callable[[], list[_Completion]]) -> set[int] | None:
        """Remove what is under locks that last, and return its numbers; None if that is all."""
        own: dict[PostgresReceiver, list[_Token]] = {}
        settled: dict[PostgresReceiver, dict[str, set[int]]] = {}
        over: list[str] = []

        def statements() -> list[Statement]:
            for part in begin():
                receiver = part.receiver
                part.tokens = [token if token and receiver.leases.has(token) else None for token in part.tokens]
                own.setdefault(receiver, []).extend(filter(None, part.tokens))
            locks: list[str] = []
            for receiver, tokens in own.items():
                settled[receiver] = receiver.leases.of(tokens)
                locks += (*settled[receiver], *receiver.leases.doubtful(tokens))
                over.extend(receiver.leases.over(settled[receiver]))
            numbers = Numbers([token.number for tokens in own.values() for token in tokens])
            return [
                (_sql.COMPLETE, {"shelf": self.shelf, "numbers": numbers, "locks": Texts(locks), "over": Texts(over)})
            ]

        (((count, some),),) = await self._pool.ask(statements)
        for receiver, leases in settled.items():
            receiver.leases.forget(leases)
            receiver.leases.removed(over)
        return None if count and some is None else set(some or ())

    def release_of(self, receiver: str, locks: LeftLocks) -> Statement:
        """The statement that releases what a closed receiver held."""
        return _sql.RELEASE, {**self.place, "receiver": f"{receiver}:", "locks": locks.current()}


class PostgresReceiver(Receiver):
    def __init__(
        self, calls: Calls, source: Source, left: dict[Source, LeftLocks], receivers: set[PostgresReceiver]
    ) -> None:
        self._calls = calls
        self.scope = calls.scope
        self._source = source
        self._path = source.entity.path
        self._common = self._find_common(receivers) or _Common(calls.pool, source, left)
        self._receiving, self._settling = f"receive from {source}", f"settle a delivery of {source}"
        self._name = secrets.token_hex(8)
        self._receives = 0
        self.leases = _Leases()
        self._looking: Shared[_Look] | None = None
        self._left = left
        self._receivers = receivers
        self._emptied: tuple[asyncio.Event, float] | None = None
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
                deliveries, seen = await self._look(most)
                self._pause = _SOON if deliveries or not seen.expects else self._pause * 2
                free_in = min(seen.free_in, self._pause) if seen.expects else seen.free_in
                if deliveries and seen.emptied:
                    # A look for more would find nothing, and cost as much.
                    self._emptied = arrival, loop.time() + free_in
            left = ends_at - loop.time()
            if deliveries or left <= 0:
                return deliveries
            await self._wait(arrival, left, free_in)

    async def complete(self, delivery: Delivery) -> None:
        (failed,) = await self.complete_batch([delivery])
        if failed is not None:
            raise failed

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        asked = _Completion(self, [self._own_token(delivery) for delivery in deliveries])
        done: set[int] | None = set()
        if any(asked.tokens):
            join = partial(self._common.completions.join, len(deliveries))
            try:
                done = await self._calls.share(self._settling, asked, join)
            except TransportError as error:
                return [error] * len(deliveries)
        return [
            None if token and (done is None or token.number in done) else self._lock_lost() for token in asked.tokens
        ]

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
        self.leases.doubt(token)
        asked_at = datetime.now(UTC)
        ((locked_for, is_split),) = await self._settle(delivery, _sql.RENEW, {"own": own_lease(token)}, forget=False)
        self.leases.renewed(token, is_split)
        return replace(delivery, locked_until=asked_at + timedelta(seconds=locked_for))

    # Receiving.

    def _find_common(self, receivers: set[PostgresReceiver]) -> _Common | None:
        return next((each._common for each in receivers if each._source == self._source), None)

    async def _look(self, most: int) -> tuple[list[Delivery], _Seen]:
        while True:
            self._receives += 1
            look = _Look(self, f"{self._name}:{self._receives}", most)
            seen = await self._looked(look)
            if seen is None:
                raise self._failure(NoSuchEntity(), self._receiving)
            if seen.sessions_only and not isinstance(self, SessionReceiver):
                raise self._failure(SessionsOnly(), self._receiving)
            if seen.is_lost:
                raise self._failure(LockEnded(), self._receiving)
            if seen.buried:
                self._calls.pool.notify(self._path)  # for who reads the dead letters
            if seen.in_vain:
                continue
            read = [self._read(row, look.lock, seen) for row in look.rows]
            deliveries = [delivery for delivery in read if isinstance(delivery, Delivery)]
            if len(deliveries) < len(read):
                for malformed in read:
                    if isinstance(malformed, tuple):
                        await self._bury(*malformed)
            if deliveries or not read:
                return deliveries, seen

    async def _looked(self, look: _Look) -> _Seen | None:
        def join() -> Shared[_Look]:
            self._looking = self._common.looks.join(look.most, alone=self._common.for_one)
            return self._looking

        try:
            seen: _Seen | None = await self._calls.share(self._receiving, look, join, _ANSWER_WITHIN)
        except BaseException as error:
            if getattr(error, "maybe_applied", True):
                self._common.unanswered.doubt(look.lock)
            raise
        if again := {row[0] for row in look.rows if row[2] > 1}:  # the locks that some had before have ended
            for each in self._receivers:
                if each._common is self._common:
                    each.leases.lose(again)
        if look.rows:
            self.leases.add(look.lock, {row[0] for row in look.rows})
        return seen

    def take_for(self, looks: Sequence[_Look], *, alone: bool) -> Statement:
        """The statement that locks what is free, in order, by a lease for each."""
        most = [look.most for look in looks]
        return _sql.TAKE_ALONE if alone else _sql.TAKE, {
            **self._common.place,
            "receiver": f"{self._name}:",
            "locks": Texts([look.lock for look in looks]),
            "starts": Numbers(list(accumulate(most[:-1], initial=1))),
            "most": sum(most),
            "most_bytes": _MOST_BYTES,
        }

    def _read(self, row: tuple[Any, ...], lock: str, seen: _Seen) -> Delivery | tuple[Delivery, MalformedHeader]:
        """Decode a row, or say why that can't be done. A dead letter is shown as far as it can be read."""
        header, body = row[5], row[6]
        token = _Token(row[0], lock)
        try:
            message = shown(header, body) if self._source.dead_letter else decode_header(header, body)
        except MalformedHeader as problem:
            return delivery_of(row, shown(header, body), seen.until, token), problem
        return delivery_of(row, message, seen.until, token)

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
        locks = {"shelf": self._common.shelf, "locks": [token.lock, own_lease(token)]}
        (rows,) = await self._calls.run(self._settling, (statement, {**locks, "number": token.number, **more}))
        if forget or not rows:
            self.leases.forget(self.leases.of([token]))
        if not rows:
            raise self._lock_lost()
        return rows

    def _own_token(self, delivery: Delivery) -> _Token | None:
        """What settles a delivery; None if this receiver did not return it, or has settled it."""
        token = delivery.lock_token
        return token if isinstance(token, _Token) and self.leases.has(token) else None

    def _lock_lost(self) -> TransportError:
        return self._failure(LockEnded(), self._settling)

    def _failure(self, error: BaseException, doing: str) -> TransportError:
        return _errors.failure(error, doing)

    # Closing.

    async def _release(self) -> None:
        """Release what is not settled; if that can't be done now, the next receiver does so, or the locks end."""
        self._receivers.discard(self)
        try:
            async with asyncio.timeout(_RELEASE_WITHIN):
                if self._looking is not None:  # with others, who go on to wait for it
                    await asyncio.wait((self._looking.task,))
                if not (statements := self._releases()):
                    return
                await self._calls.pool.run(statements)
        except (NotSent, psycopg.Error, TimeoutError):
            left = self._left.setdefault(self._source, LeftLocks())
            left.add(self._common.unanswered)
            if self.leases:
                left.receivers.add(self._name)
        else:
            self._calls.pool.notify(self._path)

    def _releases(self) -> list[Statement]:
        in_doubt = any(lock.startswith(f"{self._name}:") for lock in self._common.unanswered.current())
        return [self._common.release_of(self._name, self._common.unanswered)] if self.leases or in_doubt else []


class PostgresSessionReceiver(PostgresReceiver, SessionReceiver):
    """Reads one session of a source; made by `accept`."""

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
        parameters = {**self._common.place, "session": named, "receiver": f"{self._name}:"}
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            arrival = self._calls.pool.arrivals.next(self._path)
            accept = (_sql.ACCEPT, parameters)
            asked_at = datetime.now(UTC)
            (rows,) = await self._calls.run(self._receiving, accept, answer_within=_ANSWER_WITHIN)
            if not rows:
                raise self._failure(NoSuchEntity(), self._receiving)
            ((has_sessions, found, locked_for),) = rows
            if not has_sessions:
                raise self._failure(NoSessions(), self._receiving)
            if found is not None:
                self._session, self._until = found, asked_at + timedelta(seconds=locked_for)
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
        asked_at = datetime.now(UTC)
        ((locked_for,),) = await self._with_session(_sql.RENEW_SESSION)
        self._until = asked_at + timedelta(seconds=locked_for)
        return self._until

    async def get_state(self) -> bytes | None:
        ((state,),) = await self._with_session(_sql.GET_STATE)
        return None if state is None else bytes(state)

    async def set_state(self, state: bytes | None) -> None:
        if state is not None and len(state) > MAX_MESSAGE_BYTES:
            text = f"set the state of a session: it has {len(state)} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
            raise TransportError(text, FailureKind.REFUSED, FailureReason.TOO_LARGE)
        await self._with_session(_sql.SET_STATE, state=state)

    def take_for(self, looks: Sequence[_Look], *, alone: bool) -> Statement:
        _, parameters = super().take_for(looks, alone=alone)
        return _sql.TAKE_OF_SESSION, {**parameters, "session": self._session}

    def _find_common(self, receivers: set[PostgresReceiver]) -> None:
        return None

    async def _with_session(self, statement: Any, **more: Any) -> Rows:
        parameters = {**self._common.place, "session": self._session, "receiver": f"{self._name}:", **more}
        (rows,) = await self._calls.run(self._settling, (statement, parameters))
        if not rows:
            raise self._lock_lost()
        return rows

    def _releases(self) -> list[Statement]:
        if self._session is None:
            return []
        parameters = {**self._common.place, "session": self._session, "receiver": f"{self._name}:"}
        return [(_sql.RELEASE_SESSION, parameters)]


def place_of(source: Source) -> dict[str, Any]:
    return {
        "path": source.entity.path,
        "kind": source.entity.kind.value,
        "subscription": source.subscription or "",
        "sign": -1 if source.dead_letter else 1,
    }


def delivery_of(
    row: tuple[Any, ...], message: Message, locked_until: datetime | None = None, token: object = None
) -> Delivery:
    number, enqueued_at, deliveries, reason, description = row[:5]
    return Delivery.of_checked(message, token, deliveries, str(number), enqueued_at, locked_until, reason, description)


def shown(header: str, body: bytes) -> Message:
    """Decode a row that may be malformed, so that a person can look at it: its header becomes a property."""
    try:
        return decode_header(header, body)
    except MalformedHeader:
        return Message(body, application_properties={"raw:header": header})


def _storable(text: str) -> str:
    """Cut a text, and replace what no text in PostgreSQL holds."""
    return text[:_MOST_LETTERS].encode(errors="replace").decode().replace("\0", "\ufffd")

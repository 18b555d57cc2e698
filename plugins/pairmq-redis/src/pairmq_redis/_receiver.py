"""Receiving under peek-lock, from a consumer group's list of pending entries.

Each receiver is a consumer with a name of its own. An entry that it read is pending for it, and locked as
long as it has been idle for less than the lock's duration; settling checks both in the server. One script
returns a receiver's next messages: first those to be redelivered (in the stream's order), then new ones. Only when
it finds none does the receiver wait, in ``XREADGROUP BLOCK``, which costs the server nothing and is woken
by the next message.

A reader that continues without a pause (`read_ahead`), of small messages that are not to be redelivered, is given all
but the first by a bare ``XREADGROUP`` behind the script: what passes through Lua costs the server three times as much.

New messages end that wait; messages that become available again do not: scheduled messages, ended locks,
abandoned deliveries. So it is cut into slices that end at the next such instant that the script knew of,
and after ``poll_interval`` for the others. A queue with one consumer at a time is read by the script
alone, after growing pauses up to ``poll_interval``: a blocking read would not check whose turn it is.

An interrupted call (cancelled, connection lost) may have fetched messages that it never returned. Until
their locks would have ended, the next calls pass to the script the ids that *were* returned, and it releases the
others. Locks don't end with a connection: a receiver that closes while the server is unreachable leaves them behind,
and the transport's next receiver of the same source releases them before it reads (SPEC 7.6). Only locks of this
process' closed receivers: what another process holds is in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Receiver, Scope, raise_failure, start_task
from pairmq_redis import _codec, _errors, _scripts
from pairmq_redis._context import Context
from pairmq_redis._errors import NotSent
from pairmq_redis._keys import SourceKeys
from pairmq_redis._link import Line
from pairmq_redis._scripts import Script
from pairmq_redis._wire import Command, Reply

MAX_TAKE = 1000
"""Most messages of one script, so that none runs long."""

_MOST = 10 * MAX_TAKE
"""Most messages of one call; the next one returns more."""

MAX_BLOCKED = 8
"""Most messages that a wait ends with: they arrive in one reply of unknown size, and more can be read at once."""

_MOST_PLAIN = 400
"""Most messages of a bare read, as many as a drain asks for: nothing cuts its reply short, and some may be larger than
those before them."""

_PLAIN_BYTES = 8 << 20
"""Of the bodies of a bare read, if all are as large as the largest of the last call; as in the script."""

MAX_DESCRIPTION = 1024
MIN_SLICE = 0.005
_FIRST_PAUSE = 0.01
ANSWER_GRACE = 5.0
"""Seconds after a slice's end until the server counts as unavailable: a half-open connection would never fail."""

CLOSE_TIMEOUT = 1.5
CLEAN_INTERVAL = 60.0
_SETTLE_CHUNK = 500


class _Token:
    """What settles a delivery: the entry's id, which of its deliveries it is, and the receiver that got it."""

    __slots__ = ("count", "id", "owner")

    def __init__(self, id_: bytes, count: int, owner: RedisReceiver) -> None:
        self.id = id_
        self.count = count
        self.owner = owner


class RedisReceiver(Receiver):
    scope: Scope

    def __init__(self, context: Context, source: Source) -> None:
        self._context = context
        self._source = SourceKeys(source)
        self._doing = f"receive from {source}"
        self._settling = f"settle a delivery of {source}"
        self._name = f"r-{secrets.token_hex(8)}".encode()
        self._who = (self._source.mode, self._source.group, self._name)
        self._link = context.link()
        self.scope = Scope(context.scope, self._doing)
        self._given: dict[bytes, float] = {}  # id of each unsettled delivery: when its lock ends, on the loop's clock
        self._sweep_at = b"0"
        self._next_at_ms = 0.0
        self._more = False  # the last take only dead-lettered or dropped expired messages, and there are more
        self._single = False  # one consumer at a time: only the script knows whose turn it is
        self._all_new = False  # the last take found nothing but what a bare read may return as well
        self._ahead = 0  # messages that the reader wants to be locked ahead; 0 from one that may pause
        self._largest = 0  # bytes of a body, of the last call; 0 when it returned none
        self._lock_ms = 60_000.0
        self._clock_offset_ms = 0.0  # our wall clock minus the server's, never too large
        self._clean_at = -math.inf
        self._suspect_until = -math.inf
        self._used = False
        self._nudging: asyncio.Task[None] | None = None
        context.receivers.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}: at least 1")
        want = min(max_messages, _MOST)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        pause = _FIRST_PAUSE
        self._used = True
        try:
            while True:
                deliveries, now_ms = await self._take(want)
                if self._more and not deliveries:
                    continue
                left = deadline - loop.time()
                if deliveries or left <= 0:
                    return deliveries
                if self._single:
                    await asyncio.sleep(min(left, pause))
                    pause = min(2 * pause, self._context.url.poll_interval)
                    continue
                until_next = max((self._next_at_ms - now_ms) / 1000, MIN_SLICE)
                deliveries = await self._block(want, min(left, until_next))
                if deliveries:
                    return deliveries
        except (asyncio.CancelledError, TransportError):
            self._suspect_until = loop.time() + self._lock_ms / 1000
            self._sweep_at = b"0"
            raise

    def read_ahead(self, messages: int) -> None:
        self._ahead = messages

    def _plain(self, want: int) -> int:
        """How many messages to read past the script, which takes one at least: it finds what is to be redelivered."""
        if not (self._ahead and self._all_new and self._largest):
            return 0
        most = min(_MOST_PLAIN, _PLAIN_BYTES // self._largest)
        return want - 1 if want - 1 <= most else 0

    async def _take(self, want: int) -> tuple[list[Delivery], float]:
        """Ask the script for messages; also returns the server's clock in ms."""
        left = self._context.take_left_locks(self._source)
        if left:
            try:
                release = self._release_locks(self._link, self.scope, left)
                await self._answer(release, self._context.url.connect_timeout)
            except NotSent as error:
                raise_failure(_errors.failure(error, self._doing))
        loop = asyncio.get_running_loop()
        clean = loop.time() >= self._clean_at
        suspect = loop.time() < self._suspect_until
        poll = b"%d" % max(round(self._context.url.poll_interval * 1000), 1)
        plain = 0 if suspect else self._plain(want)
        arguments = [b"%d" % min(want - plain, MAX_TAKE), self._sweep_at, poll, b"1" if clean else b"0"]
        arguments += [b"1", *self._given] if suspect else [b"0"]
        takes = [self._script(self._link, _scripts.TAKE, arguments, self._doing)]
        for start in range(MAX_TAKE, want - plain, MAX_TAKE):  # one behind the other, and all in one round trip
            more_of_them = [b"%d" % min(want - start, MAX_TAKE), self._sweep_at, poll, b"0", b"0"]
            takes.append(self._script(self._link, _scripts.TAKE, more_of_them, self._doing))
        reads = [self._context.run(self._link, self.scope, [self._read(plain)], self._doing)] if plain else []
        asked_at_ms = time.time() * 1000
        answers = await self._answer(asyncio.gather(*takes, *reads), self._context.url.connect_timeout)
        read = _entries_of(answers.pop()[0]) if plain else []
        now, self._sweep_at, next_at, lock, more, _, single, all_new = answers[-1]
        entries = [entry for answer in answers for entry in answer[5]]
        if clean:
            self._clean_at = loop.time() + CLEAN_INTERVAL
        now_ms = float(now)
        self._next_at_ms, self._lock_ms, self._more = float(next_at), float(lock), more == 1
        self._single, self._all_new = single == 1, all_new == 1
        self._clock_offset_ms = asked_at_ms - now_ms
        self._prune()
        entries += await self._unexpired(read, now_ms)
        deliveries = await self._deliver(entries, now_ms)
        self._largest = max([len(delivery.message.body) or 1 for delivery in deliveries], default=0)
        return deliveries, now_ms

    def _read(self, count: int, *options: bytes) -> Command:
        """The command that reads new messages."""
        group = (b"GROUP", self._source.group, self._name, b"COUNT", b"%d" % count)
        return (b"XREADGROUP", *group, *options, b"STREAMS", self._source.stream, b">")

    async def _block(self, want: int, seconds: float) -> list[Delivery]:
        """Wait for new messages in the server, until the poll interval or ``seconds`` are over."""
        loop = asyncio.get_running_loop()
        poll = self._context.url.poll_interval
        block_ms = max(math.ceil(min(seconds, poll) * 1000), 1)  # 0 would block forever
        waiting = self._read(min(want, MAX_BLOCKED), b"BLOCK", b"%d" % block_ms)
        # Redis notices that a wait is over when it handles any event, but otherwise up to 100 ms late: where the
        # instant matters, we cause an event.
        nudge = loop.call_later(block_ms / 1000 + 0.001, self._nudge) if seconds < poll else None
        try:
            # TIME is answered when the read is: it shows when the locks began, and what has expired.
            commands = [waiting, (b"TIME",)]
            found, clock = await self._answer(
                self._context.run(self._link, self.scope, commands, self._doing), block_ms / 1000
            )
        finally:
            if nudge is not None:
                nudge.cancel()
        now_ms = int(clock[0]) * 1000 + int(clock[1]) // 1000
        return await self._deliver(await self._unexpired(_entries_of(found), now_ms), now_ms)

    async def _unexpired(self, read: Iterable[tuple[bytes, list[bytes]]], now_ms: float) -> list[Any]:
        """Remove what has expired of entries that were read past the script; the others as `_deliver` takes them."""
        entries = [(id_, 1, fields) for id_, fields in read]
        late = [id_ for id_, _, fields in entries if self._may_be_expired(id_, fields, now_ms)]
        if late:
            if not await self._put_away(_scripts.EXPIRE, late):
                self._given.update(dict.fromkeys(late, self._lock_ends()))
            entries = [entry for entry in entries if entry[0] not in late]
        return entries

    async def _answer(self, call: Awaitable[Any], patience: float) -> Any:
        """Await an answer no longer than that and a grace: the caller's limit is that of the whole long poll."""
        try:
            async with asyncio.timeout(patience + ANSWER_GRACE):
                return await call
        except TimeoutError as error:
            raise _errors.failure(_errors.Unanswered(error), self._doing) from error

    async def _deliver(self, entries: Iterable[Any], now_ms: float) -> list[Delivery]:
        """Make deliveries of entries; what can't be read is dead-lettered.

        None counts as returned before the last await, so that a call that is interrupted here loses nothing.
        """
        ends = self._lock_ends()
        locked_until = _codec.instant(now_ms + self._lock_ms + self._clock_offset_ms)
        dead = self._source.source.dead_letter
        deliveries: list[Delivery] = []
        given: dict[bytes, float] = {}
        malformed: list[tuple[bytes, int, str, Sequence[bytes]]] = []
        for id_, count, fields in entries:
            try:
                message = _codec.decode_leniently(fields) if dead else _codec.decode(fields)
            except _codec.MalformedEntry as problem:
                malformed.append((id_, count, str(problem), fields))
                continue
            given[id_] = ends
            deliveries.append(
                delivery_of(id_, message, fields, _Token(id_, count, self), count=count, locked_until=locked_until)
            )
        for id_, count, why, fields in malformed:
            arguments = (id_, b"%d" % count, b"malformed", why.encode(errors="replace"))
            if await self._put_away(_scripts.DEAD_LETTER, arguments):
                self.dead_lettered(_codec.decode_leniently(fields), "malformed", why, count)
            else:
                given[id_] = ends
        self._given.update(given)
        return deliveries

    async def _put_away(self, script: Script, arguments: Sequence[bytes]) -> bool:
        """Remove entries that must not be returned; False when Redis can't now, for example when out of memory.

        Then they stay locked and are redelivered when the lock has ended, and the others are delivered meanwhile.
        """
        call = self._script(self._context.control, script, arguments, self._doing)
        try:
            await self._answer(call, self._context.url.connect_timeout)
        except TransportError as error:
            if error.reason is FailureReason.CLOSED:
                raise
            return False
        return True

    def _nudge(self) -> None:
        """Make the server check its clock; the result is for the waiting call."""

        async def ping() -> None:
            with contextlib.suppress(NotSent, TransportError):
                await self._context.control.call([(b"PING",)], self.scope)

        if self._nudging is None or self._nudging.done():
            self._nudging = start_task(ping())

    def _may_be_expired(self, id_: bytes, fields: Sequence[bytes], now_ms: float) -> bool:
        """Whether a fresh entry had a short life; the queue's own default is left to the script, which knows it."""
        if self._source.source.dead_letter or not fields or fields[0] != _codec.TTL_FIELD:
            return False
        try:
            return int(id_.partition(b"-")[0]) + float(fields[1]) * 1000 <= now_ms
        except ValueError:
            return False

    def _prune(self) -> None:
        """Forget deliveries that were not settled, long after their locks ended."""
        if len(self._given) > 10 * MAX_TAKE:
            limit = self._lock_ends() - 3 * self._lock_ms / 1000
            self._given = {id_: until for id_, until in self._given.items() if until > limit}

    def _lock_ends(self) -> float:
        """When a lock ends that begins now, on the loop's clock: the wall clock may be set meanwhile."""
        return asyncio.get_running_loop().time() + self._lock_ms / 1000

    async def complete(self, delivery: Delivery) -> None:
        failed = (await self.complete_batch([delivery]))[0]
        if failed is not None:
            raise failed

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        chunks = [deliveries[start : start + _SETTLE_CHUNK] for start in range(0, len(deliveries), _SETTLE_CHUNK)]
        outcomes = await asyncio.gather(*map(self._complete_chunk, chunks))  # over a distance each is a round trip
        return [outcome for of_chunk in outcomes for outcome in of_chunk]

    async def _complete_chunk(self, deliveries: Sequence[Delivery]) -> list[TransportError | None]:
        tokens = [self._token(delivery) for delivery in deliveries]
        arguments = [part for token in tokens if token is not None for part in (token.id, b"%d" % token.count)]
        try:
            done = await self._settle(_scripts.COMPLETE, arguments, replicate=True) if arguments else []
        except TransportError as error:
            return [error] * len(deliveries)
        answers = iter(done)
        outcomes: list[TransportError | None] = []
        for token in tokens:
            if token is not None and next(answers) == 1:
                self._given.pop(token.id, None)
                outcomes.append(None)
            else:
                outcomes.append(_errors.lock_lost(self._settling))
        return outcomes

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle_one(_scripts.ABANDON, delivery)

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        if self._source.source.dead_letter:
            raise TransportError(
                f"{self._settling}: it is in the dead-letter queue already",
                FailureKind.REFUSED,
                FailureReason.NOT_SUPPORTED,
            )
        texts = (reason[:MAX_DESCRIPTION], description[:MAX_DESCRIPTION])
        await self._settle_one(_scripts.DEAD_LETTER, delivery, *(text.encode(errors="replace") for text in texts))

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        token = self._token(delivery)
        asked_at_ms = time.time() * 1000
        if token is None or not await self._settle(_scripts.RENEW, [token.id, b"%d" % token.count]):
            raise _errors.lock_lost(self._settling)
        self._given[token.id] = self._lock_ends()
        return replace(delivery, locked_until=_codec.instant(asked_at_ms + self._lock_ms))

    def _token(self, delivery: Delivery) -> _Token | None:
        token = delivery.lock_token
        return token if isinstance(token, _Token) and token.owner is self else None

    async def _settle_one(self, script: Script, delivery: Delivery, *arguments: bytes) -> None:
        token = self._token(delivery)
        if token is None:
            raise _errors.lock_lost(self._settling)
        own = [token.id, b"%d" % token.count, *arguments]
        if not await self._settle(script, own, replicate=script is _scripts.DEAD_LETTER):
            raise _errors.lock_lost(self._settling)
        self._given.pop(token.id, None)

    async def _settle(self, script: Script, arguments: Sequence[bytes], *, replicate: bool = False) -> Reply:
        """Run a script on what is locked; what removes a message waits for replicas, or one that is promoted would
        deliver it again, and the caller would never have been in doubt."""
        return await self._script(self._context.control, script, arguments, self._settling, replicate=replicate)

    async def _script(
        self, link: Line, script: Script, arguments: Sequence[bytes], doing: str, *, replicate: bool = False
    ) -> Reply:
        arguments = (*self._who, *arguments)
        return await self._context.script(
            link, self.scope, script, self._source.keys, arguments, doing, replicate=replicate
        )

    async def _release(self) -> None:
        await self._context.end_link(self._link)
        self._context.receivers.discard(self)
        if not self._used:
            return
        with contextlib.suppress(NotSent, TimeoutError, TransportError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._release_locks(self._context.control, Scope(), [self._name])

    async def _release_locks(self, link: Line, scope: Scope, consumers: Sequence[bytes]) -> None:
        """Release what closed receivers hold; what can't be released now is left to the next receiver."""
        keys, text = self._source.keys, _scripts.RELEASE.text
        release = (b"EVAL", text, b"%d" % len(keys), *keys, self._source.mode, self._source.group)
        left = consumers
        try:
            replies = await link.call([(*release, consumer) for consumer in consumers], scope)
            left = [consumer for consumer, reply in zip(consumers, replies, strict=True) if self._may_pass(reply)]
        finally:
            self._context.leave_locks(self._source, left)

    def _may_pass(self, reply: Reply) -> bool:
        """Whether a reply is a failure that may pass; a source that was deleted holds no locks."""
        return isinstance(reply, BaseException) and _errors.failure(reply, "").kind is not FailureKind.REFUSED


def delivery_of(
    id_: bytes, message: Any, fields: Sequence[bytes], token: object, *, count: int = 1, locked_until: Any = None
) -> Delivery:
    """Make a delivery of a stream entry, with the dead-letter queue's marks where it has them."""
    reason = description = None
    if len(fields) > 1 and fields[-2].startswith(b"!"):  # the marks are last, and most messages have none
        marks = dict(zip(fields[::2], fields[1::2], strict=False))
        reason, description = marks.get(b"!reason"), marks.get(b"!description")
    return Delivery.of_checked(
        message,
        token,
        max(int(count), 1),
        id_.decode(),
        _put_at(id_.partition(b"-")[0]),
        locked_until,
        None if reason is None else reason.decode(errors="replace"),
        None if description is None else description.decode(errors="replace"),
    )


@lru_cache(maxsize=256)  # many entries are added in one millisecond
def _put_at(ms: bytes) -> datetime:
    return _codec.instant(int(ms))


def _entries_of(reply: Reply) -> list[tuple[bytes, list[bytes]]]:
    """The entries in XREADGROUP's reply about one stream; RESP3-minded servers return a map."""
    if not reply:
        return []
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return [(id_, fields) for id_, fields in entries]

"""The calls of a receiver: they connect when needed, end when their caller stops waiting, and return the results.

Fetching and settling messages is done by `_delivery_channel`, or by `_ordered_channel` for a queue that is for one
consumer at a time, on a channel that each receiver has for itself.

An interrupted call loses nothing: what had arrived stays for the next call, and is released when no call asks for it
within half a lock.

The dead-letter queue is a separate queue. A message is moved there by publishing a copy, and acknowledged when the
broker has confirmed it: a crash in between leaves two copies, never none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from aiormq.channel import Channel

from pairmq.model import Delivery, FailureReason, Source, TransportError
from pairmq.transport import Receiver, Scope, raise_failure
from pairmq_rabbitmq import _codec, _errors, _header, _layout, _names, _plain
from pairmq_rabbitmq._context import Context
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._inspection import is_for_one_consumer
from pairmq_rabbitmq._link import Opening
from pairmq_rabbitmq._receiving._dead_letter import DeadLetters
from pairmq_rabbitmq._receiving._delivery_channel import Cancelled, DeliveryChannel, give_back_once_open
from pairmq_rabbitmq._receiving._ordered_channel import GivenBack, ordered_channel
from pairmq_rabbitmq._receiving._settling import BUSY, GIVEN, SETTLING, Job, Locked, Share, Waits

_CLOSE = 1.0  # s
_QUIET = 30.0
"""Seconds without a message after which a channel that holds none is replaced.

When the leader of a quorum queue hangs and resumes, RabbitMQ may lose what it was sending: for the queue a channel then
has messages, up to its whole window, that never arrived. It gets no other ones, and no consumer gets these, until it is
closed. They are not among the ready ones either, so that the queue looks empty.
"""


class RabbitReceiver(Receiver):
    scope: Scope

    def __init__(self, context: Context, source: Source) -> None:
        self._queue = _names.queue_of(source)
        self._context = context
        self._link = context.consuming_of(self._queue)
        self._dead = source.dead_letter
        self._doing = f"receive from {source}"
        self._settling = f"settle a delivery of {source}"
        self._moving = f"dead-letter a delivery of {source}"
        self.scope = Scope(context.scope, self._doing)
        self._waits = Waits(self.scope)
        self._turn = asyncio.Lock()
        self._channel: DeliveryChannel | None = None
        self._ahead = 0
        self._opening: Opening[Channel] | None = None
        self._dead_letters = DeadLetters(
            context, self._queue, self.scope, self._waits, self._moving, self.dead_lettered
        )
        context.receivers.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        if max_messages < 1:
            raise ValueError(f"max_messages is {max_messages}: at least 1")
        self._check_open(self._doing)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        async with self._turn:
            while True:
                channel = await self._ready()
                quiet_at = channel.heard_at + _QUIET if channel.empty else deadline
                if not channel.reads_ahead or not channel.waiting:
                    await self._fetch(channel, max_messages, min(deadline, quiet_at))
                found = await self._readable(channel, max_messages)
                if channel.cause is not None and not isinstance(channel.cause, GivenBack):
                    raise await self._why(channel)
                channel.give(found)
                if channel.empty and loop.time() >= channel.heard_at + _QUIET:
                    channel.discard()
                if found or loop.time() >= deadline:
                    return deliveries_of(found, self, self._dead)

    def read_ahead(self, messages: int) -> None:
        self._ahead = messages
        if self._channel is not None:
            self._channel.read_ahead(messages)

    async def _ready(self) -> DeliveryChannel:
        """The channel to read on; opened if necessary. Raises `TransportError`."""
        if (usable := self._usable) is not None:
            return usable
        try:
            # A dead-letter queue is created for any number of consumers.
            ordered = not self._dead and await self.scope.race(
                is_for_one_consumer(self._context, self._queue, self._doing, self._link)
            )
            session = await self.scope.race(self._link.session())
            if self._opening is None or self._opening.session is not session:
                # A cancelled caller leaves it to the next one.
                self._opening = Opening(lambda opening: opening.on(session).open_channel(confirms=False))
            opening = self._opening
            try:
                await self._waits.until(opening.task)
            except asyncio.CancelledError:
                if opening.forsake(self._link):
                    self._opening = None
                    give_back_once_open(opening)
                raise
            self._check_open(self._doing)
            self._opening = None
            raw = opening.task.result()
        except Unsent as error:
            raise_failure(_errors.failure(error, self._doing))
        if ordered:
            self._channel = ordered_channel(self._context, session, raw, self._queue)
        else:
            share = Share(self._context.url.endpoint.identity, self._queue)
            self._channel = DeliveryChannel(session, raw, self._queue, share, self._context.url.lock_duration)
        self._channel.read_ahead(self._ahead)
        return self._channel

    async def _fetch(self, channel: DeliveryChannel, most: int, deadline: float) -> None:
        try:
            if channel.fetching is not None:  # of a call that was cancelled
                await self._waits.until(channel.fetching)
                self._check_open(self._doing)
            await self._waits.until(channel.fetch(most, deadline))
        except asyncio.CancelledError:
            channel.stop()
            self._doubt(channel)
            raise
        self._check_open(self._doing)

    async def _readable(self, channel: DeliveryChannel, most: int) -> list[Locked]:
        """Find the next messages that a caller may have; the others are dead-lettered first.

        None counts as delivered before the last await, so that a call that is interrupted here loses nothing.
        """
        first = list(islice(channel.waiting, most))
        bad = False
        for locked in first:
            problem = read(locked, self._dead)
            if problem is not None:
                self._dead_letters.add(channel, locked, *problem)
                bad = True
        if not bad:
            return first
        await self._dead_letters.flush()
        self._check_open(self._doing)
        found: list[Locked] = []
        for locked in channel.waiting:
            if len(found) == most or locked.message is None:
                break
            found.append(locked)
        return found

    async def _why(self, channel: DeliveryChannel) -> TransportError:
        self._channel = None
        channel.discard()
        cause = channel.cause
        self._context.one_consumer.pop(self._queue, None)  # it may be created again as another kind of queue
        if isinstance(cause, Cancelled):
            try:
                await self.scope.race(self._context.count(self._queue, self._doing))
            except TransportError as error:
                return error
        assert cause is not None  # noqa: S101  # for mypy
        return _errors.failure(cause, self._doing, maybe_applied=False)

    @property
    def _usable(self) -> DeliveryChannel | None:
        """The channel on which all is locked that can be settled: what was on an earlier one is lost with it."""
        return self._channel if self._channel is not None and self._channel.usable else None

    def _own(self, delivery: Delivery) -> Locked | None:
        """What a delivery of this receiver stands for; None for any other one."""
        locked = delivery.lock_token
        return locked if isinstance(locked, Locked) and locked.owner is self else None

    async def complete(self, delivery: Delivery) -> None:
        [failed] = await self._settle([delivery], requeue=False)
        if failed is not None:
            raise failed

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        return await self._settle(deliveries, requeue=False)

    async def abandon(self, delivery: Delivery) -> None:
        [failed] = await self._settle([delivery], requeue=True)
        if failed is not None:
            raise failed

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        self._check_open(self._settling)
        locked, channel = self._own(delivery), self._usable
        if locked is None or channel is None or not channel.renew(locked):
            raise _errors.lock_lost(self._settling)
        left = locked.until - asyncio.get_running_loop().time()
        return replace(delivery, locked_until=datetime.now(UTC) + timedelta(seconds=left))

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        if self._dead:
            text = "it is in the dead-letter queue already"
            raise _errors.refused(self._moving, text, FailureReason.NOT_SUPPORTED)
        self._check_open(self._moving)
        locked, channel = self._own(delivery), self._usable
        if locked is None or channel is None or not channel.is_locked(locked):
            raise _errors.lock_lost(self._moving)
        locked.state = BUSY  # its lock does not end while the copy is being published
        try:
            copy = self._dead_letters.pack(locked.properties, locked.body, reason, description)
            [failed] = await self._dead_letters.publish([copy])
        finally:
            if locked.state is BUSY:
                locked.state = GIVEN
                channel.watch(locked)
        if failed is not None:
            raise failed
        if not channel.usable or locked.state is not GIVEN:
            raise _errors.lock_lost(self._moving)
        failed = await self._settled(channel.settle([locked], requeue=False))
        if failed is not None:
            raise failed

    async def _settle(self, deliveries: Sequence[Delivery], *, requeue: bool) -> list[TransportError | None]:
        """Settle deliveries with one request to the broker; one outcome each, None for done."""
        try:
            self._check_open(self._settling)
        except TransportError as error:
            return [error for _ in deliveries]
        channel = self._usable
        fresh: list[Locked] = []
        positions: list[int] = []
        jobs: list[Job | None] = [None] * len(deliveries)
        now = asyncio.get_running_loop().time()
        for position, delivery in enumerate(deliveries):
            locked = self._own(delivery)
            if locked is None:
                continue
            if channel is not None and locked.state is GIVEN and locked.until > now:
                locked.state = SETTLING
                fresh.append(locked)
                positions.append(position)
            elif locked.job is not None and locked.job.forsaken_as(requeue=requeue):
                jobs[position] = locked.job  # this call takes over from the interrupted one
        if channel is not None and fresh:
            fresh_job = channel.settle(fresh, requeue=requeue)
            fresh_job.forsaken = True  # unless this call gets as far as to wait for it
            for position in positions:
                jobs[position] = fresh_job
        outcomes: dict[Job, TransportError | None] = {}
        for job in jobs:
            if job is not None and job not in outcomes:
                outcomes[job] = await self._settled(job)
        return [_errors.lock_lost(self._settling) if job is None else outcomes[job] for job in jobs]

    async def _settled(self, job: Job) -> TransportError | None:
        job.forsaken = False
        try:
            await self._waits.until(job.done)
        except asyncio.CancelledError:
            job.forsaken = True
            if self._channel is not None:
                self._doubt(self._channel)
            raise
        if not job.done.done():
            return _errors.closed(self._settling, maybe_applied=True)
        cause = job.done.result()
        if cause is None:
            return None
        if isinstance(cause, Unsent):
            return _errors.lock_lost(self._settling)
        return _errors.failure(cause, self._settling)

    async def _release(self) -> None:
        self._context.receivers.discard(self)
        if self._opening is not None:
            give_back_once_open(self._opening)
        channel = self._channel
        if channel is not None and not await channel.close(_CLOSE):
            self._link.retire(channel.session, silent=True)
        self._dead_letters.release()
        self._waits.cancel()

    def _check_open(self, doing: str) -> None:
        """Refuse to begin, or to continue, when closed."""
        if self.scope.closed:
            raise _errors.closed(doing)

    def _doubt(self, channel: DeliveryChannel) -> None:
        """A call was cancelled: decide what that means for the channel and the connection.

        Other receivers keep using the connection, and other calls what is locked here: a broker that is distant, or
        stalls for a moment, looks like one that is down. One that is down misses the driver's heartbeats. A single
        queue can be unavailable as well, and its channel is given up when it has not replied for as long.
        """
        if not channel.usable:
            return
        silent = channel.silent
        if silent:
            self._link.retire(channel.session, silent=True)
        if channel.stuck(self._context.url.heartbeat) or (channel.empty and (silent or channel.stuck())):
            channel.discard()


def read(locked: Locked, dead: bool) -> tuple[str, str] | None:
    """Decode a message once; reason and description if it must not be returned to a caller.

    Of a dead-letter queue every message is shown somehow.
    """
    if locked.message is not None:
        return None
    plain = None if dead else _plain.read(locked.header, locked.body)
    if plain is not None:
        locked.message, before = plain
        locked.count = _codec.count_of(before, locked.redelivered)
        return None
    locked.count = _codec.delivery_count(locked.properties, locked.redelivered)
    if dead:
        locked.message = _codec.decode_leniently(locked.properties, locked.body)
        return None
    headers = locked.properties.headers
    if headers and _header.UNREADABLE in headers:
        return "malformed", f"its properties can't be read: {headers[_header.UNREADABLE]!s}"
    try:
        message = _codec.decode(locked.properties, locked.body)
    except _layout.MalformedMessage as problem:
        return "malformed", str(problem)
    if (
        message.scheduled_enqueue_at is not None
        and message.time_to_live is not None
        and headers
        and "x-death" in headers
    ):
        # It was in a delay queue, where the broker could not let it expire at the right time. One that was due when it
        # was sent, as from a backlog, was not, and the broker keeps its time-to-live.
        try:
            end = message.scheduled_enqueue_at + timedelta(seconds=message.time_to_live)
        except OverflowError:
            end = None
        if end is not None and datetime.now(UTC) > end:
            return "expired", f"its time to live of {message.time_to_live:g} s after its scheduled time is over"
    locked.message = message
    return None


def deliveries_of(found: Sequence[Locked], owner: object, dead: bool) -> list[Delivery]:
    now, clock = asyncio.get_running_loop().time(), datetime.now(UTC)
    deliveries: list[Delivery] = []
    until, locked_until = now, clock
    for locked in found:
        reason, description = _codec.dead_letter_reason(locked.properties) if dead else (None, None)
        assert locked.message is not None  # noqa: S101  # for mypy
        if locked.until != until:  # the same for nearly all
            until, locked_until = locked.until, clock + timedelta(seconds=locked.until - now)
        locked.owner = owner
        made = Delivery.of_checked(locked.message, locked, locked.count, "", None, locked_until, reason, description)
        deliveries.append(made)
    return deliveries

"""Publishing to one entity: a channel of its own, opened when needed, and every outcome of its publishes.

A channel per entity, so that one bad publish, which closes its channel, disturbs no other entity's sends. Within the
entity two rules keep the broker's refusals certain: the first publish on a new channel, and each large one, is alone
in flight, so that a channel that is closed under it was closed because of it.

A publish whose caller stopped waiting leaves its channel in doubt. The channel is retired: it takes no more publishes,
and the others in flight on it may still be answered. When nothing was received from the broker since the publish was
written, the connection is in doubt as well, and new publishes get another one until a frame arrives on it; see `Link`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import Scope, nothing_sent, start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._link import Link, Opening
from pairmq_rabbitmq._publish import ALONE, Answer, Batch, Lost, Nacked, Parcel, PublishChannel

CHUNK_MESSAGES = 250
CHUNK_BYTES = 1 << 20
_IN_A_TURN = 4  # chunks: those of one operation of a pair, so that no other operation's come between
_CHUNKS_IN_FLIGHT = 16  # of one call: 4000 messages take one round trip to a distant broker
_WORTHLESS = 0.2  # s: a channel that is older and has had nothing but rejections is replaced
_STUCK = 0.5  # s without an answer to the first publish of a channel, in a cluster, after which others get another one
_CLOSE = 5.0


class Publisher:
    """Publishes for one entity.

    On a new session ``check`` makes sure that the target exists before anything is published, where no return reports a
    missing one.
    """

    def __init__(self, link: Link, doing: str, check: Callable[[], Awaitable[None]] | None = None) -> None:
        self._link = link
        self._doing = doing
        self._check = check
        self._channel: PublishChannel | None = None
        self._opening: Opening[PublishChannel] | None = None
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not self._turn.locked() and (self._channel is None or self._channel.idle)

    async def publish(self, parcels: Sequence[Parcel], scope: Scope) -> list[Answer]:
        """Publish in order and wait for the broker's answers, one each: a `TransportError` where nothing was written.

        A cancelled call may have published any part of them.
        """
        chunks = list(_chunks(parcels))
        if len(chunks) == 1:
            return await self._publish(chunks[0], scope)
        answers: list[Answer] = []
        under_way: list[asyncio.Task[list[Answer]]] = []
        try:
            for chunk in chunks:
                # The lock is fair: chunks are written in the order in which their tasks began.
                under_way.append(start_task(self._publish(chunk, scope)))
                if len(under_way) % _IN_A_TURN == 0:
                    await asyncio.sleep(0)
                if len(under_way) == _CHUNKS_IN_FLIGHT:
                    answers += await under_way[0]
                    del under_way[0]
            while under_way:
                answers += await under_way[0]
                del under_way[0]
        except asyncio.CancelledError:
            # A new one: what the current chunk knows about itself says nothing about those before it.
            raise asyncio.CancelledError from None
        finally:
            for task in under_way:
                task.cancel()
        return answers

    async def open(self, scope: Scope) -> None:
        """Open the channel ahead of the first publish. Raises `Unsent`."""
        async with self._turn:
            channel = await self._ready(scope)
        channel.session.reserve_publisher()  # the next send may well be another entity's

    def release(self) -> None:
        """Close the channel when nothing is in flight on it; one that is being opened once it is open."""
        self._opening = None
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.retire()

    async def _publish(self, parcels: Sequence[Parcel], scope: Scope) -> list[Answer]:
        answers: list[Answer] = []
        begun = False
        try:
            async with self._turn:
                while True:
                    scope.check()
                    channel = await self._ready(scope)
                    left = parcels[len(answers) :]
                    alone = not channel.proven or len(left[0].body) > ALONE
                    ids = None if alone else [parcel.message_id for parcel in left]
                    if channel.has_in_flight(ids):
                        await scope.race(channel.clear(ids))
                    if not channel.usable:
                        continue
                    begun = True
                    batch = await self._write(channel, left[:1] if alone else left)
                    if not alone:
                        break
                    patience = None if channel.proven or not self._link.is_cluster else _STUCK
                    found = await self._answers(batch, scope, patience)
                    if found is None:
                        self._make_way(channel)
                        break
                    answers += found
                    if len(answers) == len(parcels):
                        return answers
                    if isinstance(answers[-1], Lost):
                        raise _not_tried(answers[-1], channel, self._doing)
            answers += await self._answers(batch, scope) or ()
            if len(answers) < len(parcels):  # it was stuck, and the others have not been written
                if isinstance(answers[-1], Lost):
                    raise _not_tried(answers[-1], channel, self._doing)
                try:
                    answers += await self._publish(parcels[len(answers) :], scope)
                except asyncio.CancelledError:
                    raise asyncio.CancelledError from None  # that nothing of these was sent says nothing of the first
            return answers
        except asyncio.CancelledError as cancellation:
            if not begun:
                nothing_sent(cancellation)
            raise
        except Unsent as error:
            failed = _errors.failure(error, self._doing)
        except TransportError as error:
            failed = error
        return [*answers, *(failed for _ in parcels[len(answers) :])]

    async def _write(self, channel: PublishChannel, parcels: Sequence[Parcel]) -> Batch:
        batch = Batch(channel, parcels)
        try:
            await channel.write(batch)
        except asyncio.CancelledError:
            self._doubt(batch)
            raise
        return batch

    def _make_way(self, channel: PublishChannel) -> None:
        """Have others publish elsewhere: this channel's first publish met a quorum queue without a leader.

        RabbitMQ answers it several seconds after there is one again, where a new channel would work at once.
        """
        if self._channel is channel:
            self._channel = None
        channel.retire()

    async def _answers(self, batch: Batch, scope: Scope, patience: float | None = None) -> list[Answer] | None:
        """Wait for the answers; None when there are none after so many seconds of ``patience``."""
        session = batch.channel.session
        scope.add(batch)
        session.users += 1
        try:
            if not await batch.wait(patience):
                return None
        except asyncio.CancelledError:
            self._doubt(batch)
            raise
        finally:
            scope.discard(batch)
            session.users -= 1
        if batch.cut_off:
            self._doubt(batch)
        if not batch.channel.took:
            self._first_answers(batch.channel, batch.answers)
        return batch.answers

    def _first_answers(self, channel: PublishChannel, answers: Sequence[Answer]) -> None:
        """Learn what a channel can do that has not had a publish confirmed so far."""
        channel.proven = channel.proven or not isinstance(answers[0], Lost | TransportError)
        channel.took = None in answers
        now = asyncio.get_running_loop().time()
        if not channel.took and isinstance(answers[-1], Nacked) and now - channel.made_at >= _WORTHLESS:
            # RabbitMQ 3.10 rejects all publishes of a channel whose first one met a quorum queue without a
            # leader, also when it has one again. If the queue is full, a new channel changes nothing, and costs little.
            if self._channel is channel:
                self._channel = None
            channel.retire()

    async def _ready(self, scope: Scope) -> PublishChannel:
        """The channel to publish on; opened if necessary. Raises `Unsent`."""
        channel = self._channel
        if channel is None or not channel.usable or self._link.current is not channel.session:
            self._channel = None
            if channel is not None:
                channel.retire()
            channel = self._at_hand() or await self._opened(scope)
        if channel.session.wire.blocked:
            raise _errors.blocked(self._doing)
        return channel

    def _at_hand(self) -> PublishChannel | None:
        """The spare channel of the connection, where nothing has to be checked first.

        Waiting for it in a task takes turns of the loop, which are long during a failover: the calls on everything that
        was lost are ended in them.
        """
        session = self._link.current
        if session is None or self._check is not None or self._opening is not None:
            return None
        raw = session.take_publisher()
        if raw is not None:
            self._channel = PublishChannel(session, raw, self._unused)
        return self._channel

    async def _opened(self, scope: Scope) -> PublishChannel:
        """Open a channel, or wait for the one that is being opened: a cancelled caller leaves it to the next.

        A failure is raised to the callers that wait at that time: a later caller tries again.
        """
        opening = self._opening
        if opening is None:
            opening = self._opening = Opening(self._open)
            opening.task.add_done_callback(partial(self._opening_ended, opening))
        try:
            await scope.race(asyncio.wait((opening.task,)))
        except asyncio.CancelledError:
            if opening.forsake(self._link):
                self._opening = None
            raise
        return opening.task.result()

    def _opening_ended(self, opening: Opening[PublishChannel], _: asyncio.Task[PublishChannel]) -> None:
        if self._opening is opening:
            self._opening = None

    async def _open(self, opening: Opening[PublishChannel]) -> PublishChannel:
        session = opening.on(await self._link.session())
        if session.wire.blocked:
            raise _errors.blocked(self._doing)
        if self._check is not None:
            await self._check()
        raw = session.take_publisher() or await session.open_channel(confirms=True)
        channel = PublishChannel(session, raw, self._unused)
        if self._opening is opening:
            self._channel = channel
        else:  # given up in the meantime: another one may be in its place
            channel.retire()
        return channel

    def _doubt(self, batch: Batch) -> None:
        """A caller stopped waiting for answers: decide what that means for the channel and the connection."""
        if self._channel is batch.channel:
            self._channel = None
        batch.channel.retire()
        if not batch.channel.session.wire.blocked:
            self._link.doubt(batch.asked)

    def _unused(self, channel: PublishChannel) -> None:
        start_task(self._give_back(channel), keep=self._tasks)

    @staticmethod
    async def _give_back(channel: PublishChannel) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE):
                await channel.close()


def _not_tried(lost: Lost, channel: PublishChannel, doing: str) -> Exception:
    """Why the others of a chunk were not written when the first one had its channel closed."""
    if not channel.session.usable:
        return Unsent(lost.cause)
    text = f"{doing}: not tried, as the broker closed the channel under the message before it"
    return TransportError(text, FailureKind.TRANSIENT, FailureReason.CONNECTION)


def _chunks(parcels: Sequence[Parcel]) -> Iterator[Sequence[Parcel]]:
    """Split a batch: not too much at once, a large message by itself, and no message id twice in one chunk."""
    chunk: list[Parcel] = []
    ids: set[str] = set()
    size = 0
    for parcel in parcels:
        large = len(parcel.body) > ALONE
        full = len(chunk) == CHUNK_MESSAGES or size + parcel.size > CHUNK_BYTES
        if chunk and (large or full or parcel.message_id in ids):
            yield chunk
            chunk, ids, size = [], set(), 0
        chunk.append(parcel)
        ids.add(parcel.message_id)
        size += parcel.size
        if large:
            yield chunk
            chunk, ids, size = [], set(), 0
    if chunk:
        yield chunk

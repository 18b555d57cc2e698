"""Messages on their way out through one link: what waits while a batch is under way goes out in the next one.

A batch is one transfer and one answer (Service Bus documentation: AMQP 1.0 protocol guide, "Messages"): the service
stores all of it or nothing. Its messages share a session, or a partition key: they are one group. Many transfers are
under way at the same time, so that a distant service answers many in one round trip; all are written in the order in
which they came, which is the order that they are stored in while nothing fails. A batch that was refused is sent again
message by message, so that each gets its own answer.

That is not enough where order has to outlast a failure: the service may refuse one transfer, as it does when it is
busy, and store those behind it. Messages of one `Chain` have one transfer under way, what follows waits for it, and
none is sent behind one that failed.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Protocol

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import behind_failed, nothing_sent
from pairmq_servicebus import _errors
from pairmq_servicebus._codec import Parts
from pairmq_servicebus._lane import Job, Lane, OpenLink

MOST_MESSAGES = 1000
"""In one batch."""

MOST_TRANSFERS: Final = 100
"""That are under way on one link: a tenth of the credit that the service grants a sender."""

_BYTES: Final = 1024 * 1024  # that are under way on a narrow link, unless one transfer has more
_MOST_BYTES: Final = 4 * _BYTES  # likewise on one that lets as many pass within so long, or has shown nothing yet
_WITHIN: Final = 1.0  # s
_MOST_GRACE: Final = 5.0  # s that a transfer whose callers have given up may take on a link that answers others

_ENVELOPE = 512  # bytes: of a batch around its messages, with the first one's ids
_INNER = 8  # bytes: around each of its messages

# Refusals that say something of a message, and not of the entity: the others of the batch may be accepted.
_OF_A_MESSAGE = frozenset(
    (
        FailureReason.OTHER,
        FailureReason.TOO_LARGE,
        FailureReason.MALFORMED,
        FailureReason.NOT_SUPPORTED,
    )
)


Answered = Callable[[Exception | None], None]
"""Takes the answer to a transfer: None, or the client's exception."""


class SendLink(OpenLink, Protocol):
    """An open link that messages can be sent on."""

    @property
    def max_message_bytes(self) -> int:
        """Of one message."""

    @property
    def max_batch_bytes(self) -> int:
        """Of one batch."""

    @property
    def credit(self) -> int:
        """How many transfers the service takes now."""

    @property
    def took(self) -> float:
        """Seconds that opening it took."""

    async def begin(self, messages: Sequence[Parts], answered: Answered) -> None:
        """Put a transfer of one message, or of several as a batch, on its way; ``answered`` gets its answer, by
        `progress` as a rule. Raises the client's exceptions."""

    async def progress(self) -> None:
        """Write what was begun, and take in answers; waits a moment for them. Raises the client's exceptions."""


class _State(enum.Enum):
    WAITING = "not given to the client"
    IN_FLIGHT = "given to the client"
    OVER = "answered, or no caller waits for it"


class Chain:
    """Messages of one call of which none is stored unless all before it are."""

    __slots__ = ("_failed", "_waiting", "under_way")

    def __init__(self) -> None:
        self.under_way = False
        """One transfer of it is."""
        self._waiting: OrderedDict[Parcel, None] = OrderedDict()  # of all chains, and others
        self._failed: TransportError | None = None

    def put(self, parcel: Parcel, waiting: OrderedDict[Parcel, None]) -> None:
        """Let a message wait behind the others."""
        self._waiting = waiting
        if self._failed is None:
            waiting[parcel] = None
        else:
            parcel.end(behind_failed(self._failed))

    def fail(self, error: TransportError) -> None:
        """One of them failed: those behind it are not sent."""
        if self._failed is not None:
            return
        self._failed = error
        for parcel in [parcel for parcel in self._waiting if parcel.chain is self]:
            del self._waiting[parcel]
            parcel.end(behind_failed(error))


class Parcel:
    """A message to be sent, with its encoded size in bytes, and its session id or partition key, which those of a batch
    share."""

    __slots__ = ("alone", "chain", "done", "group", "parts", "size", "state", "transfer")

    def __init__(self, parts: Parts, size: int, group: str | None) -> None:
        self.parts = parts
        self.size = size
        self.group = group
        self.chain: Chain | None = None
        self.alone = False  # it was in a batch that was refused
        self.state = _State.WAITING
        self.transfer: _Transfer | None = None
        self.done: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()

    def end(self, outcome: TransportError | None) -> None:
        """Set the result for the calls that wait for it."""
        self.state = _State.OVER
        if not self.done.done():
            self.done.set_result(outcome)
        if outcome is not None and self.chain is not None:
            self.chain.fail(outcome)


class _Transfer:
    """A batch that was given to the client, and is not answered."""

    __slots__ = ("ahead", "awaited", "batch", "began", "given_up_at", "size")

    def __init__(self, batch: Sequence[Parcel], began: float, ahead: int) -> None:
        self.batch = batch
        self.size = sum(parcel.size for parcel in batch)
        self.ahead = ahead  # bytes under way when it began
        self.began = began
        self.awaited = len(batch)  # by callers that have not given up: thousands may do so at about one instant
        self.given_up_at = math.inf


class Outbox:
    """Sends on one link.

    A transfer whose callers have all given up may still be answered, and another link takes as long as a few answers:
    so it has a grace, the time that opening its link took, counted from the link's last answer. Until the link has
    answered something, nothing more is begun on it; if it does not, it is dropped as soon as no caller waits for
    anything that is under way on it. One transfer and its answer may take ``limit`` seconds.
    """

    def __init__(
        self,
        opener: Callable[[], Awaitable[SendLink]],
        doing: str,
        limit: float,
        *,
        idle_limit: float | None = None,
    ) -> None:
        self.doing = doing
        self.waiting: OrderedDict[Parcel, None] = OrderedDict()
        self._lane: Lane[SendLink] = Lane(opener, doing, idle_limit=idle_limit)
        self._flush = _Flush(self, self._lane, limit)
        self._queued = False

    async def send(self, parcel: Parcel) -> TransportError | None:
        """Send one message; None when it was accepted, else its failure.

        A cancelled call that had given nothing to the client says so with `nothing_sent`.
        """
        self._put(parcel)
        try:
            return await parcel.done
        except asyncio.CancelledError as cancellation:
            if self._withdraw((parcel,)):
                nothing_sent(cancellation)
            raise

    async def send_all(self, parcels: Sequence[Parcel]) -> list[TransportError | None]:
        """Send several, each chain in order; one outcome each, as `send`."""
        for parcel in parcels:
            self._put(parcel)
        try:
            return [await parcel.done for parcel in parcels]
        except asyncio.CancelledError as cancellation:
            if self._withdraw(parcels):
                nothing_sent(cancellation)
            raise

    async def close(self) -> None:
        """End it: what waits fails for certain, what is under way is in doubt."""
        link = self._lane.shut()
        self.fail_waiting(_errors.closed(self.doing))
        if link is not None:
            await link.close()

    @property
    def closed(self) -> bool:
        return self._lane.closed

    @property
    def link(self) -> SendLink | None:
        """The link, while it is open."""
        return self._lane.link

    def _put(self, parcel: Parcel) -> None:
        if self._lane.closed:
            parcel.end(_errors.closed(self.doing))
            return
        if parcel.chain is None:
            self.waiting[parcel] = None
        else:
            parcel.chain.put(parcel, self.waiting)
        self.wake()

    def wake(self) -> None:
        """Have what waits sent."""
        if self.waiting and not self._queued:
            self._queued = True
            self._lane.submit(self._flush)

    def taken(self) -> None:
        """Called by the job when it ends: it may be queued again."""
        self._queued = False

    def put_back(self, parcel: Parcel) -> None:
        """Put a message in front of those that wait."""
        self.waiting[parcel] = None
        self.waiting.move_to_end(parcel, last=False)

    def fail_waiting(self, error: TransportError) -> None:
        """Report to the callers of all that waits that it was not sent."""
        waiting = list(self.waiting)
        self.waiting.clear()
        for parcel in waiting:
            parcel.end(_errors.again(error))

    def _withdraw(self, parcels: Sequence[Parcel]) -> bool:
        """Take parcels back that no caller waits for; returns whether the client has had none of them."""
        untouched = all(parcel.state is _State.WAITING for parcel in parcels)
        given_up = False
        for parcel in parcels:
            if parcel.state is _State.WAITING:
                self.waiting.pop(parcel, None)
            elif parcel.state is _State.IN_FLIGHT and parcel.transfer is not None:
                given_up = self._flush.give_up(parcel.transfer) or given_up
            parcel.state = _State.OVER
            parcel.done.cancel()  # of a list, the call had waited for one of them only
        if given_up:
            self._flush.check()
        return untouched


class _Flush(Job[SendLink]):
    """Sends what waits, in batches, until nothing waits or is under way."""

    def __init__(self, box: Outbox, lane: Lane[SendLink], limit: float) -> None:
        super().__init__(None)
        self._box = box
        self._lane = lane
        self._limit = limit
        self.under_way: dict[_Transfer, None] = {}
        self._grace = 0.0
        self._answered_at = -math.inf
        self._given_up = 0  # of the transfers under way
        self._room = _MOST_BYTES  # that may be under way
        self._clock: asyncio.TimerHandle | None = None
        self._turn: object = None

    async def run(self, link: SendLink) -> None:
        turn = self._turn = object()
        self._grace = link.took
        self._answered_at = -math.inf
        try:
            await self._begin(link, turn, first=True)
            while turn is self._turn and self.under_way:
                await link.progress()
                if turn is self._turn and self._given_up:
                    self.check()  # no caller may wait for what is left
                await self._begin(link, turn)
        except Exception as error:
            if turn is not self._turn:
                return
            self._end_all(_errors.send_failure(error, self._box.doing))
        # Another turn may have begun: this one was cut off, and the client has swallowed the cancellation.
        if turn is self._turn:
            self._rest()
            self._box.wake()

    def fail(self, error: TransportError, *, begun: bool) -> None:
        self._rest()
        if begun:
            self._end_all(error)
            self._box.wake()
        else:
            self._box.fail_waiting(error)

    def give_up(self, transfer: _Transfer) -> bool:
        """Take note that one caller no longer waits; returns whether it was the last one."""
        transfer.awaited -= 1
        if transfer.awaited:
            return False
        transfer.given_up_at = asyncio.get_running_loop().time()
        self._given_up += 1
        return True

    def check(self) -> None:
        """Drop the link when a transfer has reached the limit, or when no caller waits and it does not answer."""
        now = asyncio.get_running_loop().time()
        transfers = self.under_way
        ends_at = min((transfer.began + self._limit for transfer in transfers), default=math.inf)
        suspect_at = min((self._suspect_at(transfer) for transfer in transfers), default=math.inf)
        if ends_at <= now or (suspect_at <= now and self._given_up == len(self.under_way)):
            # The client might wait for the answers forever.
            self._rest()
            self._end_all(_errors.timed_out(self._box.doing, maybe_applied=True))
            self._lane.cut(self)
            self._box.wake()
            return
        self._watch(min(ends_at, suspect_at if suspect_at > now else math.inf))

    def _rest(self) -> None:
        self._turn = None
        self._watch(math.inf)
        self._box.taken()

    def _watch(self, ends_at: float) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        if ends_at < math.inf:
            self._clock = asyncio.get_running_loop().call_at(ends_at, self.check)

    def _suspect_at(self, transfer: _Transfer) -> float:
        """The instant at which the link of a transfer whose callers have given up has had its grace."""
        if transfer.given_up_at == math.inf:
            return math.inf
        last = max(transfer.began, self._answered_at)
        return max(transfer.given_up_at, min(last + self._grace, transfer.given_up_at + _MOST_GRACE))

    def _in_doubt(self) -> bool:
        """Whether the link may be a dead one: what is begun on it would be in doubt, too."""
        if not self._given_up:
            return False
        now = asyncio.get_running_loop().time()
        return any(
            transfer.given_up_at < math.inf
            and (transfer.given_up_at >= self._answered_at or self._suspect_at(transfer) <= now)
            for transfer in self.under_way
        )

    async def _begin(self, link: SendLink, turn: object, *, first: bool = False) -> None:
        """Give as much to the client as may be under way."""
        box, under_way = self._box, self.under_way
        room = min(MOST_TRANSFERS - len(under_way), link.credit)
        while box.waiting and turn is self._turn:
            if not first and not link.usable():
                return
            ahead = sum(transfer.size for transfer in under_way)
            if under_way and (room <= 0 or ahead >= self._room or self._in_doubt() or self._gathers()):
                return
            first = False
            head = next(iter(box.waiting))
            if head.chain is not None and head.chain.under_way:
                return
            batch = self._next(link)
            if not batch:
                continue
            room -= 1
            if batch[0].chain is not None:
                batch[0].chain.under_way = True
            transfer = _Transfer(batch, asyncio.get_running_loop().time(), ahead)
            under_way[transfer] = None
            for parcel in batch:
                parcel.state, parcel.transfer = _State.IN_FLIGHT, transfer
            if self._clock is None:
                self._watch(transfer.began + self._limit)
            answer = partial(self._answer, transfer)
            try:
                await link.begin([parcel.parts for parcel in batch], answer)
            except Exception as error:
                answer(error)

    def _gathers(self) -> bool:
        """Whether what waits had better go together in one batch, when the transfer under way is answered.

        A batch costs both sides less than a transfer for each message, and where all is of one group nothing else waits
        meanwhile.
        """
        under_way, waiting = self.under_way, self._box.waiting
        group = next(iter(under_way)).batch[0].group
        if len(under_way) > 1 or len(waiting) > MOST_MESSAGES:
            return False
        return all(parcel.group == group and parcel.chain is None for parcel in waiting)

    def _answer(self, transfer: _Transfer, error: Exception | None) -> None:
        if transfer not in self.under_way:
            return  # it was cut off
        del self.under_way[transfer]
        if transfer.batch[0].chain is not None:
            transfer.batch[0].chain.under_way = False
        self._given_up -= transfer.given_up_at < math.inf
        self._answered_at = now = asyncio.get_running_loop().time()
        passed = transfer.ahead + transfer.size
        if error is None and passed >= _BYTES // 4:  # as much as shows how wide the link is
            self._room = int(min(max(_WITHIN * passed / max(now - transfer.began, 1e-6), _BYTES), _MOST_BYTES))
        self._report(transfer.batch, None if error is None else _errors.send_failure(error, self._box.doing))

    def _end_all(self, error: TransportError) -> None:
        """Report to the callers of all that is under way that it is in doubt, or failed."""
        transfers = list(self.under_way)
        self.under_way.clear()
        self._given_up = 0
        for transfer in transfers:
            for parcel in transfer.batch:
                parcel.end(_errors.again(error))

    def _report(self, batch: Sequence[Parcel], failed: TransportError | None) -> None:
        if failed is None:
            for parcel in batch:
                parcel.end(None)
            return
        certain = failed.kind is FailureKind.REFUSED and not failed.maybe_applied
        if len(batch) > 1 and certain and failed.reason in _OF_A_MESSAGE:
            for parcel in reversed(batch):
                if parcel.done.done():
                    parcel.state = _State.OVER
                else:
                    parcel.state, parcel.alone = _State.WAITING, True
                    self._box.put_back(parcel)
            return
        for parcel in batch:
            parcel.end(_errors.again(failed))

    def _next(self, link: SendLink) -> list[Parcel]:
        """Take what fits into one transfer, in order."""
        waiting = self._box.waiting
        batch: list[Parcel] = []
        room = min(link.max_batch_bytes, link.max_message_bytes) - _ENVELOPE
        while waiting and len(batch) < MOST_MESSAGES:
            parcel = next(iter(waiting))
            if parcel.size > link.max_message_bytes:
                del waiting[parcel]
                text = f"it has {parcel.size} bytes with its properties, this link takes at most"
                parcel.end(
                    _errors.refused(self._box.doing, f"{text} {link.max_message_bytes}", FailureReason.TOO_LARGE)
                )
                continue
            if not batch and parcel.chain is not None and parcel.chain.under_way:
                break
            first = batch[0] if batch else parcel
            if parcel.group != first.group or parcel.chain is not first.chain:
                break
            if batch and (parcel.alone or first.alone):
                break
            room -= parcel.size + _INNER
            if batch and room < 0:
                break
            del waiting[parcel]
            batch.append(parcel)
        return batch

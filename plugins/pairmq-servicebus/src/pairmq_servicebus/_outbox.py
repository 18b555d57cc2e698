"""Messages on their way out through one link: what waits while a batch is under way goes out in the next one.

A batch is one transfer and one answer (Service Bus documentation: AMQP 1.0 protocol guide, "Messages"): the service
stores all of it or nothing. Its messages share a session, or a partition key. A batch that was refused is sent again
message by message, so that each gets its own answer.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import nothing_sent
from pairmq_servicebus import _errors
from pairmq_servicebus._codec import Parts
from pairmq_servicebus._lane import Job, Lane, OpenLink

MOST_MESSAGES = 1000
"""In one batch."""

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


class SendLink(OpenLink, Protocol):
    """An open link that messages can be sent on."""

    @property
    def max_message_bytes(self) -> int:
        """Of one message."""

    @property
    def max_batch_bytes(self) -> int:
        """Of one batch."""

    async def send(self, messages: Sequence[Parts]) -> None:
        """Send one message, or several as a batch, and wait for the answer; raises the client's exceptions."""


class _State(enum.Enum):
    WAITING = "not given to the client"
    IN_FLIGHT = "given to the client"
    OVER = "answered, or no caller waits for it"


class Parcel:
    """A message to be sent.

    Args:
        size: its encoded size in bytes.
        group: its session id, or partition key; messages of one batch share it.
    """

    __slots__ = ("alone", "done", "group", "parts", "size", "state")

    def __init__(self, parts: Parts, size: int, group: str | None) -> None:
        self.parts = parts
        self.size = size
        self.group = group
        self.alone = False  # it was in a batch that was refused
        self.state = _State.WAITING
        self.done: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()

    def end(self, outcome: TransportError | None) -> None:
        """Tell who waits for it."""
        self.state = _State.OVER
        if not self.done.done():
            self.done.set_result(outcome)


class Outbox:
    """Sends on one link.

    Args:
        limit: seconds for one transfer and its answer.
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
        self.waiting: deque[Parcel] = deque()
        self._lane: Lane[SendLink] = Lane(opener, doing, idle_limit=idle_limit)
        self._flush = _Flush(self, limit)
        self._queued = False

    async def send(self, parcel: Parcel) -> TransportError | None:
        """Send one message.

        Returns:
            None when it was accepted, else its failure.

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
        """Send several, in order; one outcome each, as `send`."""
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
        for parcel in self.waiting:
            parcel.end(_errors.closed(self.doing))
        self.waiting.clear()
        if link is not None:
            await link.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._lane.closed

    @property
    def link(self) -> SendLink | None:
        """The link, while it is open."""
        return self._lane.link

    def _put(self, parcel: Parcel) -> None:
        if self._lane.closed:
            parcel.end(_errors.closed(self.doing))
            return
        self.waiting.append(parcel)
        self.wake()

    def wake(self) -> None:
        """Have what waits sent."""
        while self.waiting and self.waiting[0].state is not _State.WAITING:
            self.waiting.popleft()
        if self.waiting and not self._queued:
            self._queued = True
            self._lane.submit(self._flush)

    def taken(self) -> None:
        """Called by the job when it begins or ends without having begun: it may be queued again."""
        self._queued = False

    def _withdraw(self, parcels: Sequence[Parcel]) -> bool:
        """Take parcels back that no caller waits for; tells whether the client has had none of them."""
        untouched = all(parcel.state is _State.WAITING for parcel in parcels)
        flush = self._flush
        given_up = False
        for parcel in parcels:
            if parcel.state is _State.IN_FLIGHT:
                flush.awaited -= 1
                given_up = True
            parcel.state = _State.OVER  # one that waits is passed over when its turn comes
            parcel.done.cancel()  # of a list, the call had waited for one of them only
        if given_up and not flush.awaited:
            # The last caller of this batch gave up; the client might wait for its answer forever.
            flush.batch = []
            self._lane.cut(flush)
            self.wake()
        return untouched


class _Flush(Job[SendLink]):
    """Sends one batch of what waits."""

    def __init__(self, box: Outbox, limit: float) -> None:
        super().__init__(limit)
        self._box = box
        self.batch: list[Parcel] = []
        self.awaited = 0
        """Of the batch, by callers that have not given up: thousands may do so at about one instant."""

    async def run(self, link: SendLink) -> None:
        self._box.taken()
        batch = self.batch = self._next(link)
        self.awaited = len(batch)
        if batch:
            for parcel in batch:
                parcel.state = _State.IN_FLIGHT
            failed: TransportError | None = None
            try:
                await link.send([parcel.parts for parcel in batch])
            except Exception as error:
                failed = _errors.send_failure(error, self._box.doing)
            self.batch = []
            self._tell(batch, failed)
        self._box.wake()

    def fail(self, error: TransportError, *, begun: bool) -> None:
        self._box.taken()
        if begun:
            batch, self.batch = self.batch, []
            for parcel in batch:
                parcel.end(_errors.again(error))
            self._box.wake()
            return
        waiting = list(self._box.waiting)
        self._box.waiting.clear()
        for parcel in waiting:
            parcel.end(_errors.again(error))

    def _tell(self, batch: Sequence[Parcel], failed: TransportError | None) -> None:
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
                    self._box.waiting.appendleft(parcel)
            return
        for parcel in batch:
            parcel.end(_errors.again(failed))

    def _next(self, link: SendLink) -> list[Parcel]:
        """Take what fits into one transfer, in order."""
        waiting = self._box.waiting
        batch: list[Parcel] = []
        room = min(link.max_batch_bytes, link.max_message_bytes) - _ENVELOPE
        while waiting and len(batch) < MOST_MESSAGES:
            parcel = waiting[0]
            if parcel.state is not _State.WAITING or parcel.done.done():
                waiting.popleft()
                continue
            if parcel.size > link.max_message_bytes:
                waiting.popleft()
                text = f"it has {parcel.size} bytes with its properties, this link takes at most"
                parcel.end(
                    _errors.refused(self._box.doing, f"{text} {link.max_message_bytes}", FailureReason.TOO_LARGE)
                )
                continue
            if batch and (parcel.alone or batch[0].alone or parcel.group != batch[0].group):
                break
            room -= parcel.size + _INNER
            if batch and room < 0:
                break
            waiting.popleft()
            batch.append(parcel)
        return batch

"""Reading one queue or subscription, or the dead-letter queue of either, under peek-lock; or one session at a time.

Sessions: Service Bus documentation, "Message sessions".

A `BusReceiver` has one link at a time, opened as its source wants it, and a lane for it. A `Receive` fetches messages
over the link, the `Shelf` keeps what was handed out until it is settled, and settling goes by the same lane.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusSession
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError

from pairmq.model import Delivery, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import Receiver, SessionReceiver
from pairmq_servicebus import _entities, _errors, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._codec import decode_leniently
from pairmq_servicebus._lane import Job, Lane
from pairmq_servicebus._receive_link import ReceiveLink, is_of_another, open_client, open_link
from pairmq_servicebus._settling import (
    MOST_REASON,
    Completion,
    Completions,
    GiveUp,
    Held,
    Settlement,
    Shelf,
    abandon_all,
    renew,
    settle,
)
from pairmq_servicebus._values import Malformed

MALFORMED = "malformed"
"""The reason that messages are dead-lettered with which can't be read."""

_MOST_AT_ONCE = 1000  # messages a receive
_A_MOMENT = 0.05  # s
_PATIENCE = 0.01  # s that a receive goes on after its first message, at least
_PATIENCE_EACH = 0.0002  # s more for each message that it may take


class Receive(Job[ReceiveLink]):
    """One receive of one caller: ``wait`` seconds for the first message, and ``limit`` that the client may take beyond
    that; ``report`` is `Receiver.dead_lettered`."""

    def __init__(
        self,
        lane: Lane[ReceiveLink],
        shelf: Shelf,
        most: int,
        wait: float,
        limit: float,
        doing: str,
        report: Callable[[Message, str, str, int], None],
    ) -> None:
        super().__init__(wait + limit, yields=True)
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[Delivery] | TransportError] = loop.create_future()
        self._lane = lane
        self._shelf = shelf
        self._most = min(most, _MOST_AT_ONCE)
        self._until = loop.time() + wait
        self._doing = doing
        self._report = report
        self._arrived: Sequence[Received] = ()
        self._malformed: list[tuple[Received, str]] = []
        self._withheld: list[Received] = []
        self._unwanted: list[Held] = []

    async def run(self, link: ReceiveLink) -> None:
        try:
            await self._set_aside(link)
            if self.done.done():  # its caller gave up while it was interrupted
                await link.give_back()
                return
            asked = False
            while not self.done.done():
                left = self._until - asyncio.get_running_loop().time()
                if left <= 0 and asked:
                    self._end([])
                    return
                asked = True
                if not self._arrived:
                    await link.keep()
                    # Kept before anything else is awaited: an interruption would lose them.
                    self._arrived = await self._fetch(link, max(min(left, link.patience), link.round_trip))
                    link.fetched()
                    if not self._arrived and link.is_silent():
                        raise _errors.timed_out(self._doing)
                received = await self._admit(link)
                self._hand_out(link, received)
                if len(received) < self._most:
                    await link.ask_for_no_more()
                    self._lane.look_soon = True
                await self._set_aside(link)
                if link.takes_note and not self.done.done():
                    self._lane.give_way(self)
        except Exception as error:
            self._end(_errors.failure(error, self._doing))

    async def _admit(self, link: ReceiveLink) -> Sequence[Received]:
        """Have the link take note of what is about to be handed out."""
        admitted = self._arrived
        if admitted and link.takes_note:
            # An interruption would leave the question in the air.
            self.yields = False
            try:
                admitted = await link.admit(admitted)
            finally:
                self.yields = True
        self._arrived = ()
        return admitted

    def fail(self, error: TransportError, *, begun: bool) -> None:
        self._end(error)

    def interrupted(self, link: ReceiveLink) -> None:
        # Whatever comes while others use the link belongs to this receive.
        _private.keep_arrivals(link.client)

    async def _fetch(self, link: ReceiveLink, wait: float) -> Sequence[Received]:
        client = link.client
        there = _private.buffered(client)
        if there:
            return await client.receive_messages(min(there, self._most), _A_MOMENT)
        _private.be_patient(client, _PATIENCE + _PATIENCE_EACH * self._most)
        return await client.receive_messages(self._most, wait)

    def _hand_out(self, link: ReceiveLink, messages: Sequence[Received]) -> None:
        deliveries: list[Delivery] = []
        for received in messages:
            if link.withholds(received):
                self._withheld.append(received)
                continue
            try:
                deliveries.append(self._shelf.hand_out(received, link))
            except Malformed as error:
                self._malformed.append((received, str(error)[:MOST_REASON]))
        if not deliveries:
            return
        if self.done.done():
            self._unwanted = [held for delivery in deliveries if isinstance(held := delivery.lock_token, Held)]
        else:
            self._end(deliveries)

    async def _set_aside(self, link: ReceiveLink) -> None:
        """Settle what no caller gets: messages that can't be read, and those whose caller has left."""
        while self._malformed:
            received, text = self._malformed.pop()
            # It stays locked if this fails, and is dead-lettered when it is redelivered.
            with contextlib.suppress(Exception):
                await link.client.dead_letter_message(received, reason=MALFORMED, error_description=text)
                message = decode_leniently(received.raw_amqp_message).message
                self._report(message, MALFORMED, text, (received.delivery_count or 0) + 1)
        while self._withheld:
            received = self._withheld.pop()
            with contextlib.suppress(Exception):  # as above
                await link.client.complete_message(received)
        while self._unwanted:
            # Each is forgotten only when it was abandoned: an interruption leaves the rest to the next run.
            await abandon_all(link, self._shelf, self._unwanted[:1])
            del self._unwanted[:1]
            if not link.usable():
                # These are redelivered when their locks end.
                self._unwanted.clear()

    def _end(self, outcome: list[Delivery] | TransportError) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


_GIVE_UP = 0.6  # s for giving back what is not settled when closing
_FIRST_TRIAL, _LAST_TRIAL = 0.1, 2.0  # s between trials to become the consumer of a queue that has another one

T = TypeVar("T")

_LEAST_WAIT: Final = 0.1  # s: the client and the service take no zero
_AT_ONCE: Final = 15.0  # s: longer waits are cut into these, so that a service that went silent is noticed
_NONE_IS_FREE: Final = "com.microsoft:timeout"
_RETRY: Final = 0.25  # s between trials at a session that another receiver has


class BusReceiver(Receiver):
    """Reads one source, over what ``opener`` opens; ordinary links of the source when left out.

    Raises `TransportError`, reason *malformed*, when Service Bus can't have such a name.
    """

    def __init__(
        self, namespace: Namespace, source: Source, opener: Callable[[], Awaitable[ReceiveLink]] | None = None
    ) -> None:
        _entities.check_source(source)
        doing = f"receive from {source}"
        self._namespace = namespace
        self._source = source
        self._doing = doing
        self._limit = namespace.url.operation_timeout
        self._shelf = Shelf(source.dead_letter)
        self._lane: Lane[ReceiveLink] = Lane(
            opener or (lambda: open_link(namespace, source, doing)), doing, spares=lambda link: link.locks_end_with_it
        )
        self._takes_turns = opener is None
        self._completions: Completions | None = None
        self._trial = _FIRST_TRIAL
        self._over = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        namespace.open_objects.add(self)

    async def receive(self, max_messages: int, wait: float) -> list[Delivery]:
        """As `Receiver.receive`; a queue whose only consumer is another one yields nothing before this one's turn."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait
        while True:
            try:
                deliveries = await self._receive(max_messages, max(0.0, ends_at - loop.time()))
            except TransportError as error:
                # A lost lock can be acquired again: what was held under it is redelivered, to this consumer or another.
                if not self._takes_turns or not (is_of_another(error) or error.reason is FailureReason.LOCK_LOST):
                    raise
                left = ends_at - loop.time()
                if left <= 0:
                    return []
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(self._trial, left)):
                        await self._over.wait()
                self._trial = min(2 * self._trial, _LAST_TRIAL)
            else:
                self._trial = _FIRST_TRIAL
                return deliveries

    async def _receive(self, max_messages: int, wait: float) -> list[Delivery]:
        self._check_open(self._doing)
        self._shelf.tidy()
        job = Receive(self._lane, self._shelf, max_messages, wait, self._limit, self._doing, self.dead_lettered)
        self._lane.submit(job)
        try:
            outcome = await job.done
        except asyncio.CancelledError:
            self._lane.stop(job)
            self._lane.look_soon = True  # what it had fetched while it was interrupted is released then
            raise
        if isinstance(outcome, TransportError):
            raise outcome
        return outcome

    async def complete(self, delivery: Delivery) -> None:
        [outcome] = await self.complete_batch((delivery,))
        if outcome is not None:
            raise outcome

    async def complete_batch(self, deliveries: Sequence[Delivery]) -> Sequence[TransportError | None]:
        try:
            self._check_open(f"complete in {self._source}")
        except TransportError as error:
            return [_errors.again(error) for _ in deliveries]
        asked = [Completion(self._known(delivery)) for delivery in deliveries]
        if asked:
            self._complete(asked)
        try:
            return [await completion.done for completion in asked]
        except asyncio.CancelledError:
            for completion in asked:
                job, done = completion.job, completion.done
                if job is not None and (done.cancelled() or not done.done()) and job.give_up(completion):
                    self._lane.give_up(job)
            raise

    def _complete(self, asked: Sequence[Completion]) -> None:
        job = self._completions
        if job is None or job.has_begun:
            doing = f"complete in {self._source}"
            job = self._completions = Completions(self._shelf, self._limit, doing, self._complete)
            job.add(asked)
            self._lane.submit(job)
        else:
            job.add(asked)

    async def abandon(self, delivery: Delivery) -> None:
        await self._settle(delivery, "abandon")

    async def dead_letter(self, delivery: Delivery, reason: str, description: str) -> None:
        await self._settle(delivery, "dead-letter", reason, description)

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        doing = f"renew a lock in {self._source}"
        self._check_open(doing)
        held = self._held(delivery, doing)
        asked_at = asyncio.get_running_loop().time()
        until = await self._lane.call(lambda link: renew(link, self._shelf, held, asked_at, doing), self._limit, doing)
        return replace(delivery, locked_until=until)

    async def close(self) -> None:
        if self._closing is None:
            self._over.set()
            self._namespace.open_objects.discard(self)
            self._closing = self._namespace.spawn(self._close())
        # A caller that is cancelled leaves the rest to the task, which ends by itself.
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        link = self._lane.link
        if self._shelf.unsettled() and link is not None and not link.closing_gives_back and not self._lane.closed:
            job = GiveUp(self._shelf, _GIVE_UP)
            self._lane.submit(job)
            await asyncio.wait((job.done,), timeout=_GIVE_UP)
        await self._lane.close()

    async def _settle(self, delivery: Delivery, how: Settlement, reason: str = "", description: str = "") -> None:
        doing = f"{how} in {self._source}"
        self._check_open(doing)
        held = self._held(delivery, doing)
        await self._lane.call(
            lambda link: settle(link, self._shelf, held, how, doing, reason, description), self._limit, doing
        )

    def _held(self, delivery: Delivery, doing: str) -> Held:
        held = self._known(delivery)
        if held is None:
            raise _errors.lock_lost(doing)
        return held

    def _known(self, delivery: Delivery) -> Held | None:
        """What a delivery is settled by; None for one that was only looked at, or is another receiver's."""
        held = delivery.lock_token
        return held if isinstance(held, Held) and held.shelf is self._shelf else None

    def _check_open(self, doing: str) -> None:
        if self._closing is not None or self._namespace.closed or self._lane.closed:
            raise _errors.closed(doing)


async def accept_session(
    namespace: Namespace, source: Source, session_id: str | None, wait: float
) -> SessionReceiver | None:
    """Lock a session; as `Transport.accept_session`."""
    _entities.check_source(source)
    doing = f"accept a session of {source}"
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + wait
    at_once = min(_AT_ONCE, namespace.url.operation_timeout)
    while True:
        left = max(_LEAST_WAIT, min(ends_at - loop.time(), at_once))
        link = await _try(namespace, source, session_id, left, doing)
        if link is not None:
            return BusSessionReceiver(namespace, source, link)
        left = ends_at - loop.time()
        if left <= 0:
            return None
        if session_id is not None:
            await asyncio.sleep(min(_RETRY, left))


async def _try(
    namespace: Namespace, source: Source, session_id: str | None, wait: float, doing: str
) -> ReceiveLink | None:
    """Lock a session that is free within ``wait`` seconds; None when there was none."""
    wanted = session_id if session_id is not None else NEXT_AVAILABLE_SESSION
    limit = wait + namespace.url.connect_timeout
    try:
        opened = await open_client(namespace, source, doing, limit, session_id=wanted, max_wait_time=wait)
    except TransportError as error:
        if _says_that_none_is_free(error.__cause__):
            return None
        raise
    return ReceiveLink(namespace, *opened)


def _says_that_none_is_free(error: BaseException | None) -> bool:
    """Whether these are the service's own words: a time-out that was ours, or the client's, means that it is silent."""
    if isinstance(error, OperationTimeoutError):
        # The client raises the service's time-out as one of its own, and its own ones by the same class.
        return _errors.condition(error.__cause__ or error) == _NONE_IS_FREE
    return isinstance(error, SessionCannotBeLockedError)


class BusSessionReceiver(BusReceiver, SessionReceiver):
    """Reads the session that its link has locked. It has this one link: when that is gone, so is the lock."""

    def __init__(self, namespace: Namespace, source: Source, link: ReceiveLink) -> None:
        self._session: ServiceBusSession = link.client.session
        self._session_id = str(self._session.session_id)
        self._first: ReceiveLink | None = link
        super().__init__(namespace, source, self._take_link)
        self._doing = f"receive from session {self._session_id!r} of {source}"

    @property
    def session_id(self) -> str:
        return self._session_id

    @property
    def locked_until(self) -> datetime:
        until = self._session.locked_until_utc
        return datetime.now(UTC) if until is None else self._namespace.clock.here(until)

    async def renew_session_lock(self) -> datetime:
        return self._namespace.clock.here(await self._ask("renew the lock", lambda session: session.renew_lock()))

    async def renew_lock(self, delivery: Delivery) -> Delivery:
        """Renew the session's lock, which is the delivery's."""
        return replace(delivery, locked_until=await self.renew_session_lock())

    async def get_state(self) -> bytes | None:
        state: bytes | None = await self._ask("read the state", lambda session: session.get_state())
        return None if state is None else bytes(state)

    async def set_state(self, state: bytes | None) -> None:
        await self._ask("store the state", lambda session: session.set_state(state))

    async def close(self) -> None:
        first, self._first = self._first, None
        if first is not None:  # nothing was ever asked of it
            self._namespace.spawn(first.close())
        await super().close()

    async def _ask(self, what: str, question: Callable[[ServiceBusSession], Awaitable[T]]) -> T:
        doing = f"{what} of session {self._session_id!r} of {self._source}"
        self._check_open(doing)
        return await self._lane.call(lambda link: question(link.client.session), self._limit, doing)

    async def _take_link(self) -> ReceiveLink:
        first, self._first = self._first, None
        if first is None:
            raise TransportError(
                f"{self._doing}: its link is gone, and with it the session's lock",
                FailureKind.REFUSED,
                FailureReason.LOCK_LOST,
            )
        if not first.usable():
            first.drop()
            raise _errors.lock_lost(self._doing)
        return first

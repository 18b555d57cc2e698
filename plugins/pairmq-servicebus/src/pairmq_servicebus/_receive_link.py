"""Links to receive on: a receiver of the client, how it is opened, and the link of a queue's only consumer.

In a queue with one consumer at a time everything belongs to one session. The session's lock stands for those of its
messages (Service Bus documentation: "Message sessions"): it is renewed while a receive waits, and gone when its link
is. Closing the link gives everything back at once, in its order; so does the end of a killed process's connection. The
service counts neither as a delivery. The next consumer has to know that there may be second copies of the messages, so
a consumer writes into the session's state, which outlives it, up to which number it has handed messages out.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusReceiver as Client
from azure.servicebus.aio import ServiceBusSession
from azure.servicebus.exceptions import SessionCannotBeLockedError

from pairmq.model import FailureReason, Source, TransportError
from pairmq.transport import raise_failure
from pairmq_servicebus import _errors, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._entities import MARKER, SESSION, is_queue_itself

# Opening takes some ten round trips, and sleeps of the client's own: a quarter of it is more than one round trip.
_ROUND_TRIPS = 4.0
_LEAST_ROUND_TRIP = 0.1  # s
_MOST_ROUND_TRIP = 1.0

_MOST_DIGITS: Final = 19  # of a sequence number, which has 64 bits
_SHORTEST_LOCK: Final = 5.0  # s, of all that the service allows
_MOST_BETWEEN_RENEWALS: Final = 20.0  # s
_LEAST_PATIENCE: Final = 0.5  # s between looks at the lock while a receive waits
_SAMPLES: Final = 2  # answers by whose fastest a link is judged
_FAR: Final = 0.005  # s for one answer, from which on several at once are faster
_SILENCE: Final = 10.0  # s that an answer may take, while the link is read
_QUESTIONS: Final = 2  # to which none comes: longer waits are cut into pieces that end with one each


class ReceiveLink:
    """A receiver of the client that is open; a question and its answer may take ``round_trip`` seconds."""

    def __init__(self, namespace: Namespace, client: Client, round_trip: float) -> None:
        self._namespace = namespace
        self.clock = namespace.clock
        self._handler = _private.handler_of(client)
        self.client = client
        if client.session is not None:
            self.locks_end_with_it = True
            _private.let_the_service_end_locks(client.session)
        _private.fix_arrivals(client)
        _private.fix_peeks(client)
        self.round_trip = round_trip
        self.ended = False
        """It was given up: what came over it as part of a session is lost with it."""
        self._silence = min(_SILENCE, namespace.url.operation_timeout)
        self.patience = self._silence / _QUESTIONS
        """Seconds that a receive may wait without `keep` and a question to the service."""
        self._asked_at = math.inf
        self._heard: float | None = None
        self._lost = False
        self._answer_times: deque[float] = deque(maxlen=_SAMPLES)

    closing_gives_back = False
    """What is not settled goes back by itself when it is closed."""
    locks_end_with_it = False
    """What was handed out over it can't be settled over another one."""
    takes_note = False
    """What is handed out goes through `admit` first."""

    async def keep(self) -> None:
        """Do what has to be done before a receive waits."""

    def fetched(self) -> None:
        """Called when a receive of the client has ended, before anything else is read."""

    async def ask_for_no_more(self) -> None:
        """Take the credit back, which the service answers: a queue without messages is as quiet as a lost connection.

        What is in transit now belongs to the next receive, or is released if no receive follows soon.
        """
        if await _private.take_back_credit(self.client) and self._asked_at == math.inf:
            self._asked_at = asyncio.get_running_loop().time()
            self._heard = _private.last_heard(self.client)
        _private.keep_arrivals(self.client)

    def answered_in(self, seconds: float) -> None:
        self._answer_times.append(seconds)

    @property
    def is_far(self) -> bool:
        """Whether its answers take so long that several settlements are better begun at once."""
        return len(self._answer_times) == _SAMPLES and min(self._answer_times) > _FAR

    def is_silent(self) -> bool:
        """Whether the service owes an answer for too long; asked after a read, and if so, the link is not usable."""
        if _private.last_heard(self.client) != self._heard:
            self._asked_at = math.inf
        self._lost = asyncio.get_running_loop().time() - self._asked_at >= self._silence
        return self._lost

    async def admit(self, messages: Sequence[Received]) -> Sequence[Received]:
        """Note messages that are about to be handed out, in the order returned; if this fails, none of them is."""
        return messages

    def came_before(self, received: Received) -> bool:
        """Whether a message is known to have been handed out before, though the service may not have counted that."""
        return False

    def withholds(self, received: Received) -> bool:
        """Whether a message is for no caller, and is completed here."""
        return False

    async def renew(self, received: Received, asked_at: float) -> datetime:
        """Renew the lock of a message, asked for at an instant of the loop's clock; returns until when it lasts."""
        return await self.client.renew_message_lock(received)

    async def before_abandon(self, received: Received) -> None:
        """Do what has to be done before a message is abandoned."""

    def usable(self) -> bool:
        is_same = _private.handler_of(self.client) is self._handler
        return is_same and _private.is_open(self.client) and not self._lost

    def unread(self) -> bool:
        return False  # what arrives here are messages, for the next receive

    async def give_back(self) -> None:
        """Let go of what has arrived and was not handed out."""
        await _private.give_back(self.client)

    async def look(self) -> None:
        await self.give_back()
        await _private.look(self.client)

    def drop(self) -> None:
        self.ended = True
        self._namespace.discard(self.client)

    async def close(self) -> None:
        self.ended = True
        await self._namespace.farewell(self.client)


async def open_client(
    namespace: Namespace, source: Source, doing: str, limit: float | None = None, **options: Any
) -> tuple[Client, float]:
    """Open a receiver of the client, with ``session_id`` and ``max_wait_time`` as options; with it comes how many
    seconds to wait for an answer at least. Raises `TransportError`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    client = namespace.new_receiver(source, **options)
    await namespace.open(client, doing, limit)
    took = loop.time() - began
    return client, min(_MOST_ROUND_TRIP, max(_LEAST_ROUND_TRIP, took / _ROUND_TRIPS))


async def open_consumer_link(namespace: Namespace, source: Source, doing: str) -> ReceiveLink:
    """Become the only consumer of a queue. Raises `TransportError`; `is_of_another` shows whether because another
    one is its consumer."""
    wait = namespace.url.connect_timeout
    opened = await open_client(namespace, source, doing, session_id=SESSION, max_wait_time=wait)
    link = ConsumerLink(namespace, *opened)
    try:
        # Part of the opening: no job's limit counts here, and the next jobs wait for it.
        async with asyncio.timeout(wait):
            await link.read_state()
    except BaseException as error:
        link.drop()
        if not isinstance(error, Exception):
            raise
        raise_failure(_errors.failure(error, doing))
    return link


def is_of_another(error: TransportError) -> bool:
    """Whether a link was refused since another receiver holds the session, by the service's own words."""
    return isinstance(error.__cause__, SessionCannotBeLockedError)


class ConsumerLink(ReceiveLink):
    """Has locked the session; arguments as `ReceiveLink`."""

    closing_gives_back = True
    takes_note = True

    def __init__(self, namespace: Namespace, client: Client, round_trip: float) -> None:
        super().__init__(namespace, client, round_trip)
        self._session: ServiceBusSession = client.session
        until = self._session.locked_until_utc
        left = 0.0 if until is None else self.clock.left(until)
        # A third of the lock; less where this machine's clock is ahead.
        self._renew_after = min(max(left, _SHORTEST_LOCK) / 3, _MOST_BETWEEN_RENEWALS)
        self.patience = min(self.patience, max(_LEAST_PATIENCE, self._renew_after * 3 / 4))
        self._renewed_at = asyncio.get_running_loop().time()
        self._handed_out = self._handed_out_before = 0
        self._highest = 0
        self._abandoned: set[int] = set()
        _private.keep_arrivals(client)

    async def read_state(self) -> None:
        """Find out up to which number others have handed messages out."""
        state = await self._session.get_state()
        number = bytes(state or b"")
        # Untrusted: any reader of the queue may have written it, and must not be able to keep others from reading.
        known = number.isdigit() and len(number) <= _MOST_DIGITS
        self._handed_out = self._handed_out_before = int(number) if known else 0

    def fetched(self) -> None:
        # What arrives between two receives would be released, and come back behind what was on its way then.
        _private.keep_arrivals(self.client)

    async def give_back(self) -> None:
        """Keep what has arrived: it is the next receive's, and no other receiver could get it."""

    async def admit(self, messages: Sequence[Received]) -> Sequence[Received]:
        """Record how far messages are handed out; one that would come after a newer one ends the link.

        Raises `TransportError`, reason *lock-lost*: all of them are redelivered, in order.
        """
        # What can't be read has no number here; it is dead-lettered, and has no place in the order.
        numbered = [message for message in messages if message.sequence_number is not None]
        in_order = sorted(numbered, key=_number)
        late = [number for message in in_order if (number := _number(message)) <= self._highest]
        if not self._abandoned.issuperset(late):
            self.ended = True
            raise _errors.lock_lost("receive in order")
        self._abandoned.difference_update(late)
        self._highest = max([self._highest, *map(_number, in_order)])
        if self._highest > self._handed_out:
            try:
                await self._session.set_state(b"%d" % self._highest)
            except BaseException:
                self.ended = True  # closing it gives them back
                raise
            self._handed_out = self._highest
        return in_order + [message for message in messages if message.sequence_number is None]

    def came_before(self, received: Received) -> bool:
        return _number(received) <= self._handed_out_before

    def usable(self) -> bool:
        return not self.ended and super().usable() and not _private.session_is_over(self.client)

    async def keep(self) -> None:
        """Renew the lock when a third of it is over: without locked messages, no caller does."""
        if asyncio.get_running_loop().time() - self._renewed_at > self._renew_after:
            await self._renew()

    def withholds(self, received: Received) -> bool:
        return received.content_type == MARKER

    async def renew(self, received: Received, asked_at: float) -> datetime:
        """Renew the session's lock, once for all that asked meanwhile: it is the lock of every message."""
        until = self._session.locked_until_utc
        if until is not None and self._renewed_at >= asked_at:
            return until
        return await self._renew()

    async def before_abandon(self, received: Received) -> None:
        """Let nothing newer be in transit: it would be handed out before what is abandoned now."""
        self._abandoned.add(_number(received))
        await _private.give_back(self.client)
        _private.keep_arrivals(self.client)

    async def _renew(self) -> datetime:
        began = asyncio.get_running_loop().time()
        until = await self._session.renew_lock()
        self._renewed_at = began
        return until


def _number(received: Received) -> int:
    return received.sequence_number or 0


async def open_receive_link(namespace: Namespace, source: Source, doing: str) -> ReceiveLink:
    """Open a link to receive on. Raises `TransportError`."""
    return ReceiveLink(namespace, *await open_client(namespace, source, doing))


async def open_link(namespace: Namespace, source: Source, doing: str) -> ReceiveLink:
    """Open a link to receive on, as its only consumer where it is such a queue. Raises `TransportError`."""
    known, queue = namespace.single_consumers, source.entity
    if not is_queue_itself(source):
        return await open_receive_link(namespace, source, doing)
    if not known.knows(queue):
        try:
            return await open_receive_link(namespace, source, doing)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_SUPPORTED or not await known.learn(queue):
                raise
    try:
        return await open_consumer_link(namespace, source, doing)
    except TransportError as error:
        if error.reason in (FailureReason.NOT_SUPPORTED, FailureReason.NOT_FOUND):
            known.forget(queue)  # it was made anew, as another kind of queue
        raise

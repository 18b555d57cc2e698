"""A receiver of the client as a link, the deliveries that it gave, and the jobs that fetch and settle them.

A receive is one grant of credit and a wait (Service Bus documentation: AMQP 1.0 protocol guide, "Receiver link"). It is
interrupted whenever something is to be settled, since the client's settlements would wait for its reads, and goes on
afterwards with what has arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusReceiver as Client
from azure.servicebus.aio import ServiceBusSession

from pairmq.model import Delivery, FailureReason, TransportError
from pairmq_servicebus import _codec, _errors, _private
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._lane import Job, Lane
from pairmq_servicebus._values import Malformed

Settlement = Literal["complete", "abandon", "dead-letter"]

MALFORMED = "malformed"
"""The reason that messages are dead-lettered with which can't be read."""

MOST_REASON = 4096
"""Characters of a dead-letter reason or description that the service keeps."""

# What the client asks for, sent back as it was: some servers do, and the client takes it for a refusal.
_ECHO = "com.microsoft:dead-letter"

_MOST_AT_ONCE = 1000  # messages a receive
_SAMPLES = 2  # settlements by whose fastest a link is judged
_FAR = 0.005  # s for one answer, from which on several at once are faster
_SIDE_BY_SIDE = 25
_A_MOMENT = 0.05  # s
_PATIENCE = 0.01  # s that a receive goes on after its first message, at least
_PATIENCE_EACH = 0.0002  # s more for each message that it may take


class ReceiveLink:
    """A receiver of the client that is open.

    Args:
        namespace: it belongs to.
        client: it.
        round_trip: seconds that a question and its answer may take.
    """

    def __init__(self, namespace: Namespace, client: Client, round_trip: float) -> None:
        self._namespace = namespace
        self._handler = _private.handler_of(client)
        self.client = client
        _private.mend_arrivals(client)
        _private.mend_peeks(client)
        self.round_trip = round_trip

    def usable(self) -> bool:
        return _private.handler_of(self.client) is self._handler and _private.is_open(self.client)

    def unread(self) -> bool:
        return False  # what arrives here are messages, for the next receive

    async def look(self) -> None:
        await _private.give_back(self.client)
        await _private.look(self.client)

    def drop(self) -> None:
        self._namespace.discard(self.client)

    async def close(self) -> None:
        await self._namespace.farewell(self.client)


class Held:
    """A message that was handed out, by what it is settled.

    Args:
        received: the client's message.
        link: that it came over; its delivery number means something there only.
        shelf: of the receiver that handed it out, which alone settles it.
        in_session: its lock is the session's.
    """

    __slots__ = ("in_session", "link", "received", "settled", "shelf")

    def __init__(self, received: Received, link: ReceiveLink, shelf: Shelf, in_session: bool) -> None:
        self.received = received
        self.link = link
        self.shelf = shelf
        self.in_session = in_session
        self.settled = False

    @property
    def lock_ended(self) -> bool:
        """Whether its lock has run out, by this machine's clock; a session's lock is looked after elsewhere."""
        until = self.received.locked_until_utc
        return until is not None and until <= datetime.now(UTC)


class Shelf:
    """The deliveries of one receiver that are not settled.

    Args:
        dead_letter: it reads a dead-letter queue.
    """

    def __init__(self, dead_letter: bool) -> None:
        self._dead_letter = dead_letter
        self._held: dict[int, Held] = {}

    def hand_out(self, received: Received, link: ReceiveLink) -> Delivery:
        """Make a delivery of a message, and remember it.

        Raises:
            Malformed: it can't be read.
        """
        decoded = _codec.decode(received.raw_amqp_message, dead_letter=self._dead_letter)
        session: ServiceBusSession | None = link.client.session
        held = Held(received, link, self, in_session=session is not None)
        delivery = replace(
            delivery_of(received, decoded, held),
            locked_until=received.locked_until_utc if session is None else session.locked_until_utc,
        )
        self._held[id(held)] = held
        return delivery

    def tidy(self) -> None:
        """Forget what nobody settled before its lock ended."""
        for held in [held for held in self._held.values() if held.lock_ended]:
            self.forget(held)

    def forget(self, held: Held) -> None:
        """It is settled, or lost."""
        held.settled = True
        self._held.pop(id(held), None)

    def unsettled(self) -> list[Held]:
        """What is not settled, oldest first."""
        return list(self._held.values())


def delivery_of(received: Received, decoded: _codec.Decoded, token: object) -> Delivery:
    """Make a delivery of a message that was received or looked at."""
    number = received.sequence_number
    return Delivery(
        decoded.message,
        lock_token=token,
        # The header counts the deliveries before this one (AMQP 1.0, part 3.2.1).
        delivery_count=(received.delivery_count or 0) + 1,
        sequence_number="" if number is None else str(number),
        enqueued_at=received.enqueued_time_utc,
        dead_letter_reason=decoded.dead_letter_reason,
        dead_letter_description=decoded.dead_letter_description,
    )


class Receive(Job[ReceiveLink]):
    """One receive of one caller.

    Args:
        lane: it is done on.
        shelf: for its deliveries.
        most: messages.
        wait: seconds for the first.
        limit: seconds that the client may take beyond that.
        doing: in words, for errors.
    """

    def __init__(self, lane: Lane[ReceiveLink], shelf: Shelf, most: int, wait: float, limit: float, doing: str) -> None:
        super().__init__(wait + limit, yields=True)
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[Delivery] | TransportError] = loop.create_future()
        self._lane = lane
        self._shelf = shelf
        self._most = min(most, _MOST_AT_ONCE)
        self._until = loop.time() + wait
        self._doing = doing
        self._malformed: list[tuple[Received, str]] = []
        self._unwanted: list[Held] = []

    async def run(self, link: ReceiveLink) -> None:
        try:
            await self._set_aside(link)
            if self.done.done():  # its caller gave up while it was interrupted
                await _private.give_back(link.client)
                return
            asked = False
            while not self.done.done():
                left = self._until - asyncio.get_running_loop().time()
                if left <= 0 and asked:
                    self._end([])
                    return
                asked = True
                received = await self._fetch(link, max(left, link.round_trip))
                # Nothing is awaited before the messages are handed out: an interruption would lose them.
                self._hand_out(link, received)
                if len(received) < self._most:
                    await self._ask_for_no_more(link)
                await self._set_aside(link)
        except Exception as error:
            self._end(_errors.failure(error, self._doing))

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

    async def _ask_for_no_more(self, link: ReceiveLink) -> None:
        # What is on its way now belongs to the next receive, or is given back when none comes soon.
        await _private.take_back_credit(link.client)
        _private.keep_arrivals(link.client)
        self._lane.look_soon = True

    async def _set_aside(self, link: ReceiveLink) -> None:
        """Settle what nobody gets: messages that can't be read, and those whose caller has gone."""
        while self._malformed:
            received, text = self._malformed.pop()
            # It stays locked if this fails, and is set aside when it comes again.
            with contextlib.suppress(Exception):
                await link.client.dead_letter_message(received, reason=MALFORMED, error_description=text)
        unwanted, self._unwanted = self._unwanted, []
        await abandon_all(link, self._shelf, unwanted)

    def _end(self, outcome: list[Delivery] | TransportError) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


class GiveUp(Job[ReceiveLink]):
    """Gives back all that a receiver holds, for its closing."""

    def __init__(self, shelf: Shelf, limit: float) -> None:
        super().__init__(limit)
        self._shelf = shelf
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, link: ReceiveLink) -> None:
        await abandon_all(link, self._shelf, self._shelf.unsettled())
        self.fail(_errors.closed(""), begun=True)

    def fail(self, error: TransportError, *, begun: bool) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def abandon_all(link: ReceiveLink, shelf: Shelf, unsettled: Sequence[Held]) -> None:
    """Give messages back, as many as can be; the others come again when their locks end."""
    for held in unsettled:
        try:
            await settle(link, shelf, held, "abandon", "give back")
        except TransportError as error:
            if error.reason is not FailureReason.LOCK_LOST:
                return


async def settle(
    link: ReceiveLink, shelf: Shelf, held: Held, how: Settlement, doing: str, reason: str = "", description: str = ""
) -> None:
    """Settle one message, confirmed.

    Raises:
        TransportError: reason *lock-lost*, or the service could not be reached.
    """
    if held.settled or held.lock_ended:
        shelf.forget(held)
        raise _errors.lock_lost(doing)
    if held.link is not link:
        if held.in_session:
            raise _errors.lock_lost(doing)
        _private.settle_by_token(held.received)
    client = link.client
    try:
        match how:
            case "complete":
                await client.complete_message(held.received)
            case "abandon":
                await client.abandon_message(held.received)
            case "dead-letter":
                await client.dead_letter_message(
                    held.received, reason=reason[:MOST_REASON], error_description=description[:MOST_REASON]
                )
    except Exception as error:
        if how == "dead-letter" and _errors.condition(error) == _ECHO:
            shelf.forget(held)
            return
        failed = _errors.failure(error, doing, maybe_applied=True)
        if failed.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND):
            # A lock token that the service does not know (any more) is a lock that has ended.
            shelf.forget(held)
            raise _errors.lock_lost(doing) from error
        raise failed from failed.__cause__
    shelf.forget(held)


async def complete_all(
    link: ReceiveLink, shelf: Shelf, deliveries: Sequence[object], doing: str
) -> list[TransportError | None]:
    """Complete messages by their lock tokens, as many as the link lives for; gives one outcome each, in order.

    One after the other where answers come at once, since the client is slower at several; side by side where each
    takes a round trip of a slow network.
    """
    loop = asyncio.get_running_loop()
    outcomes: list[TransportError | None] = []
    fastest = math.inf
    while len(outcomes) < len(deliveries) and (link.usable() or not outcomes):
        slow = len(outcomes) >= _SAMPLES and fastest > _FAR
        part = deliveries[len(outcomes) : len(outcomes) + (_SIDE_BY_SIDE if slow else 1)]
        began = loop.time()
        if slow:
            outcomes += await asyncio.gather(*(_completed(link, shelf, held, doing) for held in part))
        else:
            outcomes.append(await _completed(link, shelf, part[0], doing))
            fastest = min(fastest, loop.time() - began)
    return outcomes


async def _completed(link: ReceiveLink, shelf: Shelf, held: object, doing: str) -> TransportError | None:
    if not isinstance(held, Held) or held.shelf is not shelf:
        return _errors.lock_lost(doing)  # one that was only looked at, or is another receiver's
    try:
        await settle(link, shelf, held, "complete", doing)
    except TransportError as error:
        return error
    return None


async def renew(link: ReceiveLink, shelf: Shelf, held: Held, doing: str) -> datetime:
    """Renew one message's lock; tells until when.

    Raises:
        TransportError: as `settle`.
    """
    if held.settled or held.lock_ended:
        shelf.forget(held)
        raise _errors.lock_lost(doing)
    try:
        return await link.client.renew_message_lock(held.received)
    except Exception as error:
        failed = _errors.failure(error, doing)
        if failed.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND):
            shelf.forget(held)
            raise _errors.lock_lost(doing) from error
        raise failed from failed.__cause__

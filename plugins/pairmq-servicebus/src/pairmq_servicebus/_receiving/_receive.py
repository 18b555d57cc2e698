"""One receive of one caller: what is fetched, handed out, or dead-lettered.

A receive is one grant of credit and a wait (Service Bus documentation: AMQP 1.0 protocol guide, "Receiver link"). It is
interrupted whenever something is to be settled, since the client's settlements would wait for its reads, and goes on
afterwards with what has arrived meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from azure.servicebus import ServiceBusReceivedMessage as Received

from pairmq.model import Delivery, TransportError
from pairmq_servicebus import _errors, _private
from pairmq_servicebus._codec import Malformed
from pairmq_servicebus._lane import Job, Lane
from pairmq_servicebus._receiving._link import ReceiveLink
from pairmq_servicebus._receiving._settling import MOST_REASON, Held, Shelf, abandon_all

MALFORMED = "malformed"
"""The reason that messages are dead-lettered with which can't be read."""

_MOST_AT_ONCE = 1000  # messages a receive
_A_MOMENT = 0.05  # s
_PATIENCE = 0.01  # s that a receive goes on after its first message, at least
_PATIENCE_EACH = 0.0002  # s more for each message that it may take


class Receive(Job[ReceiveLink]):
    """One receive of one caller: ``wait`` seconds for the first message, and ``limit`` that the client may take beyond
    that."""

    def __init__(self, lane: Lane[ReceiveLink], shelf: Shelf, most: int, wait: float, limit: float, doing: str) -> None:
        super().__init__(wait + limit, yields=True)
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[list[Delivery] | TransportError] = loop.create_future()
        self._lane = lane
        self._shelf = shelf
        self._most = min(most, _MOST_AT_ONCE)
        self._until = loop.time() + wait
        self._doing = doing
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

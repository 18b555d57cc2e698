"""A receiver of the client as a link: how it is opened, and what every link of it does."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusReceiver as Client

from pairmq.model import Source
from pairmq_servicebus import _private
from pairmq_servicebus._client import Namespace

# Opening takes some ten round trips, and sleeps of the client's own: a quarter of it is more than one round trip.
_ROUND_TRIPS = 4.0
_LEAST_ROUND_TRIP = 0.1  # s
_MOST_ROUND_TRIP = 1.0


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
        if client.session is not None:
            self.locks_end_with_it = True
        _private.mend_arrivals(client)
        _private.mend_peeks(client)
        self.round_trip = round_trip
        self.ended = False
        """It was given up: what came over it as part of a session is lost with it."""

    patience = math.inf
    """Seconds that a receive may wait without `keep`."""
    closing_gives_back = False
    """What is not settled goes back by itself when it is closed."""
    locks_end_with_it = False
    """What was handed out over it can't be settled over another one."""
    takes_note = False
    """What is handed out goes through `admit` first."""

    async def keep(self) -> None:
        """Do what has to be done before a receive waits."""

    def fetched(self) -> None:
        """Told when a receive of the client has ended, before anything else is read."""

    async def admit(self, messages: Sequence[Received]) -> Sequence[Received]:
        """Take note of messages that are about to be handed out, in the order given back; none are where this fails."""
        return messages

    def came_before(self, received: Received) -> bool:
        """Whether a message is known to have been handed out before, though the service may not have counted that."""
        return False

    def withholds(self, received: Received) -> bool:
        """Whether a message is for nobody, and completed here."""
        return False

    async def renew(self, received: Received, asked_at: float) -> datetime:
        """Renew the lock of a message, asked for at an instant of the loop's clock; tells until when it lasts."""
        return await self.client.renew_message_lock(received)

    async def before_abandon(self, received: Received) -> None:
        """Do what has to be done before a message is given back."""

    def usable(self) -> bool:
        return _private.handler_of(self.client) is self._handler and _private.is_open(self.client)

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
    """Open a receiver of the client; with it comes how many seconds to wait for an answer at least.

    Args:
        namespace: the transport's.
        source: what it reads.
        doing: in words, for errors.
        limit: seconds; the URL's when left out.
        options: ``session_id`` and ``max_wait_time``.

    Raises:
        TransportError: it can't be opened.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    client = namespace.new_receiver(source, **options)
    await namespace.open(client, doing, limit)
    took = loop.time() - began
    return client, min(_MOST_ROUND_TRIP, max(_LEAST_ROUND_TRIP, took / _ROUND_TRIPS))

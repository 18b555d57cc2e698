"""What both kinds of receiver do of a queue with continuity: read the primary and the lane, settle, renew.

Messages of either broker are given as azure-servicebus gives those of the primary.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeGuard

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusReceiveMode
from azure.servicebus.exceptions import MessageAlreadySettled

from pairmq import Pair, PairClosed, PairDelivery, PairMQError, PairReceiver
from pairmq.model.events import Side
from pairmq_servicebus import _codec, _private
from pairmq_servicebus.paired._errors import as_client_error
from pairmq_servicebus.paired._sending import SHUT_DOWN, Handler, Opening, OwnHandler

_WAIT: Final = 60.0  # s that ``receive_messages`` waits, as the client's does
ARGUMENTS: Final = frozenset(
    ("receive_mode", "max_wait_time", "auto_lock_renewer", "prefetch_count", "client_identifier", "socket_timeout")
)


class PairedReceivedMessage(ServiceBusReceivedMessage):
    """A message of the primary or of the queue's lane; ``delivery.origin`` says which broker it came from."""

    def __init__(self, delivery: PairDelivery, receiver: object, mode: ServiceBusReceiveMode) -> None:
        its = delivery.delivery
        raw = _private.as_received(
            _codec.encode(_codec.take_apart(delivery.message)),
            delivery_count=its.delivery_count - 1,  # the service counts those before this one
            sequence_number=_number(delivery),
            enqueued_at=its.enqueued_at,
        )
        token = its.lock_token if isinstance(its.lock_token, uuid.UUID) else uuid.uuid4()
        super().__init__(raw, mode, receiver=receiver, lock_token=token)
        self.delivery = delivery
        """PairMQ's, of the pair's event loop."""

    @property
    def locked_until_utc(self) -> datetime | None:
        """When its lock ends; None once it is settled, and for one that lasts as long as the connection."""
        return None if self._settled else self.delivery.delivery.locked_until


def _number(delivery: PairDelivery) -> int | None:
    """The primary's number of a message: what the lane's broker counts has nothing to do with it."""
    number = delivery.delivery.sequence_number
    return int(number) if delivery.origin is Side.PRIMARY and number.isdecimal() else None


class Reading:
    def __init__(self, pair: Pair, opening: Opening, queue: str, prefetch: int, *, deletes: bool) -> None:
        self._pair = pair
        self._opening = opening
        self._queue = queue
        self._prefetch = prefetch
        self._deletes = deletes
        self._receiver: PairReceiver | None = None
        self._closed = False
        opening.readings.add(self)

    async def open(self) -> PairReceiver:
        """Open the pair, if it is not. Raises as the client does."""
        with client_errors():
            await self._opening.wait()
            if self._closed:
                raise ValueError(SHUT_DOWN)
            if self._receiver is None:
                self._receiver = self._pair.receiver(self._queue, prefetch=max(1, self._prefetch))
            return self._receiver

    async def receive(self, most: int, wait: float) -> list[PairDelivery]:
        """Receive of either side. Raises `ServiceBusError` while neither can be read."""
        receiver = await self.open()
        with client_errors():
            return await self._given(await receiver.receive(most, wait))

    async def next(self, wait: float | None) -> PairDelivery | None:
        """The next message; None after so many seconds without one, and never where that is None."""
        receiver = await self.open()
        with client_errors():
            while True:
                found = [await anext(receiver)] if wait is None else await receiver.receive(1, wait)
                given = await self._given(found)
                if given or not found:
                    return given[0] if given else None

    async def _given(self, found: list[PairDelivery]) -> list[PairDelivery]:
        """Remove what is to be deleted when it is received; what can't be is redelivered."""
        if not self._deletes:
            return found
        for delivery in found:
            try:
                await delivery.complete()
            except PairMQError:
                continue
        return [delivery for delivery in found if delivery.settled]

    async def close(self) -> None:
        """Release what is not settled, on both sides. Idempotent, never raises."""
        self._closed = True
        if self._receiver is not None:
            await self._receiver.close()


class SharedReceiver(Handler[OwnHandler]):
    """A receiver of a queue with continuity; see the two classes that are made of it."""

    session: None = None

    def __init__(
        self, pair: Pair, opening: Opening, queue: str, namespace: str, make_own: Callable[[], OwnHandler], given: Any
    ) -> None:
        self._mode = ServiceBusReceiveMode(given.get("receive_mode") or ServiceBusReceiveMode.PEEK_LOCK)
        self._max_wait_time: float | None = given.get("max_wait_time")
        check_wait(self._max_wait_time)
        self._renewer = given.get("auto_lock_renewer")
        deletes = self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE
        if deletes and self._renewer is not None:
            raise ValueError("messages received and deleted have no lock: leave auto_lock_renewer out")
        self._prefetch: int = given.get("prefetch_count") or 0
        name = given.get("client_identifier") or f"SBReceiver-{uuid.uuid4()}"
        self.reading = Reading(pair, opening, queue, self._prefetch, deletes=deletes)
        self.entity_path = queue
        super().__init__(self.reading, name, namespace, make_own)

    @property
    def _running(self) -> bool:
        # The client's lock renewer asks.
        return not self._closed

    def __str__(self) -> str:
        return f"Receiver client id: {self.client_identifier}, entity: {self.entity_path}"

    def _asked(self, count: int | None, wait: float | None) -> tuple[int, float]:
        self._check_open()
        check_wait(wait)
        if count is not None and count <= 0:
            raise ValueError("The max_message_count must be greater than 0")
        limit = wait if wait is not None else self._max_wait_time
        return self._prefetch if count is None else count, _WAIT if limit is None else limit

    def _made(self, delivery: PairDelivery) -> PairedReceivedMessage:
        message = PairedReceivedMessage(delivery, self, self._mode)
        if self._renewer is not None and message.locked_until_utc is not None:
            self._renewer.register(self, message)
        return message

    def _is_paired(self, message: ServiceBusReceivedMessage, action: str) -> TypeGuard[PairedReceivedMessage]:
        """Whether a message was read here, and not by the client's own receiver. Raises why it can't be settled."""
        self._check_open()
        if not isinstance(message, PairedReceivedMessage):
            return False
        if self._mode is ServiceBusReceiveMode.RECEIVE_AND_DELETE:
            raise ValueError(f"The operation {action} is not supported in 'RECEIVE_AND_DELETE' receive mode.")
        if action == "defer":
            raise ValueError(
                "a message of a queue with continuity can't be deferred, as the lane has no deferred messages: "
                "abandon it, or send it again with scheduled_enqueue_time_utc and complete it"
            )
        if message._settled:
            raise MessageAlreadySettled(action=action)
        return True


async def settle_at_broker(message: PairedReceivedMessage, action: str, *arguments: str | None) -> None:
    """Do what a method of `PairDelivery` does. Raises `MessageLockLostError` and `ServiceBusError`."""
    with client_errors():
        await getattr(message.delivery, action)(*(argument or "" for argument in arguments))
    message._settled = True


async def renew(message: PairedReceivedMessage) -> datetime | None:
    """Renew a lock. Raises as `settle_at_broker`."""
    with client_errors():
        await message.delivery.renew_lock()
    return message.locked_until_utc


def check_wait(seconds: float | None) -> None:
    if seconds is not None and seconds <= 0:
        raise ValueError("The max_wait_time must be greater than 0.")


@contextmanager
def client_errors() -> Iterator[None]:
    try:
        yield
    except PairClosed as error:
        raise ValueError(SHUT_DOWN) from error
    except PairMQError as error:
        if isinstance(error, ValueError):
            raise
        raise as_client_error(error) from error

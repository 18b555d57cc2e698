"""What a receiver has handed out, and how it is settled, confirmed: completed, abandoned, dead-lettered, renewed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Literal

from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusSession

from pairmq.model import Delivery, FailureReason, TransportError
from pairmq.transport import raise_failure
from pairmq_servicebus import _codec, _errors, _private
from pairmq_servicebus._client import LONGEST_LOCK
from pairmq_servicebus._lane import Job
from pairmq_servicebus._receive_link import ReceiveLink

Settlement = Literal["complete", "abandon", "dead-letter"]

MOST_REASON = 4096
"""Characters of a dead-letter reason or description that the service keeps."""

# What the client asks for, sent back as it was: some servers do, and the client takes it for a refusal.
_ECHO = "com.microsoft:dead-letter"

_SIDE_BY_SIDE = 1000
_PER_MESSAGE = 0.2  # s that a job's limit grows with each of its messages


class Held:
    """A message that was handed out, by what it is settled; its delivery number means something on its link only."""

    __slots__ = ("in_session", "link", "locked_at", "received", "settled", "shelf")

    def __init__(self, received: Received, link: ReceiveLink, shelf: Shelf, in_session: bool) -> None:
        self.received = received
        self.link = link
        self.shelf = shelf
        self.in_session = in_session
        self.settled = False
        self.locked_at = asyncio.get_running_loop().time()

    @property
    def lock_ended(self) -> bool:
        """Whether its lock has surely run out, or has gone with its session's link: else the service knows."""
        if self.in_session:
            return self.link.ended
        return asyncio.get_running_loop().time() - self.locked_at > LONGEST_LOCK


class Shelf:
    """The deliveries of one receiver that are not settled."""

    def __init__(self, dead_letter: bool) -> None:
        self._dead_letter = dead_letter
        self._held: dict[int, Held] = {}

    def hand_out(self, received: Received, link: ReceiveLink) -> Delivery:
        """Make a delivery of a message, and remember it. Raises `Malformed`."""
        decoded = _codec.decode(received.raw_amqp_message, dead_letter=self._dead_letter)
        session: ServiceBusSession | None = link.client.session
        held = Held(received, link, self, in_session=session is not None)
        _private.let_the_service_end_locks(received)
        until = received.locked_until_utc if session is None else session.locked_until_utc
        link.clock.note(received.enqueued_time_utc)
        delivery = replace(
            delivery_of(received, decoded, held, again=link.came_before(received)),
            locked_until=None if until is None else link.clock.here(until),
        )
        self._held[id(held)] = held
        return delivery

    def tidy(self) -> None:
        """Forget what was not settled before its lock ended."""
        for held in [held for held in self._held.values() if held.lock_ended]:
            self.forget(held)

    def forget(self, held: Held) -> None:
        held.settled = True
        self._held.pop(id(held), None)

    def unsettled(self) -> list[Held]:
        """What is not settled, oldest first."""
        return list(self._held.values())


def delivery_of(received: Received, decoded: _codec.Decoded, token: object, *, again: bool = False) -> Delivery:
    number = received.sequence_number
    return Delivery(
        decoded.message,
        lock_token=token,
        # The header counts the deliveries before this one (AMQP 1.0, part 3.2.1).
        delivery_count=max(1 + (received.delivery_count or 0), 2 if again else 1),
        sequence_number="" if number is None else str(number),
        enqueued_at=received.enqueued_time_utc,
        dead_letter_reason=decoded.dead_letter_reason,
        dead_letter_description=decoded.dead_letter_description,
    )


async def settle(
    link: ReceiveLink, shelf: Shelf, held: Held, how: Settlement, doing: str, reason: str = "", description: str = ""
) -> None:
    """Settle one message, confirmed. Raises `TransportError`, reason *lock-lost*, or if the service is unavailable."""
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
                await link.before_abandon(held.received)
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
        raise_failure(failed)
    shelf.forget(held)


class Completion:
    """A message to be completed; ``held`` is None for one that was only looked at, or is another receiver's."""

    __slots__ = ("done", "held", "job")

    def __init__(self, held: Held | None) -> None:
        self.held = held
        self.job: Completions | None = None
        self.done: asyncio.Future[TransportError | None] = asyncio.get_running_loop().create_future()


class Completions(Job[ReceiveLink]):
    """Completes all that callers asked for until it began, by their lock tokens; ``go_on`` takes what is left when the
    link was lost, and completes it over the next one.

    One after the other where answers come at once, since the client is slower at several; side by side where each takes
    a round trip of a slow network. It may take ``limit`` seconds, and some more for each message.
    """

    def __init__(self, shelf: Shelf, limit: float, doing: str, go_on: Callable[[Sequence[Completion]], None]) -> None:
        super().__init__(limit)
        self.has_begun = False
        """Or will never: it takes no more."""
        self._shelf = shelf
        self._doing = doing
        self._go_on = go_on
        self._asked: list[Completion] = []
        self._awaited = 0

    def add(self, completions: Sequence[Completion]) -> None:
        for completion in completions:
            completion.job = self
        self._asked += completions
        self._awaited += len(completions)
        self.limit = (self.limit or 0.0) + _PER_MESSAGE * len(completions)

    def give_up(self, completion: Completion) -> bool:
        """Take note that its caller no longer waits; returns whether no other caller does."""
        completion.done.cancel()
        self._awaited -= 1
        self.has_begun = self.has_begun or not self._awaited
        return not self._awaited

    async def run(self, link: ReceiveLink) -> None:
        self.has_begun = True
        loop = asyncio.get_running_loop()
        left = deque(completion for completion in self._asked if not completion.done.done())
        tried = False
        while left and (link.usable() or not tried):
            tried = True
            part: dict[Held | None, Completion] = {}
            while left and len(part) < (_SIDE_BY_SIDE if link.is_far else 1) and left[0].held not in part:
                completion = left.popleft()
                part[completion.held] = completion
            began = loop.time()
            if len(part) > 1:
                await asyncio.gather(*map(partial(self._complete, link), part.values()))
            else:
                await self._complete(link, *part.values())
                link.answered_in(loop.time() - began)
        if left:
            self._go_on(left)

    def fail(self, error: TransportError, *, begun: bool) -> None:
        self.has_begun = True
        for completion in self._asked:
            self._end(completion, _errors.again(error))

    async def _complete(self, link: ReceiveLink, completion: Completion) -> None:
        outcome: TransportError | None = None
        if completion.held is None:
            outcome = _errors.lock_lost(self._doing)
        else:
            try:
                await settle(link, self._shelf, completion.held, "complete", self._doing)
            except TransportError as error:
                outcome = error
        self._end(completion, outcome)

    def _end(self, completion: Completion, outcome: TransportError | None) -> None:
        if not completion.done.done():
            self._awaited -= 1
            completion.done.set_result(outcome)


async def renew(link: ReceiveLink, shelf: Shelf, held: Held, asked_at: float, doing: str) -> datetime:
    """Renew one message's lock, asked for at an instant of the loop's clock; returns until when."""
    if held.settled or held.lock_ended or (held.in_session and held.link is not link):
        shelf.forget(held)
        raise _errors.lock_lost(doing)
    try:
        until = await link.renew(held.received, asked_at)
    except Exception as error:
        failed = _errors.failure(error, doing)
        if failed.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND):
            shelf.forget(held)
            raise _errors.lock_lost(doing) from error
        raise_failure(failed)
    held.locked_at = asyncio.get_running_loop().time()
    return link.clock.here(until)


async def abandon_all(link: ReceiveLink, shelf: Shelf, unsettled: Sequence[Held]) -> None:
    """Abandon as many messages as possible; the others are redelivered when their locks end.

    Side by side, unless the link keeps order: over a distance a closing receiver has no time for a round trip each.
    """
    at_once = 1 if link.takes_note else _SIDE_BY_SIDE
    for first in range(0, len(unsettled), at_once):
        part = unsettled[first : first + at_once]
        abandoned = (settle(link, shelf, held, "abandon", "abandon") for held in part)
        for error in await asyncio.gather(*abandoned, return_exceptions=True):
            if error is not None and not isinstance(error, TransportError):
                raise error
            if error is not None and error.reason is not FailureReason.LOCK_LOST:
                return


class GiveUp(Job[ReceiveLink]):
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

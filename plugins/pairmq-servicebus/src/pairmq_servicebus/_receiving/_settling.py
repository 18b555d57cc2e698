"""Settling what was handed out, confirmed: completing, giving back, dead-lettering, and the renewal of locks."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from pairmq.model import FailureReason, TransportError
from pairmq_servicebus import _errors, _private
from pairmq_servicebus._lane import Job
from pairmq_servicebus._receiving._link import ReceiveLink
from pairmq_servicebus._receiving._shelf import Held, Shelf

Settlement = Literal["complete", "abandon", "dead-letter"]

MOST_REASON = 4096
"""Characters of a dead-letter reason or description that the service keeps."""

# What the client asks for, sent back as it was: some servers do, and the client takes it for a refusal.
_ECHO = "com.microsoft:dead-letter"

_SAMPLES = 2  # settlements by whose fastest a link is judged
_FAR = 0.005  # s for one answer, from which on several at once are faster
_SIDE_BY_SIDE = 25


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


async def renew(link: ReceiveLink, shelf: Shelf, held: Held, asked_at: float, doing: str) -> datetime:
    """Renew one message's lock, asked for at an instant of the loop's clock; tells until when.

    Raises:
        TransportError: as `settle`.
    """
    if held.settled or held.lock_ended or (held.in_session and held.link is not link):
        shelf.forget(held)
        raise _errors.lock_lost(doing)
    try:
        return await link.renew(held.received, asked_at)
    except Exception as error:
        failed = _errors.failure(error, doing)
        if failed.reason in (FailureReason.LOCK_LOST, FailureReason.NOT_FOUND):
            shelf.forget(held)
            raise _errors.lock_lost(doing) from error
        raise failed from failed.__cause__


async def abandon_all(link: ReceiveLink, shelf: Shelf, unsettled: Sequence[Held]) -> None:
    """Give messages back, as many as can be; the others come again when their locks end."""
    for held in unsettled:
        try:
            await settle(link, shelf, held, "abandon", "give back")
        except TransportError as error:
            if error.reason is not FailureReason.LOCK_LOST:
                return


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

"""What a lane is asked to do, and what it needs of the link that this is done on."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from pairmq.model import TransportError
from pairmq_servicebus import _errors

T = TypeVar("T")


class OpenLink(Protocol):
    """What a lane needs of a link."""

    def usable(self) -> bool:
        """Whether nothing is known of its end."""

    def unread(self) -> bool:
        """Whether something has arrived that may be its end, and has to be looked at before it is used."""

    async def look(self) -> None:
        """Take in what has arrived."""

    def drop(self) -> None:
        """End it at once, without waiting for anything."""

    async def close(self) -> None:
        """End it in good order; never raises, and is over within 1.5 s."""


L = TypeVar("L", bound=OpenLink)


class Job(ABC, Generic[L]):
    """Something to do on the link.

    Args:
        limit: seconds after which it is cut off, whoever waits for it.
        yields: it waits for what may come, and is interrupted when there is something to do; it then goes on.
    """

    def __init__(self, limit: float, *, yields: bool = False) -> None:
        self.limit = limit
        self.yields = yields

    @abstractmethod
    async def run(self, link: L) -> None:
        """Do it, and tell its callers. Raises nothing but cancellation; when interrupted, it is run again."""

    @abstractmethod
    def fail(self, error: TransportError, *, begun: bool) -> None:
        """Tell its callers that it will not be done, or that nobody knows whether it was."""

    def interrupted(self, link: L) -> None:
        """Told when it was interrupted, before what is next begins."""


class Call(Job[L], Generic[L, T]):
    """A job with one caller.

    Args:
        work: what to do; its exceptions go to the caller.
        limit: as `Job`.
        doing: in words, for errors.
    """

    def __init__(self, work: Callable[[L], Awaitable[T]], limit: float, doing: str) -> None:
        super().__init__(limit)
        self._work = work
        self._doing = doing
        self.done: asyncio.Future[T | TransportError] = asyncio.get_running_loop().create_future()

    async def run(self, link: L) -> None:
        if self.done.done():
            return
        try:
            outcome: T | TransportError = await self._work(link)
        except Exception as error:
            outcome = _errors.failure(error, self._doing, maybe_applied=True)
        if not self.done.done():
            self.done.set_result(outcome)

    def fail(self, error: TransportError, *, begun: bool) -> None:
        if not self.done.done():
            self.done.set_result(error)


class Look(Job[L]):
    """Takes in what has arrived on an idle link; does not count as a use of it."""

    def __init__(self) -> None:
        super().__init__(2.0)

    async def run(self, link: L) -> None:
        with contextlib.suppress(Exception):
            await link.look()

    def fail(self, error: TransportError, *, begun: bool) -> None:
        """Nobody waits for it."""

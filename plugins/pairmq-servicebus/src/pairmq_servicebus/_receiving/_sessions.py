"""Reading one session at a time (Service Bus documentation: Message sessions)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, TypeVar

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusSession
from azure.servicebus.exceptions import OperationTimeoutError, SessionCannotBeLockedError

from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError
from pairmq.transport import SessionReceiver
from pairmq_servicebus import _errors, _names
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._receiving._link import ReceiveLink, open_client
from pairmq_servicebus._receiving._receiver import BusReceiver

T = TypeVar("T")

_LEAST_WAIT: Final = 0.1  # s: the client and the service take no zero
_AT_ONCE: Final = 15.0  # s: longer waits are cut into these, so that a service that went silent is noticed
_NONE_IS_FREE: Final = "com.microsoft:timeout"
_RETRY: Final = 0.25  # s between trials at a session that another receiver has


async def accept_session(
    namespace: Namespace, source: Source, session_id: str | None, wait: float
) -> SessionReceiver | None:
    """Lock a session; as `Transport.accept_session`."""
    _names.check_source(source)
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
    """Reads the session that its link has locked. It has this one link: when that is gone, so is the lock.

    Args:
        namespace: the transport's.
        source: what it reads.
        link: of the session.
    """

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
        return datetime.now(UTC) if until is None else until

    async def renew_session_lock(self) -> datetime:
        return await self._ask("renew the lock", lambda session: session.renew_lock())

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

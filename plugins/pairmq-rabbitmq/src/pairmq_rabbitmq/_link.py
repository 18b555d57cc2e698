"""A place for one connection at a time, made when first needed and made anew after it was lost or given up.

No connection is made that nobody asked for, and none is waited for on its way back: whether and when to try again is
decided above (SPEC 3.6).

A call that was given up says little about its connection: distance and a short stall look like a dead one. So the next
calls get another connection, and those that go on with this one keep it, until nobody uses it or the driver misses its
heartbeats (SPEC 14.3).
"""

from __future__ import annotations

import asyncio
import ssl

from pairmq.transport import start_task
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._session import Session
from pairmq_rabbitmq._url import RabbitUrl

_AFTERLIFE = 15.0  # s between two looks at whether a retired connection is still used


class Link:
    """One connection at a time, shared.

    Args:
        url: where to, and as whom.
        tls: checks the broker; None for plain TCP.
        purpose: shown beside the connection in the broker's own tools.
    """

    def __init__(self, url: RabbitUrl, tls: ssl.SSLContext | None, purpose: str) -> None:
        self._url = url
        self._tls = tls
        self._purpose = purpose
        self._session: Session | None = None
        self._attempt: asyncio.Task[Session] | None = None
        self._waiters = 0
        self._retired: dict[Session, int | None] = {}
        """With how many frames had come when it fell silent; None for one that is not used again."""
        self._closed = False

    @property
    def current(self) -> Session | None:
        """The open connection; None when the next call would connect."""
        if self._session is None or not self._session.usable:
            self._session = next((one for one, then in self._retired.items() if _lives(one, then)), None)
            if self._session is not None:
                del self._retired[self._session]
        return self._session

    async def session(self) -> Session:
        """Give the open connection; make one when there is none. Those who wait share one attempt.

        Raises:
            Unsent: there is none, and why.
        """
        if self._closed:
            raise Unsent(_errors.closed("connect"))
        session = self.current
        if session is not None:
            return session
        if self._attempt is None:
            self._attempt = start_task(self._connect())
            self._attempt.add_done_callback(self._attempted)
        attempt = self._attempt
        self._waiters += 1
        try:
            await asyncio.wait((attempt,))
        finally:
            self._waiters -= 1
            if not self._waiters and self._attempt is attempt:
                # Nobody waits any more. The next one shall not wait for an attempt whose time is half over.
                self._attempt = None
                attempt.cancel()
        if attempt.cancelled():
            raise Unsent(_errors.closed("connect"))
        error = attempt.exception()
        if error is not None:
            raise Unsent(error)
        return attempt.result()

    def retire(self, session: Session, *, silent: bool) -> None:
        """Use a connection no more for new calls; it ends when nobody uses it any more.

        Args:
            session: given by this link.
            silent: nothing comes from the broker; as soon as something does, new calls may use it again.
        """
        if self._session is session:
            self._session = None
        if not session.usable:
            return
        known = session in self._retired
        self._retired[session] = session.wire.frames if silent else None
        if not known:
            session.on_end(lambda _: self._forget(session))
            asyncio.get_running_loop().call_later(_AFTERLIFE, self._end_if_unused, session)

    def _forget(self, session: Session) -> None:
        self._retired.pop(session, None)

    def _end_if_unused(self, session: Session) -> None:
        if session not in self._retired:
            return
        if session.users:
            asyncio.get_running_loop().call_later(_AFTERLIFE, self._end_if_unused, session)
        else:
            session.end(TimeoutError("the broker did not answer in time"))

    async def close(self, timeout: float) -> None:
        """Close every connection within ``timeout`` seconds."""
        self._closed = True
        if self._attempt is not None:
            self._attempt.cancel()
        sessions = [*self._retired, *([self._session] if self._session is not None else [])]
        self._session = None
        if sessions:
            await asyncio.wait([asyncio.ensure_future(session.close(timeout)) for session in sessions])

    async def _connect(self) -> Session:
        session = Session()
        try:
            async with asyncio.timeout(self._url.connect_timeout):
                await session.open(self._url, self._tls, self._purpose)
        except BaseException as error:
            session.end(error if isinstance(error, Exception) else ConnectionAbortedError("given up"))
            raise
        self._session = session
        return session

    def _attempted(self, attempt: asyncio.Task[Session]) -> None:
        if self._attempt is attempt:
            self._attempt = None
        if attempt.cancelled():
            return
        if attempt.exception() is None and (self._closed or self._session is not attempt.result()):
            attempt.result().end(ConnectionAbortedError("given up"))


def _lives(session: Session, then: int | None) -> bool:
    """Whether a connection that fell silent was heard of again."""
    return session.usable and then is not None and session.wire.frames != then

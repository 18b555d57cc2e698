"""A place for one connection at a time, made when first needed and made anew after it was lost or given up.

No connection is made that nobody asked for, and none is waited for on its way back: whether and when to try again is
decided above (SPEC 3.6).
"""

from __future__ import annotations

import asyncio
import ssl

from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._session import Session
from pairmq_rabbitmq._url import RabbitUrl

_AFTERLIFE = 15.0  # s


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
        self._retired: set[Session] = set()
        self._closed = False

    @property
    def current(self) -> Session | None:
        """The open connection; None when the next call would connect."""
        return self._session if self._session is not None and self._session.usable else None

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
            self._attempt = asyncio.get_running_loop().create_task(self._connect())
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

    def retire(self, session: Session, cause: BaseException, *, at_once: bool) -> None:
        """Use a connection no more for new calls.

        Args:
            session: given by this link.
            cause: what those hear who still wait for something on it.
            at_once: drop it now; otherwise it lives on for a while, as what is in flight on it may still be answered.
        """
        if self._session is session:
            self._session = None
        if at_once:
            session.end(cause)
        elif session.usable and session not in self._retired:
            self._retired.add(session)
            session.on_end(lambda _: self._retired.discard(session))
            asyncio.get_running_loop().call_later(_AFTERLIFE, session.end, cause)

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

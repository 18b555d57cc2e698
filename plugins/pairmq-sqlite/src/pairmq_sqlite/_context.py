"""What the objects of one transport share: its worker, what each of them has under way, and the news of arrivals."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pairmq.model import Source
from pairmq.transport import Arrivals, Receiver, Scope, raise_failure
from pairmq_sqlite import _errors
from pairmq_sqlite._errors import Failed
from pairmq_sqlite._store import Store
from pairmq_sqlite._url import SQLiteUrl
from pairmq_sqlite._worker import SQLiteWorker

T = TypeVar("T")

_MOST_LEFT = 1000
"""Names of left locks of a source: who opens and closes receivers all through an outage must not fill the memory."""


class Calls:
    """The calls of one object, which end when it closes."""

    def __init__(self, worker: SQLiteWorker, scope: Scope) -> None:
        self._worker = worker
        self.scope = scope

    async def run(self, work: Callable[[Store], T], doing: str) -> T:
        """Do a job with the store, in the worker's thread and a transaction. Raises `TransportError`: not done, or in
        doubt."""
        try:
            return await self._worker.run(work, self.scope)
        except Failed as failed:
            error = _errors.failure(failed, doing)
        raise_failure(error)


class Context:
    """What a transport gives to its senders, receivers and admin."""

    def __init__(self, url: SQLiteUrl, scope: Scope) -> None:
        self.url = url
        self.worker = SQLiteWorker(url)
        self.arrivals = Arrivals()
        """Other processes' messages are found by looking (see `_receiver`)."""
        self._scope = scope
        self.receivers: set[Receiver] = set()
        self.left_locks: dict[Source, list[str]] = {}
        """Locks of closed receivers that could not release them, for their source's next receiver to do so."""

    def leave_locks(self, source: Source, locks: list[str]) -> None:
        """Keep the names of locks for the next receiver of a source, which releases them; patterns for GLOB."""
        if locks:
            kept = [*self.left_locks.get(source, ()), *locks]
            self.left_locks[source] = kept[-_MOST_LEFT:]

    def calls(self, doing: str = "") -> Calls:
        """Make the calls of an object, which end with the transport, if not before."""
        return Calls(self.worker, Scope(self._scope, doing))

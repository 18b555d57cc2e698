"""What blocking applications send with in a transaction of their database."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NoReturn, TypeVar

from pairmq import pair as asynchronous
from pairmq.model import Entity, Message, Receipt, TransportError
from pairmq.runner import Outbox, OutboxSend
from pairmq.sync._loop import OfPair, check_thread, run, soon

T = TypeVar("T")


class PairOutbox:
    """Sends to one entity of the primary when a transaction of the caller's commits, as `pairmq.PairOutbox` (SPEC 12).

    Cheap to make and safe to share between threads. Made by `Pair.outbox`.
    """

    def __init__(self, attached: Callable[[], Awaitable[asynchronous.Pair]], path: str, kind: str) -> None:
        self._inner = OfPair(attached, lambda pair: pair.outbox(path, kind=kind))

    @property
    def entity(self) -> Entity:
        """Where it sends to."""
        return self._inner.value.entity

    def send(self, message: Message, *, connection: Any) -> Receipt:
        """Store one message in the caller's transaction, in the caller's thread; commits nothing.

        Args:
            message: what to send; given an id if it has none.
            connection: with an open transaction, or one that begins with its first statement: a connection of psycopg
                3, psycopg2 or sqlite3, as the secondary is PostgreSQL or SQLite; a ``Connection`` or ``Session`` of
                SQLAlchemy 2 or Django's ``connection`` over one of these.

        Returns:
            The receipt, with `Route.OUTBOX`: valid once the transaction has committed.

        Raises:
            SendRefused, PairClosed, PairFaulted, TypeError: as `pairmq.PairOutbox.send`; nothing was stored.
        """
        return self.send_batch((message,), connection=connection)[0]

    def send_batch(self, messages: Iterable[Message], *, connection: Any) -> list[Receipt]:
        """Store many messages in the caller's transaction, all or none.

        Args:
            messages: stored in order.
            connection: as for `send`.

        Returns:
            One receipt a message, in order.

        Raises:
            SendRefused, PairClosed, PairFaulted, TypeError: as `send`; none was stored.
        """
        whole = list(messages)
        if not whole:
            return []
        check_thread()
        # The loop's thread takes part only where something has to be asked or reported: two changes of threads cost as
        # much as the row.
        inner = self._inner.value if self._inner.is_here else run(self._inner.own())
        inner._engine.check_open()
        outbox = inner._outbox
        sending = outbox.draft(inner._state, whole)
        if not sending.ready:
            sending = run(outbox.begin(sending))
        try:
            if not finished(outbox.store(sending, connection, last=False, blocking=True)):
                sending = run(outbox.begin(sending, anew=True))
                finished(outbox.store(sending, connection, last=True, blocking=True))
        except TransportError as error:
            run(_failed(outbox, sending, error))
        receipts = outbox.stored(sending)
        if outbox.is_observed:  # to wake the loop's thread for nothing would cost more than the rest
            soon(outbox.report, sending)
        return receipts

    def __repr__(self) -> str:
        return repr(self._inner.value)


def finished(operation: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, as with a connection that blocks, in this thread."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    operation.close()
    raise TypeError("the connection has to be awaited: use pairmq.Pair, or give a blocking connection")


async def _failed(outbox: Outbox, sending: OutboxSend, failure: TransportError) -> NoReturn:
    """Report on the loop, where observers are called."""
    outbox.failed(sending, failure)

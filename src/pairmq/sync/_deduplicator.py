"""Handling each message once, for code that blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pairmq import pair as asynchronous
from pairmq.sync._loop import run
from pairmq.sync._outbox import finished
from pairmq.sync._receiver import PairDelivery
from pairmq.transport import ClaimStore, Inbox


class Deduplicator:
    """Lets a consumer handle each message once, by its message id; arguments and errors are those of
    `pairmq.Deduplicator`.

        dedupe = Deduplicator(RedisClaims("redis://…"))
        for delivery in receiver:
            with dedupe.once(delivery) as first:
                if first:
                    handle(delivery.message)

    Any number of threads may share one. It belongs to the process that used it first: a forked child makes its own.

    Args:
        store: keeps what is known; this process's memory when left out. An inbox is for `first` only.
        window: seconds for which an id is remembered after its message was handled.
        lease: seconds after which a consumer that died loses its claim.
        scope: names the consumers that share their work.

    Raises:
        ValueError: ``window`` or ``lease`` is not above 0.
    """

    def __init__(
        self, store: ClaimStore | Inbox | None = None, *, window: float = 86_400.0, lease: float = 60.0, scope: str = ""
    ) -> None:
        self._inner = asynchronous.Deduplicator(store, window=window, lease=lease, scope=scope)

    @contextmanager
    def once(self, delivery: PairDelivery) -> Iterator[bool]:
        """Claim a delivery's message, and settle both the claim and the delivery when the inside has ended.

        Args:
            delivery: of `Pair.receiver`, not settled.

        Yields:
            True if the message is to be handled; False for a copy of one that was.

        Raises:
            TransportError: the store is unavailable, so it is unknown whether the message was handled.
            LockLost: it was delivered to the process that forked this one.
            BaseException: what the inside raises.
        """
        steps = self._inner.once(delivery.own())
        first = run(steps.__aenter__())
        try:
            yield first
        except BaseException as error:
            run(steps.__aexit__(type(error), error, error.__traceback__))
            raise
        else:
            run(steps.__aexit__(None, None, None))

    @contextmanager
    def first(self, delivery: PairDelivery, *, connection: Any) -> Iterator[bool]:
        """Claim a delivery's message in the consumer's own transaction, as `pairmq.Deduplicator.first` (SPEC 12.6).

        Args:
            delivery: of `Pair.receiver`; to be completed after the commit, also that of a copy.
            connection: as for `PairOutbox.send`, used in this thread.

        Yields:
            True if the message is to be handled; False for a copy of one that was.

        Raises:
            ConfigurationError: the store is not an inbox.
            LockLost: it was delivered to the process that forked this one.
            TransportError: the database refused; roll back.
            TypeError: it is not such a connection.
        """
        yield finished(self._inner._claim_in(delivery.own(), connection, blocking=True))

    def close(self) -> None:
        """Close the store; idempotent, never raises."""
        run(self._inner.close())

"""One operation at a broker: bounded in time, and failing in one way only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import is_nothing_sent

T = TypeVar("T")


class TimeLimits:
    """Runs operations under time limits, and can shorten the limits of those that run, for closing."""

    def __init__(self) -> None:
        # A dict, not a set: whoever replays a run needs them in the same order again.
        self._running: dict[asyncio.Timeout, None] = {}
        self._ends_at: float | None = None

    async def run(self, operation: Awaitable[T], limit_at: float) -> T:
        """Await one operation at a broker until it ends or its limit is reached.

        Args:
            operation: a call of a transport.
            limit_at: instant of the loop's clock.

        Returns:
            What the operation returns.

        Raises:
            TransportError: it failed. A time-out is *unavailable* and may have been applied unless the transport
                knows that it had written nothing; so is any exception that a transport should have mapped and did not:
                it most likely tells of a connection, and taking it for a refusal would lose what failover can still
                save.
        """
        if self._ends_at is not None:
            limit_at = min(limit_at, self._ends_at)
        limit = asyncio.timeout_at(limit_at)
        try:
            async with limit:
                self._running[limit] = None
                return await operation
        except TimeoutError as error:
            if not limit.expired():
                raise _unmapped(error) from error
            raise TransportError(
                "no answer within the time limit",
                FailureKind.UNAVAILABLE,
                FailureReason.TIMEOUT,
                maybe_applied=not is_nothing_sent(error),
            ) from None
        except TransportError:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled us: a driver's own task or future was cancelled, as some do with a lost connection.
            raise _unmapped(error) from error
        except Exception as error:
            raise _unmapped(error) from error
        finally:
            self._running.pop(limit, None)

    def end_by(self, instant: float) -> None:
        """Let no operation, running or new, last longer than ``instant``."""
        self._ends_at = instant
        for limit in tuple(self._running):
            when = limit.when()
            if not limit.expired() and (when is None or when > instant):
                limit.reschedule(instant)


def _unmapped(error: BaseException) -> TransportError:
    return TransportError(
        f"unexpected {type(error).__name__}: {error}", FailureKind.UNAVAILABLE, FailureReason.OTHER, maybe_applied=True
    )

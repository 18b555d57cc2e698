"""An event loop whose clock jumps to the next timer instead of waiting for it."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

WALL_EPOCH = 1_700_000_000.0
"""What the wall clock of virtual time shows when the loop's clock shows 0: 2023-11-14 22:13:20 UTC."""


_MOST_UNASKED = 50  # rounds of a loop


class DeadlockError(RuntimeError):
    """Nothing is left that could ever happen: every task waits for another one."""


class JumpingSelector(selectors.SelectSelector):
    """Jumps to the next timer instead of sleeping until it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._unasked = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0 and self._unasked < _MOST_UNASKED:
            self._unasked += 1  # there is work: files, of which there is hardly ever any, can wait for a few rounds
            return []
        self._unasked = 0
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise DeadlockError("every task waits, and no timer is set")
        self.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Runs coroutines that only wait for timers and each other, as fast as the processor can.

    An hour of timeouts passes in milliseconds, always in the same order. Not for real sockets: nothing waits for them.
    """

    def __init__(self, selector: JumpingSelector | None = None) -> None:
        self._jumping = selector or JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """The virtual clock in seconds, from 0."""
        return self._jumping.now


def virtual_wall() -> float:
    """The wall clock that belongs to the running virtual loop, in seconds since 1970 UTC."""
    return WALL_EPOCH + asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time.

    Returns:
        What it returns.

    Raises:
        DeadlockError: every task waits and no timer is set.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Make an async test run in virtual time, by `run_virtual`; fixtures and parameters work as ever."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(function(*args, **kwargs))

    return run

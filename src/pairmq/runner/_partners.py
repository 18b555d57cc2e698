"""Two connections that stand and fall together, in a process that hosts the syphon (SPEC 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pairmq.runner._limits import settled_within
from pairmq.transport import Transport, start_task

_LONGEST_FAULT = 2.5  # s: a transport promises 2


class Partners:
    """Watches both transports: when one ends and the other does not within the grace, the other is faulted.

    Args:
        primary: one of them.
        secondary: the other.
        grace: seconds that the other may stay open.
        on_fault: called once with the cause when the pair has faulted.
    """

    def __init__(
        self, primary: Transport, secondary: Transport, grace: float, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._pair = (primary, secondary)
        self._grace = grace
        self._on_fault = on_fault
        self._task: asyncio.Task[None] | None = None
        self._faulted = False
        self._loop = asyncio.get_running_loop()
        for transport in self._pair:
            transport.on_end(self._ended)

    def forget(self) -> None:
        """Stop watching: the pair closes both itself."""
        for transport in self._pair:
            transport.remove_on_end(self._ended)
        if self._task is not None and not self._faulted:
            self._task.cancel()

    async def wait(self) -> None:
        """Return when a partner that is being faulted has ended."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def _ended(self, transport: Transport) -> None:
        if self._task is None:
            self._task = start_task(self._fault_the_other(transport), name="partner watch", loop=self._loop)

    async def _fault_the_other(self, ended: Transport) -> None:
        other = self._pair[1] if ended is self._pair[0] else self._pair[0]
        cause = ended.fault_cause
        if cause is None:
            await asyncio.sleep(self._grace)
            if other.ended and other.fault_cause is None:
                return  # closed one after the other, as they should be
            cause = ConnectionError(f"{ended.endpoint} was closed and its partner was not")
        # First of all: while the other one ends, which takes its time, its callers would hear that it takes nothing.
        self._faulted = True
        self._on_fault(cause)
        if not other.ended:
            await settled_within(_LONGEST_FAULT, other.fault(cause))

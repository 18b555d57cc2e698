"""The lines of messages on their way to the primary, one for each destination.

A destination that is unavailable does not stop the others: its messages wait in its line, under renewed locks, until
its gate opens (SPEC 7.3).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from pairmq.core import Backoff, Gate
from pairmq.model import Entity
from pairmq.runner._limits import first, pause
from pairmq.runner.pump._reader import Item, LockedMessages, PumpContext
from pairmq.runner.pump._transfer import Transfer, Window
from pairmq.transport import start_task

_BACKOFF = Backoff(first=0.25, factor=2.0, cap=30.0)


class Line:
    """Messages on their way to one destination, in order.

    It keeps the gate that it began with: `Gates` forgets one whose destination does not exist, and would make another.
    """

    __slots__ = ("gate", "items", "sending", "task")

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.items: deque[Item] = deque()
        self.sending = False
        self.task: asyncio.Task[None] | None = None


class Lines:
    """All lines of a pump. Each has a task of its own while anything is in it.

    Args:
        transfer: sends and settles.
        locked: what is locked.
        window: how much may be locked.
        context: what all pumps share.
        stopping: set when the pump is to end.
        moved_on: set whenever a line has moved.
        failed: takes an error, and the seconds until the next trial.
    """

    def __init__(
        self,
        transfer: Transfer,
        locked: LockedMessages,
        window: Window,
        context: PumpContext,
        stopping: asyncio.Event,
        moved_on: asyncio.Event,
        failed: Callable[[BaseException, float], None],
    ) -> None:
        self._transfer = transfer
        self._locked = locked
        self._gates = context.gates
        self._window = window
        self._clock = context.clock
        self._stopping = stopping
        self._moved_on = moved_on
        self._failed = failed
        self._lines: dict[Entity, Line] = {}

    def __contains__(self, entity: Entity) -> bool:
        return entity in self._lines

    @property
    def shut(self) -> list[Line]:
        """The lines that can't go on now."""
        return [line for line in self._lines.values() if not line.gate.is_open]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Of all lines."""
        return [line.task for line in self._lines.values() if line.task is not None]

    def line_up(self, entity: Entity, items: Sequence[Item]) -> None:
        """Put items at the end of their destination's line."""
        line = self._lines.get(entity)
        if line is None:
            gate = self._gates.gates.of(entity)
            line = self._lines[entity] = Line(gate)
            line.task = start_task(self._deliver(line), name=f"deliver {entity}")
            gate.users += 1  # while it has users, it is not dropped to make room for others
            line.task.add_done_callback(lambda _: self._left(gate))
            self._gates.drop_idle()
        line.items.extend(items)

    def _left(self, gate: Gate) -> None:
        gate.users -= 1

    def put_back(self, line: Line, items: Sequence[Item]) -> None:
        """Put items that were taken out of a line back to its head."""
        if self._is_current(line):
            line.items.extendleft(reversed(items))
        else:
            self.line_up(line.gate.entity, items)

    def end_if_empty(self, line: Line) -> None:
        """Leave no task at the gate of an empty line: of every path ever seen, that would be a leak."""
        if not line.items and not line.sending and line.task is not None:
            line.task.cancel()
            self._drop(line)

    def drop_all(self) -> list[asyncio.Task[None]]:
        """Begin anew without any line; returns the tasks of those that send, which end with what is under way."""
        sending = [line.task for line in self._lines.values() if line.sending and line.task is not None]
        for line in self._lines.values():
            if not line.sending and line.task is not None:
                line.task.cancel()
        self._lines = {}
        return sending

    def _drop(self, line: Line) -> None:
        if self._is_current(line):
            del self._lines[line.gate.entity]

    def _is_current(self, line: Line) -> bool:
        return self._lines.get(line.gate.entity) is line

    async def _deliver(self, line: Line) -> None:
        """Send what is in a line, in order, whenever its gate is open."""
        gate = line.gate
        retry = 0
        while line.items and self._is_current(line):
            if not gate.is_open:
                await first((self._gates.wait_open(gate), self._stopping.wait()))
                if self._stopping.is_set():
                    break
            most = min(len(line.items), self._window.line_batch)
            batch = [line.items.popleft() for _ in range(most)]
            line.sending = True
            try:
                left = await self._transfer.deliver(gate, batch)
                line.items.extendleft(reversed(left))
                retry = 0
                if left and self._stopping.is_set():
                    break
            except Exception as error:
                line.items.extendleft(reversed([item for item in batch if self._locked.holds(item)]))
                wait = _BACKOFF.wait(retry, self._clock.chance())
                retry += 1
                self._failed(error, wait)
                await pause(wait, self._stopping)
            finally:
                line.sending = False
                self._moved_on.set()
        self._drop(line)

"""Order through an outage: the keys of a pair, whose sends go one after another (SPEC 8).

Between two sends of one key is the outcome of the first: were the second one under way already, a retry of the
first would overtake it. What a key's sends do is decided by `pairmq.core.order`; here they line up, and look.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pairmq.core.order import DrainView, Key, KeyOrder, KeyRoute, Look, LookAt, backlog_queue_of
from pairmq.core.send import Job
from pairmq.model import Entity, FailureKind, FailureReason, TransportError
from pairmq.model.events import Warned
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._counted import EngineContext
from pairmq.runner._job import SenderState
from pairmq.runner._limits import TimeLimits
from pairmq.transport import start_task

_REMEMBERED: Final = 10_000
"""Sessions that are kept in mind while nothing of them is in flight; a forgotten one is looked at anew."""


class KeyLine(Key):
    """A key, and the turns of those that wait in its line."""

    __slots__ = ("turns",)

    def __init__(self, facts: KeyOrder, queue: int, now: float) -> None:
        super().__init__(facts, queue, now)
        # Thousands may be given up at one instant.
        self.turns: OrderedDict[asyncio.Future[bool | None], None] = OrderedDict()


class Place:
    """The place of one call's jobs in the line of their key.

    It is left when the call gives its receipts, not sooner: a later call's receipt must not come before them.
    """

    __slots__ = ("jobs", "line", "route", "turn")

    def __init__(self, line: KeyLine, view: DrainView) -> None:
        self.jobs: list[Job] = []
        self.line = line
        self.route = KeyRoute(line, view)
        self.turn: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        line.turns[self.turn] = None
        if len(line.turns) == 1:
            self.turn.set_result(True)

    async def come(self, deadline: float, limits: TimeLimits) -> bool:
        """Wait until all before it have left; returns whether that was before ``deadline``."""
        came = await limits.wait(self.turn, deadline)
        return came is True

    def leave(self) -> None:
        """Let the next one go on. Idempotent."""
        turns = self.line.turns
        if self.turn in turns:
            del turns[self.turn]
            self.line.lined_up -= len(self.jobs)
            following = next(iter(turns), None)
            if following is not None and not following.done():
                following.set_result(True)


class Orders:
    """All keys of a pair."""

    def __init__(self, context: EngineContext, backlog: BacklogQueues) -> None:
        self._options = context.options
        self._clock = context.clock
        self._sessions: OrderedDict[tuple[Entity, str], KeyLine] = OrderedDict()
        self._watches = [_QueueWatch(entity, context) for entity in backlog.entities]
        self._views = [DrainView() for _ in backlog.entities]

    def line_up(self, state: SenderState, jobs: Sequence[Job]) -> list[Place]:
        """Give jobs their places behind all earlier ones of their keys, at once: calls keep their order."""
        places: dict[KeyLine, Place] = {}
        for job in jobs:
            line = self._line(state, job.message.session_id)
            if line not in places:
                places[line] = Place(line, self._views[line.queue])
            places[line].jobs.append(job)
            line.lined_up += 1
        return list(places.values())

    def _line(self, state: SenderState, session: str | None) -> KeyLine:
        now = self._clock.now()
        if session is None:
            if not isinstance(state.line, KeyLine):
                # The sender's id is new: whatever lies in the backlog is not of this key.
                state.line = KeyLine(KeyOrder(now, fresh=True), self._queue(state, None), now)
            return state.line
        name = (state.runner.entity, session)
        line = self._sessions.get(name)
        if line is None:
            line = self._sessions[name] = KeyLine(KeyOrder(now), self._queue(state, session), now)
            self._forget_some()
        else:
            line.used(now)
        self._sessions.move_to_end(name)
        return line

    def _queue(self, state: SenderState, session: str | None) -> int:
        count = self._options.backlog_queue_count
        return backlog_queue_of(state.runner.entity, session, state.sender_id, count)

    def _forget_some(self) -> None:
        excess = len(self._sessions) - _REMEMBERED
        for _ in range(min(2, excess)):
            name, line = next(iter(self._sessions.items()))
            if line.turns:  # something of it is in flight: it must not hold up the others behind it
                self._sessions.move_to_end(name)
            else:
                del self._sessions[name]

    async def look(self, wanted: LookAt) -> Look | None:
        """What a look at a backlog queue finds; None when it could not be asked, or not in time."""
        return await self._watches[wanted.queue].look(wanted.until)

    async def close(self) -> None:
        await asyncio.gather(*(watch.close() for watch in self._watches))


class _QueueWatch:
    """Looks at one backlog queue while callers ask; one look serves all that asked before it began."""

    def __init__(self, queue: Entity, context: EngineContext) -> None:
        self._queue = queue
        self._admin = context.secondary.admin
        self._clock = context.clock
        self._emit = context.emit
        self._limits = context.limits
        self._asked: list[asyncio.Future[Look | None]] = []
        self._task: asyncio.Task[None] | None = None
        self._refused = False

    async def look(self, until: float) -> Look | None:
        """What a look finds that begins from now on; None when the queue could not be asked, or not in time."""
        future: asyncio.Future[Look | None] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        if self._task is None:
            self._task = start_task(self._run(), name=f"look at {self._queue}")
        return await self._limits.wait(future, until)

    async def _run(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                look = await self._look()
                for future in asked:
                    if not future.done():
                        future.set_result(look)
        finally:
            self._task = None

    async def _look(self) -> Look | None:
        began_at = self._clock.now()
        try:
            found = await self._limits.run(self._admin.positions(self._queue))
        except TransportError as error:
            self._note(error)
            return None
        self._refused = False
        return Look(began_at, found.oldest, found.newest)

    def _note(self, error: TransportError) -> None:
        """Warn, once, of a look that is refused: sends would go round by the backlog for as long as that lasts."""
        missing = error.reason is FailureReason.NOT_FOUND  # it is made again
        if error.kind is FailureKind.REFUSED and not missing and not self._refused:
            self._refused = True
            text = (
                "how far it is drained can't be asked, so that what order is kept for goes through the backlog, also "
                f"while the primary is available: {error}"
            )
            self._emit(Warned, subject=self._queue.path, text=text)

    async def close(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=1)

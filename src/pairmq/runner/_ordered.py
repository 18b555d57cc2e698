"""Order through an outage: the keys of a pair, whose sends go one after another (SPEC 8).

Between two sends of one key is the outcome of the first: were the second one under way already, a retry of the
first would overtake it. What `pairmq.core.order` decides about a key is asked and reported here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from pairmq.core import DrainView, KeyOrder, Look, PairOptions, ToBacklog, ToPrimary, backlog_queue_of
from pairmq.model import Entity, EntityState, TransportError
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._clock import Clock
from pairmq.runner._entity import EntityRunner
from pairmq.runner._job import Job, SenderState
from pairmq.runner._limits import TimeLimits
from pairmq.transport import Admin, Transport, start_task

_LONGEST_WAIT: Final = 2.0  # s that a send waits for its queue to drain, and half of its own time at most
_SHORTEST_WAIT: Final = 0.02  # s that it waits, as long as it has the time, however many stand in line behind it
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25  # s between two looks of one send
_RESTED: Final = 30.0
"""Seconds without a send after which a session is looked at anew: another process may have had it meanwhile."""
_REMEMBERED: Final = 10_000
"""Sessions that are kept in mind while nothing of them is in flight; a forgotten one is looked at anew."""


class Key:
    """What order is kept for: a session of an entity, or a sender.

    Args:
        facts: whether it is clean.
        queue: index of its backlog queue.

    ``lined_up`` counts the messages of all calls that have a place in its line.
    """

    __slots__ = ("facts", "lined_up", "queue", "turns", "used_at")

    def __init__(self, facts: KeyOrder, queue: int) -> None:
        self.facts = facts
        self.queue = queue
        self.lined_up = 0
        self.turns: OrderedDict[asyncio.Future[None], None] = OrderedDict()  # thousands may be given up at one instant
        self.used_at = 0.0


class Wait:
    """One send's waiting for its queue to drain: until when at most, and whether it has seen the queue.

    All that stand in line share the longest wait: were it given to each in its turn, the last ones would be refused at
    their deadlines while both brokers work. An answer of the queue is waited for longer than for the queue to move,
    or a long line would never get one.

    Args:
        now: when it begins.
        left: seconds that the send has left.
        lined_up: messages that stand in line, this one among them.
    """

    __slots__ = ("asks_until", "ends_at", "looked", "pause")

    def __init__(self, now: float, left: float, lined_up: int) -> None:
        spare = left / 2
        self.asks_until = now + min(_LONGEST_WAIT, spare)
        self.ends_at = now + min(max(_LONGEST_WAIT / lined_up, _SHORTEST_WAIT), spare / lined_up)
        self.looked = False
        self.pause = _FIRST_PAUSE


class Place:
    """The place of one call's jobs in the line of their key; ``wait`` while they wait for the key's queue to drain.

    It is left when the call gives its receipts, not sooner: a later call's receipt must not come before them.
    """

    __slots__ = ("jobs", "key", "turn", "wait")

    def __init__(self, key: Key) -> None:
        self.jobs: list[Job] = []
        self.key = key
        self.wait: Wait | None = None
        self.turn = asyncio.get_running_loop().create_future()
        key.turns[self.turn] = None
        if len(key.turns) == 1:
            self.turn.set_result(None)

    async def come(self, deadline: float) -> bool:
        """Wait until all before it have left; returns whether that was before ``deadline``."""
        if not self.turn.done():
            await asyncio.wait((self.turn,), timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        return self.turn.done()

    def leave(self) -> None:
        """Let the next one go on. Idempotent."""
        turns = self.key.turns
        if self.turn in turns:
            del turns[self.turn]
            self.key.lined_up -= len(self.jobs)
            following = next(iter(turns), None)
            if following is not None and not following.done():
                following.set_result(None)


class Orders:
    """All keys of a pair.

    Args:
        secondary: where the backlog queues are.
        backlog: the backlog queues.
        options: the pair's.
        clock: time.
        limits: bounds every operation.
    """

    def __init__(
        self, secondary: Transport, backlog: BacklogQueues, options: PairOptions, clock: Clock, limits: TimeLimits
    ) -> None:
        self._options = options
        self._clock = clock
        self._sessions: OrderedDict[tuple[Entity, str], Key] = OrderedDict()
        self._watches = [
            _QueueWatch(secondary.admin, entity, options.attempt_timeout, clock, limits) for entity in backlog.entities
        ]
        self._views = [DrainView() for _ in backlog.entities]

    def line_up(self, state: SenderState, jobs: Sequence[Job]) -> list[Place]:
        """Give jobs their places behind all earlier ones of their keys, at once: calls keep their order."""
        places: dict[Key, Place] = {}
        for job in jobs:
            key = self._key(state, job.message.session_id)
            if key not in places:
                places[key] = Place(key)
            places[key].jobs.append(job)
            key.lined_up += 1
        return list(places.values())

    def _key(self, state: SenderState, session: str | None) -> Key:
        now = self._clock.now()
        if session is None:
            if not isinstance(state.key, Key):
                # The sender's id is new: whatever lies in the backlog is not of this key.
                state.key = Key(KeyOrder(now, fresh=True), self._queue(state, None))
            return state.key
        name = (state.runner.entity, session)
        key = self._sessions.get(name)
        if key is None:
            key = self._sessions[name] = Key(KeyOrder(now), self._queue(state, session))
            self._forget_some()
        elif not key.turns and now - key.used_at > _RESTED:
            key.facts.doubt(now)
        self._sessions.move_to_end(name)
        key.used_at = now
        return key

    def _queue(self, state: SenderState, session: str | None) -> int:
        count = self._options.backlog_queue_count
        return backlog_queue_of(state.runner.entity, session, state.sender_id, count)

    def _forget_some(self) -> None:
        excess = len(self._sessions) - _REMEMBERED
        for _ in range(min(2, excess)):
            name, key = next(iter(self._sessions.items()))
            if key.turns:  # something of it is in flight: it must not hold up the others behind it
                self._sessions.move_to_end(name)
            else:
                del self._sessions[name]

    async def way(self, place: Place, runner: EntityRunner, deadline: float) -> ToPrimary | ToBacklog | None:
        """Where the send goes whose turn it is; None when it has waited a moment, and must ask again.

        Routing and registering are one step: nothing is awaited between the decision and this function's return.
        """
        key = place.key
        facts = key.facts
        if runner.state is EntityState.FAILED_OVER:
            return self._divert(place, runner)
        if facts.clean:
            place.wait = None
            return runner.route()
        now = self._clock.now()
        wait = place.wait
        if wait is None:
            wait = place.wait = Wait(now, deadline - now, key.lined_up)
        if now >= wait.ends_at and wait.looked:
            return self._divert(place, runner)
        look = await self._watches[key.queue].look(wait.asks_until)
        if look is None:  # who can't be asked may hold messages
            return self._divert(place, runner)
        if facts.seen(look):
            return None
        wait.looked = True
        if not self._views[key.queue].worth_waiting(look):
            return self._divert(place, runner)
        await runner.wait_for_change(max(0.0, min(wait.pause, wait.ends_at - self._clock.now())))
        wait.pause = min(_LONGEST_PAUSE, wait.pause * 1.5)
        return None

    @staticmethod
    def _divert(place: Place, runner: EntityRunner) -> ToBacklog:
        place.wait = None
        place.key.facts.diverting()
        return runner.divert()

    async def close(self) -> None:
        """Stop looking."""
        await asyncio.gather(*(watch.close() for watch in self._watches))


class _QueueWatch:
    """Looks at one backlog queue while callers ask; one look serves all that asked before it began."""

    def __init__(self, admin: Admin, queue: Entity, time_limit: float, clock: Clock, limits: TimeLimits) -> None:
        self._admin = admin
        self._queue = queue
        self._time_limit = time_limit
        self._clock = clock
        self._limits = limits
        self._asked: list[asyncio.Future[Look | None]] = []
        self._task: asyncio.Task[None] | None = None

    async def look(self, until: float) -> Look | None:
        """What a look finds that begins from now on; None when the queue could not be asked, or not in time."""
        future: asyncio.Future[Look | None] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        if self._task is None:
            self._task = start_task(self._run(), name=f"look at {self._queue}")
        await asyncio.wait((future,), timeout=max(0.0, until - self._clock.now()))
        return future.result() if future.done() else None

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
            found = await self._limits.run(self._admin.positions(self._queue), began_at + self._time_limit)
        except TransportError:
            return None
        return Look(began_at, found.oldest, found.newest)

    async def close(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=1)

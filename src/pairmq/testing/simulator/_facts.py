"""The facts of a history, put in order for the judge."""

from __future__ import annotations

import bisect
from collections import defaultdict

from pairmq.core import RECORD_QUEUE, PairOptions, lane_path
from pairmq.model import Entity
from pairmq.model.events import PingCompleted, RotationChanged, StateChanged
from pairmq.testing import judge
from pairmq.testing.history import PRIMARY, SECONDARY, Attempt, Copy, Handover, Life, Note
from pairmq.testing.simulator._history import History, Trouble
from pairmq.testing.simulator._scenario import BLIPS, CONDITIONS, merged


class Facts(judge.Facts):
    """A history of a simulation, by message, by process and by entity."""

    history: History

    def __init__(self, history: History) -> None:
        setup = history.scenario.setup
        super().__init__(history, setup.pair_options(syphon=True))
        self.backlog_queues = setup.backlog_queues()
        """Of all processes."""
        self._own_options: dict[str, PairOptions] = {plan.name: setup.options_of(plan) for plan in setup.processes}
        self._own_queues = {plan.name: frozenset(setup.backlog_queues(plan)) for plan in setup.processes}
        self._handed_after = 0.2 + 2 * setup.latency[1]
        self.changes: dict[tuple[str, Entity], list[Note]] = defaultdict(list)
        self.pings: dict[tuple[str, Entity], list[Note]] = defaultdict(list)
        self.returns: dict[tuple[str, str], list[int]] = defaultdict(list)
        """The ticks at which a process took a backlog queue into use again."""
        self.queues_left: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """How many backlog queues a process had in use, from which tick on."""
        self.of_sends: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
        """The attempts of a process's sends at a broker."""
        for attempt in history.attempts:
            if not attempt.syphon:
                self.of_sends[attempt.life, attempt.broker].append(attempt)
        for note in history.notes:
            if isinstance(note.event, StateChanged):
                self.changes[note.life, note.event.entity].append(note)
            elif isinstance(note.event, RotationChanged):
                self.queues_left[note.life].append((note.tick, note.event.left))
                if note.event.in_use:
                    self.returns[note.life, note.event.queue].append(note.tick)
            elif isinstance(note.event, PingCompleted):
                self.pings[note.life, note.event.entity].append(note)
        self._troubles: dict[str, list[Trouble]] = defaultdict(list)
        for trouble in history.troubles:
            self._troubles[trouble.life].append(trouble)
        self._record_failed_at = sorted(
            each.at for each in history.troubles if each.broker == SECONDARY and each.path.endswith(RECORD_QUEUE)
        )
        self._trouble_ticks = {life: [each.tick for each in found] for life, found in self._troubles.items()}
        spans = [
            (at, at + (fault.duration if fault.kind in (*CONDITIONS, *BLIPS, "broker-kill") else 0.0))
            for at, _, fault in history.strokes
        ]
        self._faulty = merged([*spans, *history.disturbed])
        self._fault_starts = [start for start, _ in self._faulty]

    def has_queue(self, life: str, tick: int) -> bool:
        """Whether a process had a backlog queue in use at a tick."""
        changes = self.queues_left[life]
        at = bisect.bisect_left(changes, (tick, 0))
        return at == 0 or changes[at - 1][1] > 0

    def is_own(self, life: Life, queue: Entity) -> bool:
        """Whether a backlog queue is in a process's own options."""
        path, options = lane_path(queue.path), self._own_options.get(life.process)
        if path is not None and options is not None:
            return options.continues(path)
        return queue.path in self._own_queues.get(life.process, self.backlog_queues)

    def is_agreed(self, first: float, last: float) -> bool:
        """Whether nothing kept processes from writing and reading the pair's record between two instants."""
        index = bisect.bisect_left(self._record_failed_at, first)
        failed = index < len(self._record_failed_at) and self._record_failed_at[index] <= last
        return not failed and not any(first <= at <= last for at in self.history.emptied)

    def was_made(self, queue: Entity, first: float, last: float) -> bool:
        """Whether a backlog queue that did not exist was made between two instants."""
        return any(
            (gap.broker, gap.entity) == (SECONDARY, queue) and gap.until is not None and first <= gap.until <= last
            for gap in self.history.gaps
        )

    def troubles(self, life: str, first_tick: int, last_tick: int) -> list[Trouble]:
        """What failed for a process between two ticks."""
        ticks = self._trouble_ticks.get(life, [])
        found = self._troubles.get(life, [])
        return found[bisect.bisect_left(ticks, first_tick) : bisect.bisect_right(ticks, last_tick)]

    def is_calm(self, first: float, last: float) -> bool:
        """Whether no fault was on between two instants."""
        index = bisect.bisect_right(self._fault_starts, last)
        return not any(end >= first for _, end in self._faulty[max(0, index - 1) : index])

    def hindered(self, life: Life, number: int) -> bool:
        """Whether something kept a process from giving a copy back that it was handed last."""
        copy = next(each for each in self.history.copies if each.number == number and each.broker == SECONDARY)
        since = max(each.tick for each in copy.handovers if each.life == life.name)
        return any(
            each.broker == SECONDARY
            and each.path == copy.entity.path
            and (each.operation == "settle" or each.told.kind != "cut")
            for each in self.troubles(life.name, since, 1 << 62)
        )

    def began_anew(self, life: Life, copy: Copy, since: int) -> bool:
        """Whether a pump may have let go of all that it held, because its queue could not be read."""
        return any(
            each.broker == SECONDARY and each.path == copy.entity.path and each.operation in ("receive", "admin")
            for each in self.troubles(life.name, since, 1 << 62)
        )

    def calm_for(self, first: float, last: float, seconds: float) -> float | None:
        """The end of the first stretch of some length between two instants in which no fault was on; None if none."""
        start = first
        for begin, end in self._faulty:
            if end < start:
                continue
            if begin - start >= seconds:
                break
            start = max(start, end)
        return start + seconds if start + seconds <= last else None

    def has_run_out(self, copy: Copy, attempt: Attempt) -> bool:
        """Whether the attempt's process must have known that its lock of a copy had run out of time, or had none."""
        mine = [
            each
            for each in copy.handovers
            if each.life == attempt.life and each.tick < attempt.tick and not each.consumer
        ]
        if not mine:
            return True
        # It learns of its lock when the delivery arrives, which is a moment later.
        return any(
            mine[-1].tick < tick < attempt.tick and at + self._handed_after < attempt.at for tick, at in copy.ran_out
        )

    def redelivery_explained(self, copy: Copy, index: int) -> bool:
        """Whether something has ended the lock of a delivery, so that the next one (``index``) had to come."""
        before, now = copy.handovers[index - 1], copy.handovers[index]
        life = self.lives.get(before.life)
        if life is not None and (life.killed or life.closing_at is not None) and (life.closing_at or 0) <= now.at:
            return True
        where, path = copy.broker, copy.entity.path
        if any(
            each.broker == where and each.path == path for each in self.troubles(before.life, before.tick, now.tick)
        ):
            return True
        if any(
            before.tick <= tick <= now.tick and (name, broker) == (before.life, where)
            for tick, name, broker in self.history.reconnects
        ):
            return True
        if any(before.tick <= tick <= now.tick for tick in copy.released) and not self._is_done(copy, before, now.tick):
            return True
        return any(
            before.tick <= tick <= now.tick
            and (fault.kind == "broker-kill" or fault.broker in (where, ""))
            and fault.kind in ("lock-lost", "broker-kill", "reset", "refuse", "blip", "delete")
            for _, tick, fault in self.history.strokes
        )

    def _is_done(self, copy: Copy, handover: Handover, until: int) -> bool:
        """Whether what was delivered was not to be released any more: it was handled, or had reached the primary."""
        if copy.message_number is None:
            return False
        if handover.consumer:
            return any(
                each.life == handover.life and handover.tick < each.tick < until
                for each in self.handlings[copy.message_number]
                if (each.side, each.position) == (copy.broker, handover.position)
            )
        # From a shared queue nothing is released before its syphon ends (ADR 32).
        return lane_path(copy.entity.path) is None or any(
            told.confirmed and attempt.broker == PRIMARY and handover.tick < attempt.tick < until
            for attempt, told in self.by_syphon[copy.message_number]
            if attempt.life == handover.life
        )

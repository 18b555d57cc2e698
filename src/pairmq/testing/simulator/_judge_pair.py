"""The facts of a history in order, and what the judge asks of pairs: routes, order, states, drains, closes."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator

from pairmq.core import RECORD_QUEUE, PairOptions, lane_path
from pairmq.model import BacklogUnavailable, Entity, EntityState, FailureReason, PrimaryUnavailable
from pairmq.model.events import Cause, PingCompleted, RotationChanged, StateChanged
from pairmq.runner import LOOK_INTERVAL
from pairmq.testing import judge
from pairmq.testing.history import CANARIES, PRIMARY, SECONDARY, Attempt, Copy, Handover, Life, Note, Result, Sent
from pairmq.testing.judge import Verdict, Violation
from pairmq.testing.simulator._history import History, Trouble
from pairmq.testing.simulator._scenario import PROBE, lasts, merged


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
        spans = [(at, at + lasts(fault)) for at, _, fault in history.strokes]
        self._faulty = merged([*spans, *history.disturbed])
        self._fault_starts = [start for start, _ in self._faulty]

    def has_queue(self, life: str, tick: int) -> bool:
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

    def was_missing_for_long(self, attempt: Attempt) -> bool:
        """Whether its process may have found the destination missing, and nothing else, for so long (ADR 4)."""
        patience = 3 * self.options.ping_primary_interval
        ended_at = attempt.ended_at or attempt.at
        since, seen = None, 0.0
        for at, missing in self._looks.get((attempt.life, attempt.entity.path), ()):
            if at > ended_at:
                break
            if not missing:
                since = None
            elif since is None or at - seen > patience:
                since = at
            seen = at
        return since is not None and since <= ended_at - patience

    @functools.cached_property
    def _looks(self) -> dict[tuple[str, str], list[tuple[float, bool]]]:
        """When a process asked for a destination, and if it was missing; pings look like probes, and count too."""
        gone = FailureReason.NOT_FOUND.value
        found: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
        for trouble in self.history.troubles:
            if trouble.broker == PRIMARY and trouble.operation == PROBE and trouble.result.reason == gone:
                found[trouble.life, trouble.path].append((trouble.at, True))
        for each in self.history.attempts:
            if each.syphon and each.ended_at is not None and each.results:
                missing = any(result.reason == gone for result in each.results)
                found[each.life, each.entity.path].append((each.ended_at, missing))
        for looks in found.values():
            looks.sort()
        return found

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
            and (each.operation == "settle" or each.result.kind != "cut")
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
            result.confirmed and attempt.broker == PRIMARY and handover.tick < attempt.tick < until
            for attempt, result in self.by_syphon[copy.message_number]
            if attempt.life == handover.life
        )


_RECORD_AGE = 100.0  # s that a look at the pair's record may be old, with the wait before a first one is tried again
_TRIALS = 10.0  # s: several of the longest waits between two attempts
_NOTHING_TOOK_IT = frozenset(error.__name__ for error in (BacklogUnavailable, PrimaryUnavailable))
_CLOSING = 14.0  # s over its grace that a close may take: the limits of its parts

_HEALTHY, _FAILING = EntityState.HEALTHY, EntityState.FAILING
_FAILED_OVER, _DRAINING = EntityState.FAILED_OVER, EntityState.DRAINING
_UP = (_HEALTHY, _DRAINING)

_OF_SENDS = (Cause.SEND_FAILED, Cause.FIRST_SEND_FAILED, Cause.SEND_SUCCEEDED, Cause.SEND_REFUSED)

# The states that each cause may lead to, by the state before.
_ALLOWED: dict[tuple[EntityState, Cause], tuple[EntityState, ...]] = {
    **{(state, Cause.SEND_FAILED): (_FAILING, _FAILED_OVER) for state in _UP},
    **{(state, Cause.FIRST_SEND_FAILED): (_FAILED_OVER,) for state in _UP},
    **{(state, cause): (_FAILED_OVER,) for state in EntityState for cause in (Cause.FORCED, Cause.HELD)},
    **{(_FAILING, cause): _UP for cause in (Cause.SEND_SUCCEEDED, Cause.SEND_REFUSED, Cause.MARKED_HEALTHY)},
    **{(_FAILED_OVER, cause): _UP for cause in (Cause.PING_RECOVERED, Cause.PING_REFUSED, Cause.MARKED_HEALTHY)},
    (_FAILING, Cause.INTERVAL_OVER): (_FAILED_OVER,),
    (_DRAINING, Cause.DRAINED): (_HEALTHY,),
    (_HEALTHY, Cause.ORDER_KEPT): (_DRAINING,),
}


def pair_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with pairs, and not with a single message."""
    for sent in facts.history.sent.values():
        yield from _other_queue(facts, sent)
        yield from _given_up(facts, sent)
    yield from _order(facts)
    if facts.options.ordering == "none":
        yield from _kept_queues(facts)
    for (life, entity), notes in facts.changes.items():
        yield from _states(facts, facts.lives[life], entity, notes)
    for each in facts.lives.values():
        yield from _closing(facts, each)
    yield from _drained(facts)
    for at, text in facts.history.crashes:
        yield Violation(Verdict.CRASH, at, text)


# Routes.


def _other_queue(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """What a backlog queue did not take goes to another one in use (SPEC 5.4), unless order forbids it (SPEC 8.2)."""
    options = facts.options
    if options.ordering == "session":
        return
    fair = min(options.attempt_timeout, 1.0) - 0.0005
    attempts = [each for each in facts.attempts[sent.number] if each[0].broker == SECONDARY]
    for (one, result), (another, _) in itertools.pairwise(attempts):
        if one.entity != another.entity or result.kind not in ("unavailable", "refused", "cut"):
            continue
        ended_at = one.ended_at or one.at
        slept = facts.allowance(one.life, one.at, ended_at) - facts.history.grace
        if (result.kind == "cut" or result.reason == "timeout") and ended_at - one.at - slept < fair:
            continue  # so short a trial says nothing about the queue
        if not facts.has_queue(another.life, another.tick):
            continue  # it was the probing send of a queue (SPEC 5.5)
        if result.reason == "not-found" and facts.was_made(one.entity, one.at, another.at):
            continue
        if not any((one.end_tick or 0) < tick < another.tick for tick in facts.returns[one.life, one.entity.path]):
            text = f"{one.entity} did not accept {sent.number} ({result}), but was retried"
            yield Violation(Verdict.STATE, another.at, text, sent.number)


# Patience (SPEC 5.5).


def _given_up(facts: Facts, sent: Sent) -> Iterator[Violation]:
    """While no broker takes it a send waits for either until its deadline, and finds out soon that one is back."""
    life = facts.lives.get(sent.life)
    if sent.error not in _NOTHING_TOOK_IT or life is None or not facts.history.exact:
        return
    ended_at, options = sent.ended_at or sent.at, facts.options
    if options.while_failing != "wait" or (life.closing_at is not None and life.closing_at <= ended_at):
        return
    if ended_at < sent.at + sent.timeout - facts.history.grace:
        text = f"{sent.number} was refused after {ended_at - sent.at:.3f} s, and had {sent.timeout:.3f} s"
        yield Violation(Verdict.STATE, ended_at, text, sent.number)
    began_at = ended_at - _TRIALS - 2 * options.attempt_timeout
    if options.ordering == "session" and not any(each.at <= began_at for each, _ in facts.attempts[sent.number]):
        return  # earlier sends of its key had their turn first
    if began_at > sent.at and facts.is_calm(began_at, ended_at):
        text = f"{sent.number} was refused, and both brokers worked for the last {ended_at - began_at:.1f} s"
        yield Violation(Verdict.STATE, ended_at, text, sent.number)


# Order (SPEC 7.7).


def _order(facts: Facts) -> Iterator[Violation]:
    """Messages of one sender and entity through one backlog queue, while nothing fails."""
    if not facts.history.in_order:
        return
    streams: dict[tuple[str, str, str], list[tuple[Sent, Copy, Copy]]] = defaultdict(list)
    for sent in facts.history.sent.values():
        arrived, backlog = facts.at_primary[sent.number], facts.at_secondary[sent.number]
        # A copy that its sender had written before diverting it was not moved.
        moved = len(arrived) == len(backlog) == 1 and facts.is_syphons(arrived[0])
        if sent.result is Result.BACKLOG and moved and len(backlog[0].handovers) == 1:
            streams[sent.life, sent.sender, backlog[0].entity.path].append((sent, backlog[0], arrived[0]))
    for stream in streams.values():
        stream.sort(key=lambda each: each[1].number)
        for (first, there, here), (second, there_too, here_too) in itertools.pairwise(stream):
            # Which attempt stored a copy is not always known.
            together = there.attempt is not None and there.attempt == there_too.attempt
            one_after_another = (first.end_tick or 0) < second.tick or together
            same = there.handovers[0].life == there_too.handovers[0].life
            if here.number < here_too.number or not one_after_another or not same:
                continue
            began, tick = min((each.handovers[0].at, each.handovers[0].tick) for each in (there, there_too))
            if facts.options.ordering == "session":
                began, tick = _held_up_since(facts, first, there, (began, tick))
            if facts.is_calm(began, here.at) and not facts.troubles(there.handovers[0].life, tick, here.tick):
                text = (
                    f"{first.number} was sent before {second.number}, and reached the primary after it, without any "
                    "failure"
                )
                yield Violation(Verdict.ORDER, here.at, text, first.number)


def _held_up_since(facts: Facts, sent: Sent, copy: Copy, began: tuple[float, int]) -> tuple[float, int]:
    """Since when nothing may have failed: with order, a message in doubt holds up its key from its lock on."""
    life = copy.handovers[0].life
    for number, copies in facts.at_secondary.items():
        other = facts.history.sent.get(number)
        if other is None or (other.message.session_id or other.sender) != (sent.message.session_id or sent.sender):
            continue
        for each in copies:
            locked = [(handover.at, handover.tick) for handover in each.handovers if handover.life == life]
            still_there = each.gone_tick is None or each.gone_tick > began[1]
            if each.entity == copy.entity and each.number < copy.number and locked and still_there:
                began = min(began, locked[0])
    return began


def _kept_queues(facts: Facts) -> Iterator[Violation]:
    """Each sender keeps its backlog queue while that is in use (SPEC 5.4)."""
    diverted: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in facts.history.attempts:
        first = attempt.messages[0] if attempt.messages else None
        if lane_path(attempt.entity.path) is not None:
            continue  # it has no choice
        if attempt.broker == SECONDARY and not attempt.syphon and first is not None:
            diverted[attempt.life, facts.history.sent[first].sender].append(attempt)
    left: dict[tuple[str, str], list[int]] = defaultdict(list)
    for note in facts.history.notes:
        if isinstance(note.event, RotationChanged) and not note.event.in_use:
            left[note.life, note.event.queue].append(note.tick)
    for (life, sender), attempts in diverted.items():
        failed = sorted(each.end_tick for each in attempts if each.end_tick is not None and not _all_confirmed(each))
        for before, after in itertools.pairwise(attempts):
            path = before.entity.path
            if path == after.entity.path or before.end_tick is None or not _all_confirmed(before):
                continue
            if _any_between(left[life, path], before.tick, after.tick):
                continue
            if not (facts.has_queue(life, before.tick) and facts.has_queue(life, after.tick)):
                continue  # a probing send of any queue (SPEC 5.5)
            # Another of its sends, side by side with these, may have let go of the queue.
            if _any_between(failed, before.tick, after.tick) or any(
                each.entity.path == path and not _all_confirmed(each) for each in attempts if each.tick < after.tick
            ):
                continue
            # Or of the one that this send had chosen before, and began to write to late, as its link had to open.
            first = after.messages[0]
            began = 0 if first is None else facts.history.sent[first].tick
            if any(
                each.entity == after.entity and not _all_confirmed(each) and began < (each.end_tick or 0) < after.tick
                for each in attempts
            ):
                continue
            text = f"{sender} of {life} changed from backlog queue {path} to {after.entity.path} while it was in use"
            yield Violation(Verdict.ORDER, after.at, text)


def _any_between(ticks: list[int], first: int, last: int) -> bool:
    return any(first <= tick <= last for tick in ticks)


def _all_confirmed(attempt: Attempt) -> bool:
    return attempt.results is not None and all(each.confirmed for each in attempt.results)


# States (SPEC 4).


def _states(facts: Facts, life: Life, entity: Entity, notes: list[Note]) -> Iterator[Violation]:
    options = facts.options
    state = _DRAINING if life.syphon else _HEALTHY  # a pair with a syphon starts dirty (SPEC 4.5)
    dirty = life.syphon
    health_since, on_trial = life.tick, False
    flaps = _Flaps(options)
    for note in notes:
        event = note.event
        assert isinstance(event, StateChanged)
        where = f"{life.name} {entity}: {event.previous} to {event.current} by {event.cause!s}"
        if event.previous is not state:
            yield Violation(Verdict.STATE, note.at, f"{where}, and it was {state}")
        if event.current not in _ALLOWED.get((event.previous, event.cause), ()):
            yield Violation(Verdict.STATE, note.at, f"{where}: no such transition")
        if event.cause in _OF_SENDS and not _cause_is_there(facts, life, entity, note, health_since):
            yield Violation(Verdict.STATE, note.at, f"{where}, and no send of this epoch reports that")
        failed_trial = event.cause is Cause.SEND_FAILED and on_trial
        if failed_trial and not _trial_ended(facts, life, entity, health_since, note.tick):
            yield Violation(Verdict.STATE, note.at, f"{where}: the first send after a ping's word has failed")
        over = event.lasted - options.failover_interval
        late = facts.allowance(life.name, note.at - max(0.0, over), note.at)
        if event.cause is Cause.INTERVAL_OVER and not -facts.history.grace <= over <= late:
            yield Violation(Verdict.STATE, note.at, f"{where} after {event.lasted:.3f} s")
        if event.cause is Cause.DRAINED:
            yield from _said_drained(facts, life, entity, note, where)
        # Health and backlog are two facts: with a syphon, only a look at the queues makes the backlog clean (SPEC 4.5).
        dirty = life.syphon and event.cause is not Cause.DRAINED and (dirty or event.diverted > 0)
        if dirty and event.current is _HEALTHY:
            yield Violation(Verdict.STATE, note.at, f"{where}, over a backlog that was not seen empty")
        problem = flaps.change(facts, life, entity, note)
        if problem:
            yield Violation(Verdict.STATE, note.at, f"{where}: {problem}")
        state = event.current
        if event.cause not in (Cause.DRAINED, Cause.ORDER_KEPT):
            health_since, on_trial = note.tick, event.cause in (Cause.PING_RECOVERED, Cause.PING_REFUSED)


def _cause_is_there(facts: Facts, life: Life, entity: Entity, note: Note, since: int) -> bool:
    """Whether an attempt that began after the last change of health has just ended as the event reports."""
    event = note.event
    assert isinstance(event, StateChanged)
    for attempt in reversed(facts.of_sends[life.name, PRIMARY]):
        if attempt.tick < since:
            return False
        if attempt.entity != entity:
            continue
        at_once = attempt.ended_at == note.at or not facts.history.exact
        if not at_once or not attempt.results or attempt.end_tick is None or attempt.end_tick > note.tick:
            continue
        confirmed = any(each.confirmed for each in attempt.results)
        if confirmed == (event.cause is Cause.SEND_SUCCEEDED):
            return True
    return False


def _trial_ended(facts: Facts, life: Life, entity: Entity, since: int, until: int) -> bool:
    """Whether the primary had taken a message, or an operator had said a word, between two ticks."""
    for _, tick, fault in facts.history.strokes:
        if since < tick < until and (fault.kind, fault.process, fault.entity) == (
            "operator",
            life.process,
            entity.path,
        ):
            return True
    return any(
        attempt.entity == entity
        and attempt.tick > since
        and (attempt.end_tick or until) < until
        and any(each.confirmed for each in attempt.results or ())
        for attempt in facts.of_sends[life.name, PRIMARY]
    )


def _said_drained(facts: Facts, life: Life, entity: Entity, note: Note, where: str) -> Iterator[Violation]:
    options = facts.options
    # One count takes this long at most; what came during it may have been missed.
    counted = note.at - len(facts.backlog_queues) * options.attempt_timeout - 1.0
    # And what others use is known from the record, which may have been read a minute before, by a process that had not
    # yet written to it.
    known = counted - _RECORD_AGE - 10 * options.attempt_timeout
    agreed = facts.is_agreed(known - LOOK_INTERVAL, note.at)
    for attempts in facts.of_sends[life.name, SECONDARY]:
        if attempts.tick > note.tick:
            break
        number = attempts.messages[0]
        under_way = attempts.end_tick is None or attempts.end_tick > note.tick
        if under_way and number is not None and facts.history.sent[number].entity == entity:
            yield Violation(Verdict.STATE, note.at, f"{where}, while {number} was being diverted", number)
    for number, copies in facts.at_secondary.items():
        for copy in copies:
            there = copy.tick < note.tick and (copy.gone_tick is None or copy.gone_tick > note.tick)
            sent = facts.history.sent.get(number) if there else None
            if sent is None or sent.entity != entity:
                continue
            own = sent.life == life.name and facts.is_confirmed(copy) and not facts.is_syphons(copy)
            seen = copy.at < counted if facts.is_own(life, copy.entity) else agreed and copy.at < known
            if own or seen:
                text = f"{where}, while {copy.entity} held {number} as copy {copy.number}"
                yield Violation(Verdict.STATE, note.at, text, number)


class _Flaps:
    """How many good pings an entity needs (SPEC 4.8)."""

    def __init__(self, options: PairOptions) -> None:
        self._window = options.flap_window
        self._needed = 1
        self._recovered_at: float | None = None
        self._down_since = 0

    def change(self, facts: Facts, life: Life, entity: Entity, note: Note) -> str | None:
        event = note.event
        assert isinstance(event, StateChanged)
        problem = None
        if event.cause is Cause.PING_RECOVERED:
            good = 0
            for each in facts.pings[life.name, entity]:
                if self._down_since < each.tick < note.tick:
                    assert isinstance(each.event, PingCompleted)
                    good = good + 1 if each.event.ok else 0
            if good < self._needed:
                problem = f"{good} good pings in a row, and it needed {self._needed}"
        if event.current is _FAILED_OVER:
            if event.cause in (Cause.FORCED, Cause.HELD):
                self._needed = 1 if event.previous is not _FAILED_OVER else self._needed
            else:
                recently = self._recovered_at is not None and note.at - self._recovered_at < self._window
                self._needed = min(8, self._needed * 2) if recently else 1
            if event.previous is not _FAILED_OVER:
                self._down_since = note.tick
        elif event.previous is _FAILED_OVER:
            self._recovered_at = note.at
        return problem


# Closing, draining.


def _closing(facts: Facts, life: Life) -> Iterator[Violation]:
    if life.closing_at is None or life.killed:
        return
    grace = facts.options.close_grace
    closed_at = life.closed_at if life.closed_at is not None else float("inf")
    took = closed_at - life.closing_at
    if took > grace + _CLOSING + facts.allowance(life.name, life.closing_at, closed_at):
        yield Violation(
            Verdict.CLOSE, life.closing_at, f"{life.name} took {took:.3f} s to close, with {grace:g} s of grace"
        )
    elif life.left:
        yield Violation(Verdict.CLOSE, life.closing_at, f"{life.name} left tasks behind: {', '.join(life.left)}")
    elif kept := [number for number in life.locks_left if not facts.hindered(life, number)]:
        numbers = ", ".join(map(str, kept[:10]))
        yield Violation(Verdict.CLOSE, life.closing_at, f"{life.name} closed and gave copies {numbers} not back")


def _gaps(facts: Facts) -> Iterator[Violation]:
    """A missing backlog queue is created again, at the latest by a process with a syphon."""
    options = facts.options
    patience = 60.0 + 2 * options.backlog_retry_interval + 2 * options.attempt_timeout
    for gap in facts.history.gaps:
        if gap.broker != SECONDARY:
            continue
        until = facts.history.ended_at if gap.until is None else gap.until
        calm = facts.calm_for(gap.at, until, patience)
        if calm is None:
            continue
        for life in facts.lives.values():
            if not facts.is_own(life, gap.entity):
                continue
            ends = min(each for each in (life.closing_at, life.ended_at, until) if each is not None)
            if life.syphon and life.opened_at is not None and life.opened_at <= calm - patience and ends >= calm:
                text = f"{gap.entity} was gone for {patience:.0f} calm seconds, and {life.name} did not make it again"
                yield Violation(Verdict.NOT_DRAINED, calm, text)
                break


def _drained(facts: Facts) -> Iterator[Violation]:
    history = facts.history
    for problem in history.undrained:
        text = f"{history.bound:.0f} s after all was healed, {problem}"
        yield Violation(Verdict.NOT_DRAINED, (history.healed_at or 0.0) + history.bound, text)
    yield from _gaps(facts)
    for sent in history.sent.values():
        if sent.number >= CANARIES and sent.result is not Result.PRIMARY:
            of = f" for {sent.message.session_id}" if sent.message.session_id else ""
            text = f"all was healed and drained, and a send of {sent.sender}{of} is {sent.result} {sent.error}"
            yield Violation(Verdict.NOT_DRAINED, sent.ended_at or sent.at, text, sent.number)
    for copy in history.forged:
        if copy.gone == "completed":
            postponed = any(
                None in each.messages
                and each.syphon
                and each.broker == SECONDARY
                and not each.entity.path.endswith(RECORD_QUEUE)
                for each in history.attempts
            )
            if not postponed:
                yield Violation(Verdict.PHANTOM, copy.gone_at or copy.at, f"forged copy {copy.number} was completed")

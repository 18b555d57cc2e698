"""Lets the processes of a pair follow what an operator decides for all of them (SPEC 13.4)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pairmq.core.record import MAX_ENTRIES
from pairmq.core.switch import (
    REPORT_INTERVAL,
    Decision,
    Decisions,
    Fleet,
    Following,
    Order,
    ProcessReport,
    SwitchAction,
    SwitchReport,
    SwitchStatus,
    alike,
    host_text,
    is_old_report,
    switch_action,
    switch_queues,
)
from pairmq.model import ConfigurationError, Delivery, Entity, FailureKind, FailureReason, TransportError
from pairmq.model.events import Warned
from pairmq.runner._clock import Clock
from pairmq.runner._counted import EngineContext
from pairmq.runner._limits import TimeLimits, settled_within
from pairmq.runner._record import RECORD_PROPERTIES, Looker
from pairmq.transport import Endpoint, Transport

_FIRST_REPORT = 1.0  # s after which a process reports: one that ends sooner is not waited for
_ALL_REPORT = 1.8  # s after a decision within which every process reports that had looked before it
_POLL = 1.0  # s between two looks of who waits for others
_LEAVE = 1.0  # s at most for the last report
_REFUSED = 60.0  # s at least between two looks that the secondary refuses
_MOST_REPORTS: Final = 10_000
_MANY_REPORTS = (
    f"{{}} on the secondary has {_MOST_REPORTS} messages or more, and no others are read: there may be processes that "
    "are not listed; delete that queue, and ask again after five minutes"
)
_REMOVED = 2  # old reports at most, with each new one
_MANY = 16  # messages that decide nothing any more, from which on they are removed
_HIDDEN, _TAKEN = 4.0, 10.0  # s at most until what others look at is there again; until it can be looked at
_PATIENCE = 0.2  # s between two counts meanwhile
_MORE = 2  # messages that may have come since they were counted, or while all were hidden
_NAMES = 5.0  # s at most for the primary to say whether it has an entity: in an outage no operator waits longer
_ROUNDS = 100  # of removing, until a decision is one of those that processes read


class _Glances:
    """Looks at the decisions again and again.

    Where a look hides them from others, for a round trip or more, a fleet that looks each time hides them most of the
    time. There they are counted, and looked at when there are more or fewer than before; and now and then, as others
    may have taken the place of as many. Who is ``patient`` waits while another one hides them.
    """

    def __init__(self, looker: Looker, place: Entity, clock: Clock, *, patient: bool) -> None:
        self._looker = looker
        self._place = place
        self._clock = clock
        self._patient = patient
        self._shown: Sequence[Delivery] | None = None  # all that there was
        self._shown_at = float("-inf")

    async def shown(self) -> Sequence[Delivery]:
        """What there is, as far as it shows. Raises `TransportError`."""
        if self._looker.is_quiet:
            return await self._looker.shown(self._place)
        began = self._clock.now()
        if began - self._shown_at >= REPORT_INTERVAL:
            self._shown = None
        while True:
            known = -1 if self._shown is None else len(self._shown)
            count = min(await self._looker.pending(self._place) or 0, MAX_ENTRIES)
            if self._shown is not None and count == known:
                return self._shown
            last = not self._patient or self._clock.now() - began >= (_HIDDEN if count < known else _TAKEN)
            if count > known or last or not count:  # all are hidden: it waits in line
                # Not many more than there are: a few messages a broker may show without hiding them for long.
                most = max(count, known) + _MORE if count or self._shown else MAX_ENTRIES
                found = await self._looker.shown(self._place, most)
                whole = len(found) >= count and (bool(found) or known <= 0 or last)
                if whole:
                    self._shown, self._shown_at = found, began
                if whole or last:
                    return found
            # Not all at once: two that look in the same moment hide from each other what they got.
            await asyncio.sleep(_PATIENCE * (1 + self._clock.jitter() / 2))


class SwitchFollower:
    """One process's side: looks at the decisions, carries out new ones, and reports which it follows."""

    def __init__(self, context: EngineContext, obey: Callable[[Order], None], in_use: Callable[[Entity], bool]) -> None:
        self._name = context.primary.endpoint.name
        self._options = context.options
        self._clock = context.clock
        self._emit = context.emit
        self._looker = Looker(context.secondary, context.limits)
        self._places = switch_queues(self._name)
        places = self._places
        self._glances = None if places is None else _Glances(self._looker, places[0], self._clock, patient=True)
        self._obey = obey
        self._in_use = in_use
        self._following = Following()
        self._process = ""
        self._started_at = self._clock.wall()
        self._reports = 0
        self._reported: tuple[str, ...] = ()
        self._reported_at = float("-inf")
        self._made = False
        self._warned = False

    async def begin(self) -> None:
        """Look for the first time; a secondary that can't be reached is looked at later, by `run`."""
        with contextlib.suppress(TransportError):
            await self.look()

    async def run(self) -> None:
        """Look and report again and again, until cancelled."""
        interval = self._options.control_interval
        if self._places is None:
            self._warn("the primary's name is too long")
            return
        # With the first report it looks again: an operator who decided after `begin` may have read the reports already.
        looked_at = float("-inf")
        await asyncio.sleep(min(_FIRST_REPORT, interval))
        while True:
            turned_at = self._clock.now()
            refused = None
            try:
                if turned_at - looked_at >= interval:
                    looked_at = turned_at
                    await self.look()
                await self._report_if_due()
            except TransportError as error:
                refused = error if error.kind is FailureKind.REFUSED else None
            if refused is not None:
                self._warn(f"the secondary refused: {refused}")
            least = _REFUSED if refused is not None else 0.0
            # From the beginning of the last look: one that takes long delays no other. Who looks rarely reports all the
            # same: a process that is not listed is not waited for.
            next_turn = min(looked_at + interval, turned_at + REPORT_INTERVAL)
            await asyncio.sleep(max(next_turn - self._clock.now(), least, 0.01))

    async def look(self) -> None:
        """Read the decisions, by one operation where that hides none from others, and carry out those that are new."""
        if self._places is None or self._glances is None:
            return
        shown = await self._glances.shown()
        decisions = Decisions.read([delivery.message.body for delivery in shown], self._clock.wall())
        if decisions.full:
            self._warn(f"{self._places[0].path} has {MAX_ENTRIES} messages or more, and no others are read")
        for order in self._following.follow(decisions, self._clock.wall(), self._in_use):
            self._obey(order)

    async def look_and_report(self) -> None:
        """Follow at once, as the process in which the decision was made does. Raises as `look`."""
        await self.look()
        if self._options.control_interval:
            await self._report_if_due()

    async def leave(self) -> None:
        """Report that the process has closed the pair, if it was ever reported; never raises, and takes a second."""
        if self._reports:
            await settled_within(_LEAVE, lambda: self._report(ended=True))

    async def _report_if_due(self) -> None:
        following = self._following.followed
        interval = self._options.control_interval
        early = interval / 2 if interval < REPORT_INTERVAL else _FIRST_REPORT  # at the nearest look, or turn
        due_at = self._reported_at + REPORT_INTERVAL - early
        if following != self._reported or self._clock.now() >= due_at:
            await self._report()
            self._reported, self._reported_at = following, self._clock.now()

    async def _report(self, *, ended: bool = False) -> None:
        if self._places is None:
            return
        reports = self._places[1]
        self._process = self._process or self._clock.new_id()
        self._reports += 1
        report = ProcessReport(
            self._process,
            host_text(socket.gethostname()),
            os.getpid(),
            self._reports,
            self._clock.wall(),
            self._started_at,
            self._options.control_interval,
            self._options.enable_syphon,
            self._following.followed,
            ended,
        )
        try:
            await self._add(report)
        except TransportError as error:
            if error.reason is not FailureReason.NOT_FOUND:
                raise
            self._made = False  # they were deleted
            await self._add(report)
        if not ended:
            # Each process that adds one removes up to two, so that the queue stays small whatever happens to others.
            now = self._clock.wall()
            await self._looker.remove(reports, lambda delivery: is_old_report(delivery, now), _REMOVED)

    async def _add(self, report: ProcessReport) -> None:
        if self._places is None:
            return
        if not self._made:
            for queue in self._places:
                await self._looker.make(queue, RECORD_PROPERTIES)
            self._made = True
        await self._looker.add(self._places[1], report.message())

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"decisions of 'pairmq switch' are not followed, or not reported as followed: {why}"
            self._emit(Warned, subject=f"{self._name}/switch", text=text)


class SwitchWriter:
    """An operator's side: writes a decision, and waits until the processes of the pair follow it. Of the primary only
    names are asked; an operation on the secondary may take ``time_limit`` seconds."""

    def __init__(self, primary: Endpoint, secondary: Transport, time_limit: float, clock: Clock | None = None) -> None:
        places = switch_queues(primary.name)
        if places is None:
            raise ConfigurationError("the primary's name is too long for a record on the secondary: give it a ?name=")
        self._decisions, self._reports = places
        self._looker = Looker(secondary, TimeLimits(time_limit))
        self._name_limits = TimeLimits(min(_NAMES, time_limit))
        self._clock = clock or Clock()
        self._glances = _Glances(self._looker, self._decisions, self._clock, patient=False)
        self._fleet = Fleet()
        self._ahead = 0.0  # s by which the secondary's clock is ahead of this one, as far as is known

    async def check_names(
        self,
        primary: Transport,
        entities: Sequence[Entity],
        *,
        is_used: Callable[[Entity], bool] = lambda _: False,
        known: Iterable[Entity] = (),
        force: str,
    ) -> str:
        """Refuse entities that the primary does not have, as their names are probably misspelt: no process would divert
        anything, or resume. Those that are used here, or that a decision diverts now, need not be there.

        Gives why names were not checked, empty if they were: a primary that is down can't say, and a decision must be
        possible all the same.

        Raises `ConfigurationError`, with names that are alike, ``known`` ones or the primary's, and ``force``, which
        lets them pass; `TransportError`: the secondary could not be asked.
        """
        unknown: list[Entity] = []
        diverted: list[Entity] = []
        unchecked = ""
        for entity in dict.fromkeys(entities):
            try:
                if not is_used(entity) and not await self._name_limits.run(primary.admin.exists(entity)):
                    unknown.append(entity)
            except TransportError as error:
                unchecked = f"the primary can't say whether it has {entity}, and the name may be misspelt: {error}"
                break
        if unknown:
            decisions = self._read(await self._looker.shown(self._decisions)).in_force()
            diverted = [each for each, decision in decisions.items() if decision.action is not SwitchAction.RESUME]
            unknown = [entity for entity in unknown if entity not in diverted]
        if not unknown:
            return unchecked
        there: list[Entity] = []
        with contextlib.suppress(TransportError):
            there = await self._name_limits.run(primary.admin.list_entities())
        texts = []
        for entity in unknown:
            meant = " or ".join(f"{each.kind} {each.path!r}" for each in alike(entity, (*known, *diverted, *there)))
            texts.append(f"the primary has no {entity.kind} {entity.path!r}{meant and f', but {meant}'}")
        raise ConfigurationError(
            f"{'; '.join(texts)}: correct the name or the kind, or use {force} for what is created later; "
            "nothing was written"
        )

    async def write(self, action: SwitchAction | str, entities: Sequence[Entity], *, syphon: bool = False) -> Decision:
        """Write a decision; with ``syphon`` a hold, in which syphons deliver nothing to them either.

        Nothing has changed when it raises, unless the error is that of an unconfirmed write (``maybe_applied``).
        Raises `ConfigurationError`: no process would read it, behind too many others.
        """
        chosen = switch_action(action, entities, syphon=syphon)
        # Side by side: far away each of them takes some round trips, as long as the fleet could have followed already.
        known, *others = await asyncio.gather(
            self._known_with_room(),
            self._looker.make(self._decisions, RECORD_PROPERTIES),
            self._looker.make_ready(self._decisions),
            return_exceptions=True,
        )
        if isinstance(known, BaseException):
            raise known
        for failed in others:
            if failed is not None:
                raise failed
        now = self._clock.wall()
        decision = Decision(
            known.next_number(now),
            self._clock.new_id(),
            chosen,
            tuple(dict.fromkeys(entities)),
            syphon,
            now,
            host_text(socket.gethostname()),
            os.getpid(),
        )
        await self._looker.add(self._decisions, decision.message())
        unwanted = known.removable()
        if len(unwanted) >= _MANY:
            with contextlib.suppress(TransportError):
                await self._remove(unwanted)
        return decision

    async def _remove(self, unwanted: frozenset[bytes]) -> None:
        await self._looker.remove(self._decisions, lambda delivery: delivery.message.body in unwanted, MAX_ENTRIES)

    async def _known_with_room(self) -> Decisions:
        """Read the decisions; where they fill what processes read, first remove those that decide nothing."""
        known = self._read(await self._glances.shown())
        for _ in range(_ROUNDS):
            if not known.full:
                return known
            unwanted = known.removable()
            if not unwanted:
                break
            await self._remove(unwanted)
            known = self._read(await self._looker.shown(self._decisions))
        raise ConfigurationError(
            f"{self._decisions.path} on the secondary has {MAX_ENTRIES} messages or more, behind which no process "
            "would read this decision: delete that queue, then decide again what is to be in force"
        )

    def _read(self, shown: Sequence[Delivery], written: Decision | None = None) -> Decisions:
        """Read the decisions; where the secondary dates messages, the one that was ``written`` shows its clock."""
        wanted = None if written is None else written.message().body
        for delivery in shown:
            if written is not None and delivery.message.body == wanted and delivery.enqueued_at is not None:
                self._ahead = delivery.enqueued_at.timestamp() - written.at
        return Decisions.read([delivery.message.body for delivery in shown], self._clock.wall())

    async def watch(
        self,
        decision: Decision,
        timeout: float | None = None,
        heard: Callable[[SwitchReport], None] | None = None,
    ) -> SwitchReport:
        """Wait until all processes follow a decision, or until it is overruled, or for ``timeout`` seconds, by default
        what the processes' intervals need; return who follows, and who does not. ``heard`` takes each report.

        Raises `TransportError`: the secondary could not be asked at the end of the wait.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            failure = None
            try:
                report = await self.report(decision)
            except TransportError as error:
                failure, report = error, SwitchReport(decision)
            else:
                if heard is not None:
                    heard(report)
            waited = loop.time() - began
            # Where a look at a queue hides its messages from others meanwhile, one of them may miss a turn.
            turns = 1 if self._looker.is_quiet else 2
            limit = turns * report.wait if timeout is None else timeout
            if failure is None and (report.overruled or (not report.missing and waited >= _ALL_REPORT)):
                return report
            if waited >= limit:
                if failure is not None:
                    raise failure
                return report
            await asyncio.sleep(max(0.01, min(_POLL, limit - waited)))

    async def report(self, decision: Decision) -> SwitchReport:
        """Ask once who follows. Raises `TransportError`."""
        decisions = self._read(await self._glances.shown(), decision)
        fleet, problem = await self._read_fleet()
        return SwitchReport.of(decision, decisions, fleet, problem)

    async def status(self) -> SwitchStatus:
        """Ask once what is in force, and which processes report. Raises `TransportError`."""
        decisions = self._read(await self._looker.shown(self._decisions))
        fleet, problem = await self._read_fleet()
        problems = (*decisions.problems, *((problem,) if problem else ()))
        return SwitchStatus(tuple(decisions.in_force().items()), fleet.processes, problems)

    async def _read_fleet(self) -> tuple[Fleet, str]:
        """Read who reports, and say why there may be others."""
        shown = await self._looker.shown(self._reports, _MOST_REPORTS)
        self._fleet.read(shown, self._clock.wall(), self._ahead)
        return self._fleet, _MANY_REPORTS.format(self._reports.path) if len(shown) >= _MOST_REPORTS else ""

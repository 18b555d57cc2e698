"""One send, from the call to its receipt: every attempt at either broker, inside one deadline (SPEC 3).

The `SendProcedure` drives the machine of each send (`pairmq.core.send`), which decides where it goes, for how long, and
what comes of it; makes one operation at either broker after the other, and carries out what the machine says of their
results.

A batch is sent by the same steps as a single message: its messages share a route and an operation, and those that
failed go round again. Each message ends in exactly one way: a receipt, a refusal, or *unknown*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from typing import Final

from pairmq.core import Diversion, divert
from pairmq.core.order import KeyRoute
from pairmq.core.send import (
    Admission,
    Attempt,
    BacklogOutcome,
    Check,
    Done,
    EntityLine,
    Fate,
    Job,
    RoundTrip,
    SendMachine,
    SendRules,
    Wait,
    not_found,
)
from pairmq.model import (
    Entity,
    FailureKind,
    FailureReason,
    Message,
    PairClosed,
    PairFaulted,
    Receipt,
    Route,
    SendError,
    SendRefused,
    TransportError,
)
from pairmq.model.events import Side
from pairmq.runner._backlog import BacklogQueues
from pairmq.runner._counted import CountedSender, EngineContext
from pairmq.runner._job import MessageLimits, Results, SenderState
from pairmq.runner._limits import Limit, Waiter, WaitLimit
from pairmq.runner._ordered import Orders, Place
from pairmq.transport import AT_ONCE, start_task

_LOOK = 1.0  # s that a look at a backlog queue may delay a send
_TO_PRIMARY, _TO_BACKLOG = Route.PRIMARY, Route.BACKLOG  # to look one up takes a call
ELSEWHERE: Final = (
    "the pair was opened in another event loop: use it there, open one in each loop, or use pairmq.sync, which any"
    " thread may call"
)
TAKEN: Final[Sequence[TransportError | None]] = (None,)
"""What came of an attempt with one message that was confirmed."""


class SendProcedure:
    """Sends for all senders of a pair."""

    def __init__(self, context: EngineContext, backlog: BacklogQueues, sizes: MessageLimits) -> None:
        options = context.options
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        self._wall = context.clock.wall
        self._limits = context.limits
        self._admission: Admission[Waiter] = Admission(options.max_pending_sends)
        self._lets_in = False
        self._emptied = asyncio.Event()
        self._results = Results(context.clock, context.emit)
        self._sizes = sizes
        self._rules = SendRules(options, backlog.rotation, context.clock.chance)
        self._orders = None if options.ordering == "none" else Orders(context, backlog)
        self._fault: BaseException | None = None
        self.given_back = 0
        """Sends that ended as unknown because the pair closed."""

    @property
    def in_flight(self) -> int:
        return self._admission.in_flight

    @property
    def room(self) -> int:
        """Bytes of bodies that a batch or a stream may have in flight."""
        return self._rules.room

    @property
    def far(self) -> bool:
        """Whether operations of a batch had better not wait for each other; where an order is kept they do."""
        return self._orders is None and self._rules.far

    async def close(self) -> None:
        """Stop what works beside the sends."""
        if self._orders is not None:
            await self._orders.close()

    def end_by(self, instant: float, fault: BaseException | None = None) -> None:
        """Take no new sends, and let those in flight last no longer than ``instant`` (SPEC 9.1)."""
        self._fault = self._fault or fault
        self._rules.end_by(instant, "the pair closed" if self._fault is None else f"the pair faulted: {self._fault}")
        self._limits.end_by(self._rules.ends_at)

    async def wait_idle(self, seconds: float) -> None:
        """Return when no send is in flight, or after ``seconds``; after `end_by`."""
        ends_at = self._loop.time() + seconds
        while self.in_flight and self._loop.time() < ends_at:
            self._emptied.clear()
            try:
                async with asyncio.timeout_at(ends_at):
                    await self._emptied.wait()
            except TimeoutError:
                return

    async def send(self, state: SenderState, messages: Sequence[Message], timeout: float) -> list[Receipt | SendError]:
        """Send messages inside one deadline; one result a message, in order.

        Raises `PairFaulted` or `PairClosed` when the pair has ended, `RuntimeError` in a loop that is not its own.
        Cancellation leaves the outcome of those without a result unknown; the machine counts the attempt as given up.
        """
        if self._rules.closed is not None:
            self._raise_ended()
        if asyncio._get_running_loop() is not self._loop:  # None where another library's runs
            raise RuntimeError(ELSEWHERE)
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r}: it must be more than 0 seconds")
        started = self._loop.time()
        deadline = started + timeout
        # Thousands may be in flight, and the garbage collector goes through what each keeps: one list for one message,
        # no comprehension that closes over names, and not the arguments.
        jobs: list[Job] = []
        for message in messages:
            jobs.append(self._results.begin(state, message))
        del messages
        pending = jobs
        if len(jobs) != 1 or jobs[0].result is not None:
            pending = [job for job in jobs if job.result is None]
        places: Sequence[Place] = () if self._orders is None else self._orders.line_up(state, pending)
        line: EntityLine[Waiter] | None = None
        entered = not pending or self._admission.try_enter(len(pending))
        try:
            if not entered:
                entered = await self._enter(len(pending), deadline)
                if self._rules.closed is not None:
                    for job in pending:  # never given to a broker: the report must not call them unknown
                        self._results.refuse(state, job, SendRefused, "the pair closed before its turn came")
                    self._raise_ended()
            if entered and self._orders is not None:
                await self._go_in_order(state, places, started, deadline)
            elif entered:
                if self._rules.lets_in(state.runner.line, started) or await self._in_line(state, started, deadline):
                    line = state.runner.line
                    await self._go_round(state, pending, started, deadline)
                else:
                    send = SendMachine(self._rules, state.runner, state, pending, started, deadline)
                    why = "no broker had answered the sends before it by the deadline"
                    self._give_up(state, send, send.give_up(why))
            else:
                for job in pending:
                    text = f"{self._admission.limit} sends were in flight until the deadline (max_pending_sends)"
                    self._results.refuse(state, job, SendRefused, text)
        finally:
            for place in places:
                place.leave()
            if entered and self._admission.leave(len(pending), line):
                if line is not None:
                    state.runner.next_turn()
                self._let_in()
            if self._rules.closed is not None and not self.in_flight:
                self._emptied.set()
            self._results.report(state, jobs, started)
        results: list[Receipt | SendError] = []
        for job in jobs:
            if job.result is not None:
                results.append(job.result)
        return results

    # How many are in flight.

    async def _enter(self, messages: int, deadline: float) -> bool:
        """Wait for a turn until ``deadline``, an instant of the loop's clock; returns whether it came."""
        turn: Waiter = self._loop.create_future()
        began_at = self._loop.time()
        self._admission.stand(turn, messages, began_at, deadline)
        try:
            await self._limits.wait(turn, deadline, exact=False, began_at=began_at)
        except asyncio.CancelledError:
            if self._has_come(turn) and self._admission.leave(messages):
                self._let_in()
            raise
        return self._has_come(turn)

    def _has_come(self, turn: Waiter) -> bool:
        """Whether a turn came that is waited for no longer."""
        if self._admission.give_up(turn):
            self._let_in()
            return False
        return True

    def _let_in(self) -> None:
        """Let in those that there is room for, of thousands a few in each turn of the loop: each begins an attempt."""
        if self._lets_in:
            return
        turns = self._admission.let_in(self._loop.time(), self._limits.lead, AT_ONCE, _waits)
        for turn, enters in turns:
            if enters and _waits(turn):
                turn.set_result(True)
        if len(turns) == AT_ONCE:
            self._lets_in = True
            turns[0][0].get_loop().call_soon(self._let_more_in)

    def _let_more_in(self) -> None:
        self._lets_in = False
        self._let_in()

    async def _in_line(self, state: SenderState, started: float, deadline: float) -> bool:
        """Wait for the sends before it while no broker answers; returns whether it was let in before the deadline."""
        runner, now = state.runner, self._loop.time()
        while True:
            turn = runner.stand_in_line(started, deadline)
            # Thousands may stand here: the coroutine of `TimeLimits.wait` would be a sixth of what each costs the
            # garbage collector.
            limit = WaitLimit(self._limits, turn, deadline, exact=False, began_at=now).begin()
            try:
                if await turn is None:
                    runner.leave_line(turn)
                    return False
            except asyncio.CancelledError:
                runner.leave_line(turn)
                raise
            finally:
                limit.end()
            now = self._loop.time()
            if self._rules.lets_in(runner.line, now):
                return True

    async def _go_in_order(self, state: SenderState, places: Sequence[Place], started: float, deadline: float) -> None:
        """Those of one key one after another, different keys side by side."""
        if len(places) <= 1:
            for place in places:
                await self._go_along(state, place, started, deadline)
            return
        tasks = [start_task(self._go_along(state, place, started, deadline)) for place in places]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _go_along(self, state: SenderState, place: Place, started: float, deadline: float) -> None:
        if not await place.come(deadline, self._limits):
            send = SendMachine(self._rules, state.runner, state, place.jobs, started, deadline, place.route)
            why = "earlier sends of its session or sender were under way until the deadline"
            self._give_up(state, send, send.give_up(why))
            return
        for job in place.jobs:
            await self._go_round(state, [job], started, deadline, place.route)

    # Driving the machine of a send.

    async def _go_round(
        self, state: SenderState, jobs: list[Job], started: float, deadline: float, key: KeyRoute | None = None
    ) -> None:
        """Send messages that share their attempts: the first one at once, if it may, and the rest by a machine.

        All in one coroutine, which keeps nothing of an attempt that has ended: the garbage collector goes through what
        thousands of sends in flight keep.
        """
        results: Sequence[TransportError | None] = ()
        first = self._rules.at_once(state.runner, jobs, self._loop.time(), deadline, key)
        if first is not None:
            results = await self._at_primary(state, first)
            if results is TAKEN:  # every healthy send ends here
                state.runner.accepted(first.epoch)
                self._results.accept(state, jobs[0], self._loop.time() - started, _TO_PRIMARY)
                self._sizes.look(state.runner.entity, jobs[0].message)
                return
        send = SendMachine(self._rules, state.runner, state, jobs, started, deadline, key)
        lead = 0.0
        if first is not None:
            self._judge(state, send, first, results, started)
            lead = self._limits.lead
        if unfit := self._forms(state, send.pending, None)[1]:
            send.drop(unfit)
        step = send.resume(self._loop.time(), lead)
        del first, results, unfit
        while not isinstance(step, Done):
            if isinstance(step, Attempt):
                if step.route is _TO_BACKLOG:
                    await self._at_backlog(state, send, step, started, deadline)
                else:
                    self._judge(state, send, step, await self._at_primary(state, step), started)
                if not send.pending:
                    return
                step = send.resume(self._loop.time(), self._limits.lead)
            elif isinstance(step, Wait):
                changed = False
                if not step.is_in_vain(self._loop.time(), self._limits.behind):
                    if step.nowhere:
                        state.runner.want_ping()
                    also = self._backlog.waiting if step.queue else None
                    changed = await state.runner.wait_for_change(step.until, also, last=step.last)
                step = send.resume(self._loop.time(), self._limits.lead, changed=changed)
            elif isinstance(step, Check):
                unfit = self._forms(state, step.jobs, self._backlog.entities[0])[1]
                step = send.checked(unfit, self._loop.time(), self._limits.lead)
            else:
                look = None if self._orders is None else await self._orders.look(step)
                step = send.looked(look, self._loop.time(), self._limits.lead)
        if step.nowhere:
            state.runner.want_ping()
            self._backlog.try_soon()
        if step.refusal is not None:
            self._give_up(state, send, step)

    def _forms(
        self, state: SenderState, jobs: Sequence[Job], queue: Entity | None
    ) -> tuple[list[Message], Sequence[Job]]:
        """Messages as a backlog queue gets them, or the primary without one; and those that it can never hold, which
        are refused (SPEC 3.8)."""
        forms: list[Message] = []
        unfit: list[Job] = []
        for job in jobs:
            entity, form = state.runner.entity, job.message
            if queue is None:
                problem = self._sizes.problem(Side.PRIMARY, entity, form)
            else:
                state.sequence += 1
                at = datetime.fromtimestamp(self._wall(), UTC)
                form = divert(form, Diversion(entity, at, state.sender_id, state.sequence, job.unknown))
                problem = self._sizes.problem(Side.SECONDARY, queue, form)
            if problem is None:
                forms.append(form)
            else:
                self._results.reject(state, job, problem)
                unfit.append(job)
        return forms, unfit

    def _give_up(self, state: SenderState, send: SendMachine, done: Done) -> None:
        """End what is left, with every failure that led here."""
        for job in send.pending:
            job.give_up(state.runner.last_failure, self._backlog.last_failure if done.diverting else None, self._fault)
            last = f": {job.causes[-1]}" if job.causes and self._fault is None else ""
            self.given_back += self._rules.closed is not None and job.unknown
            self._results.refuse(state, job, done.refusal or SendRefused, f"{done.why}{last}")

    def _raise_ended(self) -> None:
        if self._fault is not None:
            raise PairFaulted(f"the pair has faulted: {self._fault}") from self._fault
        raise PairClosed("the pair is closed")

    # One attempt at the primary.

    async def _at_primary(self, state: SenderState, attempt: Attempt) -> Sequence[TransportError | None]:
        """One attempt at the primary: what came of each message; `TAKEN` of one that was confirmed."""
        jobs = attempt.jobs
        results: Sequence[TransportError | None] | None = None
        try:
            if len(jobs) == 1:  # as in `_attempt`, but without a coroutine of its own: every healthy send pays for it
                jobs[0].attempts += 1
                with Limit(self._limits, attempt.until) as limited:
                    state.primary.operations.sends += 1
                    await state.primary.inner.send(jobs[0].message)
                    self._rules.to_primary.answered(self._loop.time() - limited.began_at)
                results = TAKEN if limited.failure is None else (self._failed(self._rules.to_primary, limited),)
            else:
                messages = [job.message for job in jobs]
                found = await self._attempt(self._rules.to_primary, state.primary, jobs, messages, attempt.until)
                if len(found) != len(jobs):
                    raise ValueError(f"the primary gave {len(found)} results for {len(jobs)} messages")
                results = found
            return results
        finally:
            if results is None:  # cancelled, or without a meaning
                state.runner.abandoned(attempt.epoch)

    def _judge(
        self,
        state: SenderState,
        send: SendMachine,
        attempt: Attempt,
        results: Sequence[TransportError | None],
        started: float,
    ) -> None:
        """Carry out what the results of an attempt at the primary mean."""
        runner = state.runner
        outcome, late = send.primary_ended(results), False
        if outcome.answered:
            runner.answered()
        if outcome.accepted:
            runner.accepted(attempt.epoch)
        elif outcome.evidence is None:
            runner.abandoned(attempt.epoch)
        else:
            late = runner.failed(attempt.epoch, outcome.evidence)
        for job, failure, fate in zip(attempt.jobs, results, outcome.fates, strict=True):
            if failure is None:
                self._results.accept(state, job, self._loop.time() - started, _TO_PRIMARY)
                self._sizes.look(runner.entity, job.message)
            else:
                refused = fate is Fate.REFUSED
                self._results.fail_attempt(state, job, failure, queue=None, late=late, final=refused)

    # One attempt at a backlog queue.

    async def _at_backlog(
        self, state: SenderState, send: SendMachine, attempt: Attempt, started: float, deadline: float
    ) -> None:
        """One attempt at a backlog queue; messages that were accepted or refused get their result."""
        backlog, now, choice, until = self._backlog, self._loop.time, attempt.choice, attempt.until
        assert choice is not None  # noqa: S101  # every attempt at the backlog has one
        index, queue = choice.queue, backlog.queues[choice.queue]
        results: Sequence[TransportError | None] = ()
        outcome: BacklogOutcome | None = None
        began_at: float | None = None
        try:
            envelopes, too_large = self._forms(state, send.pending, queue)
            if too_large:
                send.drop(too_large)
            jobs = send.pending
            unfit = left = None
            if jobs and choice.rests:
                unfit = await self._problem(backlog.check(index), until)
            sender = backlog.trusted(index) if jobs and unfit is None else None
            if jobs and unfit is None and sender is None:
                # It does not wait long for what it can't find out: the send itself shows whether the queue works, and
                # has as much time for that as without the look.
                looked_at = now()
                await self._problem(backlog.look(index), looked_at + min(_LOOK, deadline - until))
                until = min(deadline, until + now() - looked_at)
                left = None if choice.trial else backlog.left(index)
                unfit = backlog.unfit(index) or left
                sender = backlog.sender(index)
            if unfit is not None:
                results = [unfit] * len(jobs)
            elif sender is not None:
                began_at = now()
                results = await self._attempt(self._rules.to_backlog, sender, jobs, envelopes, until)
                if results is not TAKEN and not_found(results):
                    results = await self._at_queue_made_again(index, jobs, envelopes, results, began_at, until)
            outcome = send.backlog_ended(results, now())
            if outcome.answered and (turns := state.runner.line.answered()):
                self._limits.wake(turns)
        finally:
            if outcome is None:
                send.backlog_cut_off(now(), began=began_at is not None)
            state.runner.machine.divert_ended(now())
            if choice.trial:
                backlog.end_trial(index, None if outcome is None else outcome.works)
        for job, failure, fate in zip(jobs, results, outcome.fates, strict=True):
            if failure is None:
                self._results.accept(state, job, self._loop.time() - started, _TO_BACKLOG, queue.path)
                continue
            self._results.fail_attempt(state, job, failure, queue=queue.path, late=False, final=fate is Fate.REFUSED)
            if fate is Fate.LEAVE and failure is not left:
                backlog.take_out(index, failure)

    async def _at_queue_made_again(
        self,
        index: int,
        jobs: list[Job],
        envelopes: list[Message],
        failures: Sequence[TransportError | None],
        began_at: float,
        limit: float,
    ) -> Sequence[TransportError | None]:
        """A second operation at a backlog queue, with what found no queue."""
        missing = not_found(failures)
        if await self._problem(self._backlog.make_again(index, began_at), limit) is not None:
            return failures
        parts = [jobs[at] for at in missing], [envelopes[at] for at in missing]
        second = await self._attempt(self._rules.to_backlog, self._backlog.sender(index), *parts, limit)
        found = dict(zip(missing, second, strict=True))
        return [found.get(at, failure) for at, failure in enumerate(failures)]

    @staticmethod
    async def _problem(looking: Awaitable[None], limit: float) -> TransportError | None:
        """Why a backlog queue is not as it must be, as far as that can be found out; None when it is."""
        try:
            async with asyncio.timeout_at(limit):
                await looking
        except TransportError as error:
            return error
        except TimeoutError:
            return TransportError("no answer within the time limit", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        return None

    # One operation at either broker.

    async def _attempt(
        self, trip: RoundTrip, sender: CountedSender, jobs: Sequence[Job], messages: list[Message], limit: float
    ) -> Sequence[TransportError | None]:
        """One operation at a broker, until ``limit`` at most."""
        for job in jobs:
            job.attempts += 1
        with Limit(self._limits, limit) as limited:
            if len(messages) == 1:
                sender.operations.sends += 1
                await sender.inner.send(messages[0])
                trip.answered(self._loop.time() - limited.began_at)
                return TAKEN
            results = await sender.send_batch(messages)
            if None in results:
                self._rules.took(trip, self._loop.time() - limited.began_at)
            return results
        return [self._failed(trip, limited)] * len(messages)

    def _failed(self, trip: RoundTrip, limited: Limit) -> TransportError:
        """The failure of an attempt, to be kept by its send.

        With its trace it would keep all frames that it went through, and thousands of those make the garbage collector
        stop the loop for long. What caused it has its own.
        """
        failure = limited.take_failure().with_traceback(None)
        if failure.reason is FailureReason.TIMEOUT:
            trip.cut_off(self._loop.time() - limited.began_at)
        return failure


def _waits(turn: Waiter) -> bool:
    """Whether a send still waits for its turn: else it has given up this moment."""
    return not turn.done()

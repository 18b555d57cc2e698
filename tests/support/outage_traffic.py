"""A pair under steady traffic while things happen to its brokers, and what must hold in every outage.

Messages are sent, a few dozen a second, each under its own time limit. What an outage asks is always the same: the
failures have the right kind, no send outlives its deadline, each receipt is true, recovery is seen in time, and in the
end the primary's queue holds what was accepted, nothing that was refused, and no second copy without a word about it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from typing import Any

from heartbeat import Heartbeat
from pairmq import (
    BacklogUnavailable,
    Entity,
    EntityState,
    Message,
    Pair,
    PairOptions,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
)
from pairmq.model import FailureKind, FailureReason, Source, TransportError
from pairmq.model.events import (
    AttemptFailed,
    Event,
    MessageDeadLettered,
    MessageMoved,
    PingCompleted,
    StateChanged,
)

QUEUE = "orders"
OPTIONS = PairOptions(
    failover_interval=0.5,
    ping_primary_interval=1.0,
    ping_timeout=3.0,
    attempt_timeout=1.0,
    send_timeout=4.0,
    backlog_queue_count=3,
    enable_syphon=True,
    backlog_retry_interval=1.0,
)
MIXED = (4.0, 0.4, 4.0, 1.0)
"""Time limits of one send after another: some end long before a failover can, and show whether a send gives up."""

TIMED_OUT = "within the time limit"
"""What an attempt says that had no answer in time: of a server on a busy machine, too, that nothing is wrong with."""

GRACE = 0.25
"""Seconds by which a send may outlive its deadline, beside what the machine takes."""

Hands = Callable[..., Awaitable[Any]]
DOWN = EntityState.FAILED_OVER


# --------------------------------------------------------------------------- time


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        await asyncio.sleep(0.01)


# --------------------------------------------------------------------------- a pair under traffic


@dataclass
class Sent:
    """One send and its end; instants of the loop's clock."""

    message_id: str
    timeout: float
    began: float
    ended: float
    result: Receipt | SendError

    @property
    def deadline(self) -> float:
        return self.began + self.timeout

    @property
    def diverted(self) -> bool:
        return isinstance(self.result, Receipt) and self.result.route is Route.BACKLOG


@dataclass
class Traffic:
    """A pair that is sent to steadily, and everything that it said."""

    pair: Pair
    hands: Hands
    timeouts: Sequence[float]
    every: float = 0.025
    sends: list[Sent] = field(default_factory=list)
    events: list[tuple[float, Event]] = field(default_factory=list)
    struck_at: float = 0.0
    hit_at: float = 0.0
    healing_at: float = 0.0
    healed_at: float = 0.0

    def __post_init__(self) -> None:
        self.heart = Heartbeat()
        self._senders = itertools.cycle([self.pair.sender(QUEUE) for _ in range(3)])
        self._limits = itertools.cycle(self.timeouts)
        self._numbers = itertools.count()
        self._flying: set[asyncio.Task[None]] = set()
        self._goes = asyncio.Event()
        self._goes.set()
        self._task: asyncio.Task[None] | None = None
        self._clock = asyncio.get_running_loop().time
        self._went_down = False
        self.pair.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.events.append((self._clock(), event))
        self._went_down |= isinstance(event, StateChanged) and event.current is DOWN

    # What happens.

    async def hit(self, *faults: Callable[[], object]) -> None:
        """Let something happen to a broker."""
        # A failover that a busy machine has brought is over first: the one that is looked at is to come of this.
        await until(lambda: self.pair.state(QUEUE) is not DOWN)
        self.struck_at = self._clock()
        for fault in faults:
            await self.hands(fault)
        # What the kernel has reported to the loop by now is known to a sender some turns later.
        for _ in range(10):
            await asyncio.sleep(0)
        self.hit_at = self._clock()

    async def heal(self, *cures: Callable[[], object]) -> None:
        """Fix it; a server that was restarted is healed when it answers."""
        self.healing_at = self._clock()
        for cure in cures:
            await self.hands(cure)
        self.healed_at = self._clock()

    def flow(self) -> None:
        """Send steadily from now on."""
        self._goes.set()
        if self._task is None:
            self._task = asyncio.create_task(self._keep_sending(), name="traffic")

    async def halt(self) -> None:
        """Send nothing more for now; returns when all sends have ended."""
        self._goes.clear()
        while self._flying:
            await asyncio.wait(tuple(self._flying))

    async def one(self, timeout: float) -> Receipt | SendError:
        """Send one and wait for its end."""
        await self._send(f"order-{next(self._numbers)}", timeout)
        return self.sends[-1].result

    async def burst(self, count: int) -> None:
        """Send many at once, without waiting for their ends."""
        for _ in range(count):
            self._launch()
        await asyncio.sleep(0)

    async def some(self, count: int = 40) -> None:
        """Wait until so many sends have ended that began from now on."""
        since = self._clock()
        await until(lambda: sum(s.began >= since for s in self.sends) >= count)

    async def outage(self, seconds: float = 1.0) -> None:
        """Let a failover last so long, and until sends have ended that began in it."""
        await asyncio.sleep(seconds)
        await until(lambda: sum(s.began >= self.failed_over_at for s in self.sends) >= 20)

    async def accepted(self, count: int = 20) -> None:
        """Wait until so many sends have their receipts that began after the cure."""
        await until(
            lambda: sum(isinstance(s.result, Receipt) and s.began >= self.healed_at for s in self.sends) >= count
        )

    async def stop(self) -> None:
        await self.halt()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _keep_sending(self) -> None:
        while True:
            await self._goes.wait()
            self._launch()
            await asyncio.sleep(self.every)

    def _launch(self) -> None:
        task = asyncio.create_task(self._send(f"order-{next(self._numbers)}"))
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    async def _send(self, message_id: str, timeout: float | None = None) -> None:
        if timeout is None:
            # Short limits until the failover. Later a send has time to come through whatever else runs on this machine,
            # so that the checks of what happens then can be strict. Chosen here, as the failover may come between the
            # making of this task and its first step.
            timeout = next(self._limits) if not self._went_down else max(self.timeouts)
        message = Message(message_id.encode(), message_id=message_id)
        began = self._clock()
        try:
            result: Receipt | SendError = await next(self._senders).send(message, timeout=timeout)
        except SendError as error:
            result = error
        self.sends.append(Sent(message_id, timeout, began, self._clock(), result))

    # What was said.

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for _, event in self.events if isinstance(event, kind)]

    def failures(self, saying: str) -> list[float]:
        """When attempts failed with these words."""
        return [at for at, e in self.events if isinstance(e, AttemptFailed) and saying in e.error]

    def heard(self, saying: str) -> list[float]:
        """When attempts, or pings, failed with these words: on a busy machine the failover may come before them."""
        pings = [at for at, e in self.events if isinstance(e, PingCompleted) and saying in (e.error or "")]
        return sorted([*self.failures(saying), *pings])

    def changes(self, current: EntityState, since: float = 0.0) -> list[float]:
        """When the state became this one."""
        return [at for at, e in self.events if isinstance(e, StateChanged) and e.current is current and at >= since]

    @property
    def failed_over_at(self) -> float:
        return self.changes(DOWN, self.struck_at)[0]

    @property
    def recovered_at(self) -> float:
        """When the first failover after the fault was over."""
        return self._left_down(self.failed_over_at)[0]

    def _left_down(self, since: float) -> list[float]:
        return [at for at, e in self.events if isinstance(e, StateChanged) and e.previous is DOWN and at > since]

    async def failover(self) -> None:
        """A failover must come when the first failure is noticed and the interval is over."""
        await until(lambda: self.pair.state(QUEUE) is DOWN)
        within = self.failed_over_at - self.hit_at
        most = self.pair.options.attempt_timeout + self.pair.options.failover_interval + GRACE
        assert within <= most + self.heart.lag(self.hit_at, self.failed_over_at)

    async def recovery(self) -> None:
        """Health is up again by the second ping after the cure.

        Pings are counted rather than seconds: a server that has just booted on a busy machine may take its time to
        answer one. `report` prints the seconds.
        """
        await until(lambda: self._left_down(self.failed_over_at))
        failed = [
            ping
            for at, ping in self.events
            if isinstance(ping, PingCompleted)
            and self.healed_at + ping.elapsed < at <= self.recovered_at
            and not ping.ok
        ]
        assert len(failed) <= 1, failed

    async def steady(self, seconds: float = 0.3) -> None:
        """After the recovery sends go to the primary: wait for one that began so long after it."""

        def goes_home(sent: Sent) -> bool:
            return sent.began > self.recovered_at + seconds and getattr(sent.result, "route", None) is Route.PRIMARY

        await until(lambda: self.sends and goes_home(self.sends[-1]))

    async def drained(self) -> None:
        """Everything is moved back.

        What was on its way over a link that was cut off, as a busy machine may have it, stays locked for its minute.
        """
        await until(lambda: self.pair.state(QUEUE) is EntityState.HEALTHY, 200)
        assert not self.of(MessageDeadLettered)

    async def taken(self) -> list[str]:
        """Take everything out of the primary's queue: message ids, whose bodies say the same."""
        source, found, empty = Source(Entity(QUEUE)), list[str](), 0
        # The transport's own receiver: nothing that a busy machine delays is cut off, and redelivered later.
        receiver = self.pair.primary.receiver(source)
        while empty < 2:
            deliveries = await receiver.receive(200, 0.3)
            for delivery in deliveries:
                assert delivery.message.body == (delivery.message.message_id or "").encode()
                found.append(delivery.message.message_id or "")
                await receiver.complete(delivery)
            # That nothing has come in time says little of a server that was slow.
            is_empty = not deliveries and not (await self.pair.primary.admin.counts(source)).pending
            empty = empty + 1 if is_empty else 0
        await receiver.close()
        return found

    # What must hold.

    def check_deadlines(self) -> None:
        """No send outlives its deadline."""
        assert self.sends
        over = [(s.ended - s.deadline - self.heart.lag(s.deadline, s.ended), s) for s in self.sends]
        late = [each for each in over if each[0] > GRACE]
        assert late == [], late

    def check_failed_over(self, least: int = 5) -> None:
        """From the failover on until the recovery every send goes to the backlog, and only there."""
        sends = [s for s in self.sends if self.failed_over_at <= s.began and s.ended < self.recovered_at]
        assert len(sends) >= least
        elsewhere = [s for s in sends if not s.diverted]
        assert elsewhere == [], elsewhere
        ids = {s.message_id for s in sends}
        # None was tried at the primary: a success would be its route. (See `check_doubts` for what receipts say.)
        assert [e for e in self.of(AttemptFailed) if e.message_id in ids and e.queue is None] == []

    def check_recovered(self) -> None:
        """The recovery lasts. Attempts that only time out may end it on a busy machine, and then it begins again."""
        again = self.changes(DOWN, self.recovered_at)
        failures = [e for at, e in self.events if isinstance(e, AttemptFailed) and at > self.recovered_at]
        assert not again or {TIMED_OUT in e.error for e in failures if e.queue is None} == {True}, failures
        assert again or self.sends[-1].result.route is Route.PRIMARY

    def check_kinds(self, kind: FailureKind, saying: str = "") -> None:
        """Every failure at the primary since the fault was of this kind, and some said so."""
        failures = [e for at, e in self.events if isinstance(e, AttemptFailed) and at >= self.struck_at and not e.queue]
        assert failures
        assert {e.kind for e in failures} == {kind.value}
        assert any(saying in e.error for e in failures), {e.error for e in failures}

    def check_doubts(self) -> None:
        """A receipt says *maybe duplicate* exactly where an attempt before it was in doubt."""
        doubtful = {e.message_id for e in self.of(AttemptFailed) if e.maybe_applied}
        for s in self.sends:
            if isinstance(s.result, Receipt):
                assert s.result.maybe_duplicate == (s.message_id in doubtful), s
            else:
                assert isinstance(s.result, SendUnknown) == (s.message_id in doubtful), s

    def check_certain(self, since: float, saying: str = "") -> None:
        """Of nothing that was sent from this instant on can the primary have a copy (see also `check_doubts`).

        Where it met the failure itself, some of it says so.
        """
        recovered_at = self.recovered_at
        sends = {s.message_id: s for s in self.sends if since <= s.began and s.ended < recovered_at}
        # Not those of 0.4 s that ended while the client was still about to find out: their time says nothing.
        patient = {s.message_id for s in sends.values() if s.timeout > OPTIONS.attempt_timeout}
        failures = [e for e in self.of(AttemptFailed) if e.message_id in patient and e.queue is None]
        # Some of them met the failure themselves, before the failover, unless that had come or the loop let none begin.
        assert failures or self.failed_over_at <= since or self.heart.lag(since, self.failed_over_at) > 0.1
        assert [e for e in failures if e.maybe_applied] == []
        assert not failures or any(saying in e.error for e in failures), {e.error for e in failures}

    async def check_all_accepted(self, what: str) -> None:
        """Stop after some more sends: all were accepted, by the primary, which holds them."""
        await self.some()
        await self.stop()
        found = await self.taken()
        self.report(what, found)
        assert [sent for sent in self.sends if not isinstance(sent.result, Receipt)] == []
        self.check_never_diverted()
        self.check_books(found)

    def check_refused(self, error: type[SendRefused], reason: FailureReason, *, one_opens_all: bool = False) -> None:
        """From the fault to its cure every send was refused at once, and nothing was diverted.

        Where ``one_opens_all``, sends share the opening of a link: the first ones after the cure may hear what an
        opening found that began before it.
        """
        # Whether an attempt that timed out had come beyond the login nobody can tell: such a send may be unknown.
        # One whose attempts all timed out heard of no refusal.
        timed_out = {e.message_id for e in self.of(AttemptFailed) if TIMED_OUT in e.error}
        sends = [s for s in self.sends if self.hit_at <= s.began and s.ended < self.healing_at]
        prompt = [s for s in sends if s.message_id not in timed_out]
        assert len(prompt) > 20
        assert {type(s.result) for s in prompt} == {error}
        others = {type(s.result) for s in sends}
        assert others <= {error, SendUnknown, BacklogUnavailable}, others
        heard = [s.result for s in sends if isinstance(s.result, SendError)]
        causes = [each.causes[-1] for each in heard if not isinstance(each, BacklogUnavailable)]
        assert {(c.kind, c.reason, c.maybe_applied) for c in causes if isinstance(c, TransportError)} == {
            (FailureKind.REFUSED, reason, False)
        }
        assert (
            max(s.ended - s.began - self.heart.lag(s.began, s.ended) for s in prompt)
            < self.pair.options.attempt_timeout
        )
        self.check_never_diverted()
        after = [s for s in self.sends if s.began >= self.healed_at]
        if one_opens_all:
            after = list(dropwhile(lambda s: type(s.result) is error, after))
        assert len(after) > 5
        assert {getattr(s.result, "route", s.result) for s in after} == {Route.PRIMARY}

    def check_never_diverted(self) -> None:
        """Refusals are no outage: the entity is healthy all the while, but for a connection lost under a send."""
        assert self.changes(DOWN) == []
        assert [s for s in self.sends if s.diverted] == []
        lost = [e for e in self.of(AttemptFailed) if e.kind == FailureKind.UNAVAILABLE.value]
        assert lost or self.of(StateChanged) == []

    def check_books(self, found: Sequence[str], since: float = 0.0) -> None:
        """The primary's queue holds what was accepted, nothing that was refused, and each second copy is explained."""
        copies = Counter(found)
        sends = [s for s in self.sends if s.began >= since]
        accepted = {s.message_id for s in sends if isinstance(s.result, Receipt)}
        refused = {s.message_id for s in sends if isinstance(s.result, SendRefused)}
        unknown = {s.message_id for s in sends if isinstance(s.result, SendUnknown)}
        assert accepted - set(copies) == set()
        assert refused & set(copies) == set()
        assert set(copies) <= accepted | unknown
        explained = unknown | {s.message_id for s in sends if getattr(s.result, "maybe_duplicate", False)}
        moved = self.of(MessageMoved)
        explained |= {e.message_id for e in moved if e.maybe_duplicate or e.redelivered or not e.completed}
        assert {message_id for message_id, count in copies.items() if count > 1} - explained == set()

    def report(self, name: str, found: Sequence[str] = ()) -> None:
        """Print what was measured, for ``pytest -rP``."""
        overrun = max(s.ended - s.deadline for s in self.sends)
        lag = self.heart.lag(0, self._clock())
        back = self._left_down(self.struck_at)
        after = f"recovered {back[0] - self.healed_at:+.2f} s" if back else "no failover"
        kinds = Counter(
            "unknown" if isinstance(s.result, SendUnknown) else "refused" if isinstance(s.result, SendError)
            else s.result.route.value + ("?" if s.result.maybe_duplicate else "") for s in self.sends
        )  # fmt: skip
        twice = sum(count - 1 for count in Counter(found).values())
        print(f"MEASURED {name}: overrun {overrun:+.3f} s, lag {lag:.3f} s, {after}, {dict(kinds)}, copies {twice}")


async def until_made(pair: Pair) -> None:
    """Make the queue; a cluster on a busy machine may be about to find a master again."""
    async with asyncio.timeout(60):
        while True:
            try:
                await pair.primary.admin.create(Entity(QUEUE))
            except TransportError as error:
                if error.kind is not FailureKind.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.2)
            else:
                return


@asynccontextmanager
async def traffic(
    primary: str, secondary: str, hands: Hands, timeouts: Sequence[float] = MIXED, made: bool = False, **changed: Any
) -> AsyncIterator[Traffic]:
    """A pair with an empty queue that takes messages, and that has been sent to for a while."""
    async with Pair.connect(primary, secondary, options=replace(OPTIONS, **changed)) as pair:
        if not made:
            await until_made(pair)
        under = Traffic(pair, hands, timeouts)
        try:
            # The first one opens the connection, which on a busy machine may take longer than some of the limits.
            await under.one(OPTIONS.send_timeout)
            # It starts as if an earlier process had left messages, and finds none.
            await until(lambda: pair.state(QUEUE) is EntityState.HEALTHY)
            under.events.clear()
            under.flow()
            await until(lambda: len(under.sends) >= 20)
            await until(lambda: pair.state(QUEUE) is not DOWN)
            yield under
        finally:
            await under.stop()
            await under.heart.stop()

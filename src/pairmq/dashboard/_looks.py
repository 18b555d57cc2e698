"""What a dashboard shows: a pair, or two brokers that are only looked at; and looks at both while the page is shown.

They show what brokers and backlog hold, and when it will be empty. Names, reasons and error texts come from messages
and brokers: they are made fit to be shown here.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

from pairmq.core import PairOptions
from pairmq.core.envelope import DIVERTED_AT
from pairmq.model import (
    ConfigurationError,
    Delivery,
    Entity,
    EntityState,
    PairClosed,
    PairFaulted,
    Source,
    TransportError,
)
from pairmq.model.events import Side
from pairmq.pair import Pair
from pairmq.runner import LOOK_INTERVAL, Agreement, find_agreement, named_queues, outbox_queue
from pairmq.transport import Depth, Transactional, Transport, counts_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Brokers:
    """Two brokers to be looked at, without a pair: nothing is made there, sent or moved.

    Args:
        primary: the transport to the primary; closed by its creator.
        secondary: likewise.
        options: how many backlog queues there are, what they are called, and how long an answer may take.

    Raises:
        ConfigurationError: the options give a name that no queue can have.
    """

    primary: Transport
    secondary: Transport
    options: PairOptions = field(default_factory=PairOptions)

    def __post_init__(self) -> None:
        self.queues()

    def queues(self) -> tuple[Entity, ...]:
        """The backlog queues, by their index; lanes that the options name come last."""
        return named_queues(self.primary, self.options)


class Watched:
    """A pair or two brokers, asked in one way."""

    def __init__(self, of: Pair | Brokers) -> None:
        self.pair = of if isinstance(of, Pair) else None
        self.brokers = of if isinstance(of, Brokers) else None
        self.primary = of.primary
        self.secondary = of.secondary
        self.options = of.options

    @property
    def name(self) -> str:
        return f"{self.primary.endpoint.name}>{self.secondary.endpoint.name}"

    @property
    def hosts_syphon(self) -> bool:
        """Whether this process moves messages back to the primary."""
        return self.pair is not None and self.options.enable_syphon

    def queues(self) -> tuple[Entity, ...]:
        """The backlog queues; none while the pair is not open."""
        return self._of_pair(lambda pair: pair.backlog_queues, ()) if self.brokers is None else self.brokers.queues()

    def outbox(self) -> Entity | None:
        return outbox_queue(self.primary) if isinstance(self.secondary, Transactional) else None

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of the entities that this process uses: see `Pair.states`."""
        return self._of_pair(lambda pair: pair.states(), {})

    def syphon_holds(self) -> frozenset[Entity]:
        """The entities that an operator keeps this process's syphon from delivering to."""
        return self._of_pair(lambda pair: pair.syphon_holds, frozenset())

    def moved(self) -> tuple[int, int]:
        """Messages that this process's syphon has moved, of the backlog and of the outbox."""
        return self._of_pair(lambda pair: (pair.moved - pair.outbox_moved, pair.outbox_moved), (0, 0))

    def _of_pair(self, ask: Callable[[Pair], T], otherwise: T) -> T:
        """What the pair says; without one, and while it is not open, something else."""
        try:
            return otherwise if self.pair is None else ask(self.pair)
        except (ConfigurationError, PairClosed, PairFaulted):
            return otherwise


LONGEST = 300
"""Characters of a text that are shown."""

_LOGIN = re.compile(r"://\S*@")
_CUT_URL = re.compile(r"://\S*$")
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


def shown(text: str, longest: int = LONGEST) -> str:
    """Make a text fit to be shown to people, and cut it to ``longest`` characters.

    What looks like a login or a key is removed, though no transport reports any; control characters, and those that
    turn the direction of text around, become escapes. Markup needs nothing here: the page never reads a text as markup.
    """
    near = text[: 4 * longest]
    cut = _KEY.sub(r"\1…", _LOGIN.sub("://…@", near))
    if len(text) > len(near):
        cut = _CUT_URL.sub("://…", cut)  # it may have been cut before the sign that ends a login
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    if len(cut) > longest or len(text) > len(near):
        return f"{cut[:longest]}…"
    return cut


def plural(number: int, word: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


_log = logging.getLogger("pairmq")

_LONGEST = 5.0  # s, upper bound of a response time: the page should show a missing response
_CHECKS, _COUNTS, _AGES, _PROBES, _AGREEMENTS = 5.0, 2.0, 4.0, 5.0, 30.0  # s between two looks
_AT_ONCE = 8
_AGED = 50  # queues whose oldest message is looked at


@dataclass(frozen=True, slots=True)
class Answer:
    """How a broker, or an entity of the primary, answered: when it was asked, how long that took, and why it failed."""

    at: float
    seconds: float
    error: str | None


class Looks:
    """What was seen at the brokers the last time; they are queried only on demand, by `wanted`."""

    def __init__(self, watched: Watched, entities: Sequence[Entity] = ()) -> None:
        self.entities = tuple(entities)
        self.brokers: dict[Side, Answer] = {}
        self.depths: tuple[Depth, ...] | None = None
        self.counted_at: float | None = None
        self.oldest: dict[Entity, float] = {}
        """Instants at which the oldest message of each queue was diverted, where it could be seen."""
        self.probes: dict[Entity, Answer] = {}
        self.agreement: Agreement | None = None
        """What other processes of the pair use; None until it was asked."""
        self.drain = Drain(own=watched.hosts_syphon)
        self.outbox: Depth | None = None
        """None without an outbox, and until it was counted."""
        self.outbox_drain = Drain(own=watched.hosts_syphon)
        self._watched = watched
        self._limit = min(_LONGEST, watched.options.attempt_timeout)
        self._chores = [
            _Chore(_CHECKS, lambda: self._check(Side.PRIMARY, watched.primary)),
            _Chore(_CHECKS, lambda: self._check(Side.SECONDARY, watched.secondary)),
            _Chore(_COUNTS, self._count),
        ]
        if watched.secondary.capabilities.quiet_peek:
            self._chores.append(_Chore(_AGES, self._look_at_ages))
        self._chores.append(
            _Chore(_AGREEMENTS if watched.secondary.capabilities.quiet_peek else LOOK_INTERVAL, self._agree)
        )
        if self.entities:
            self._chores.append(_Chore(_PROBES, self._probe))

    def wanted(self) -> None:
        for chore in self._chores:
            chore.begin_if_due()

    async def first(self, seconds: float) -> None:
        """Wait for the first looks to end, for at most so long."""
        tasks = [chore.task for chore in self._chores if chore.task is not None and chore.runs == 1]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        tasks = [chore.task for chore in self._chores if chore.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _check(self, side: Side, transport: Transport) -> None:
        self.brokers[side] = await self._answer(transport.admin.check())

    async def _answer(self, operation: Awaitable[None]) -> Answer:
        at, started = time.time(), time.monotonic()
        error = None
        try:
            async with asyncio.timeout(self._limit):
                await operation
        except Exception as failure:  # any error means a failed request
            error = self._words(failure)
        return Answer(at, time.monotonic() - started, error)

    async def _agree(self) -> None:
        watched = self._watched
        self.agreement = await find_agreement(watched.primary.endpoint, watched.secondary, watched.options, self._limit)

    async def _count(self) -> None:
        queues = self._watched.queues()
        if not queues:
            return
        others = () if self.agreement is None else self.agreement.found
        queues = tuple(dict.fromkeys((*queues, *others)))
        outbox = self._watched.outbox()
        every = queues if outbox is None else (*queues, outbox)
        at = time.time()
        depths = list(await counts_of(self._watched.secondary, every, self._limit))
        moved, outbox_moved = self._watched.moved()
        if outbox is not None:
            self.outbox = depths.pop()
            if self.outbox.pending is not None:
                self.outbox_drain.counted(Sample(at, self.outbox.pending, outbox_moved))
        self.depths = tuple(depths)
        self.counted_at = at
        if all(depth.error is None for depth in self.depths):
            self.drain.counted(Sample(at, sum(depth.pending or 0 for depth in self.depths), moved))

    async def _look_at_ages(self) -> None:
        fullest = sorted(self.depths or (), key=lambda depth: -(depth.pending or 0))[:_AGED]
        if self.outbox is not None:
            fullest.append(self.outbox)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(queue: Entity) -> tuple[Entity, float | None]:
            async with turns:
                try:
                    async with asyncio.timeout(self._limit):
                        found = await self._watched.secondary.admin.peek(Source(queue), 1)
                except (TransportError, TimeoutError):
                    return queue, None
            return queue, _diverted_at(found[0]) if found else None

        seen = await asyncio.gather(*(one(depth.queue) for depth in fullest if depth.pending))
        self.oldest = {queue: at for queue, at in seen if at is not None}

    async def _probe(self) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(entity: Entity) -> None:
            async with turns:
                self.probes[entity] = await self._answer(self._watched.primary.admin.probe(entity))

        await asyncio.gather(*(one(entity) for entity in self.entities))

    def _words(self, failure: Exception) -> str:
        if isinstance(failure, TimeoutError):
            return f"no answer within {self._limit:g} s"
        return shown(str(failure) or type(failure).__name__)


class _Chore:
    """Something that is done again once a while has passed, and never twice at a time."""

    def __init__(self, interval: float, work: Callable[[], Awaitable[None]]) -> None:
        self.task: asyncio.Task[None] | None = None
        self.runs = 0
        self._reported = False
        self._interval = interval
        self._work = work
        self._due_at = float("-inf")

    def begin_if_due(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._due_at or (self.task is not None and not self.task.done()):
            return
        self.runs += 1
        self._due_at = now + self._interval
        self.task = asyncio.create_task(self._run(), name="dashboard look")

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            # A transport's own fault: it must not end the other looks, nor fill the log.
            if not self._reported:
                self._reported = True
                _log.exception("the dashboard could not query a broker; further failures are not reported")


def _diverted_at(delivery: Delivery) -> float | None:
    """When a message was diverted, as its envelope says, or else the broker."""
    properties: Mapping[str, object] = delivery.message.application_properties
    instant = properties.get(DIVERTED_AT)
    try:
        return datetime.fromisoformat(instant).timestamp() if isinstance(instant, str) else _enqueued_at(delivery)
    except (ValueError, OverflowError, OSError):
        return _enqueued_at(delivery)  # forged: a backlog queue may hold untrusted messages


def _enqueued_at(delivery: Delivery) -> float | None:
    return None if delivery.enqueued_at is None else delivery.enqueued_at.timestamp()


_WINDOW = 20.0
"""Seconds over which the speed is taken."""

_STALE = 10.0
"""Seconds after which a count says nothing of the speed any more."""

MOST_SAMPLES = 600
"""Counts that are kept for the plot of the depth."""


class Sample(NamedTuple):
    """What was counted at one instant, in wall-clock seconds since 1970 UTC."""

    at: float
    pending: int
    moved: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a drain is: the most that was counted since the backlog was empty, and when it is empty at this pace."""

    peak: int
    per_second: float
    seconds_left: float | None


class Drain:
    """How fast the backlog empties: by its own moves, else by what the counts fall, which new messages hide."""

    def __init__(self, *, own: bool) -> None:
        self.samples: deque[Sample] = deque(maxlen=MOST_SAMPLES)
        self._own = own
        self._peak = 0

    def counted(self, sample: Sample) -> None:
        self.samples.append(sample)
        self._peak = max(self._peak, sample.pending) if sample.pending else 0

    def progress(self, now: float, *, stopped: bool = False) -> Progress:
        """How far it is; old counts give no speed, and nothing moves while a broker does not answer."""
        if not self.samples:
            return Progress(0, 0.0, None)
        last = self.samples[-1]
        if stopped or now - last.at > _STALE:
            return Progress(self._peak, 0.0, None)
        first = next(each for each in self.samples if last.at - each.at <= _WINDOW)
        seconds = last.at - first.at
        left = last.moved - first.moved if self._own else first.pending - last.pending
        per_second = max(0.0, left / seconds) if seconds > 0 else 0.0
        seconds_left = last.pending / per_second if per_second and last.pending else None
        return Progress(self._peak, per_second, seconds_left)

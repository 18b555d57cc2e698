"""``pairmq syphon``: moves diverted messages to the primary, as a service or until nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Annotated, Any, Self

from typer import BadParameter, Option

from pairmq.cli._backlog import Depths, count_queues
from pairmq.cli._common import (
    SYPHON,
    PairArguments,
    examples,
    failed_at,
    opened,
    pair_of,
    transport_of,
    with_pair,
    within,
)
from pairmq.cli._dashboard import Serving, address_of, check_dashboard
from pairmq.cli._output import LiveLine, Speed, note, put_json, warn
from pairmq.cli._signals import ENDING, Stop, run_async
from pairmq.cli._values import BadUsage, CommandFailed, Duration, grouped, plural, printable, rate, short_duration
from pairmq.model import Entity, PairMQError, TransportError
from pairmq.model.events import DestinationChanged, Event, MessageDeadLettered, PairEnded, SyphonFailed, Warned

if TYPE_CHECKING:
    from pairmq.pair import Agreement, Pair, Settings
    from pairmq.transport import Transport

_OLD = 5.0  # s after which a count is shown with its age
_LOOK = 0.5  # s between two looks at the processes
_YOUNG_OBJECTS = 20_000  # made between two passes of the garbage collector: a message on its way has a dozen


@dataclass
class SyphonProgress:
    """How far a syphon is: a value, so that those of several processes can be added up."""

    moved: int = 0  # messages moved to the primary
    outbox_moved: int = 0  # of these, those of the outbox
    per_second: float = 0.0  # how many of the others at present
    dead_lettered: int = 0  # messages dead-lettered
    # Messages left by queue, of the last count; None before it, and when a queue could not be asked.
    pending: dict[str, int] | None = None
    unknown: str | None = None  # why not all queues could be asked
    counted: float = 0.0  # seconds since that count
    locked: int = 0  # of those left, received and not yet settled
    # Seconds until locks of a killed syphon end, where nothing moves and none of its limits keep it.
    lock_duration: float | None = None
    failures: int = 0  # of the secondary, at present
    failing: float | None = None  # seconds since the first of them; None without any
    shut: tuple[str, ...] = ()  # destinations that accept nothing
    stranded: dict[str, int] = field(default_factory=dict)  # messages by queue that this pair does not drain
    unread: bool = False  # what other processes wrote into the pair's record: which queues there are is not known
    elsewhere: tuple[str, ...] = ()  # what a person should know of those

    @property
    def left(self) -> int | None:
        """Messages still to be moved; None if that is not known."""
        return None if self.pending is None else sum(self.pending.values())

    @property
    def seconds_to_go(self) -> float | None:
        """Until nothing is left, if it goes on as at present; None where it can't be said, as when a broker fails."""
        stopped = self.failing is not None or self.shut
        return None if stopped or not self.left or not self.per_second else self.left / self.per_second

    @classmethod
    def of_all(cls, parts: Sequence[SyphonProgress]) -> SyphonProgress:
        """Add up those of several processes."""
        unknown = any(part.pending is None for part in parts)
        lasted = [part.failing for part in parts if part.failing is not None]
        locks = [part.lock_duration for part in parts]
        return cls(
            moved=sum(part.moved for part in parts),
            outbox_moved=sum(part.outbox_moved for part in parts),
            per_second=sum(part.per_second for part in parts),
            dead_lettered=sum(part.dead_lettered for part in parts),
            pending=None if unknown else {name: n for part in parts for name, n in (part.pending or {}).items()},
            unknown=next((part.unknown for part in parts if part.unknown is not None), None),
            counted=max((part.counted for part in parts), default=0.0),
            locked=sum(part.locked for part in parts),
            lock_duration=None if None in locks else max(filter(None, locks), default=None),
            failures=sum(part.failures for part in parts),
            failing=max(lasted, default=None),
            shut=tuple(sorted({name for part in parts for name in part.shut})),
            stranded={name: n for part in parts for name, n in part.stranded.items()},
            unread=any(part.unread for part in parts),
            elsewhere=tuple(dict.fromkeys(text for part in parts for text in part.elsewhere)),
        )

    def line(self) -> str:
        outbox = f" ({grouped(self.outbox_moved)} of the outbox)" if self.outbox_moved else ""
        shown = [f"moved {grouped(self.moved)}{outbox}"]
        left = self.left
        if left is None:
            shown.append("left: not known" if self.unknown is None else f"left: not known ({printable(self.unknown)})")
        else:
            counted = f" (counted {short_duration(self.counted)} ago)" if self.counted > _OLD else ""
            shown.append(f"left {grouped(left)}{counted}")
            if left and self.per_second:
                shown.append(rate(self.per_second))
                if (to_go := self.seconds_to_go) is not None:
                    shown.append(f"about {short_duration(to_go)} to go")
            elif self.locked and self.lock_duration is not None:
                held = f"{grouped(self.locked)} locked elsewhere"
                shown.append(f"{held}; a killed syphon's locks end within {self.lock_duration:g} s")
        if self.failing is not None:
            failures = plural(self.failures, "failure")
            shown.append(f"the secondary fails for {short_duration(self.failing)} ({failures})")
        if self.dead_lettered:
            shown.append(f"dead-lettered {grouped(self.dead_lettered)}")
        if self.shut:
            shown.append(f"shut: {', '.join(map(printable, self.shut))}")
        return ", ".join(shown)

    def record(self, **more: object) -> dict[str, object]:
        counted, left = self.pending is not None or self.unknown is not None, self.left
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "moved": self.moved,
            "outbox_moved": self.outbox_moved,
            "left": left,
            "left_age": round(self.counted, 1) if counted else None,
            "locked": self.locked if counted else None,
            "failures": self.failures,
            "per_second": round(self.per_second, 2),
            "seconds_to_go": None if (to_go := self.seconds_to_go) is None else round(to_go, 1),
            "dead_lettered": self.dead_lettered,
            "shut": list(self.shut),
            "stranded": self.stranded,
            **more,
        }


@dataclass
class SyphonEnd:
    progress: SyphonProgress  # how far it came
    emptied: bool  # whether it ended because nothing was left
    fault: str | None = None  # why it could not go on; None if it could
    queues: str = "the backlog is"  # what was to be emptied, and a verb

    def report(self, stop: Stop, until_empty: bool, *, json: bool) -> int:
        """Print it, and give the exit status. Raises `CommandFailed` when it could not go on."""
        progress, status = self.progress, self._status(stop, until_empty)
        if json:
            signalled = stop.name or None
            put_json(progress.record(ended=True, emptied=self.emptied, signal=signalled, exit_status=status))
        moved = plural(progress.moved, "message")
        if self.emptied:
            empty = "the queues of this pair are" if progress.elsewhere else self.queues
            note(f"moved {moved}; {empty} empty")
            for text in progress.elsewhere:
                warn(text)
        else:
            note(f"moved {moved}; left in the backlog: {self._left()}")
        if progress.dead_lettered:
            hint = "look at them with 'pairmq backlog peek --dead-letter'"
            note(f"dead-lettered {plural(progress.dead_lettered, 'message')}: {hint}")
        if self.fault is not None:
            raise CommandFailed(self.fault)
        return status

    def _left(self) -> str:
        if self.progress.left is not None:
            return grouped(self.progress.left)
        why = "the queues were not counted" if self.progress.unknown is None else printable(self.progress.unknown)
        advice = "accepted messages stay there until a syphon moves them; count them with 'pairmq backlog list'"
        return f"not known ({why}): {advice}"

    def _status(self, stop: Stop, until_empty: bool) -> int:
        if self.fault is not None:
            return 1
        if stop.signal == signal.SIGTERM and not until_empty:
            return 0  # how a service is stopped
        if stop.asked:
            return stop.exit_status
        return 1 if self.progress.dead_lettered or self.progress.stranded or self.progress.unread else 0


class ProgressLines(LiveLine):
    """How far a syphon is: a line on a terminal, elsewhere one at each interval; as JSON, or to ``put``."""

    def __init__(
        self, interval: float, *, json: bool, put: Callable[[SyphonProgress | SyphonEnd], None] | None = None
    ) -> None:
        super().__init__(wanted=put is None)
        self.interval = max(0.1, interval)
        self._json = json
        self._put = put
        self._next = 0.0

    def __enter__(self) -> Self:
        self._next = time.monotonic() + self.interval
        return super().__enter__()

    def show(self, progress: SyphonProgress, **more: object) -> None:
        self.draw(progress.line())
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.interval
            self.report(progress, **more)

    def report(self, progress: SyphonProgress, **more: object) -> None:
        if self._put is not None:
            self._put(progress)
        elif self._json:
            put_json(progress.record(**more))
        elif not self.shown:
            note(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {progress.line()}")


class _Process:
    """One of the processes, and what it has reported."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.progress = SyphonProgress()
        self.end: SyphonEnd | None = None

    def read(self) -> bool:
        """Take one report; returns whether more can follow."""
        try:
            value = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            self.end = self.end or SyphonEnd(self.progress, False, f"a process ended with {self._how()}")
            return False
        if isinstance(value, SyphonEnd):
            self.end, value = value, value.progress
        self.progress = value
        return True

    def _how(self) -> str:
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"status {code}"


class SyphonProcesses:
    """Syphons in processes of their own; if one ends early, all are stopped: its queues would be left behind."""

    def __init__(
        self, settings: Settings, queues: Sequence[int], count: int, until_empty: bool, *, interval: float, json: bool
    ) -> None:
        self._until_empty = until_empty
        self._json = json
        self._lines = ProgressLines(interval, json=json)
        self._shares: list[tuple[int, ...] | None] = [tuple(queues[first::count]) for first in range(count)]
        if len(queues) == settings.options.backlog_queue_count:
            # A share keeps no record of the pair, and knows no queues of other processes (SPEC 13.2): one drains all.
            self._shares[0] = None
        rate = settings.options.syphon_max_rate
        if rate is not None:  # the limit is one for all together
            settings = replace(settings, options=replace(settings.options, syphon_max_rate=rate / count))
        self._settings = settings
        self._processes: list[_Process] = []

    async def run(self, stop: Stop) -> int:
        """Move messages to the end; returns the exit status. Raises `CommandFailed` when a process could not go on."""
        ended = asyncio.Event()
        stop.on_request(lambda: self._order(stop.signal or signal.SIGTERM))
        note(f"syphon: {len(self._shares)} processes share the backlog queues")
        try:
            for share in self._shares:
                self._start(share, ended)
            with self._lines:
                await self._watch(stop, ended)
        finally:
            self._order(signal.SIGTERM)
            for each in self._processes:
                await asyncio.to_thread(each.process.join)
        ends = [each.end for each in self._processes if each.end is not None]
        fault = next((end.fault for end in ends if end.fault is not None), None)
        end = SyphonEnd(self._progress(), all(end.emptied for end in ends), fault)
        return end.report(stop, self._until_empty, json=self._json)

    def _start(self, share: tuple[int, ...] | None, ended: asyncio.Event) -> None:
        # Not forked: a forked process would have this one's connections, threads and loop.
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(self._settings, share, self._until_empty, theirs))
        with _signals_held_back():
            process.start()
        theirs.close()
        each = _Process(process, ours)
        self._processes.append(each)
        loop = asyncio.get_running_loop()

        def on_report() -> None:
            if not each.read():
                loop.remove_reader(ours.fileno())
                ours.close()
                if each.end is not None and each.end.fault is not None:
                    self._order(signal.SIGTERM)
                if all(other.pipe.closed for other in self._processes):
                    ended.set()

        loop.add_reader(ours.fileno(), on_report)

    def _order(self, number: int) -> None:
        for each in self._processes:
            if not each.pipe.closed:
                with contextlib.suppress(OSError):  # it has just ended, which is read next
                    each.pipe.send(number)

    async def _watch(self, stop: Stop, ended: asyncio.Event) -> None:
        noted = False
        while not ended.is_set():
            if stop.asked and not noted:
                noted = True
                note(f"{stop.name}: finishing messages in flight")
            self._lines.show(self._progress(), processes=[each.progress.moved for each in self._processes])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK, self._lines.interval)):
                    await ended.wait()

    def _progress(self) -> SyphonProgress:
        return SyphonProgress.of_all([each.progress for each in self._processes])


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """A terminal sends Ctrl-C to all processes of a command: one would be killed that does not ignore it yet."""
    resource_tracker.ensure_running()  # to start it later would end this
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


EPILOG = examples(
    "pairmq syphon --config pair.toml",
    "pairmq syphon --until-empty --max-rate 500",
    "pairmq syphon --dashboard 8765",
    "pairmq syphon --processes 2 --until-empty",
    "pairmq syphon --queues 0-4      # and --queues 5-9 on another machine",
    "pairmq syphon --json --metrics-interval 60s >> syphon.jsonl",
)


@with_pair(SYPHON)
def syphon(
    pair: PairArguments,
    until_empty: Annotated[
        bool, Option("--until-empty", help="Exit when all backlog queues, and the outbox, are empty.")
    ] = False,
    metrics_interval: Annotated[float, Duration("--metrics-interval", "Between two progress lines.")] = "10s",  # type: ignore[assignment]  # the parser reads defaults too
    dashboard: Annotated[
        str | None,
        Option("--dashboard", metavar="[HOST:]PORT", help="Serve the dashboard, as 'pairmq dashboard' does."),
    ] = None,
    dashboard_token_file: Annotated[
        str | None,
        Option(
            "--dashboard-token-file",
            metavar="FILE",
            help="Holds its operators' token; else PAIRMQ_DASHBOARD_TOKEN, else random.",
        ),
    ] = None,
    processes: Annotated[
        int, Option("--processes", metavar="N", min=1, help="Share the backlog queues among N processes.")
    ] = 1,
    queues: Annotated[
        str | None,
        Option("--queues", metavar="LIST", help="Drain only the backlog queues of these indexes: 0,3,5-9."),
    ] = None,
    json: Annotated[bool, Option("--json", help="Write each progress line as JSON on stdout.")] = False,
) -> int:
    """Move messages from the backlog queues to their destinations on the primary.

    Runs until a signal. Several syphons of one pair are safe, and each drains all queues unless --queues says which;
    --processes starts several here and reports them as one. Exit status: 0 after SIGTERM, 130 after SIGINT, 1 when the
    pair faulted; with --until-empty 0 when all queues are empty, 1 when a message had to be dead-lettered, or when
    messages are left in backlog queues that this pair does not drain, which are named, or may be, as the record of the
    pair can't be read.
    """
    settings = pair.settings(enable_syphon=True)
    share = _indexes(queues, settings.options.backlog_queue_count)
    if dashboard_token_file is not None and dashboard is None:
        raise BadUsage("--dashboard-token-file is for the page of --dashboard")
    if processes > 1:
        if dashboard is not None:
            raise BadParameter("a dashboard shows one process: leave out --dashboard or --processes")
        if processes > len(share):
            raise BadParameter(f"--processes: {processes} processes can't share {plural(len(share), 'queue')}")
        group = SyphonProcesses(settings, share, processes, until_empty, interval=metrics_interval, json=json)
        return run_async(group.run, graceful=True)
    page = None
    if dashboard is not None:
        check_dashboard()
        page = Serving(*address_of(dashboard), "--dashboard", "--dashboard-token-file", dashboard_token_file)
    job = _job(settings, None if queues is None else share, until_empty, metrics_interval, json=json, page=page)
    return run_async(job.run, graceful=True)


def _job(
    settings: Settings, share: Collection[int] | None, until_empty: bool, interval: float, **more: Any
) -> SyphonJob:
    return SyphonJob(
        pair_of(settings, share),
        lambda: transport_of(settings.secondary),
        until_empty=until_empty,
        interval=interval,
        share=share,
        **more,
    )


def _work(settings: Settings, share: tuple[int, ...] | None, until_empty: bool, orders: Connection) -> None:
    """Be one of several processes: what a signal asks for comes from the one that started this one."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    async def run() -> None:
        stop = Stop()

        def on_order() -> None:
            try:
                stop.request(orders.recv())
            except (EOFError, OSError):  # it has ended without waiting for this one
                if stop.asked:
                    os._exit(1)
                asyncio.get_running_loop().remove_reader(orders.fileno())
                stop.request(signal.SIGTERM)

        def put(value: SyphonProgress | SyphonEnd) -> None:
            with contextlib.suppress(OSError):
                orders.send(value)

        asyncio.get_running_loop().add_reader(orders.fileno(), on_order)
        try:
            await _job(settings, share, until_empty, _LOOK, json=False, put=put).run(stop)
        except (CommandFailed, PairMQError) as error:
            put(SyphonEnd(SyphonProgress(), False, str(error)))

    asyncio.run(run())


def _indexes(text: str | None, count: int) -> tuple[int, ...]:
    """Read ``0,3,5-9``; all without a text."""
    if text is None:
        return tuple(range(count))
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise BadParameter(f"--queues: {part.strip()!r} is not an index: write indexes and ranges, as in 0,3,5-9")
        low, high = int(first), int(last or first)
        if not low <= high < count:
            raise BadParameter(f"--queues: {part.strip()} is not within 0 to {count - 1}, the pair's backlog queues")
        chosen.update(range(low, high + 1))
    return tuple(sorted(chosen))


_NAMED = 10  # dead-lettered messages that are reported individually
_SAME = 60.0  # s for which a reason is not repeated
_REASONS = 20  # that are kept apart
_SETTLED = 2.0  # s without an error after which a retry counts as successful
_RECOUNT = 2.0  # s that the last count may take
_PATIENCE = 2.0  # s of silence after which it says what it waits for
_IDLE_SHOWN, _IDLE = 5.0, 30.0  # s between two counts while nothing moves: on a terminal, elsewhere


class Failures:
    """Failures of the secondary in few lines, as each pump meets each; what soon begins again is only counted."""

    def __init__(self) -> None:
        self.since: float | None = None
        """When they began, by the clock of `failed`; None without any."""
        self.count = 0
        self._last = 0.0
        self._due: dict[str, float] = {}  # by queue: when its next retry should have shown whether it works
        self._reasons: dict[str, float] = {}  # reported ones, and when they last occurred
        self._quiet = False

    def failed(self, event: SyphonFailed, now: float) -> str | None:
        self._reasons = {reason: at for reason, at in self._reasons.items() if now - at < _SAME}
        reason = event.error.replace(event.queue, "")
        new = reason not in self._reasons and len(self._reasons) < _REASONS
        if reason in self._reasons or new:
            self._reasons[reason] = now
        if self.since is None:
            self.since, self.count, self._quiet = now, 0, not new
        self._quiet = self._quiet and not new
        self.count += 1
        self._last = now
        self._due[event.queue] = now + event.retry_after + _SETTLED
        return f"{event.queue}: {event.error}; trying again" if new else None

    def ended(self, now: float, counted_at: float) -> str | None:
        if self.since is None or counted_at <= self._last or now < max(self._due.values()):
            return None
        lasted, self.since = self._last - self.since, None
        self._due.clear()
        if self._quiet:
            return None
        return f"the secondary responds again, after {plural(self.count, 'failure')} in {short_duration(lasted)}"


@dataclass(eq=False)
class SyphonJob:
    """One run of the command, with the pair's syphon draining the queues of ``share``.

    ``recount`` connects once more, to count what is left after the pair has closed; ``put`` takes each progress and the
    end, instead of the terminal and stdout.
    """

    pair: Pair
    recount: Callable[[], Transport]
    _: KW_ONLY
    until_empty: bool
    interval: float
    json: bool
    page: Serving | None = None
    share: Collection[int] | None = None
    put: Callable[[SyphonProgress | SyphonEnd], None] | None = None

    def __post_init__(self) -> None:
        self._lines = ProgressLines(self.interval, json=self.json, put=self.put)
        self._speed = Speed()
        self._per_second = 0.0
        self._depths: Depths | None = None
        self._depths_at = 0.0
        self._moved, self._moved_at = 0, math.inf  # when it was seen to grow last
        self._agreement: Agreement | None = None
        self._counted_at = -math.inf
        self._counted_progress = (-1, -1)
        self._was_moving = False
        self._dead_lettered = 0
        self._shut: dict[str, str] = {}  # destination -> why nothing goes there
        self._fault: str | None = None
        self._failures = Failures()
        self._answered_at = -math.inf  # the last count began that all queues answered

    async def run(self, stop: Stop) -> int:
        """Move messages until a signal, or until nothing is left; returns the exit status."""
        if self.page is None:
            return await self._run(stop)
        # It is begun first, as its port may be taken, and ends last: it shows how the pair ends.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.pair.close)
            self.page.announce(*await self.page.begin(stack, self.pair))
            return await self._run(stop)

    async def _run(self, stop: Stop) -> int:
        limit = self.pair.options.attempt_timeout
        if self.until_empty:
            # As a service it waits for its brokers; a run that is to end must not wait forever.
            try:
                await stop.or_result(within(limit, self.pair.secondary.admin.check()))
            except TransportError as error:
                await self.pair.close()
                raise failed_at(self.pair.secondary, error) from error
        self.pair.subscribe(self._on_event, per_message=False)
        if self.put is None:
            note(f"syphon: {self.pair.secondary.endpoint} → {self.pair.primary.endpoint}")
        # What was loaded up to here stays to the end. The collector would look through all of it again and again, which
        # costs a busy syphon a fifth of its time; and a tenth, to look through the messages that are on their way.
        gc.freeze()
        gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
        patience = asyncio.get_running_loop().call_later(_PATIENCE, self._say_it_waits)
        try:
            async with opened(self.pair):
                patience.cancel()
                queues = self._queues()
                with self._lines:
                    emptied = await self._watch(stop, limit)
                if stop.asked and self.put is None:
                    note(f"{stop.name}: finishing messages in flight")
        finally:
            patience.cancel()
        if not emptied:
            # Locked messages have been moved or released by now.
            async with self.recount() as secondary:
                self._depths_at = time.monotonic()
                self._depths = await count_queues(secondary, queues, min(limit, _RECOUNT))
        return self._end(stop, emptied)

    def _say_it_waits(self) -> None:
        if self.put is None:
            note(f"{_clock()} waiting for {self.pair.secondary.endpoint} to respond")

    async def _watch(self, stop: Stop, limit: float) -> bool:
        """Poll the backlog; returns whether it ended because all queues are empty."""
        self._moved_at = time.monotonic()
        while not stop.asked and self._fault is None:
            if self._count_due(time.monotonic()):
                counting = count_queues(self.pair.secondary, self._queues(), limit)
                began = time.monotonic()
                depths = await stop.or_result(counting)
                if depths is not None:
                    self._depths, self._depths_at = depths, began
                    if depths.error is None:
                        self._answered_at = began
                if self.until_empty and self._depths is not None and self._depths.known_empty and not stop.asked:
                    # That these are empty says nothing of queues that only other processes know (SPEC 13.2).
                    empty = await stop.or_result(self._outbox_is_empty(limit))
                    agreement = await stop.or_result(self.pair.agreement(everywhere=True, timeout=limit))
                    if empty and agreement is not None and self._nothing_more(agreement):
                        self._agreement = agreement
                        return True
            now = time.monotonic()
            over = self._failures.ended(now, self._answered_at)
            if over is not None:
                note(f"{_clock()} {over}")
            if self._drained != self._moved:
                self._moved, self._moved_at = self._drained, now
            self._per_second = self._speed.update(now, self._drained)
            self._lines.show(self.progress())
            await stop.wait(min(_LOOK, self._lines.interval))
        return False

    async def _outbox_is_empty(self, limit: float) -> bool:
        queue = self.pair.outbox_queue
        return queue is None or (await count_queues(self.pair.secondary, [queue], limit)).known_empty

    def _nothing_more(self, agreement: Agreement) -> bool:
        """Whether all queues that the syphon drains were among those that were just counted."""
        counted = {depth.queue for depth in self._depths.queues} if self._depths is not None else set()
        # A share does not drain what only other processes know: a syphon of all queues does.
        return counted.issuperset((*self._queues(), *(agreement.found if self.share is None else ())))

    def _queues(self) -> tuple[Entity, ...]:
        """Those that it drains: its share of the pair's; without one, also lanes and what only other processes know."""
        queues = enumerate(self.pair.backlog_queues)
        return tuple(queue for index, queue in queues if self.share is None or index in self.share)

    @property
    def _drained(self) -> int:
        """What was moved of the queues that are counted: the outbox is in use all the time."""
        return self.pair.moved - self.pair.outbox_moved

    def _count_due(self, now: float) -> bool:
        """Whether to ask all queues: while messages move, once more when they have stopped, and now and then."""
        progress = (self._drained, self._dead_lettered)
        moving = progress != self._counted_progress
        idle = _IDLE_SHOWN if self._lines.shown else _IDLE
        due = self.until_empty or moving or self._was_moving or now - self._counted_at >= idle
        due = due or (self._failures.since is not None and now - self._counted_at >= _RECOUNT)
        if due:
            self._counted_at, self._counted_progress, self._was_moving = now, progress, moving
        return due

    def _on_event(self, event: Event) -> None:
        if isinstance(event, MessageDeadLettered):
            self._dead_lettered += 1
            self._report_dead_letter(event)
        elif isinstance(event, DestinationChanged):
            name = str(event.entity)
            if event.open:
                self._shut.pop(name, None)
                note(f"{_clock()} {printable(name)}: open again")
            else:
                self._shut[name] = event.error or ""
                warn(f"{_clock()} {name} accepts no messages, they wait: {event.error}")
        elif isinstance(event, SyphonFailed):
            line = self._failures.failed(event, time.monotonic())
            if line is not None:
                warn(f"{_clock()} {line}")
        elif isinstance(event, Warned):
            warn(event.text)
        elif isinstance(event, PairEnded) and event.fault is not None:
            self._fault = event.fault

    def _report_dead_letter(self, event: MessageDeadLettered) -> None:
        """A deleted entity can dead-letter a whole backlog: the first ones are reported, all are counted."""
        if self._dead_lettered <= _NAMED:
            message = f"message {event.message_id or '(no id)'} for {event.entity or '(unknown)'}"
            warn(f"{message} was dead-lettered in {event.queue}: {event.reason}: {event.description}")
        elif self._dead_lettered == _NAMED + 1:
            warn("further dead-lettered messages are counted, not shown")

    def progress(self) -> SyphonProgress:
        from pairmq.runner import backlog_properties

        depths, agreement, now = self._depths, self._agreement, time.monotonic()
        failing = None if self._failures.since is None else now - self._failures.since
        strays = () if agreement is None else agreement.strays
        problems = () if agreement is None else agreement.record.problems
        unread = () if agreement is None or agreement.unread is None else (agreement.unread,)
        return SyphonProgress(
            moved=self.pair.moved,
            outbox_moved=self.pair.outbox_moved,
            per_second=self._per_second,
            dead_lettered=self._dead_lettered,
            pending=None if depths is None or depths.error is not None else depths.by_queue,
            unknown=None if depths is None else depths.error,
            counted=0.0 if depths is None else now - self._depths_at,
            locked=0 if depths is None else depths.locked,
            lock_duration=(backlog_properties(self.pair.options).lock_duration or 0.0) if self._waits() else None,
            failures=0 if failing is None else self._failures.count,
            failing=failing,
            shut=tuple(sorted(self._shut)),
            stranded={stray.queue.path: stray.pending for stray in strays},
            unread=bool(problems),
            elsewhere=(*map(str, strays), *problems, *unread),
        )

    def _waits(self) -> bool:
        """Whether nothing moves although nothing of this syphon's own keeps it from moving: others hold it."""
        limited = self._shut or self.pair.options.syphon_max_rate is not None
        return not limited and time.monotonic() - self._moved_at >= _SETTLED

    def _end(self, stop: Stop, emptied: bool) -> int:
        fault = None if self._fault is None else f"the pair has faulted: {self._fault}"
        queues = "the backlog is" if self.share is None else "these queues are"
        end = SyphonEnd(self.progress(), emptied, fault, queues)
        if self.put is None:
            return end.report(stop, self.until_empty, json=self.json)
        self.put(end)
        return 0


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")

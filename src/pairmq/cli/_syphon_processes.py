"""How far a syphon is, how it ended, and several of them in processes of their own that are shown as one."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from rich.live import Live
from rich.text import Text

from pairmq.cli._output import note, put_json, stderr_console, warn
from pairmq.cli._signals import Stop
from pairmq.cli._values import CommandFailed, grouped, plural, printable, rate, short_duration
from pairmq.pair import Settings

_OLD = 5.0  # s after which a count is shown with its age
_LOOK = 0.5  # s between two looks at the processes


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
    elsewhere: tuple[str, ...] = ()  # what a person should know of those

    @property
    def left(self) -> int | None:
        """Messages still to be moved; None if that is not known."""
        return None if self.pending is None else sum(self.pending.values())

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
                shown += [rate(self.per_second), f"about {short_duration(left / self.per_second)} to go"]
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
            "seconds_to_go": round(left / self.per_second, 1) if left and self.per_second else None,
            "dead_lettered": self.dead_lettered,
            "shut": list(self.shut),
            "stranded": self.stranded,
            **more,
        }


@dataclass
class SyphonEnd:
    """How a syphon ended."""

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
        return 1 if self.progress.dead_lettered or self.progress.stranded else 0


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
    """Syphons in processes of their own: the first drains all backlog queues, each other one its share of them.

    If one of them ends early, the others are stopped: its queues would be left behind silently. ``work`` runs in each:
    it takes the settings, its share, ``until_empty`` and a connection that gives it signals and takes its reports.
    """

    def __init__(
        self,
        settings: Settings,
        queues: Sequence[int],
        count: int,
        work: Callable[[Settings, tuple[int, ...] | None, bool, Connection], None],
        until_empty: bool,
        *,
        interval: float,
        json: bool,
    ) -> None:
        self._work = work
        self._until_empty = until_empty
        self._interval = max(0.1, interval)
        self._json = json
        self._shares: list[tuple[int, ...] | None] = [tuple(queues[first::count]) for first in range(count)]
        if len(queues) == settings.options.backlog_queue_count:
            # A share keeps no record of the pair, and knows no queues of other processes (SPEC 13.2): one drains all.
            self._shares[0] = None
        self._settings = self._limited(settings, count)
        self._processes: list[_Process] = []
        console = stderr_console()
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    @staticmethod
    def _limited(settings: Settings, count: int) -> Settings:
        """A limit of the rate is one for all together."""
        rate = settings.options.syphon_max_rate
        if rate is None:
            return settings
        return replace(settings, options=replace(settings.options, syphon_max_rate=rate / count))

    async def run(self, stop: Stop) -> int:
        """Move messages until a signal, or until nothing is left; returns the exit status. Raises `CommandFailed` when
        one of the processes could not go on."""
        ended = asyncio.Event()
        stop.on_request(lambda: self._order(stop.signal or signal.SIGTERM))
        note(f"syphon: {len(self._shares)} processes share the backlog queues")
        try:
            for share in self._shares:
                self._start(share, ended)
            if self._live is not None:
                self._live.start()
            await self._watch(stop, ended)
        finally:
            if self._live is not None:
                self._live.stop()
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
        process = context.Process(target=self._work, args=(self._settings, share, self._until_empty, theirs))
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
        next_line = time.monotonic() + self._interval
        noted = False
        while not ended.is_set():
            if stop.asked and not noted:
                noted = True
                note(f"{stop.name}: finishing messages in flight")
            if self._live is not None:
                self._live.update(Text(self._progress().line(), no_wrap=True, overflow="ellipsis"), refresh=True)
            if time.monotonic() >= next_line:
                next_line = time.monotonic() + self._interval
                self._report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK, self._interval)):
                    await ended.wait()

    def _report(self) -> None:
        if self._json:
            put_json(self._progress().record(processes=[each.progress.moved for each in self._processes]))
        elif self._live is None:
            note(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {self._progress().line()}")

    def _progress(self) -> SyphonProgress:
        return SyphonProgress.of_all([each.progress for each in self._processes])

"""What ``pairmq syphon`` does: runs a pair with its syphon, and tells how far it is."""

from __future__ import annotations

import gc
import math
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime

from rich.live import Live
from rich.text import Text

from pairmq.cli._backlog_counts import Depths, count_queues
from pairmq.cli._common import failed_at, within
from pairmq.cli._dashboard_serve import Serving
from pairmq.cli._errors import CommandFailed, printable
from pairmq.cli._output import note, put_json, stderr_console, warn
from pairmq.cli._progress import Speed
from pairmq.cli._signals import Stop
from pairmq.cli._values import grouped, plural, rate, short_duration
from pairmq.model import TransportError
from pairmq.model.events import DestinationChanged, Event, MessageDeadLettered, PairEnded, SyphonFailed, Warned
from pairmq.pair import Agreement, Pair, Stray
from pairmq.transport import Transport

_LOOK = 0.5  # s between two looks at what was moved
_NAMED = 10  # dead-lettered messages that are told one by one
_RECOUNT = 2.0  # s that the last count may take
_IDLE_SHOWN, _IDLE = 5.0, 30.0  # s between two counts while nothing moves: on a terminal, elsewhere


class SyphonJob:
    """One run of the command.

    Args:
        pair: with the syphon enabled, not yet open.
        recount: makes another connection to the secondary, to count what is left after the pair has closed.
        until_empty: leave when nothing is left.
        interval: seconds between two progress lines.
        json: write them as JSON on stdout.
        page: where a dashboard is served meanwhile; None for nowhere.
    """

    def __init__(
        self,
        pair: Pair,
        recount: Callable[[], Transport],
        *,
        until_empty: bool,
        interval: float,
        json: bool,
        page: Serving | None = None,
    ) -> None:
        self._pair = pair
        self._recount = recount
        self._until_empty = until_empty
        self._interval = interval
        self._json = json
        self._page = page
        self._speed = Speed()
        self._per_second = 0.0
        self._depths: Depths | None = None
        self._agreement: Agreement | None = None
        self._counted_at = -math.inf
        self._counted_progress = (-1, -1)
        self._was_moving = False
        self._dead_lettered = 0
        self._shut: dict[str, str] = {}  # destination -> why nothing goes there
        self._fault: str | None = None
        self._failure: str | None = None
        console = stderr_console()
        self._live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    async def run(self, stop: Stop) -> int:
        """Move messages until a signal, or until nothing is left; returns the exit status."""
        if self._page is None:
            return await self._run(stop)
        # It is begun first, as its port may be taken, and ends last: it shows how the pair ends.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._pair.close)
            self._page.tell(*await self._page.begin(stack, self._pair))
            return await self._run(stop)

    async def _run(self, stop: Stop) -> int:
        limit = self._pair.options.attempt_timeout
        if self._until_empty:
            # As a service it waits for its brokers; a run that is to end must not wait for ever.
            try:
                await stop.or_result(within(limit, self._pair.secondary.admin.check()))
            except TransportError as error:
                await self._pair.close()
                raise failed_at(self._pair.secondary, error) from error
        self._pair.subscribe(self._on_event, per_message=False)
        note(f"syphon: {self._pair.secondary.endpoint} → {self._pair.primary.endpoint}")
        # What was loaded up to here stays to the end. The collector would look through all of it again and again, which
        # costs a busy syphon a fifth of its time.
        gc.freeze()
        try:
            async with self._pair:
                queues = self._pair.backlog_queues
                emptied = await self._watch(stop, limit)
                if stop.asked:
                    note(f"{stop.name}: finishing what is in hand")
        finally:
            if self._live is not None:
                self._live.stop()
        if not emptied:
            # What was in hand has been moved or given back by now.
            async with self._recount() as secondary:
                self._depths = await count_queues(secondary, queues, min(limit, _RECOUNT))
        return self._end(stop, emptied)

    async def _watch(self, stop: Stop, limit: float) -> bool:
        """Look at the backlog again and again; tells whether it was left because all queues are empty."""
        if self._live is not None:
            self._live.start()
        next_line = time.monotonic() + self._interval
        while not stop.asked and self._fault is None:
            if self._count_due(time.monotonic()):
                counting = count_queues(self._pair.secondary, self._pair.backlog_queues, limit)
                self._depths = await stop.or_result(counting) or self._depths
                if self._until_empty and self._depths is not None and self._depths.known_empty and not stop.asked:
                    # That these are empty says nothing of queues that only other processes know (SPEC 13.2).
                    agreement = await stop.or_result(self._pair.agreement(everywhere=True, timeout=limit))
                    if agreement is not None and self._nothing_more(agreement):
                        self._agreement = agreement
                        return True
            now = time.monotonic()
            self._per_second = self._speed.update(now, self._pair.moved)
            if self._live is not None:
                self._live.update(Text(self._line(), no_wrap=True, overflow="ellipsis"), refresh=True)
            if now >= next_line:
                next_line = now + self._interval
                self._tell()
            await stop.wait(min(_LOOK, self._interval))
        return False

    def _nothing_more(self, agreement: Agreement) -> bool:
        """Whether all queues that the syphon drains were among those that were just counted."""
        counted = {depth.queue for depth in self._depths.queues} if self._depths is not None else set()
        return counted.issuperset((*self._pair.backlog_queues, *agreement.found))

    def _count_due(self, now: float) -> bool:
        """Whether to ask all queues: while messages move, once more when they have stopped, and now and then."""
        progress = (self._pair.moved, self._dead_lettered)
        moving = progress != self._counted_progress
        idle = _IDLE if self._live is None else _IDLE_SHOWN
        due = self._until_empty or moving or self._was_moving or now - self._counted_at >= idle
        if due:
            self._counted_at, self._counted_progress, self._was_moving = now, progress, moving
        return due

    def _on_event(self, event: Event) -> None:
        if isinstance(event, MessageDeadLettered):
            self._dead_lettered += 1
            self._tell_dead_letter(event)
        elif isinstance(event, DestinationChanged):
            name = str(event.entity)
            if event.open:
                self._shut.pop(name, None)
                note(f"{name}: open again")
            else:
                self._shut[name] = event.error or ""
                warn(f"{name} takes no messages, they wait: {event.error}")
        elif isinstance(event, SyphonFailed):
            # An outage of the secondary makes every pump fail again and again: one line for each new reason.
            if event.error != self._failure:
                self._failure = event.error
                warn(f"{event.queue}: {event.error}; trying again")
        elif isinstance(event, Warned):
            warn(event.text)
        elif isinstance(event, PairEnded) and event.fault is not None:
            self._fault = event.fault

    def _tell_dead_letter(self, event: MessageDeadLettered) -> None:
        """A deleted entity can dead-letter a whole backlog: the first ones are told, all are counted."""
        if self._dead_lettered <= _NAMED:
            message = f"message {event.message_id or '(no id)'} for {event.entity or '(unknown)'}"
            warn(f"{message} was dead-lettered in {event.queue}: {event.reason}: {event.description}")
        elif self._dead_lettered == _NAMED + 1:
            warn("further dead-lettered messages are counted, not shown")

    def _tell(self) -> None:
        if self._json:
            put_json(self._record())
        elif self._live is None:
            note(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {self._line()}")

    def _line(self) -> str:
        parts = [f"moved {grouped(self._pair.moved)}"]
        depths = self._depths
        if depths is None or depths.pending is None:
            parts.append("left: not known" if depths is None else f"left: not known ({printable(depths.error or '')})")
        else:
            parts.append(f"left {grouped(depths.pending)}")
            if depths.pending and self._per_second:
                parts += [rate(self._per_second), f"about {short_duration(depths.pending / self._per_second)} to go"]
        if self._dead_lettered:
            parts.append(f"dead-lettered {grouped(self._dead_lettered)}")
        if self._shut:
            parts.append(f"shut: {', '.join(sorted(map(printable, self._shut)))}")
        return ", ".join(parts)

    def _record(self, **more: object) -> dict[str, object]:
        depths = self._depths
        left = None if depths is None else depths.pending
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "moved": self._pair.moved,
            "left": left,
            "per_second": round(self._per_second, 2),
            "seconds_to_go": round(left / self._per_second, 1) if left and self._per_second else None,
            "dead_lettered": self._dead_lettered,
            "shut": sorted(self._shut),
            "stranded": {stray.queue.path: stray.pending for stray in self._stranded},
            **more,
        }

    def _end(self, stop: Stop, emptied: bool) -> int:
        status = self._status(stop)
        if self._json:
            put_json(self._record(ended=True, emptied=emptied, signal=stop.name or None, exit_status=status))
        moved = plural(self._pair.moved, "message")
        if emptied and not self._stranded:
            note(f"moved {moved}; the backlog is empty")
            if self._agreement is not None and self._agreement.unread is not None:
                warn(self._agreement.unread)
        elif emptied:
            note(f"moved {moved}; the queues of this pair are empty")
            for stray in self._stranded:
                warn(str(stray))
        else:
            left = None if self._depths is None else self._depths.pending
            note(f"moved {moved}; left in the backlog: {'not known' if left is None else grouped(left)}")
        if self._dead_lettered:
            hint = "look at them with 'pairmq backlog peek --dead-letter'"
            note(f"dead-lettered {plural(self._dead_lettered, 'message')}: {hint}")
        if self._fault is not None:
            raise CommandFailed(f"the pair has faulted: {self._fault}")
        return status

    def _status(self, stop: Stop) -> int:
        if self._fault is not None:
            return 1
        if stop.signal == signal.SIGTERM and not self._until_empty:
            return 0  # how a service is stopped
        if stop.asked:
            return stop.exit_status
        return 1 if self._dead_lettered or self._stranded else 0

    @property
    def _stranded(self) -> tuple[Stray, ...]:
        return () if self._agreement is None else self._agreement.strays

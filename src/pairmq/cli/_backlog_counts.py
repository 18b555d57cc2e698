"""How much is in the backlog, as far as it can be counted, as a table and as JSON; and whether its processes agree."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pairmq.cli._common import at_broker, within
from pairmq.cli._output import FAIL, cells, complain, stdout_console, table, warn
from pairmq.cli._values import grouped, plural, printable, short_duration
from pairmq.model import Entity, FailureReason, Source, TransportError
from pairmq.runner import Agreement
from pairmq.transport import QueueCounts, Transport, counts_of

MISSING = (
    "a program that opens the pair creates them; if programs of the pair are running, the secondary was emptied or "
    "replaced, and the messages of these queues are lost: see 'The secondary is lost' in the documentation"
)
"""What to do about backlog queues that do not exist."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What one queue holds; without counts and error it does not exist."""

    queue: Entity
    counts: QueueCounts | None
    error: str | None = None

    @property
    def missing(self) -> bool:
        return self.counts is None and self.error is None


@dataclass(frozen=True, slots=True)
class Depths:
    """What all backlog queues hold, by their index."""

    queues: tuple[Depth, ...]

    @property
    def pending(self) -> int | None:
        """Messages still to be moved; None when a queue could not be asked."""
        return None if self.error is not None else self.seen

    @property
    def seen(self) -> int:
        """Messages still to be moved, in the queues that answered."""
        return sum(self.by_queue.values())

    @property
    def by_queue(self) -> dict[str, int]:
        """Likewise, by queue."""
        return {depth.queue.path: depth.counts.pending for depth in self.queues if depth.counts is not None}

    @property
    def locked(self) -> int:
        """Of `seen`, those received and not yet settled; 0 if the broker does not count them."""
        return sum(depth.counts.locked for depth in self.queues if depth.counts is not None)

    @property
    def dead_letter(self) -> int | None:
        """Messages dead-lettered; None when a queue could not be asked."""
        if self.error is not None:
            return None
        return sum(depth.counts.dead_letter for depth in self.queues if depth.counts is not None)

    @property
    def error(self) -> str | None:
        """Why a queue could not be asked; None when all answered."""
        return next((depth.error for depth in self.queues if depth.error is not None), None)

    @property
    def name(self) -> str:
        """The names of all queues as one: ``contoso/x-servicebus-transfer/{0…9}``."""
        names = [depth.queue.path for depth in self.queues]
        if len(names) == 1:
            return names[0]
        at = next(i for i, (zero, one) in enumerate(zip(names[0], names[1], strict=False)) if zero != one)
        before, after = names[0][:at], names[0][at + 1 :]
        row = next((i for i, name in enumerate(names) if name != f"{before}{i}{after}"), len(names))
        more = f", {', '.join(names[row:])}" if row < len(names) else ""
        return f"{before}{{0…{row - 1}}}{after}{more}"

    @property
    def known_empty(self) -> bool:
        """Whether every queue answered and none holds anything to be moved."""
        return self.pending == 0


async def count_queues(transport: Transport, queues: Sequence[Entity], time_limit: float) -> Depths:
    """Count every queue; failures are part of the result."""
    told = await counts_of(transport, queues, time_limit)
    return Depths(tuple(_depth(transport, *each) for each in zip(queues, told, strict=True)))


def _depth(transport: Transport, queue: Entity, told: QueueCounts | TransportError) -> Depth:
    if isinstance(told, QueueCounts):
        return Depth(queue, told)
    missing = told.reason is FailureReason.NOT_FOUND
    return Depth(queue, None, None if missing else at_broker(transport, told))


@dataclass(frozen=True, slots=True)
class OutboxLook:
    """What waits in the outbox (SPEC 12.4)."""

    queue: Entity
    counts: QueueCounts | None = None  # None if it does not exist, or could not be counted
    oldest: float | None = None  # seconds since the oldest message was stored; None without one
    error: str | None = None  # why it could not be counted
    seen_at: float = 0.0  # of the monotonic clock
    growth: float | None = None  # messages a second since the last look, below 0 while it empties

    def as_json(self) -> dict[str, Any]:
        return {
            "queue": self.queue.path,
            "pending": None if self.counts is None else self.counts.pending,
            "dead_letter": None if self.counts is None else self.counts.dead_letter,
            "oldest_seconds": None if self.oldest is None else round(self.oldest, 3),
            "growth_per_second": None if self.growth is None else round(self.growth, 2),
            "error": self.error,
        }

    def __str__(self) -> str:
        if self.counts is None:
            return self.error or "none yet"
        age = "" if self.oldest is None else f", the oldest for {short_duration(self.oldest)}"
        growth = f", {self.growth:+.1f} a second" if self.growth else ""
        dead = f", {grouped(self.counts.dead_letter)} dead-lettered" if self.counts.dead_letter else ""
        return f"{plural(self.counts.pending, 'message')} to be moved{age}{growth}{dead}"


async def see_outbox(
    secondary: Transport, queue: Entity | None, time_limit: float, last: OutboxLook | None = None
) -> OutboxLook | None:
    """Count what is in the outbox, find its age and its growth since the last look; failures are part of the result."""
    if queue is None:
        return None
    try:
        counts = await within(time_limit, secondary.admin.counts(Source(queue)))
        first = await within(time_limit, secondary.admin.peek(Source(queue), 1))
    except TransportError as error:
        missing = error.reason is FailureReason.NOT_FOUND
        return OutboxLook(queue, error=None if missing else at_broker(secondary, error))
    at = first[0].enqueued_at if first else None
    now, growth = time.monotonic(), None
    if last is not None and last.counts is not None and now > last.seen_at:
        growth = (counts.pending - last.counts.pending) / (now - last.seen_at)
    oldest = None if at is None else max(0.0, time.time() - at.timestamp())
    return OutboxLook(queue, counts, oldest, seen_at=now, growth=growth)


def outbox_text(seen: OutboxLook) -> Text:
    """The outbox as one line."""
    return Text(f"outbox: {printable(str(seen))}", FAIL if seen.error else "")


_ALL_SHOWN = 16


def show_depths(depths: Depths, agreement: Agreement, outbox: OutboxLook | None) -> None:
    stdout_console().print(depths_table(depths))
    if outbox is not None:
        stdout_console().print(outbox_text(outbox))
    if depths.error:
        complain(depths.error)
    for text in agreement_lines(agreement):
        warn(text)


def agreement_lines(agreement: Agreement) -> list[str]:
    """Problems with other processes of a pair, the worst first; empty if they agree."""
    worst = [] if agreement.conflict is None else [agreement.conflict]
    last = [] if agreement.unread is None else [agreement.unread]
    return [*worst, *map(str, agreement.strays), *agreement.differences, *last]


def agreement_as_json(agreement: Agreement) -> dict[str, Any]:
    return {
        "conflict": agreement.conflict,
        "stranded": [
            {
                "queue": stray.queue.path,
                "messages": stray.pending,
                "reason": stray.reason,
                "certain": stray.certain,
            }
            for stray in agreement.strays
        ],
        "differences": list(agreement.differences),
        "unread": agreement.unread,
    }


def depths_table(depths: Depths, *, most: int | None = None) -> RenderableType:
    """The queues as a table, with their sum; of many, only those that are not empty, or are missing.

    With room for ``most`` rows only, those in trouble come first, then the fullest; otherwise they are in order.
    """
    listing = table(("queue", "right"), *((name, "right") for name in ("active", "locked", "scheduled", "dead-letter")))
    sums = [0, 0, 0, 0]
    hidden = 0
    rows: list[tuple[float, Sequence[object], str | None]] = []
    for index, depth in enumerate(depths.queues):
        counts = depth.counts
        if counts is None:
            rows.append((math.inf, (index, "missing" if depth.missing else "?", "", "", ""), FAIL))
            continue
        values = [counts.active, counts.locked, counts.scheduled, counts.dead_letter]
        sums = [sum(pair) for pair in zip(sums, values, strict=True)]
        if (len(depths.queues) > _ALL_SHOWN or (most is not None and most < len(depths.queues))) and not any(values):
            hidden += 1
            continue
        rows.append((sum(values), (index, *map(grouped, values)), None))
    less = 0
    if most is not None:
        rows.sort(key=lambda row: -row[0])
        less, rows = max(0, len(rows) - most), rows[:most]
    # The sum comes first: a terminal that is too low for all queues cuts the last ones off.
    listing.add_row(
        *cells(("all", *(map(grouped, sums) if depths.error is None else "????")), "bold"), end_section=True
    )
    for _, row, style in rows:
        listing.add_row(*cells(row, style))
    parts: list[RenderableType] = [Text(f"backlog queues {printable(depths.name)}"), listing]
    missing = sum(depth.missing for depth in depths.queues)
    if missing:
        parts.append(Text(f"{plural(missing, 'queue')} to be created: {MISSING}", FAIL))
    if less:
        parts.append(Text(f"{plural(less, 'queue')} not shown: they hold less"))
    if hidden:
        parts.append(Text(f"{plural(hidden, 'queue')} not shown: empty"))
    return Group(*parts)


def depths_as_json(depths: Depths) -> dict[str, Any]:
    return {
        "pending": depths.pending,
        "dead_letter": depths.dead_letter,
        "queues": [
            {
                "queue": depth.queue.path,
                "exists": None if depth.error else depth.counts is not None,
                "error": depth.error,
                **(
                    {
                        "active": depth.counts.active,
                        "locked": depth.counts.locked,
                        "scheduled": depth.counts.scheduled,
                        "dead_letter": depth.counts.dead_letter,
                    }
                    if depth.counts is not None
                    else {}
                ),
            }
            for depth in depths.queues
        ],
    }

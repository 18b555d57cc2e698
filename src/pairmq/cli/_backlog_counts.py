"""How much is in the backlog, as far as it can be counted, as a table and as JSON; and whether its processes agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from pairmq.cli._common import at_broker
from pairmq.cli._errors import printable
from pairmq.cli._output import FAIL, cells, complain, stdout_console, table, warn
from pairmq.cli._values import grouped, plural
from pairmq.model import Entity, FailureReason, TransportError
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


_ALL_SHOWN = 16


def show_depths(depths: Depths, agreement: Agreement) -> None:
    stdout_console().print(depths_table(depths))
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

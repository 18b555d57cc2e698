"""``pairmq backlog``: count and look at the backlog queues, empty them, and requeue what was dead-lettered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text
from typer import Option

from pairmq.cli._common import (
    BACKLOG,
    Json,
    PairArguments,
    at_broker,
    backlog_queues,
    examples,
    failed_at,
    outbox_of,
    transports_of,
    used,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, cells, complain, delivery_record, note, put_json, say, stdout_console, table, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import BadUsage, CommandFailed, grouped, plural, printable, short_duration
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, Source, TransportError

if TYPE_CHECKING:
    from pairmq.runner import Agreement
    from pairmq.transport import Depth, QueueCounts, Transport

MISSING = (
    "a program that opens the pair creates them; if programs of the pair are running, the secondary was emptied or "
    "replaced, and the messages of these queues are lost: see 'The secondary is lost' in the documentation"
)
"""What to do about backlog queues that do not exist."""


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
        return {depth.queue.path: depth.counts.pending for depth in self.queues if depth.counts is not None}

    @property
    def locked(self) -> int:
        """Of `seen`, those received and not yet settled; 0 if the broker does not count them."""
        return sum(depth.counts.locked for depth in self.queues if depth.counts is not None)

    @property
    def dead_letter(self) -> int | None:
        """Messages dead-lettered; None when a queue could not be asked."""
        return None if self.error is not None else sum(depth.dead_letter or 0 for depth in self.queues)

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
        at = next((i for i, (zero, one) in enumerate(zip(names[0], names[1], strict=False)) if zero != one), None)
        if at is None:  # they have two templates, one of which continues the other
            return ", ".join(names)
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
    from pairmq.transport import counts_of

    return Depths(await counts_of(transport, queues, time_limit))


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
    return [*worst, *map(str, agreement.stranded), *agreement.differences, *last]


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


def depths_table(depths: Depths) -> RenderableType:
    """The queues as a table, with their sum first; of many, only those that are not empty, or are missing."""
    listing = table(("queue", "right"), *((name, "right") for name in ("active", "locked", "scheduled", "dead-letter")))
    sums = [0, 0, 0, 0]
    hidden = 0
    rows: list[tuple[Sequence[object], str | None]] = []
    for index, depth in enumerate(depths.queues):
        counts = depth.counts
        if counts is None:
            rows.append(((index, "missing" if depth.missing else "?", "", "", ""), FAIL))
            continue
        values = [counts.active, counts.locked, counts.scheduled, counts.dead_letter]
        sums = [sum(pair) for pair in zip(sums, values, strict=True)]
        if len(depths.queues) > _ALL_SHOWN and not any(values):
            hidden += 1
        else:
            rows.append(((index, *map(grouped, values)), None))
    listing.add_row(
        *cells(("all", *(map(grouped, sums) if depths.error is None else "????")), "bold"), end_section=True
    )
    for row, style in rows:
        listing.add_row(*cells(row, style))
    parts: list[RenderableType] = [Text(f"backlog queues {printable(depths.name)}")]
    missing = sum(depth.missing for depth in depths.queues)
    if missing:
        parts.append(Text(f"{plural(missing, 'queue')} to be created: {MISSING}", FAIL))
    if hidden:
        parts.append(Text(f"{plural(hidden, 'queue')} not shown: empty"))
    return Group(*parts, listing)


def depths_as_json(depths: Depths) -> dict[str, Any]:
    return {
        "pending": depths.pending,
        "dead_letter": depths.dead_letter,
        "queues": [
            {
                "queue": depth.queue.path,
                "exists": None if depth.error else depth.counts is not None,
                "error": depth.error,
                **({} if depth.counts is None else asdict(depth.counts)),
            }
            for depth in depths.queues
        ],
    }


_EPILOG = examples(
    "pairmq backlog list",
    "pairmq backlog peek --index 3 -n 5",
    "pairmq backlog peek --dead-letter",
    "pairmq backlog requeue",
    "pairmq backlog adopt",
)


group = typer.Typer(no_args_is_help=True, help="Manage the backlog queues on the secondary.", epilog=_EPILOG)

Index = Annotated[int | None, Option("--index", metavar="I", min=0, help="Only this queue.")]
DeadLetter = Annotated[bool, Option("--dead-letter", help="Their dead-letter queues instead.")]
Outbox = Annotated[bool, Option("--outbox", help="Only the outbox.")]


class _Backlog:
    """The secondary's transport and the queues that a command is about."""

    def __init__(self, pair: PairArguments, index: int | None = None, *, outbox: bool = False) -> None:
        settings = pair.settings()
        self.limit = settings.options.attempt_timeout
        primary, secondary = transports_of(settings)
        queues = backlog_queues(primary, settings.options)
        if index is not None and index >= len(queues):
            raise BadUsage(f"--index is {index}: the pair has {len(queues)} backlog queues, 0 to {len(queues) - 1}")
        self.outbox = outbox_of(primary, secondary)
        self.queues: tuple[tuple[int | None, Entity], ...] = tuple(
            (number, queue) for number, queue in enumerate(queues) if index in (None, number)
        )
        if outbox:
            if self.outbox is None:
                raise BadUsage(f"{secondary.endpoint} is not a database: the pair has no outbox")
            if index is not None:
                raise BadUsage("--index is for backlog queues: there is one outbox")
            self.queues = ((None, self.outbox),)
        self.transport: Transport = secondary
        self._all = index is None and not outbox
        self._primary = primary.endpoint
        self._options = settings.options
        self._unknown: tuple[str, ...] = ()  # why other processes may use queues that are not known

    @property
    def status(self) -> int:
        """The exit status of a command that has asked all queues: 1 when there may be others."""
        return 1 if self._unknown else 0

    def warn_of_others(self) -> None:
        """Say that there may be other queues: what was done, or nothing, is not all."""
        for text in self._unknown:
            warn(f"{text}; queues that only other processes use may be left out")

    async def find_others(self, *, with_outbox: bool = False) -> Agreement:
        """Add the queues that other processes of the pair use, unless one queue was asked for (SPEC 13.2)."""
        from pairmq.runner import find_agreement

        agreement = await find_agreement(self._primary, self.transport, self._options, self.limit)
        if agreement.conflict is not None:
            raise CommandFailed(agreement.conflict)
        if self._all:
            self._unknown = (*agreement.record.problems, *(() if agreement.unread is None else (agreement.unread,)))
            first = len(self.queues)
            self.queues += tuple((first + number, queue) for number, queue in enumerate(agreement.found))
            if with_outbox and self.outbox is not None:
                self.queues += ((None, self.outbox),)
        return agreement

    async def adopt(self) -> None:
        """Write the record anew. Raises `TransportError`."""
        from pairmq.runner import write_anew

        await write_anew(self._primary, self.transport, self._options, self.limit)

    @contextmanager
    def at_each(self, done: str = "", counts: Mapping[str, int] | None = None) -> Iterator[None]:
        """Omit a queue that does not exist; before another failure ends the command, say how many were ``done``."""
        try:
            yield
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return
            if counts is not None:
                note(f"{done} so far: {grouped(sum(counts.values()))}")
            raise failed_at(self.transport, error) from error


def _show_done(done: str, counts: Mapping[str, int], json: bool) -> None:
    if json:
        put_json({done: sum(counts.values()), "queues": counts}, indent=2)
    else:
        say(f"{done} {plural(sum(counts.values()), 'message')}")


@group.command(name="list")
@with_pair(BACKLOG)
def list_queues(pair: PairArguments, json: Json = False) -> int:
    """Count the messages of every backlog queue, and of the outbox.

    Exit status: 1 when one could not be counted, or when what other processes use can't be read.
    """
    backlog = _Backlog(pair)

    async def run(stop: Stop) -> int:
        async with backlog.transport:
            agreement = await backlog.find_others()
            depths = await count_queues(backlog.transport, [queue for _, queue in backlog.queues], backlog.limit)
            outbox = await see_outbox(backlog.transport, backlog.outbox, backlog.limit)
        if json:
            stored = None if outbox is None else outbox.as_json()
            more = {"outbox": stored, "agreement": agreement_as_json(agreement)}
            put_json({**depths_as_json(depths), **more}, indent=2)
        else:
            show_depths(depths, agreement, outbox)
        return 1 if depths.error or (outbox is not None and outbox.error) else backlog.status

    return run_async(run)


@group.command()
@with_pair(BACKLOG)
def peek(
    pair: PairArguments,
    index: Index = None,
    number: Annotated[int, Option("-n", "--number", metavar="N", min=1, help="Messages of each queue.")] = 10,
    dead_letter: DeadLetter = False,
    outbox: Outbox = False,
    json: Json = False,
) -> int:
    """Show the oldest messages of the backlog queues and the outbox, without changing them."""
    backlog = _Backlog(pair, index, outbox=outbox)

    async def run(stop: Stop) -> int:
        seen = 0
        async with backlog.transport:
            await backlog.find_others(with_outbox=True)
            for at, queue in backlog.queues:
                found: Sequence[Delivery] = ()
                with backlog.at_each():
                    source = Source(queue, dead_letter=dead_letter)
                    found = await within(backlog.limit, backlog.transport.admin.peek(source, number))
                seen += len(found)
                for delivery in found:
                    if json:
                        put_json({"index": at, "queue": queue.path, **delivery_record(delivery)})
                    else:
                        _show_message(at, delivery)
        if not seen:
            note("nothing there")
        backlog.warn_of_others()
        return backlog.status

    return run_async(run)


@group.command()
@with_pair(BACKLOG)
def purge(
    pair: PairArguments,
    index: Index = None,
    dead_letter: DeadLetter = False,
    outbox: Outbox = False,
    yes: Annotated[bool, Option("--yes", help="Confirm: the messages are lost permanently.")] = False,
    json: Json = False,
) -> int:
    """Delete the messages of the backlog queues, or of their dead-letter queues: they are lost."""
    if not yes:
        raise BadUsage("this deletes messages that were accepted and not yet delivered: add --yes to confirm")
    backlog = _Backlog(pair, index, outbox=outbox)

    async def run(stop: Stop) -> int:
        deleted: dict[str, int] = {}
        async with backlog.transport:
            await backlog.find_others()
            for _, queue in backlog.queues:
                with backlog.at_each("deleted", deleted):
                    source = Source(queue, dead_letter=dead_letter)
                    deleted[queue.path] = await within(backlog.limit, backlog.transport.admin.purge(source))
        _show_done("deleted", deleted, json)
        backlog.warn_of_others()
        return backlog.status

    return run_async(run)


@group.command()
@with_pair(BACKLOG)
def adopt(pair: PairArguments, json: Json = False) -> int:
    """Make these settings the pair's: remove the entries of other processes from its record.

    For a primary that has moved to another address, and after reducing the number of backlog queues. Drain the backlog
    first: removed queues are not checked any more. Running processes add their entries again.
    """
    backlog = _Backlog(pair)

    async def run(stop: Stop) -> int:
        async with used(backlog.transport):
            await backlog.adopt()
        if json:
            put_json({"adopted": True}, indent=2)
        else:
            say("no other settings in the record")
        return 0

    return run_async(run)


@group.command()
@with_pair(BACKLOG)
def requeue(pair: PairArguments, index: Index = None, outbox: Outbox = False, json: Json = False) -> int:
    """Move dead-lettered messages back to their backlog queue or the outbox, to be retried by the syphon.

    Each is sent, confirmed, and only then removed from the dead-letter queue: none is lost; a crash can leave a copy.
    """
    backlog = _Backlog(pair, index, outbox=outbox)

    async def run(stop: Stop) -> int:
        moved: dict[str, int] = {}
        async with backlog.transport:
            await backlog.find_others(with_outbox=True)
            for _, queue in backlog.queues:
                if stop.asked:
                    break
                moved[queue.path] = 0
                with backlog.at_each("requeued", moved):
                    async for count in requeue_queue(backlog.transport, queue, backlog.limit, stop):
                        moved[queue.path] += count
        _show_done("requeued", moved, json)
        backlog.warn_of_others()
        if stop.asked:
            note(f"stopped by {stop.name}: the rest is still in the dead-letter queues")
            return stop.exit_status
        return backlog.status

    return run_async(run, graceful=True)


def _show_message(index: int | None, delivery: Delivery) -> None:
    from pairmq.core import restore

    try:
        message, diversion = restore(delivery.message)
        began = "stored" if index is None else "diverted"
        about = f"to {diversion.entity}, {began} {diversion.diverted_at.isoformat(timespec='seconds')}"
    except EnvelopeError as error:
        message, about = delivery.message, f"no envelope: {error}"
    body = message.body[:60].decode("utf-8", "backslashreplace")
    more = "…" if len(message.body) > 60 else ""
    where = "outbox" if index is None else index
    size = plural(len(message.body), "byte")
    say(printable(f"{where}  {message.message_id or '(no id)'}  {about}  {size}: {body}{more}"))
    if delivery.dead_letter_reason:
        say(printable(f"   dead-lettered: {delivery.dead_letter_reason}: {delivery.dead_letter_description or ''}"))


_BATCH = 100


async def requeue_queue(transport: Transport, queue: Entity, time_limit: float, stop: Stop) -> AsyncIterator[int]:
    """Move what is dead-lettered now. Raises `TransportError`; unconfirmed messages stay where they are."""
    source = Source(queue, dead_letter=True)
    # What a running syphon dead-letters again meanwhile is not moved a second time: it would never end.
    left = (await within(time_limit, transport.admin.counts(Source(queue)))).dead_letter
    receiver, sender = transport.receiver(source), transport.sender(queue)
    try:
        while left > 0 and not stop.asked:
            deliveries = await within(time_limit, receiver.receive(min(_BATCH, left), 0))
            if not deliveries:
                return
            left -= len(deliveries)
            results = await within(time_limit, sender.send_batch([one.message for one in deliveries]))
            sent: list[Delivery] = []
            failure = None
            for delivery, result in zip(deliveries, results, strict=True):
                if result is None:
                    sent.append(delivery)
                else:
                    failure = result
            completed = await within(time_limit, receiver.complete_batch(sent)) if sent else ()
            twice = sum(1 for result in completed if result is not None)
            if twice:
                warn(f"{queue}: {plural(twice, 'message')} requeued but not removed: a second copy is left")
            yield len(sent)
            if failure is not None:
                raise failure
    finally:
        await receiver.close()
        await sender.close()

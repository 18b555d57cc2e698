"""``pairmq backlog``: look at the backlog queues, empty them, and requeue what was dead-lettered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import typer
from typer import Option

from pairmq.cli._backlog_counts import agreement_as_json, count_queues, depths_as_json, see_outbox, show_depths
from pairmq.cli._common import (
    BACKLOG,
    Json,
    PairArguments,
    backlog_queues,
    examples,
    failed_at,
    outbox_of,
    transports_of,
    used,
    with_pair,
    within,
)
from pairmq.cli._output import delivery_record, note, put_json, say, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import BadUsage, CommandFailed, grouped, plural, printable
from pairmq.core import restore
from pairmq.model import Delivery, Entity, EnvelopeError, FailureReason, Source, TransportError
from pairmq.runner import Agreement, find_agreement, write_anew
from pairmq.transport import Transport

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

    async def find_others(self, *, with_outbox: bool = False) -> Agreement:
        """Add the queues that other processes of the pair use, unless one queue was asked for (SPEC 13.2)."""
        agreement = await find_agreement(self._primary, self.transport, self._options, self.limit)
        if agreement.conflict is not None:
            raise CommandFailed(agreement.conflict)
        if self._all:
            first = len(self.queues)
            self.queues += tuple((first + number, queue) for number, queue in enumerate(agreement.found))
            if with_outbox and self.outbox is not None:
                self.queues += ((None, self.outbox),)
        return agreement

    async def adopt(self) -> None:
        """Write the record anew. Raises `TransportError`."""
        await write_anew(self._primary, self.transport, self._options, self.limit)

    def failed(self, error: TransportError) -> CommandFailed:
        return failed_at(self.transport, error)


@group.command(name="list")
@with_pair(BACKLOG)
def list_queues(pair: PairArguments, json: Json = False) -> int:
    """Count the messages of every backlog queue, and of the outbox; exit status 1 when one could not be counted."""
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
        return 1 if depths.error or (outbox is not None and outbox.error) else 0

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
                source = Source(queue, dead_letter=dead_letter)
                try:
                    found = await within(backlog.limit, backlog.transport.admin.peek(source, number))
                except TransportError as error:
                    if error.reason is FailureReason.NOT_FOUND:
                        continue
                    raise backlog.failed(error) from error
                seen += len(found)
                for delivery in found:
                    if json:
                        put_json({"index": at, "queue": queue.path, **delivery_record(delivery)})
                    else:
                        _show_message(at, delivery)
        if not seen:
            note("nothing there")
        return 0

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
                try:
                    source = Source(queue, dead_letter=dead_letter)
                    deleted[queue.path] = await within(backlog.limit, backlog.transport.admin.purge(source))
                except TransportError as error:
                    if error.reason is FailureReason.NOT_FOUND:
                        continue
                    note(f"deleted so far: {grouped(sum(deleted.values()))}")
                    raise backlog.failed(error) from error
        if json:
            put_json({"deleted": sum(deleted.values()), "queues": deleted}, indent=2)
        else:
            say(f"deleted {plural(sum(deleted.values()), 'message')}")
        return 0

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

    Each is sent, confirmed, and only then removed from the dead-letter queue: none is lost, but a crash can leave a
    copy.
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
                try:
                    async for count in requeue_queue(backlog.transport, queue, backlog.limit, stop):
                        moved[queue.path] += count
                except TransportError as error:
                    if error.reason is FailureReason.NOT_FOUND:
                        continue
                    note(f"requeued so far: {grouped(sum(moved.values()))}")
                    raise backlog.failed(error) from error
        if json:
            put_json({"requeued": sum(moved.values()), "queues": moved}, indent=2)
        else:
            say(f"requeued {plural(sum(moved.values()), 'message')}")
        if stop.asked:
            note(f"stopped by {stop.name}: the rest is still in the dead-letter queues")
            return stop.exit_status
        return 0

    return run_async(run, graceful=True)


def _show_message(index: int | None, delivery: Delivery) -> None:
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
    """Move everything that is in the queue's dead-letter queue now, or until a signal between two batches.

    Raises `TransportError`; unconfirmed messages stay where they are.
    """
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

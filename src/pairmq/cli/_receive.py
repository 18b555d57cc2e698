"""``pairmq receive``: messages of the primary, written to a file before they are completed.

Receive, write, sync, complete, in this order.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Self

from typer import Option

from pairmq.cli._common import (
    RECEIVING,
    PairArguments,
    at_broker,
    examples,
    failed_at,
    journal_package,
    kept_journal,
    pair_name,
    source_of,
    transport_of,
    with_pair,
    within,
)
from pairmq.cli._output import Progress, delivery_record, is_closed, note, noted_when_slow, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import (
    BadUsage,
    CommandFailed,
    Duration,
    file_problem,
    grouped,
    plural,
    printable,
    rate,
    short_duration,
)
from pairmq.model import Delivery, FailureKind, FailureReason, Source, TransportError

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal
    from pairmq.transport import Receiver, Transport

_OF_A_LINE = re.compile(r"[^\n\t]+")

EPILOG = examples(
    "pairmq receive --entity orders --output orders.txt --idle 5",
    "pairmq receive --entity prices --subscription audit --json",
    "pairmq receive --entity orders --peek --max 3",
)


@with_pair(RECEIVING)
def receive(
    pair: PairArguments,
    entity: Annotated[str, Option("--entity", "-e", metavar="NAME", help="Queue, or topic with --subscription.")],
    subscription: Annotated[
        str | None, Option("--subscription", "-s", metavar="NAME", help="Subscription of the topic to read.")
    ] = None,
    dead_letter: Annotated[bool, Option("--dead-letter", help="Read its dead-letter queue.")] = False,
    output: Annotated[str, Option("--output", "-o", metavar="FILE", help="Append to this file; - is stdout.")] = "-",
    max_messages: Annotated[int | None, Option("--max", "-n", metavar="N", min=1, help="Stop after N.")] = None,
    idle: Annotated[float | None, Duration("--idle", "Stop when nothing has arrived for this long.")] = None,
    json: Annotated[bool, Option("--json", help="Write one JSON object per line, the body in base64.")] = False,
    null: Annotated[bool, Option("--null", "-0", help="End each body with a NUL, not a line end.")] = False,
    peek: Annotated[
        bool, Option("--peek", help="Only browse: lock nothing, remove nothing; 100 unless --max.")
    ] = False,
    unique: Annotated[
        bool, Option("--unique", help="Drop messages whose id this run has already seen, and count them.")
    ] = False,
    prefetch: Annotated[int, Option("--prefetch", metavar="N", min=1, max=10_000, help="Messages per receive.")] = 200,
) -> int:
    """Receive messages from the primary and write their bodies, one per line.

    Each is written to the file before it is completed: at least once, never lost. Without --max and --idle it runs
    until a signal. Exit status: 0, 1 when the broker fails, 130 or 143 when a signal stopped it.
    """
    if json and null:
        raise BadUsage("--json and --null exclude each other: a JSON line ends with a line end")
    source = source_of(entity, subscription, dead_letter)
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)
    pair_called = "" if settings.journal is None else pair_name(settings)
    if settings.journal is not None and not pair_called and not peek:
        warn("the journal needs the pair of these messages, and no secondary is given: give --secondary")
    with (
        Output(output, json=json, separator=b"\0" if null else b"\n") as file,
        kept_journal(settings.journal) as journal,
    ):
        job = ReceiveJob(
            transport,
            source,
            file,
            most=max_messages,
            idle=idle,
            prefetch=prefetch,
            unique=unique,
            time_limit=settings.options.attempt_timeout,
            journal=journal,
            pair=pair_called,
        )
        return run_async(job.peek if peek else job.run, graceful=True)


_POLL = 20.0  # s of one long poll
_REMEMBERED = 1_000_000  # message ids that --unique keeps; the oldest are forgotten
_PEEKED = 100


def _harmless(body: bytes) -> bytes:
    """Escape what would steer a terminal; a file gets each body as it is."""
    return _OF_A_LINE.sub(lambda part: printable(part[0]), body.decode("utf-8", "backslashreplace")).encode()


class Output:
    def __init__(self, path: str, *, json: bool, separator: bytes) -> None:
        self.name = "standard output" if path == "-" else path
        self._json = json
        self._separator = separator
        try:
            if path == "-" and is_closed(sys.stdout):
                # What is received is completed: it would be lost.
                raise OSError(errno.EBADF, "it is closed")
            self._descriptor = (
                os.dup(sys.stdout.fileno())
                if path == "-"
                else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            )
        except OSError as error:
            raise BadUsage(f"can't write {file_problem(self.name, error)}") from None
        regular = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
        self._torn = path != "-" and regular and _ends_amid(path, separator)
        self._on_terminal = os.isatty(self._descriptor)

    async def write(self, deliveries: Sequence[Delivery]) -> None:
        """Hand over all messages, and have a file on its disk before it returns: they are completed next."""
        data = b"".join(self._encode(delivery) for delivery in deliveries)
        if self._torn:
            data, self._torn = self._separator + data, False
        # In a thread: a full pipe must not block signal handling.
        await asyncio.to_thread(self._write, data)

    def _encode(self, delivery: Delivery) -> bytes:
        if self._json:
            return json.dumps(delivery_record(delivery)).encode() + b"\n"
        body = delivery.message.body
        return (_harmless(body) if self._on_terminal else body) + self._separator

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
            if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
                os.fsync(self._descriptor)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"can't write {file_problem(self.name, error)}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)


def _ends_amid(path: str, separator: bytes) -> bool:
    """Whether a file ends amid a message, as after a disk was full: what is appended would be a part of that one."""
    try:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != separator
    except OSError:  # this user may only write it
        return False


@dataclass(eq=False)
class ReceiveJob:
    """One run of the command; ends after so many messages, or so many idle seconds."""

    transport: Transport
    source: Source
    output: Output
    most: int | None
    idle: float | None
    prefetch: int
    unique: bool
    time_limit: float
    journal: Journal | None = None
    pair: str = ""
    _seen: dict[str, None] = field(default_factory=dict, init=False)
    _taken: int = field(default=0, init=False)
    _written: int = field(default=0, init=False)
    _repeated: int = field(default=0, init=False)
    _uncompleted: int = field(default=0, init=False)

    async def run(self, stop: Stop) -> int:
        """Receive until the limit, the idle time or a signal; returns the exit status."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with self.transport:
            await self._check(stop)
            receiver = self.transport.receiver(self.source)
            if self.journal is not None:
                journalled = journal_package().journal_deliveries
                receiver = journalled(receiver, self.journal, source=self.source, pair=self.pair)
            receiver.on_dead_lettered = self._dead_lettered
            try:
                with Progress("received", "messages") as progress:
                    await self._receive_all(receiver, stop, progress)
            finally:
                await receiver.close()
        seconds = loop.time() - started
        speed = f" ({rate(self._written / seconds)})" if seconds > 0 else ""
        note(f"{plural(self._written, 'message')} written to {self.output.name} in {short_duration(seconds)}{speed}")
        if self._repeated:
            note(f"  dropped, their id was seen before: {grouped(self._repeated)}")
        if self._uncompleted:
            note(f"  written, but not completed; will be redelivered: {grouped(self._uncompleted)}")
        if stop.asked:
            note(f"stopped by {stop.name}: {self.source} keeps what was not written")
            return stop.exit_status
        return 0

    def _dead_lettered(self, delivery: Delivery) -> None:
        message_id = delivery.message.message_id or "without a readable id"
        warn(f"message {message_id} can't be read and is dead-lettered: {delivery.dead_letter_description}")

    async def peek(self, stop: Stop) -> int:
        """Show the oldest messages and leave them there; returns the exit status."""
        async with self.transport:
            await self._check(stop)
            operation = within(self.time_limit, self.transport.admin.peek(self.source, self.most or _PEEKED))
            deliveries = await stop.or_result(operation)
            if deliveries is None:
                return stop.exit_status
            await self.output.write(deliveries)
        return 0

    async def _check(self, stop: Stop) -> None:
        """Fail at once, and clearly, where waiting would not help or nothing is there yet."""
        try:
            async with noted_when_slow(f"waiting for {self.transport.endpoint}"):
                await stop.or_result(within(self.time_limit, self.transport.admin.check()))
            exists = await stop.or_result(within(self.time_limit, self.transport.admin.exists(self.source.entity)))
        except TransportError as error:
            raise failed_at(self.transport, error) from error
        if exists is False:
            entity = self.source.entity
            raise CommandFailed(
                f"{self.transport.endpoint} has no {entity.kind} {entity.path!r}: "
                "create it with 'pairmq entity create', or check its name"
            )

    async def _receive_all(self, receiver: Receiver, stop: Stop, progress: Progress) -> None:
        from pairmq.core import Backoff

        backoff = Backoff(first=0.2, factor=2.0, cap=5.0)
        loop = asyncio.get_running_loop()
        last = loop.time()
        retry = 0
        while not stop.asked and (self.most is None or self._taken < self.most):
            # After any delay, receive once more before leaving: only that shows that the queue is empty.
            wait = _POLL if self.idle is None else max(0.0, min(_POLL, last + self.idle - loop.time()))
            wanted = self.prefetch if self.most is None else min(self.prefetch, self.most - self._taken)
            try:
                deliveries = await stop.or_result(within(wait + self.time_limit, receiver.receive(wanted, wait)))
                retry = 0
            except TransportError as error:
                if error.kind is FailureKind.REFUSED:
                    raise failed_at(self.transport, error) from error
                if not retry:
                    warn(f"{at_broker(self.transport, error)}; trying again")
                await stop.wait(backoff.wait(retry, 0.5))
                retry += 1
                last = loop.time()  # an unavailable broker shows nothing, and its messages may arrive once it is back
                continue
            if deliveries:
                await self._take(receiver, deliveries)
                last = loop.time()  # writing and completing is not idle time
            elif self.idle is not None and loop.time() - last >= self.idle:
                return
            progress.update(self._written)

    async def _take(self, receiver: Receiver, deliveries: list[Delivery]) -> None:
        self._taken += len(deliveries)
        fresh = [one for one in deliveries if self._is_new(one)] if self.unique else deliveries
        self._repeated += len(deliveries) - len(fresh)
        if fresh:
            await self.output.write(fresh)
            self._written += len(fresh)
        try:
            results = await within(self.time_limit, receiver.complete_batch(deliveries))
        except TransportError as error:
            results = [error] * len(deliveries)
        failures = [result for result in results if result is not None]
        self._uncompleted += len(failures)
        if failures:
            hint = "; use a smaller --prefetch" if failures[0].reason is FailureReason.LOCK_LOST else ""
            warn(f"{plural(len(failures), 'message')} not completed, will be redelivered: {failures[0]}{hint}")

    def _is_new(self, delivery: Delivery) -> bool:
        message_id = delivery.message.message_id
        if message_id is None:
            return True
        if message_id in self._seen:
            return False
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[message_id] = None
        return True

"""``pairmq send``: every line of the input becomes a message."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from typer import Option

from pairmq.cli._common import (
    SENDING,
    EntityName,
    Kind,
    PairArguments,
    at_broker,
    entity_of,
    examples,
    opened,
    pair_of,
    with_pair,
    within,
)
from pairmq.cli._lines import LineSource, file_identity
from pairmq.cli._output import SLOW, Progress, complain, mention, note, noted_when_slow, stdout_written, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import (
    BadUsage,
    CommandFailed,
    Duration,
    OutputClosed,
    file_problem,
    grouped,
    plural,
    positive,
    printable,
    rate,
    short_duration,
)
from pairmq.model import (
    MAX_PRIORITY,
    Entity,
    EntityKind,
    EntityState,
    Message,
    PairClosed,
    PairFaulted,
    Receipt,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    TransportError,
)
from pairmq.model.events import AttemptFailed, Cause, Event, StateChanged

if TYPE_CHECKING:
    from pairmq.pair import Pair, PairSender

EPILOG = examples(
    "pairmq send --entity orders --input orders.txt --failed left.txt",
    "tail -F app.log | pairmq send --entity log --json > receipts.jsonl",
    "tail -n +1502 in.txt | pairmq send --entity orders --id-prefix run7 --first-line 1502",
    "find . -print0 | pairmq send --entity files --null --id-prefix run7",
)


@with_pair(SENDING)
def send(
    pair: PairArguments,
    entity: EntityName,
    kind: Kind = EntityKind.QUEUE,
    input: Annotated[str, Option("--input", "-i", metavar="FILE", help="Messages, one per line; - is stdin.")] = "-",
    null: Annotated[bool, Option("--null", "-0", help="A NUL ends a message, not a line end.")] = False,
    create: Annotated[bool, Option("--create", help="Create the entity on the primary if it is missing.")] = False,
    json: Annotated[bool, Option("--json", help="Write one receipt or error per line on stdout, as JSON.")] = False,
    receipts: Annotated[
        str | None, Option("--receipts", metavar="FILE", help="Write the same lines to a file.")
    ] = None,
    failed: Annotated[
        str | None, Option("--failed", metavar="FILE", help="Write the lines that were not accepted to a file.")
    ] = None,
    id_prefix: Annotated[
        str | None,
        Option(
            "--id-prefix",
            metavar="TEXT",
            help="Message ids TEXT-1, TEXT-2 … by line, the same in every run; random when omitted.",
        ),
    ] = None,
    first_line: Annotated[
        int,
        Option(
            "--first-line",
            metavar="N",
            min=1,
            help="Number of the input's first line, in ids, receipts and messages; no line is skipped. Default 1.",
        ),
    ] = 1,
    session_id: Annotated[str | None, Option("--session-id", metavar="TEXT", help="Session of all messages.")] = None,
    content_type: Annotated[
        str | None, Option("--content-type", metavar="TYPE", help="Media type of all bodies.")
    ] = None,
    content_encoding: Annotated[
        str | None, Option("--content-encoding", metavar="TEXT", help="Encoding of all bodies, gzip for one.")
    ] = None,
    priority: Annotated[
        int | None, Option("--priority", metavar="N", min=0, max=MAX_PRIORITY, help="Priority of all messages.")
    ] = None,
    ttl: Annotated[float | None, Duration("--ttl", "Time-to-live of all messages.")] = None,
    max_rate: Annotated[
        float | None, Option("--max-rate", parser=positive, metavar="R", help="Send at most R messages a second.")
    ] = None,
    window: Annotated[int, Option("--window", metavar="N", min=1, max=100_000, help="Messages in flight.")] = 1000,
) -> int:
    """Send each line of a file or of stdin as a message, through failover and back.

    An empty line is an empty message. Progress and a summary go to stderr.
    Exit status: 0 when all were accepted, 1 when not, 130 or 143 when a signal stopped it.
    """
    target = entity_of(entity, kind)
    shared: dict[str, Any] = {
        "session_id": session_id,
        "content_type": content_type,
        "content_encoding": content_encoding,
        "priority": priority,
        "time_to_live": ttl,
    }
    template = _template(id_prefix, shared)
    settings = pair.settings()
    opened = pair_of(settings)
    lines = LineSource(input, b"\0" if null else b"\n")
    with Outputs(lines, json=json, receipts=receipts, failed=failed, separator=b"\0" if null else b"\n") as outputs:
        job = SendJob(
            opened,
            target,
            lines,
            template,
            outputs,
            create=create,
            window=window,
            first_line=first_line,
            max_rate=max_rate,
        )
        return run_async(job.run, graceful=True)


def _template(id_prefix: str | None, shared: Mapping[str, Any]) -> Template:
    """What all messages share, checked before the first line is read."""
    if id_prefix is not None and not 1 <= len(id_prefix) <= 100:
        raise BadUsage(f"--id-prefix has {len(id_prefix)} characters: 1 to 100 are allowed")
    try:
        sample = Message(message_id=id_prefix, **shared)
    except (ValueError, TypeError) as error:
        raise BadUsage(str(error)) from None
    return Template(id_prefix, sample)


T = TypeVar("T")

_NAMED = 20  # failing lines that are reported individually on stderr
_BYTES_IN_FLIGHT = 64 * 1024 * 1024
_STALL = 1.0  # s without a result, after a signal, until the pair is closed on what is in flight


@dataclass(frozen=True, slots=True)
class Template:
    """What all messages of a run share; their ids are the prefix and the line's number, or random."""

    id_prefix: str | None
    sample: Message

    def id_of(self, number: int) -> str | None:
        """The id of one line's message; None where it is random."""
        return None if self.id_prefix is None else f"{self.id_prefix}-{number}"

    def message(self, number: int, body: bytes) -> Message:
        return replace(self.sample, body=body, message_id=self.id_of(number))


class _File:
    """A file that is written continuously, left as it is until `empty`; errors are reported at the end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem: str | None = None
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadUsage(f"can't write {file_problem(path, error)}") from None

    def empty(self) -> None:
        """Drop what an earlier run left in it."""
        if self._descriptor is not None and stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._attempt(os.ftruncate, self._descriptor, 0)

    def write(self, data: bytes) -> None:
        """Hand data to the operating system, so that other programs see it at once."""
        view = memoryview(data)
        while view and self._descriptor is not None and self.problem is None:
            view = view[self._attempt(os.write, self._descriptor, view) or 0 :]

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._attempt(os.close, descriptor)

    def _attempt(self, operation: Callable[..., T], *arguments: object) -> T | None:
        try:
            return operation(*arguments)
        except OSError as error:
            self.problem = self.problem or f"can't write {file_problem(self.path, error)}"
            return None


class Outputs:
    """The files that results go to, none of which may be the input."""

    def __init__(
        self, lines: LineSource, *, json: bool, receipts: str | None, failed: str | None, separator: bytes
    ) -> None:
        _check_distinct(lines, receipts, failed)
        self._json = json
        self._stdout_problem: str | None = None
        self._stdout_closed = False
        self._separator = separator
        self._receipts: _File | None = None
        self._failed: _File | None = None
        try:
            self._receipts = None if receipts is None else _File(receipts)
            self._failed = None if failed is None else _File(failed)
        except BadUsage:
            self._close()
            raise

    @property
    def _files(self) -> list[_File]:
        return [file for file in (self._receipts, self._failed) if file is not None]

    @property
    def in_files(self) -> bool:
        """Whether results are kept in files if stdout is closed."""
        return bool(self._files)

    @property
    def kept(self) -> str | None:
        """The file with all lines that were not accepted, if any."""
        return None if self._failed is None or self._failed.problem is not None else self._failed.path

    @property
    def problems(self) -> list[str]:
        problems = (self._stdout_problem, *(file.problem for file in self._files))
        return [problem for problem in problems if problem is not None]

    def begin(self) -> None:
        """Empty the files: from here on they are this run's."""
        for file in self._files:
            file.empty()

    def keep(self, number: int, line: bytes, result: Receipt | SendError) -> None:
        """Put one line's result into the files, and the line itself if it was not accepted."""
        if self._failed is not None and isinstance(result, SendError):
            self._failed.write(line + self._separator)
        if self._receipts is not None:
            self._receipts.write(_document(number, result).encode())

    def show(self, number: int, result: Receipt | SendError) -> None:
        """Write one line's result on stdout. Raises `OutputClosed` once."""
        if self._json:
            self._on_stdout(lambda: sys.stdout.write(_document(number, result)))

    def flush(self) -> None:
        """Let readers of stdout see what is there. Raises as `show`."""
        if self._json:
            self._on_stdout(sys.stdout.flush)

    def finish(self) -> None:
        """Write what is left; `problems` are complete then. Raises as `show`."""
        self._close()
        self.flush()

    def _on_stdout(self, operation: Callable[[], object]) -> None:
        if self._stdout_problem is None and not self._stdout_closed:
            try:
                with stdout_written():
                    operation()
            except CommandFailed as error:
                self._stdout_problem = str(error)
            except OutputClosed:
                self._stdout_closed = True
                raise

    def _close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()


def _check_distinct(lines: LineSource, receipts: str | None, failed: str | None) -> None:
    """Refuse to write into the input, or two things into one file."""
    used: dict[object, str] = {} if lines.identity is None else {lines.identity: f"the input, {lines.name}"}
    for option, path in (("--receipts", receipts), ("--failed", failed)):
        if path is None:
            continue
        identity: object
        try:
            identity = file_identity(os.stat(path))
        except OSError:
            identity = os.path.realpath(path)  # to be made, or refused when it is opened
        if identity is None:
            continue  # a device or a pipe, which nothing is overwritten in
        if identity in used:
            raise BadUsage(f"{option} names the same file as {printable(used[identity])}: name another one")
        used[identity] = f"{option}, {path}"


@dataclass(eq=False)
class SendJob:
    pair: Pair
    entity: Entity
    lines: LineSource
    template: Template
    outputs: Outputs
    _: KW_ONLY
    create: bool
    window: int
    first_line: int = 1
    max_rate: float | None = None

    def __post_init__(self) -> None:
        self._free_at = 0.0
        self._waiting: deque[tuple[int, bytes]] = deque()  # lines without a result, in order
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._before = self.first_line - 1
        self._read = self._before  # number of the last line read
        self._first_failed: int | None = None
        self._named = 0  # failing lines reported, or only counted
        self._read_bytes = 0
        self._ended = False
        self._last_result = 0.0
        self._why: str | None = None  # sends were diverted
        self._held = False
        self._unsubscribe: Callable[[], None] = lambda: None
        self._counts = dict.fromkeys(("primary", "backlog", "refused", "unknown", "duplicates"), 0)

    async def run(self, stop: Stop) -> int:
        """Send everything, or until a signal.

        However it ends, once it has begun to read, each line that was read has a result, is in the files and in the
        counts, and the summary is shown, unless stdout was closed and no files are kept. What is in flight when it is
        cancelled is kept as unknown.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        stop.on_request(self.lines.stop)
        stop.on_request(self._room.set)
        stop.on_request(
            lambda: mention(f"{stop.name}: reading no further; {self._in_flight()}; once more exits immediately")
        )
        self.pair.subscribe(self._on_event, per_message=False)
        status = 1
        summarized = complete = False
        try:
            async with AsyncExitStack() as stack:
                async with noted_when_slow(
                    f"opening the pair of {self.pair.primary.endpoint} and {self.pair.secondary.endpoint}"
                ):
                    pair = await stack.enter_async_context(opened(self.pair))
                if self.create:
                    await self._make_entity(stop)
                self.outputs.begin()
                sender = pair.sender(self.entity.path, kind=self.entity.kind.value)
                summarized = True
                with Progress("sent", "lines", total=self.lines.size) as progress:
                    await self._send(sender, stop, progress)
            complete = True
        except OutputClosed:
            summarized = summarized and self.outputs.in_files  # a `head` that has seen enough wants no summary
            raise
        finally:
            if summarized:
                status = self._account(stop, loop.time() - started, complete=complete)
        return status

    def _account(self, stop: Stop, seconds: float, *, complete: bool) -> int:
        """Record each line's result, and show the summary; returns the exit status. Raises as `Outputs.show`."""
        try:
            # Lines without a result were never confirmed, however the run ended.
            self._give_up(SendUnknown, "the command ended before its result came")
            self.outputs.finish()
        finally:
            status = self._summary(stop, seconds, complete=complete)
        return status

    async def _make_entity(self, stop: Stop) -> None:
        try:
            limit = self.pair.options.attempt_timeout
            async with noted_when_slow(f"making {self.entity} at {self.pair.primary.endpoint}"):
                await stop.or_result(within(limit, self.pair.primary.admin.create(self.entity)))
        except TransportError as error:
            # The primary may be unavailable: that is what the pair is for.
            warn(f"{self.entity} could not be created: {at_broker(self.pair.primary, error)}")

    async def _send(self, sender: PairSender, stop: Stop, progress: Progress) -> None:
        closing: list[asyncio.Task[None]] = []
        stop.on_request(lambda: closing.append(asyncio.create_task(self._close_when_stalled())))
        results: Any = sender.send_stream(self._messages(stop), window=self.window)
        waiting = asyncio.create_task(self._report_waiting(progress))
        try:
            # Closed here and now: what is counted when this is left must not be read any further.
            async with contextlib.aclosing(results):
                async for result in results:
                    number, line = self._waiting.popleft()
                    self._waiting_bytes -= len(line)
                    self._room.set()
                    self._keep(number, line, result)
                    self._report_result(number, result)
                    if not self._waiting:
                        self.outputs.flush()
                    progress.update(
                        self._done - self._before,
                        position=self._read_bytes - self._waiting_bytes,
                        text=self._progress_text(),
                    )
        except (PairClosed, PairFaulted) as error:
            # The stream raises them after the results of all that a broker may have been given.
            self._give_up(SendRefused, f"not sent: {error}")
            if not (stop.asked and isinstance(error, PairClosed)):
                raise
        finally:
            self._ended = True
            waiting.cancel()
            for task in closing:
                await task

    async def _messages(self, stop: Stop) -> AsyncIterator[Message]:
        async with contextlib.aclosing(self.lines.blocks()) as blocks:
            async for block in blocks:
                for line in block:
                    while self._waiting_bytes > _BYTES_IN_FLIGHT and not stop.asked:
                        self._room.clear()
                        await self._room.wait()
                    if stop.asked or not await self._may_go(stop):
                        return
                    self._read += 1
                    self._read_bytes += len(line) + 1
                    if not self._waiting:
                        self._last_result = asyncio.get_running_loop().time()
                    self._waiting.append((self._read, line))
                    self._waiting_bytes += len(line)
                    yield self.template.message(self._read, line)

    async def _may_go(self, stop: Stop) -> bool:
        """Wait for the next message's turn under the limit of the rate; False when a signal came first."""
        if self.max_rate is None:
            return True
        now = asyncio.get_running_loop().time()
        starts_at = max(now, self._free_at)
        self._free_at = starts_at + 1 / self.max_rate
        # Timers are not finer than a millisecond: at high rates some go at once, and then some wait.
        return starts_at - now < 0.001 or not await stop.wait(starts_at - now)

    async def _report_waiting(self, progress: Progress) -> None:
        """Say what is waited for when no result comes: a broker that does not answer holds up all of them."""
        mentioned = 0.0
        limits = self.pair.options
        while True:
            await asyncio.sleep(SLOW / 4)
            progress.update(
                self._done - self._before,
                position=self._read_bytes - self._waiting_bytes,
                text=", ".join(filter(None, (self._progress_text(), f"{grouped(len(self._waiting))} in flight"))),
            )
            now = asyncio.get_running_loop().time()
            if self._waiting and now - self._last_result >= SLOW and mentioned != self._last_result:
                mentioned = self._last_result
                waiting = plural(len(self._waiting), "line")
                mention(
                    f"no result for {SLOW:g} s: {waiting} in flight; an attempt may take {limits.attempt_timeout:g} s, "
                    f"a send {limits.send_timeout:g} s"
                )

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, StateChanged) or event.entity != self.entity:
            return
        self._held = event.cause is Cause.HELD
        if event.current is EntityState.FAILING or (event.current is EntityState.FAILED_OVER and self._why is None):
            # Why is in the event of an attempt. These cost something for each message: only until one has come.
            self._unsubscribe()
            self._unsubscribe = self.pair.subscribe(self._on_attempt)
        elif event.current in (EntityState.HEALTHY, EntityState.DRAINING) and event.previous is EntityState.FAILED_OVER:
            mention(f"{self.entity}: the primary accepts messages again")

    def _on_attempt(self, event: Event) -> None:
        if isinstance(event, AttemptFailed) and event.entity == self.entity and event.queue is None:
            self._unsubscribe()
            self._why = event.error
            mention(f"{self.entity}: the primary fails: {printable(event.error)}")

    def _in_flight(self) -> str:
        if not self._waiting:
            return "nothing is in flight"
        grace = f"{_STALL + self.pair.options.close_grace:g} s"
        return f"{plural(len(self._waiting), 'line')} in flight have {grace} after the last result"

    async def _close_when_stalled(self) -> None:
        """After a signal: let results come while they come, then give what is in flight the pair's close grace."""
        seen: int | None = None
        while seen != self._done and self._waiting and not self._ended:
            seen = self._done
            await asyncio.sleep(_STALL)
        if self._waiting and not self._ended:
            await self.pair.close()

    @property
    def _done(self) -> int:
        return self._read - len(self._waiting)

    def _keep(self, number: int, line: bytes, result: Receipt | SendError) -> None:
        """Count a result and write it to the files, before reporting it: the output may be closed."""
        self._last_result = asyncio.get_running_loop().time()
        if isinstance(result, Receipt):
            self._counts["primary" if result.route is Route.PRIMARY else "backlog"] += 1
            self._counts["duplicates"] += result.maybe_duplicate
        else:
            self._counts[_outcome(result)] += 1
            if self._first_failed is None:
                self._first_failed = number
        self.outputs.keep(number, line, result)

    def _report_result(self, number: int, result: Receipt | SendError) -> None:
        """Show a result on stdout, and a failure on stderr. Raises as `Outputs.show`."""
        self.outputs.show(number, result)
        if isinstance(result, SendError):
            self._named += 1
            if self._named <= _NAMED:
                note(f"line {number}: {_outcome(result)}: {printable(str(result))}")
            elif self._named == _NAMED + 1:
                note("further failing lines are counted, not shown")

    def _give_up(self, kind: type[SendError], why: str) -> None:
        """Make all lines without a result failures, and keep them before any is reported."""
        results: list[tuple[int, SendError]] = []
        while self._waiting:
            number, line = self._waiting.popleft()
            self._waiting_bytes -= len(line)
            result = kind(why, entity=self.entity.path, message_id=self.template.id_of(number))
            self._keep(number, line, result)
            results.append((number, result))
        for number, result in results:
            self._report_result(number, result)

    def _progress_text(self) -> str:
        counts = self._counts
        parts = [f"backlog {grouped(counts['backlog'])}"] if counts["backlog"] else []
        failures = counts["refused"] + counts["unknown"]
        parts += [f"failed {grouped(failures)}"] if failures else []
        return ", ".join(parts)

    def _summary(self, stop: Stop, seconds: float, *, complete: bool) -> int:
        counts = self._counts
        accepted = counts["primary"] + counts["backlog"]
        speed = f" ({rate(accepted / seconds)})" if seconds > 0 else ""
        note(f"{plural(accepted, 'message')} accepted for {self.entity} in {short_duration(seconds)}{speed}")
        note(f"  by the primary      {grouped(counts['primary']):>9}")
        hint = "   'pairmq syphon' moves them to the primary" if counts["backlog"] else ""
        note(f"  by the backlog      {grouped(counts['backlog']):>9}{hint}")
        if counts["backlog"] and self._why is not None:
            note(f"    as the primary failed: {printable(self._why)}")
        if counts["backlog"] and self._held:
            note(f"    as an operator holds {self.entity}: 'pairmq switch status' shows who")
        note(f"  refused             {grouped(counts['refused']):>9}")
        note(f"  unknown             {grouped(counts['unknown']):>9}")
        if counts["duplicates"]:
            note(f"  maybe duplicated    {grouped(counts['duplicates']):>9}   compare message ids downstream")
        failures = counts["refused"] + counts["unknown"]
        kept = self.outputs.kept
        if failures and kept is not None:
            note(f"the {plural(failures, 'line')} not accepted: {printable(kept)}")
        if failures and self.template.id_prefix is not None:
            note(self._hint_on_ids(kept))
        if stop.asked:
            note(f"stopped by {stop.name}: {self._where_to_go_on(kept)}")
        elif not complete:
            note(f"ended early: {self._where_to_go_on(kept)}")
        for problem in self.outputs.problems:
            complain(problem)
        if stop.asked:
            return stop.exit_status
        return 1 if failures or self.outputs.problems else 0

    def _hint_on_ids(self, kept: str | None) -> str:
        """Ids are numbered by line: the same numbers for other lines would make them copies of each other."""
        prefix = printable(self.template.id_prefix or "")
        if kept is not None:
            return (
                f"send {printable(kept)} with another --id-prefix: with {prefix!r} it would repeat ids of other lines"
            )
        first = self._first_failed
        return f"send the input again from line {first} on, with --first-line {first}: its lines then keep their ids"

    def _where_to_go_on(self, kept: str | None) -> str:
        following = self._from(self._read + 1)
        if self._first_failed is None:
            return f"line {self._read} was the last one read; go on from {following}"
        first = f"line {self._first_failed} was the first one not accepted"
        if kept is not None:
            return f"{first}; send {printable(kept)} again, then go on from {following}"
        return f"{first}; go on from {self._from(self._first_failed)}, which sends accepted ones after it a second time"

    def _from(self, number: int) -> str:
        return f"line {number}" if self.template.id_prefix is None else f"line {number} with --first-line {number}"


def _outcome(result: SendError) -> str:
    return "unknown" if isinstance(result, SendUnknown) else "refused"


def _document(number: int, result: Receipt | SendError) -> str:
    return json.dumps(_record(number, result)) + "\n"


def _record(number: int, result: Receipt | SendError) -> dict[str, object]:
    if isinstance(result, Receipt):
        return {
            "line": number,
            "accepted": True,
            "route": result.route.value,
            "entity": str(result.entity),
            "message_id": result.message_id,
            "backlog_queue": result.backlog_queue,
            "attempts": result.attempts,
            "elapsed": round(result.elapsed, 6),
            "maybe_duplicate": result.maybe_duplicate,
        }
    return {
        "line": number,
        "accepted": False,
        "outcome": _outcome(result),
        "entity": result.entity,
        "message_id": result.message_id,
        "error": type(result).__name__,
        "text": str(result),
    }

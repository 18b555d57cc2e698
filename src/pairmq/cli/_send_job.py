"""What ``pairmq send`` does: lines in, receipts out, bounded in memory, and an orderly end at a signal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from pairmq.cli._common import at_broker, within
from pairmq.cli._errors import BadUsage, CommandFailed, file_problem, printable
from pairmq.cli._lines import LineSource, file_identity
from pairmq.cli._output import complain, note, stdout_written, warn
from pairmq.cli._progress import Progress
from pairmq.cli._signals import Stop
from pairmq.cli._values import grouped, plural, rate, short_duration
from pairmq.model import Entity, Message, Receipt, Route, SendError, SendUnknown, TransportError
from pairmq.pair import Pair, PairSender

T = TypeVar("T")

_NAMED = 20  # failing lines that are told one by one on stderr
_BYTES_IN_FLIGHT = 64 * 1024 * 1024
_STALL = 1.0  # s without a result, after a signal, until the pair is closed on what is in flight


@dataclass(frozen=True, slots=True)
class Template:
    """What all messages of a run share.

    Args:
        id_prefix: ids are this and the line's number; None for random ones.
        sample: a message with everything but id and body.
    """

    id_prefix: str | None
    sample: Message

    def message(self, number: int, body: bytes) -> Message:
        """The message of one line."""
        sample = self.sample
        return Message(
            body,
            message_id=None if self.id_prefix is None else f"{self.id_prefix}-{number}",
            session_id=sample.session_id,
            time_to_live=sample.time_to_live,
            content_type=sample.content_type,
            content_encoding=sample.content_encoding,
            priority=sample.priority,
        )


class _File:
    """A file that is written as things come; what goes wrong is told at the end, as sending goes on.

    Args:
        path: made if it is missing, and left as it is until `empty`.

    Raises:
        BadUsage: the file can't be opened.
    """

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
        """Hand data to the operating system: who looks into the file meanwhile sees it."""
        view = memoryview(data)
        while view and self._descriptor is not None and self.problem is None:
            view = view[self._attempt(os.write, self._descriptor, view) or 0 :]

    def close(self) -> None:
        """Close it; a second time does nothing."""
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
    """The files that results go to.

    Args:
        lines: the input, which none of them may be.
        json: write results on stdout as well.
        receipts: path for results as JSON lines.
        failed: path for the lines that were not accepted.
        separator: ends each of those.

    Raises:
        BadUsage: a file can't be opened, or two of them are the same.
    """

    def __init__(
        self, lines: LineSource, *, json: bool, receipts: str | None, failed: str | None, separator: bytes
    ) -> None:
        _tell_apart(lines, receipts, failed)
        self._json = json
        self._stdout_problem: str | None = None
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
    def streaming(self) -> bool:
        """Whether someone wants the results."""
        return self._json or self._receipts is not None

    @property
    def kept(self) -> str | None:
        """The file with all lines that were not accepted; None where there is none."""
        return None if self._failed is None or self._failed.problem is not None else self._failed.path

    @property
    def problems(self) -> list[str]:
        """What could not be written."""
        files = (file.problem for file in (self._receipts, self._failed) if file is not None)
        return [problem for problem in (self._stdout_problem, *files) if problem is not None]

    def begin(self) -> None:
        """Empty the files: from here on they are this run's."""
        for file in (self._receipts, self._failed):
            if file is not None:
                file.empty()

    def result(self, record: dict[str, object]) -> None:
        """Write one result.

        Raises:
            OutputClosed: nobody reads stdout any more.
        """
        line = json.dumps(record) + "\n"
        if self._json:
            self._on_stdout(lambda: sys.stdout.write(line))
        if self._receipts is not None:
            self._receipts.write(line.encode())

    def failed(self, line: bytes) -> None:
        """Keep a line that was not accepted."""
        if self._failed is not None:
            self._failed.write(line + self._separator)

    def flush(self) -> None:
        """Let readers of stdout see what is there. Raises as `result`."""
        if self._json:
            self._on_stdout(sys.stdout.flush)

    def finish(self) -> None:
        """Write what is left; `problems` are complete then. Raises as `result`."""
        self.flush()
        self._close()

    def _on_stdout(self, operation: Callable[[], object]) -> None:
        if self._stdout_problem is None:
            try:
                with stdout_written():
                    operation()
            except CommandFailed as error:
                self._stdout_problem = str(error)

    def _close(self) -> None:
        for file in (self._receipts, self._failed):
            if file is not None:
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _tell_apart(lines: LineSource, receipts: str | None, failed: str | None) -> None:
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


class SendJob:
    """One run of the command.

    Args:
        pair: not yet open.
        entity: where to.
        lines: the input.
        template: makes messages of lines.
        outputs: take the results.
        create: make the entity first.
        window: messages in flight.
        first_line: the number of the first line that is read.
    """

    def __init__(
        self,
        pair: Pair,
        entity: Entity,
        lines: LineSource,
        template: Template,
        outputs: Outputs,
        *,
        create: bool,
        window: int,
        first_line: int = 1,
    ) -> None:
        self._pair = pair
        self._entity = entity
        self._lines = lines
        self._template = template
        self._outputs = outputs
        self._create = create
        self._window = window
        self._waiting: deque[tuple[int, bytes]] = deque()  # lines without a result, in order
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._before = first_line - 1
        self._read = self._before  # number of the last line read
        self._first_failed: int | None = None
        self._read_bytes = 0
        self._ended = False
        self._counts = dict.fromkeys(("primary", "backlog", "refused", "unknown", "duplicates"), 0)

    async def run(self, stop: Stop) -> int:
        """Send everything, or until a signal; returns the exit status."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        stop.on_request(self._lines.stop)
        stop.on_request(self._room.set)
        async with self._pair as pair:
            if self._create:
                await self._make_entity(stop)
            self._outputs.begin()
            sender = pair.sender(self._entity.path, kind=self._entity.kind.value)
            with Progress("sent", "lines", total=self._lines.size) as progress:
                await self._send(sender, stop, progress)
        self._give_up_waiting()
        self._outputs.finish()
        return self._summary(stop, loop.time() - started)

    async def _make_entity(self, stop: Stop) -> None:
        try:
            limit = self._pair.options.attempt_timeout
            await stop.or_result(within(limit, self._pair.primary.admin.create(self._entity)))
        except TransportError as error:
            # The primary may be away: that is what the pair is for.
            warn(f"{self._entity} could not be made: {at_broker(self._pair.primary, error)}")

    async def _send(self, sender: PairSender, stop: Stop, progress: Progress) -> None:
        closing: list[asyncio.Task[None]] = []
        stop.on_request(lambda: closing.append(asyncio.create_task(self._close_when_stalled())))
        try:
            async for result in sender.send_stream(self._messages(stop), window=self._window):
                number, line = self._waiting.popleft()
                self._waiting_bytes -= len(line)
                self._room.set()
                self._take(number, line, result)
                if not self._waiting:
                    self._outputs.flush()
                progress.update(
                    self._done - self._before,
                    position=self._read_bytes - self._waiting_bytes,
                    text=self._progress_text(),
                )
        finally:
            self._ended = True
            for task in closing:
                await task

    async def _messages(self, stop: Stop) -> AsyncIterator[Message]:
        async with contextlib.aclosing(self._lines.blocks()) as blocks:
            async for block in blocks:
                for line in block:
                    while self._waiting_bytes > _BYTES_IN_FLIGHT and not stop.asked:
                        self._room.clear()
                        await self._room.wait()
                    if stop.asked:
                        return
                    self._read += 1
                    self._read_bytes += len(line) + 1
                    self._waiting.append((self._read, line))
                    self._waiting_bytes += len(line)
                    yield self._template.message(self._read, line)

    async def _close_when_stalled(self) -> None:
        """After a signal: let results come while they come, then give what is in flight the pair's close grace."""
        seen: int | None = None
        while seen != self._done and self._waiting and not self._ended:
            seen = self._done
            await asyncio.sleep(_STALL)
        if self._waiting and not self._ended:
            await self._pair.close()

    @property
    def _done(self) -> int:
        return self._read - len(self._waiting)

    def _take(self, number: int, line: bytes, result: Receipt | SendError) -> None:
        if isinstance(result, Receipt):
            self._counts["primary" if result.route is Route.PRIMARY else "backlog"] += 1
            self._counts["duplicates"] += result.maybe_duplicate
        else:
            outcome = "unknown" if isinstance(result, SendUnknown) else "refused"
            self._fail(number, line, outcome, str(result))
        if self._outputs.streaming:
            self._outputs.result(_record(number, result))

    def _fail(self, number: int, line: bytes, outcome: str, text: str) -> None:
        self._counts[outcome] += 1
        if self._first_failed is None:
            self._first_failed = number
        self._outputs.failed(line)
        failures = self._counts["refused"] + self._counts["unknown"]
        if failures <= _NAMED:
            note(f"line {number}: {outcome}: {printable(text)}")
        elif failures == _NAMED + 1:
            note("further failing lines are counted, not shown")

    def _give_up_waiting(self) -> None:
        """What has no result when the stream is over was never confirmed."""
        while self._waiting:
            number, line = self._waiting.popleft()
            self._fail(number, line, "unknown", "the command ended before its result came")

    def _progress_text(self) -> str:
        counts = self._counts
        parts = [f"backlog {grouped(counts['backlog'])}"] if counts["backlog"] else []
        failures = counts["refused"] + counts["unknown"]
        parts += [f"failed {grouped(failures)}"] if failures else []
        return ", ".join(parts)

    def _summary(self, stop: Stop, seconds: float) -> int:
        counts = self._counts
        accepted = counts["primary"] + counts["backlog"]
        speed = f" ({rate(accepted / seconds)})" if seconds > 0 else ""
        note(f"{plural(accepted, 'message')} accepted for {self._entity} in {short_duration(seconds)}{speed}")
        note(f"  by the primary      {grouped(counts['primary']):>9}")
        hint = "   'pairmq syphon' brings them home" if counts["backlog"] else ""
        note(f"  by the backlog      {grouped(counts['backlog']):>9}{hint}")
        note(f"  refused             {grouped(counts['refused']):>9}")
        note(f"  unknown             {grouped(counts['unknown']):>9}")
        if counts["duplicates"]:
            note(f"  maybe duplicated    {grouped(counts['duplicates']):>9}   compare message ids downstream")
        failures = counts["refused"] + counts["unknown"]
        kept = self._outputs.kept
        if failures and kept is not None:
            note(f"the {plural(failures, 'line')} not accepted: {printable(kept)}")
        if failures and self._template.id_prefix is not None:
            note(self._hint_on_ids(kept))
        if stop.asked:
            note(f"stopped by {stop.name}: {self._where_to_go_on(kept)}")
        for problem in self._outputs.problems:
            complain(problem)
        if stop.asked:
            return stop.exit_status
        return 1 if failures or self._outputs.problems else 0

    def _hint_on_ids(self, kept: str | None) -> str:
        """Ids are numbered by line: the same numbers for other lines would make them copies of each other."""
        prefix = printable(self._template.id_prefix or "")
        if kept is not None:
            return (
                f"send {printable(kept)} with another --id-prefix: with {prefix!r} it would repeat ids of other lines"
            )
        first = self._first_failed
        return f"send the input again from line {first} on, with --first-line {first}: its lines keep their ids then"

    def _where_to_go_on(self, kept: str | None) -> str:
        following = self._from(self._read + 1)
        if self._first_failed is None:
            return f"line {self._read} was the last one read; go on from {following}"
        first = f"line {self._first_failed} was the first one not accepted"
        if kept is not None:
            return f"{first}; send {printable(kept)} again, then go on from {following}"
        return f"{first}; go on from {self._from(self._first_failed)}, which sends accepted ones after it a second time"

    def _from(self, number: int) -> str:
        return f"line {number}" if self._template.id_prefix is None else f"line {number} with --first-line {number}"


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
        "outcome": "unknown" if isinstance(result, SendUnknown) else "refused",
        "entity": result.entity,
        "message_id": result.message_id,
        "error": type(result).__name__,
        "text": str(result),
    }

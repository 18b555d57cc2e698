"""What ``pairmq send`` does: lines in, receipts out, bounded in memory, and an orderly end at a signal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self, TextIO

from pairmq.cli._common import at_broker, within
from pairmq.cli._errors import BadUsage, file_problem, printable
from pairmq.cli._lines import LineSource
from pairmq.cli._output import note, warn
from pairmq.cli._progress import Progress
from pairmq.cli._signals import Stop
from pairmq.cli._values import grouped, plural, rate, short_duration
from pairmq.model import Entity, Message, Receipt, Route, SendError, SendUnknown, TransportError
from pairmq.pair import Pair, PairSender

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
        )


class Outputs:
    """The files that results go to.

    Args:
        json: write results on stdout as well.
        receipts: path for results as JSON lines.
        failed: path for the lines that were not accepted.
        separator: ends each of those.
    """

    def __init__(self, *, json: bool, receipts: str | None, failed: str | None, separator: bytes) -> None:
        self._json = json
        self._separator = separator
        self._receipts: TextIO | None = None
        self._failed: BinaryIO | None = None
        self.failed_name = failed
        try:
            # Line buffered: who looks into it meanwhile sees what was accepted so far.
            if receipts is not None:
                self._receipts = open(receipts, "w", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed in __exit__
            if failed is not None:
                self._failed = open(failed, "wb", buffering=0)  # noqa: SIM115  # closed in __exit__
        except OSError as error:
            self._close()
            raise BadUsage(
                f"can't write {file_problem(receipts if self._receipts is None and receipts else failed or '', error)}"
            ) from None

    @property
    def streaming(self) -> bool:
        """Whether someone wants the results."""
        return self._json or self._receipts is not None

    def result(self, record: dict[str, object]) -> None:
        """Write one result."""
        line = json.dumps(record) + "\n"
        if self._json:
            sys.stdout.write(line)
        if self._receipts is not None:
            self._receipts.write(line)

    def failed(self, line: bytes) -> None:
        """Keep a line that was not accepted."""
        if self._failed is not None:
            self._failed.write(line + self._separator)

    def flush(self) -> None:
        """Let readers of stdout see what is there."""
        if self._json:
            sys.stdout.flush()

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
        self._read = 0
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
            sender = pair.sender(self._entity.path, kind=self._entity.kind.value)
            with Progress("sent", "lines", total=self._lines.size) as progress:
                await self._send(sender, stop, progress)
        self._give_up_waiting()
        self._outputs.flush()
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
                progress.update(self._done, position=self._read_bytes - self._waiting_bytes, text=self._progress_text())
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
        seen = -1
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
        if failures and self._outputs.failed_name is not None:
            note(f"the {plural(failures, 'line')} not accepted: {printable(self._outputs.failed_name)}")
        if stop.asked:
            note(f"stopped by {stop.name}: line {self._read} was the last one read; go on from line {self._read + 1}")
            return stop.exit_status
        return 1 if failures else 0


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

"""However `pairmq send` ends, each line that it read is in a count, and in a file where one is kept."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pairmq.cli import _lines
from pairmq.cli._send import Outputs, SendJob, Template
from pairmq.cli._signals import Stop
from pairmq.cli._values import CommandFailed, OutputClosed
from pairmq.model import Entity, Message, PairFaulted
from pairmq.testing import Fault, SimulatedPair, in_virtual_time, simulated_pair

WINDOW = 1000
FAR_MORE = 5000
COUNTED = re.compile(r"^  (?:by the primary|by the backlog|refused|unknown) +([0-9 ]+?)(?: {3}.*)?$", re.MULTILINE)


@dataclass
class Lines:
    """An input of so many lines, which then ends or fails."""

    count: int
    problem: CommandFailed | None = None
    name: str = "the lines"
    identity: None = None
    size: None = None
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True

    async def blocks(self) -> AsyncIterator[list[bytes]]:
        for first in range(0, self.count, 100):
            if self.stopped:
                return
            yield [b"line-%d" % number for number in range(first, min(first + 100, self.count))]
        if self.problem is not None:
            raise self.problem


@dataclass(frozen=True)
class Reading(Template):
    """Notes which lines were read: each of them is made a message."""

    lines: list[bytes] = field(default_factory=list)

    def message(self, number: int, body: bytes) -> Message:
        self.lines.append(body)
        return super().message(number, body)


class ClosedPipe(io.StringIO):
    """What a stream is whose reader has left."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


class Run:
    """One run of the command's job, and what it leaves in its files."""

    def __init__(
        self,
        it: SimulatedPair,
        folder: Path,
        lines: Any,
        *,
        json: bool = False,
        kept: bool = True,
        to: str = "orders",
        **options: Any,
    ) -> None:
        self.template = Reading(None, Message())
        self.failed, self.receipts = folder / "failed", folder / "receipts"
        files = (str(self.receipts), str(self.failed)) if kept else (None, None)
        self.outputs = Outputs(lines, json=json, receipts=files[0], failed=files[1], separator=b"\n")
        self.job = SendJob(
            it.pair, Entity(to), lines, self.template, self.outputs, create=False, window=WINDOW, **options
        )
        self.stop = Stop()

    async def ends(self) -> int:
        with self.outputs:
            return await self.job.run(self.stop)

    @property
    def read(self) -> list[bytes]:
        return self.template.lines

    def check(self) -> None:
        """Each line that was read has one receipt, and is in the other file unless it was accepted."""
        records = [json.loads(line) for line in self.receipts.read_text().splitlines()]
        assert [record["line"] for record in records] == list(range(1, len(self.read) + 1))
        left = [line for line, record in zip(self.read, records, strict=True) if not record["accepted"]]
        assert self.failed.read_bytes().splitlines() == left

    def check_told(self, err: str) -> None:
        """All of them are counted, and it is said where to go on."""
        assert sum(int(count.replace(" ", "")) for count in COUNTED.findall(err)) == len(self.read)
        assert f"go on from line {len(self.read) + 1}" in err


@pytest.mark.parametrize("count", [WINDOW - 100, FAR_MORE], ids=["fewer than the window", "far more"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@in_virtual_time
async def test_a_signal_while_both_brokers_hang(tmp_path: Path, capsys, count: int, number: signal.Signals) -> None:
    async with simulated_pair() as it:
        it.primary.fail(Fault.HANG)
        it.secondary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(count))
        asyncio.get_running_loop().call_later(1.0, run.stop.request, number)
        assert await run.ends() == 128 + number
    assert len(run.read) >= min(count, WINDOW)
    run.check()
    err = capsys.readouterr().err
    run.check_told(err)
    assert f"stopped by {number.name}: line 1 was the first one not accepted; send {run.failed} again" in err


@in_virtual_time
async def test_what_no_broker_was_given_is_refused_and_not_unknown(tmp_path: Path) -> None:
    async with simulated_pair() as it:
        it.primary.fail(Fault.HANG)
        it.secondary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(FAR_MORE))
        asyncio.get_running_loop().call_later(1.0, run.stop.request, signal.SIGINT)
        await run.ends()
    records = [json.loads(line) for line in run.receipts.read_text().splitlines()]
    assert len(records) > WINDOW
    assert {record["outcome"] for record in records[WINDOW:]} == {"refused"}
    assert all("not sent: the pair is closed" in record["text"] for record in records[WINDOW:])


@pytest.mark.parametrize("hangs", [False, True], ids=["brokers that answer", "brokers that hang"])
@in_virtual_time
async def test_a_reader_of_stdout_that_leaves(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    async with simulated_pair() as it:
        if hangs:
            it.primary.fail(Fault.HANG)
            it.secondary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(FAR_MORE), json=True)
        monkeypatch.setattr(sys, "stdout", ClosedPipe())
        with pytest.raises(OutputClosed):
            await run.ends()
    assert 0 < len(run.read) < FAR_MORE
    run.check()
    err = capsys.readouterr().err
    run.check_told(err)
    assert "ended early: line " in err


@in_virtual_time
async def test_a_reader_of_stdout_that_leaves_hears_nothing_where_nothing_is_kept(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with simulated_pair() as it:
        run = Run(it, tmp_path, Lines(FAR_MORE), json=True, kept=False)
        monkeypatch.setattr(sys, "stdout", ClosedPipe())
        with pytest.raises(OutputClosed):
            await run.ends()
    assert capsys.readouterr().err == ""


@in_virtual_time
async def test_a_reader_of_stderr_that_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first line that fails is told to nobody."""
    async with simulated_pair() as it:
        run = Run(it, tmp_path, Lines(FAR_MORE), to="nowhere")
        monkeypatch.setattr(sys, "stderr", ClosedPipe())
        with pytest.raises(OutputClosed):
            await run.ends()
    assert 0 < len(run.read) < FAR_MORE
    run.check()


@in_virtual_time
async def test_a_pair_that_faults(tmp_path: Path, capsys) -> None:
    async with simulated_pair(enable_syphon=True) as it:
        it.primary.fail(Fault.HANG)
        it.secondary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(FAR_MORE))
        running = asyncio.create_task(run.ends())
        await asyncio.sleep(1)
        await it.pair.primary.fault(RuntimeError("certificate revoked"))
        with pytest.raises(PairFaulted, match="certificate revoked"):
            await running
    assert len(run.read) > WINDOW
    run.check()
    run.check_told(capsys.readouterr().err)


@in_virtual_time
async def test_an_input_that_can_not_be_read_any_further(tmp_path: Path, capsys) -> None:
    async with simulated_pair() as it:
        run = Run(it, tmp_path, Lines(WINDOW, CommandFailed("can't read the lines: Input/output error")))
        with pytest.raises(CommandFailed, match="can't read the lines"):
            await run.ends()
    assert len(run.read) == WINDOW
    run.check()
    err = capsys.readouterr().err
    run.check_told(err)
    assert "ended early: line 1000 was the last one read; go on from line 1001" in err


@in_virtual_time
async def test_one_that_is_cancelled(tmp_path: Path, capsys) -> None:
    async with simulated_pair() as it:
        it.primary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(FAR_MORE))
        running = asyncio.create_task(run.ends())
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
    assert len(run.read) >= WINDOW
    run.check()
    run.check_told(capsys.readouterr().err)


@in_virtual_time
async def test_a_primary_that_does_not_answer_is_reported_after_a_second_and_why_it_diverted_at_the_end(
    tmp_path: Path, capsys
) -> None:
    async with simulated_pair(failover_interval=0, attempt_timeout=10.0) as it:
        it.primary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(5))
        running = asyncio.create_task(run.ends())
        await asyncio.sleep(2)
        early = capsys.readouterr().err
        assert await running == 0
    assert early.startswith("no result for 1 s: 5 lines in flight; an attempt may take 10 s")
    late = capsys.readouterr().err
    assert "orders: the primary fails: " in late
    assert "no result for" not in late
    assert "    as the primary failed: " in late


@in_virtual_time
async def test_a_healthy_run_says_nothing_of_waiting_nor_of_failures(tmp_path: Path, capsys) -> None:
    async with simulated_pair() as it:
        assert await Run(it, tmp_path, Lines(FAR_MORE)).ends() == 0
    err = capsys.readouterr().err
    assert "no result" not in err
    assert "failed:" not in err


@in_virtual_time
async def test_a_signal_is_acknowledged_at_once(tmp_path: Path, capsys) -> None:
    async with simulated_pair() as it:
        it.primary.fail(Fault.HANG)
        it.secondary.fail(Fault.HANG)
        run = Run(it, tmp_path, Lines(5))
        running = asyncio.create_task(run.ends())
        await asyncio.sleep(2)
        run.stop.request(signal.SIGINT)
        assert "SIGINT: reading no further; 5 lines in flight have " in capsys.readouterr().err
        await running


@in_virtual_time
async def test_a_limit_of_the_rate_spreads_the_messages_evenly(tmp_path: Path) -> None:
    async with simulated_pair() as it:
        began = asyncio.get_running_loop().time()
        run = Run(it, tmp_path, Lines(50), max_rate=5.0)
        running = asyncio.create_task(run.ends())
        await asyncio.sleep(4.1)
        assert 20 <= len(run.read) <= 21
        assert await running == 0
        assert 9.8 <= asyncio.get_running_loop().time() - began < 11
        run.check()


@in_virtual_time
async def test_a_signal_ends_the_wait_of_a_low_rate(tmp_path: Path, capsys) -> None:
    async with simulated_pair() as it:
        run = Run(it, tmp_path, Lines(5), max_rate=0.001)
        asyncio.get_running_loop().call_later(10, run.stop.request, signal.SIGINT)
        assert await run.ends() == 130
        run.check()
        run.check_told(capsys.readouterr().err)


def test_a_line_that_is_too_long_ends_the_run_and_is_named(
    cli, brokers, primary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lines, "MAX_LINE", 300_000)  # more than one block
    monkeypatch.setattr(_lines, "_BLOCK", 100_000)
    assert cli("entity", "create", "orders", *primary).status == 0
    file = tmp_path / "in"
    file.write_bytes(b"\n".join((b"a", b"y" * 300_000, b"x" * 300_001, b"b")))
    ended = cli("send", "-e", "orders", "-i", str(file), *brokers)
    assert ended.status == 1
    assert "line 2 was the last one read; go on from line 3" in ended.err
    assert ended.error_lines == [f"error: can't read {file}: its next line is longer than 0 MiB"]
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == f"a\n{'y' * 300_000}\n"

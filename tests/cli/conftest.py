"""Runs command lines: in this process where that suffices, as a program where signals and pipes matter."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from command_line import run
from pairmq_redis.testing import RedisServer


@dataclass(frozen=True)
class Ended:
    """What a command left."""

    status: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("error: ")]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        # Tests that run side by side are told a narrow screen; here nobody has one.
        if name.startswith("PAIRMQ_") or name in ("COLUMNS", "LINES"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., Ended]]:
    """Runs a command line in this process."""
    logger = logging.getLogger("pairmq")
    before = logger.level, list(logger.handlers)

    def call(*arguments: str, stdin: bytes = b"") -> Ended:
        capfd.readouterr()
        path = tmp_path / "stdin"
        path.write_bytes(stdin)
        with path.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            status = run(list(arguments))
        out, err = capfd.readouterr()
        return Ended(status, out, err)

    yield call
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.fixture
def with_hangups() -> Iterator[None]:
    """Runs commands as from a terminal; where nohup runs the tests, they would ignore that it is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def brokers() -> list[str]:
    """The options that name two fresh in-process brokers."""
    name = uuid.uuid4().hex[:8]
    return ["--primary", f"memory://p-{name}", "--secondary", f"memory://s-{name}"]


@pytest.fixture
def primary(brokers: list[str]) -> list[str]:
    """The option that names the primary of `brokers`."""
    return brokers[:2]


@pytest.fixture
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    """Two real servers."""
    with RedisServer(appendfsync="everysec") as first, RedisServer(appendfsync="everysec") as second:
        yield first, second


class Program:
    """The program as a process of its own; its output is collected all the time."""

    def __init__(self, *arguments: str, stdin: int | None = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pairmq", *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.out, self.err = bytearray(), bytearray()
        self._threads = [
            threading.Thread(target=self._collect, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _collect(stream: object, into: bytearray) -> None:
        while chunk := stream.read1(65536):  # type: ignore[attr-defined]
            into.extend(chunk)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_for(self, text: bytes, seconds: float = 100) -> None:
        """Wait until stderr or stdout holds a text."""
        pause = threading.Event()
        for _ in range(int(seconds / 0.02)):
            if text in self.err or text in self.out:
                return
            if self.process.poll() is not None and not any(thread.is_alive() for thread in self._threads):
                break
            pause.wait(0.02)
        assert text in self.err or text in self.out, (bytes(self.out), bytes(self.err))

    def end(self, seconds: float = 100) -> Ended:
        """Wait for the end of the process."""
        status = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(60)
        return Ended(status, self.out.decode(errors="replace"), self.err.decode(errors="replace"))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join(60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    """Starts the program; what still runs at the end of the test is killed."""
    started: list[Program] = []

    def start(*arguments: str, **options: int | None) -> Program:
        started.append(Program(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()

"""The client processes of a chaos run, seen from outside."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pairmq.testing.chaos._ledger import Ledger

OPENED = "opened"
"""What a client says first, when its pair is open."""

_MODULE = "pairmq.testing.chaos.client"
_CLOSE = 40.0  # s that a process may take to close its pair and end, on a busy machine


class ClientProcess:
    """One client through all its lives."""

    def __init__(self, spec: dict[str, Any], directory: Path, ledger: Ledger) -> None:
        self.name: str = spec["name"]
        self.life = 0
        self._spec = spec
        self._directory = directory
        self._ledger = ledger
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Begin another life; without effect while one goes on."""
        if self.running:
            return
        self._reap()
        self.life += 1
        path = self._directory / f"{self.name}-{self.life}.jsonl"
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C goes to the terminal's whole group, and is for the run: a client that has only begun to start
                # does not ignore it yet, would end, and look as if it had crashed. All end with their standard input.
                process_group=0,
            )
        answers: queue.Queue[str | None] = queue.Queue()
        self._answers = answers
        threading.Thread(target=_listen, args=(process, answers), daemon=True).start()
        self._write(json.dumps({**self._spec, "life": self.life, "ledger": str(path)}))

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()
            self._ledger.write("killed", life=f"{self.name}/{self.life}")

    def stop(self) -> None:
        """Ask it to close its pair and end; one that does not is killed, and that is a violation."""
        process = self._process
        if process is None or not self.running:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_CLOSE)
        except subprocess.TimeoutExpired:
            self._ledger.write("crash", text=f"{self.name}/{self.life} did not end within {_CLOSE:g} s of SIGTERM")
            process.kill()
            process.wait()

    def ask(self, word: str) -> None:
        """Send it a word, which `answer` waits for."""
        self._write(word)

    def answer(self, word: str, until: float) -> dict[str, Any] | None:
        """Wait for the answer to a word until an instant of the monotonic clock; None when none came."""
        while (left := until - time.monotonic()) > 0:
            try:
                line = self._answers.get(timeout=left)
            except queue.Empty:
                return None
            if line is None:
                return None
            answer: dict[str, Any] = json.loads(line)
            if answer["done"] == word:
                return answer
        return None

    def close(self) -> None:
        """End it, however; idempotent."""
        self.kill()
        self._reap()

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        status = process.wait()
        # SIGTERM ends a process that has not yet installed its handler.
        if status not in (0, -signal.SIGKILL, -signal.SIGTERM):
            self._ledger.write("crash", text=f"{self.name}/{self.life} ended with status {status}: see {self.name}.log")
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    if process.stdout is not None:
        with process.stdout:
            for line in process.stdout:
                answers.put(line)
    answers.put(None)

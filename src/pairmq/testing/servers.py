"""Real broker processes in tests: started on a free port, killed for certain, their last words in the error.

A server is ended by its process id only, and the kernel ends it when the test process dies (``PR_SET_PDEATHSIG``, by
way of ``setpriv`` of util-linux 2.33 or newer). Where that is missing (see `servers_end_with_parent`), an interrupted
test run can leave one behind. That signal comes when the *thread* that started the server ends, so start servers in a
thread that lives as long as they shall.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

_SETPRIV_OPTION = "--pdeathsig"
_POLL = 0.01
_TAKEN_WITHIN = 30.0  # s in which a server that was down and finds its port in use is started again
_TRY_AGAIN = 0.5  # s
_STOPPED_WITHIN = 3000  # looks at whether a signal has stopped all threads
# Not the shared generator: two runs with one seed would look for the same ports.
_chance = random.SystemRandom()
_KEPT = 256  # ports that a process keeps from others, at most: each is an open file
_kept: deque[int] = deque()  # their descriptors


class ServerError(RuntimeError):
    """A server that did not start, or ended by itself; the text holds the end of its log."""


def servers_end_with_parent() -> bool:
    """Return whether servers end with the process that started them, which needs a suitable ``setpriv``.

    Returns:
        False where an interrupted test run can leave a server behind.
    """
    return _setpriv() is not None


def free_port(host: str = "127.0.0.1") -> int:
    """Find a TCP port that nothing listens on at this moment, and that no outgoing connection takes by itself.

    On Linux it is kept for this process, so that of several that start servers side by side none is given the port of
    another one's server that is still starting, or was killed to be started again. A process keeps its last 256.
    """
    # The kernel gives outgoing connections ports from the ephemeral range: one from there could be taken while a
    # server boots or is down, and a client that calls a dead port of that range can even be connected to itself.
    for _ in range(100):
        port = _chance.randrange(10_000, _first_ephemeral_port())
        with contextlib.suppress(OSError), socket.socket() as probe:
            # As servers do, or a port with closed connections would look taken.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            if _keep(port):
                return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _keep(port: int) -> bool:
    """Keep a port from the others that look for one; False when one of them has it."""
    if sys.platform == "linux":
        # A name without a file, which the kernel takes back when the process ends, and that is known where the port is:
        # in its network namespace.
        name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            name.bind(f"\0pairmq-port-{port}")
        except OSError as error:
            name.close()
            return error.errno != errno.EADDRINUSE
        _kept.append(name.detach())
        while len(_kept) > _KEPT:
            os.close(_kept.popleft())
    return True


def _first_ephemeral_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        if first > 12_000:
            return first
    return 32_768


def accepts_connections(host: str, port: int) -> bool:
    """Return whether something listens there: the simplest readiness check."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


class OwnDirectory:
    """A temporary directory of a server, removed by the process that made it, at its end at the latest.

    A fork of that process, which runs the same handlers at its own end, leaves it alone.

    Attributes:
        path: where it is.
    """

    def __init__(self, prefix: str = "pairmq-") -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._remove = weakref.finalize(self, _remove, self.path, os.getpid())

    def remove(self) -> None:
        """Remove it with all that is in it; idempotent, and without effect in a fork."""
        self._remove()


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


class ServerProcess:
    """A server as a child process, to be killed, paused and started again.

    Blocking, since a test that starts a server has nothing else to do; use ``asyncio.to_thread`` where that
    is not so, but not for `start` and `restart` (see the module's text).

    Args:
        command: program and arguments; run without a shell.
        ready: says whether the server takes work; called until it does, every 10 ms; OSErrors count as no.
        directory: where it runs and keeps its log; a temporary one, removed at the end, when left out.
        environment: added to this process's environment; None takes a variable out of it.
        start_timeout: seconds until it must be ready.
        name: for error texts; the program's name when left out.
    """

    _taken: tuple[bytes, ...] = (b"address already in use", b"eaddrinuse")
    """What its log says, in lower case, if something that it needs is in use."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        ready: Callable[[], bool],
        directory: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
        start_timeout: float = 30.0,
        name: str | None = None,
    ) -> None:
        self._command = list(command)
        self._ready = ready
        self._temporary = None
        if directory is None:
            self._temporary = OwnDirectory()
            directory = self._temporary.path
        self.directory = directory
        self._environment = dict(environment or {})
        self._start_timeout = start_timeout
        self.name = name or Path(self._command[0]).name
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._log_begins = 0  # where the process that runs began to write
        self._has_run = False

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            ServerError: it does not run.
        """
        return self._running_process().pid

    def start(self) -> None:
        """Start it and wait until it is ready; one that runs already is left alone.

        Raises:
            ServerError: it ended, or was not ready in time.
        """
        if self.running:
            return
        self._launch()
        self._await_ready()

    def _launch(self) -> None:
        # What `start` does first; a server with a companion process overrides it.
        environment = {**os.environ, **self._environment}
        self._log_path.parent.mkdir(parents=True, exist_ok=True)  # a stop after a failed start has removed it
        with self._log_path.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                [*_dying_with_parent(self._command[0]), *self._command],
                cwd=self.directory,
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C goes to the terminal's whole group, but is meant for the parent, which then ends the server.
                process_group=0,
            )
        _await_program(self._process)
        self._paused = False

    def _await_ready(self) -> None:
        began = time.monotonic()
        deadline = began + self._start_timeout
        while not self._is_ready():
            if self._process is None or self._process.poll() is not None:
                if self._has_run and self._found_something_taken() and time.monotonic() < began + _TAKEN_WITHIN:
                    time.sleep(_TRY_AGAIN)
                    self._launch()
                    continue
                status = "unknown" if self._process is None else self._process.returncode
                raise ServerError(f"{self.name} ended with status {status}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.name} was not ready after {self._start_timeout} s\n{self.log_tail()}")
            time.sleep(_POLL)
        self._has_run = True

    def _found_something_taken(self) -> bool:
        """Whether its port, or what else it needs, is in use: another process may soon release it."""
        with contextlib.suppress(OSError), self._log_path.open("rb") as log:
            log.seek(self._log_begins)
            said = log.read().lower()
            return any(text in said for text in self._taken)
        return False

    def kill(self) -> None:
        """End it with SIGKILL and wait until it is gone; without effect when it does not run."""
        self._end(signal.SIGKILL, 10.0)

    def stop(self, timeout: float = 10.0) -> None:
        """Ask it to end with SIGTERM, and kill it when it does not.

        Args:
            timeout: seconds to wait for it.
        """
        if self._paused:
            self.resume()
        self._end(signal.SIGTERM, timeout)

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): the kernel goes on taking connections and bytes, and it answers nothing.

        Raises:
            ServerError: it does not run.
        """
        process = self._running_process()
        process.send_signal(signal.SIGSTOP)
        self._paused = True
        # The signal reaches each thread when the kernel next looks at it: until then some go on answering.
        for _ in range(_STOPPED_WITHIN):
            if _is_stopped(process.pid):
                break
            time.sleep(_POLL)

    def resume(self) -> None:
        """Let it go on after `pause`.

        Raises:
            ServerError: it does not run.
        """
        self._running_process().send_signal(signal.SIGCONT)
        self._paused = False

    def restart(self) -> None:
        """Kill it if it runs, and start it again with the data that it kept.

        Raises:
            ServerError: as `start`.
        """
        self.kill()
        self.start()

    def close(self) -> None:
        """End it and remove its temporary directory; idempotent."""
        self.kill()
        if self._temporary is not None:
            self._temporary.remove()

    def log_tail(self, lines: int = 30) -> str:
        """The end of what it wrote to standard output and error."""
        with contextlib.suppress(OSError):
            text = self._log_path.read_text(errors="replace")
            return "\n".join(text.splitlines()[-lines:])
        return "(no log)"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running" if self.running else "not running"
        return f"{type(self).__name__}({self.name!r}, {state})"

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerError(f"{self.name} does not run")
        return self._process

    def _is_ready(self) -> bool:
        try:
            return self._ready()
        except OSError:
            return False

    def _end(self, how: signal.Signals, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        self._paused = False


def start_together(*servers: ServerProcess) -> None:
    """Start several servers at the same time and wait until all are ready; those that run are left alone.

    All processes are started by the calling thread, which therefore has to live as long as they shall.

    Raises:
        ServerError: one of them ended, or was not ready in time; then none of those that were started here is left.
    """
    launched: list[ServerProcess] = []
    try:
        for server in servers:
            if not server.running:
                launched.append(server)
                server._launch()
        for server in launched:
            server._await_ready()
    except BaseException:
        for server in launched:
            server.kill()
        raise


def _dying_with_parent(program: str) -> list[str]:
    """What to put before a command, so that the kernel kills it with its parent.

    Not a function for the child to call (``preexec_fn``): such a child is a copy of the interpreter, and what Python
    clears away in it shuts connections that it shares with its parent, Spark's among them.
    """
    # `subprocess` reports a missing program.
    setpriv = _setpriv() if shutil.which(program) is not None else None
    return [] if setpriv is None else [setpriv, _SETPRIV_OPTION, "KILL", "--"]


def _setpriv() -> str | None:
    """Find the ``setpriv`` that can do it; BusyBox's can't, and neither can util-linux's before 2.33."""
    setpriv = shutil.which("setpriv")
    return setpriv if setpriv is not None and _ends_with_parent(setpriv) else None


@functools.cache
def _ends_with_parent(setpriv: str) -> bool:
    """Whether it knows the option and the kernel takes it; asked once in each process."""
    try:
        done = subprocess.run(
            [setpriv, _SETPRIV_OPTION, "KILL", "--", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


def _await_program(process: subprocess.Popen[bytes]) -> None:
    """Wait until the program itself runs: before that the parent-death signal may not be set yet."""
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{process.pid}/cmdline")
        while process.poll() is None and f"\0{_SETPRIV_OPTION}\0".encode() in command.read_bytes():
            time.sleep(_POLL / 10)


def _is_stopped(pid: int) -> bool:
    """Whether every thread of a process has stopped; assumed if the kernel does not report it."""
    try:
        states = [
            task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{pid}/task").iterdir()
        ]
    except (OSError, IndexError):
        return True
    return all(state in "TtXZ" for state in states)

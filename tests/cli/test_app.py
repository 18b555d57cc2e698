import asyncio
import errno
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairmq.cli import _journal, _output, _send
from pairmq.cli._output import stdout_written
from pairmq.cli._signals import ENDING, Interrupts, Stop, run_async
from pairmq.plugins import TransportRecord, hookimpl, registry
from pairmq.transport import Capabilities

_COMMANDS = ["demo", "send", "receive", "syphon", "status", "ping", "backlog", "entity", "doctor", "plugins", "cost"]


def test_the_version(cli) -> None:
    ended = cli("--version")
    assert ended.status == 0
    assert ended.out.startswith("pairmq 0.")


@pytest.mark.parametrize("command", _COMMANDS)
def test_each_command_explains_itself_with_an_example(cli, command: str) -> None:
    ended = cli(command, "--help")
    assert ended.status == 0
    assert "Examples:" in ended.out
    assert f"pairmq {command}" in ended.out


@pytest.mark.parametrize(
    "words", [(), ("status",), ("pipeline",), ("pipeline", "run"), ("servicebus-server",)], ids=str
)
def test_no_flag_looks_as_if_it_took_a_value(cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    told = cli(*words, "--help").out
    assert "--help" in told
    assert [line for line in told.splitlines() if "<bool>" in line or ("--verbose" in line and "<int>" in line)] == []


def test_the_program_names_all_its_commands(cli) -> None:
    ended = cli("--help")
    assert all(f" {command} " in ended.out for command in _COMMANDS)


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from pairmq.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: the command line needs typer and rich: pip install 'pairmq[cli]'\n"


def test_ctrl_c_leaves_no_traceback_while_the_program_imports() -> None:
    # An import hook sends the signal when the first module of the package is imported.
    code = """
import importlib.abc, os, signal, sys
from pairmq_command import main

class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        assert name == "pairmq", name
        os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
main()
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_stays_ignored_where_the_program_was_started_so() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from pairmq_command import main; main()"
    code = code.replace("main()", "import sys; sys.argv[1:] = ['--version']\ntry: main()\nexcept SystemExit: pass")
    code += "\nassert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_command_imports_no_other() -> None:
    code = """
import sys
from pairmq.cli._app import run
from pairmq.cli._extensions import COMMANDS
run(["cost", "--json"])
print(*sorted({f"pairmq.cli._{name}" for name in COMMANDS} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "pairmq.cli._cost"


@pytest.mark.real_server  # a program
def test_it_starts_on_a_system_that_knows_no_hangup() -> None:
    code = "import signal; del signal.SIGHUP; from pairmq.cli._app import run; raise SystemExit(run(['--version']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.fixture
def hangups() -> Iterator[Callable[[Any], int]]:
    """Runs a command that gets two hangups while it works, with a handler that was there before."""
    before = signal.getsignal(signal.SIGHUP)

    async def command(stop: Stop) -> int:
        for turn in range(20):
            if turn < 2:
                os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        return stop.exit_status if stop.asked else 0

    def run(handler: Any) -> int:
        signal.signal(signal.SIGHUP, handler)
        return run_async(command, graceful=True)

    yield run
    signal.signal(signal.SIGHUP, before)


def test_a_closed_terminal_ends_a_command_in_order_and_nohup_keeps_it(hangups) -> None:
    assert hangups(lambda *_: None) == 129
    assert hangups(signal.SIG_IGN) == 0


@pytest.fixture
def interrupted(cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command that gets signals while it does something that no event loop waits for."""

    def call(*numbers: int, every: bool = False) -> Any:
        def signalled(*_: object, **__: object) -> None:
            try:
                for number in numbers:
                    signal.raise_signal(number)
            finally:
                ended.append(True)

        ended: list[bool] = []
        monkeypatch.setattr(_journal, "_ship", signalled)
        result = cli("journal", "ship", str(tmp_path), "file:///store", *(["--every", "1h"] if every else []))
        assert ended
        return result

    return call


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=lambda each: str(each),
)
def test_a_signal_ends_a_command_without_an_event_loop_in_order(interrupted, number: int, status: int) -> None:
    handlers = [signal.getsignal(each) for each in ENDING]
    ended = interrupted(number)
    assert (ended.status, ended.out, ended.err.strip()) == (status, "", "")
    assert [signal.getsignal(each) for each in ENDING] == handlers


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 129)])
def test_sigterm_is_how_a_command_without_an_end_of_its_own_ends(interrupted, number: int, status: int) -> None:
    assert interrupted(number, every=True).status == status


@pytest.mark.usefixtures("with_hangups")
def test_sigterm_ends_a_command_that_a_script_started_in_the_background(interrupted) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert interrupted(signal.SIGTERM).status == 143
    finally:
        signal.signal(signal.SIGINT, before)


def test_nohup_keeps_a_command_without_an_event_loop(interrupted, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert interrupted(signal.SIGHUP, signal.SIGTERM).status == 143
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("with_hangups")
def test_what_runs_an_event_loop_leaves_the_handlers_of_signals_as_they_were(interrupted) -> None:
    async def look(stop: Stop) -> int:
        return 0

    with Interrupts():
        handlers = [signal.getsignal(each) for each in ENDING]
        run_async(look)
        assert [signal.getsignal(each) for each in ENDING] == handlers
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.real_server  # a program
@pytest.mark.usefixtures("with_hangups")
def test_the_status_is_that_of_the_closed_terminal_where_the_last_words_can_not_be_written() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "pairmq", "simulate", "--seeds", "0..999", "--hours", "0.01"])
    shown = b""
    while b"simulated " not in shown:
        shown += os.read(terminal, 10_000)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129


@pytest.mark.usefixtures("with_hangups")
def test_output_after_its_terminal_was_closed_is_no_failure_of_a_command(cli, monkeypatch) -> None:
    async def command(stop: Stop) -> int:
        signal.raise_signal(signal.SIGHUP)
        await stop.wait()
        with stdout_written():
            raise OSError(errno.EIO, "Input/output error")
        return stop.exit_status

    monkeypatch.setattr(_journal, "_ship", lambda *_, **__: run_async(command, graceful=True))
    monkeypatch.setattr(_output, "silence_stdout", lambda: None)
    ended = cli("journal", "ship", ".", "file:///store")
    assert (ended.status, ended.err) == (129, "")


@pytest.mark.real_server  # a program
def test_a_fork_of_a_command_ends_as_any_other_process() -> None:
    code = """
import os, signal
from pairmq.cli._signals import Interrupts
with Interrupts():
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_plugins_lists_schemes_and_capabilities(cli) -> None:
    ended = cli("plugins")
    assert ended.status == 0
    assert "redis:// rediss://" in ended.out
    assert "memory://" in ended.out
    records = json.loads(cli("plugins", "--json").out)["plugins"]
    assert any(transport["name"] == "redis" for plugin in records for transport in plugin["transports"])


class _Broken:
    @hookimpl
    def pairmq_transports(self):
        raise RuntimeError("no such\x1b[2J library")


class _Greedy:
    @hookimpl
    def pairmq_transports(self):
        yield TransportRecord("greedy", ("redis",), lambda url: None, Capabilities())  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("plugin", "says"), [(_Broken(), "no such"), (_Greedy(), "claimed by two plugins")])
@pytest.mark.parametrize("command", ["plugins", "doctor"])
def test_a_broken_plugin_or_a_conflict_is_reported_and_fails(
    cli, brokers, plugin: object, says: str, command: str
) -> None:
    registry.register(plugin, name="bad")
    try:
        ended = cli(command, *(brokers if command == "doctor" else []))
    finally:
        registry.unregister(plugin)
    assert ended.status == 1
    assert says in ended.out + ended.err
    assert "\x1b" not in ended.out + ended.err


_NO_BROKER = [
    "cost",
    # JSON, a table, and what the parser writes itself; each is a program that is started.
    *(
        pytest.param(arguments, marks=pytest.mark.real_server)
        for arguments in ("cost --json", "doctor", "--help", "--version")
    ),
]


def _program(arguments: str, redirection: str) -> subprocess.CompletedProcess[str]:
    code = f"{shlex.quote(sys.executable)} -m pairmq {arguments} {redirection}"
    return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("arguments", _NO_BROKER)
def test_it_stops_quietly_with_141_when_its_output_is_not_read(arguments: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pairmq", *arguments.split()]
    try:
        ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=100)
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (141, b"")


@pytest.mark.parametrize("arguments", _NO_BROKER)
def test_a_full_disk_under_stdout_is_one_error(arguments: str) -> None:
    ended = _program(arguments, "> /dev/full")
    assert ended.returncode == 1
    assert ended.stderr == "error: can't write standard output: No space left on device\n"


# Each stream with a command that writes; stdout with what the parser writes, and the version; all three with a command
# that starts another program.
@pytest.mark.parametrize(
    ("arguments", "closed"),
    [
        ("cost", ">&- 2>&- <&-"),
        *(
            pytest.param(*case, marks=pytest.mark.real_server)
            for case in (
                *(("cost --json", closed) for closed in (">&-", "2>&-", "<&-")),
                ("--help", ">&-"),
                ("--version", ">&-"),
                ("doctor", ">&- 2>&- <&-"),
            )
        ),
    ],
)
def test_a_stream_that_is_closed_changes_no_exit_status(arguments: str, closed: str) -> None:
    ended = _program(arguments, closed)
    assert ended.returncode == (1 if arguments == "doctor" else 0)
    assert ended.stderr == ""


@pytest.mark.real_server  # programs
@pytest.mark.parametrize(
    ("arguments", "closed", "says"),
    [
        ("send -e q --secondary memory://b", "<&-", "can't read standard input: it is closed"),
        ("receive -e q", ">&-", "can't write standard output: it is closed"),
    ],
)
def test_without_the_stream_that_it_is_for_a_command_is_refused(arguments: str, closed: str, says: str) -> None:
    ended = _program(f"{arguments} --primary memory://a", closed)
    assert (ended.returncode, ended.stderr) == (2, f"error: {says}\n")


def test_a_table_in_a_file_is_as_wide_as_columns_says(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, cli("plugins").out.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    assert max(map(len, cli("plugins").out.splitlines())) > 80


def test_a_narrow_table_cuts_no_number(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its titles were cut to fit, and so would numbers be that are as wide."""
    monkeypatch.setenv("COLUMNS", "40")
    listed = cli("backlog", "list", "--primary", "memory://a", "--secondary", "memory://b", "--backlog-queues", "1").out
    assert "scheduled letter\n" in listed
    assert max(map(len, listed.splitlines()[-3:])) <= 40


def test_a_terminal_of_no_columns_gets_errors_and_tables(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were discarded, with exit status 2 and nothing on stderr."""
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "memory" in cli("plugins").out
    assert "no primary broker" in cli("status").err


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/the/tables/run.json", "can't write /the/tables/run.json: No space left on device"),
        (None, "unexpected OSError: [Errno 28] No space left on device (run 'pairmq -v …' for the traceback)"),
    ],
    ids=["named", "not named"],
)
def test_a_full_disk_under_a_file_is_not_reported_as_stdout(
    cli, brokers, capfd, monkeypatch: pytest.MonkeyPatch, name: str | None, says: str
) -> None:
    def full(*_: object) -> None:
        # As what writes raises it, and without a name.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([] if name is None else [name]))

    monkeypatch.setattr(_send, "LineSource", full)
    ended = cli("send", "-e", "orders", *brokers)
    assert (ended.status, ended.error_lines) == (1, [f"error: {says}"])
    os.write(1, b"stdout is open\n")
    assert capfd.readouterr().out == "stdout is open\n"

"""Every block of README.md is run as it is printed; only ports that must be free are replaced."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.servicebus._pyamqp.authentication import SASLPlainAuth
from azure.servicebus._pyamqp.client import SendClient
from azure.servicebus._pyamqp.message import Message

from doc_blocks import Block, blocks
from servicebus_local.command import KEY_VARIABLE, run

BLOCKS = blocks("plugins/servicebus-local/README.md")
PYTHON = [block for block in BLOCKS if block.language == "python"]
COMMANDS = [
    line
    for block in BLOCKS
    if block.language == "sh"
    for line in block.text.splitlines()
    if "servicebus-local " in line and not line.startswith("pip")
]

pytestmark = pytest.mark.real_server


def _with(text: str) -> Block:
    (block,) = [block for block in PYTHON if text in block.text]
    return block


def _run(tmp_path: Path, text: str, *, arguments: tuple[str, ...] = ()) -> str:
    (tmp_path / "test_block.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, *arguments, "test_block.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@contextmanager
def _running(*command: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _await_listener(port: int) -> None:
    deadline = time.monotonic() + 100
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_first_program_receives_what_it_sends(tmp_path: Path) -> None:
    setting, program, *arguments = COMMANDS[0].split()
    variable, _, key = setting.partition("=")
    assert (variable, program) == (KEY_VARIABLE, "servicebus-local")
    port, admin_port = _free_port(), _free_port()
    command = [sys.executable, "-m", "servicebus_local", *arguments, f"--port={port}", f"--admin-port={admin_port}"]
    with _running(*command, env={**os.environ, variable: key}) as process:
        assert process.stdout is not None
        said = process.stdout.readline().replace(str(port), "5672")
        text = _with('local = "Endpoint=sb://127.0.0.1:5672').text
        (printed,) = re.findall(r'"(Endpoint=.*)"', text)
        assert said == f"connection string: {printed};UseDevelopmentEmulator=true\n"
        assert _run(tmp_path, text.replace(":5672", f":{port}")) == "hello\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_that_are_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Only --help is done: with the other options the server would start.
    arguments = command.partition("servicebus-local ")[2].split()
    assert run([*arguments, "--help"]) == 0
    shown = capsys.readouterr().out
    assert [word for word in arguments if word.startswith("--") and f"{word} " not in shown.replace("]", " ")] == []


def test_the_fixture_serves_a_test(tmp_path: Path) -> None:
    text = _with("@pytest.fixture").text
    assert "1 passed" in _run(tmp_path, text, arguments=("-m", "pytest", "-q", "-p", "no:cacheprovider"))


@pytest.mark.parametrize(
    ("text", "printed"),
    [("LocalServer(", "1\n"), ("connection_verify=", "5000\n"), ("server.fault(", "busy\n1\n")],
)
def test_a_program_prints_what_it_should(tmp_path: Path, text: str, printed: str) -> None:
    assert _run(tmp_path, _with(text).text) == printed


def test_the_engine_s_server_prints_what_azure_s_amqp_client_sends(tmp_path: Path) -> None:
    port = _free_port()
    program = tmp_path / "printer.py"
    program.write_text(_with("split_message").text.replace("5671", str(port)))
    assert len(_with("split_message").text.splitlines()) <= 35
    with _running(sys.executable, "-u", str(program)) as process:
        _await_listener(port)
        with SendClient(f"127.0.0.1:{port}", "target", use_tls=False, auth=SASLPlainAuth("any", "any")) as client:
            client.send_message(Message(data=[b"hello"]), timeout=60)
        assert process.stdout is not None
        assert process.stdout.readline() == "[b'hello']\n"


def test_every_program_is_run_by_a_test_here() -> None:
    found = ('local = "', "@pytest.fixture", "LocalServer(", "connection_verify=", "server.fault(", "split_message")
    assert sorted(_with(text).place for text in found) == sorted(block.place for block in PYTHON)
    assert {block.language for block in BLOCKS} == {"python", "sh"}

"""The command ``servicebus-local``: what it refuses, what it prints, and how it ends."""

from __future__ import annotations

import base64
import gc
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from servicebus_local.command import KEY_VARIABLE, run
from servicebus_local.testing import shared_access_signature

_FREE = ("--port", "0", "--admin-port", "0")
_SECRET = base64.b64encode(b"a very secret key").decode()


pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


class Running:
    """The command as a process, with its JSON."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "servicebus_local", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.announced: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(how)
        out, err = self.process.communicate(timeout=300)
        assert out == ""
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts the command; what still runs at the end of the test is killed."""
    started: list[Running] = []

    def make(*arguments: str, environment: dict[str, str] | None = None) -> Running:
        started.append(Running(*arguments, environment=environment))
        return started[-1]

    yield make
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()
    # The blocking client leaves sockets to the collector: those of a test go while that is not complained about.
    gc.collect()


def _send(connection_string: str, *names: str) -> None:
    """Send two messages to each of these queues or topics, whose senders are the same on the wire."""
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
        for name in names:
            with client.get_queue_sender(name) as sender:
                sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])


def _held(announced: dict[str, Any], path: str) -> int:
    """How many messages a queue or subscription holds, asked by hand: that is quicker than to receive them."""
    key = re.search("SharedAccessKey=([^;]*)", announced["connection_string"])
    assert key is not None
    token = shared_access_signature(key[1], "http://localhost/")
    connection = http.client.HTTPConnection("127.0.0.1", announced["admin_port"], timeout=30)
    connection.request("GET", f"/{path}", headers={"Authorization": token})
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"<MessageCount>(\d+)</MessageCount>", text)
    assert found is not None, text
    return int(found[1])


# ------------------------------------------------------------------------------------------------- what it refuses


@pytest.fixture
def refuse(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command line that can't work in this process, and gives its one error."""

    def call(*arguments: str, status: int = 2) -> str:
        assert run(arguments) == status
        out, err = capfd.readouterr()
        assert out == ""
        assert "Traceback" not in err
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        return err

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--host", "0.0.0.0"), "--allow-remote"),
        (("--host", "example.org"), "--allow-remote"),
        (("--host", "::", "--allow-remote", "--allow-control"), "loopback addresses only"),
        (("--port", "70000"), "port is 70000"),
        (("--port", "7000", "--admin-port", "7000"), "must be another one"),
        (("--tls-port", "0"), "needs a certificate"),
        (("--cert", __file__), "belong together"),
        (("--cert", __file__, "--key-file", __file__, "--self-signed"), "give one of them"),
        (("--cert", "/no/such/file", "--key-file", __file__), "can't read /no/such/file: No such file"),
        (("--config", "/no/such/file"), "can't read /no/such/file: No such file"),
        (("--config", __file__), "can't be read"),
        (("--key", "a;b"), "';'"),
        (("--queue", " "), "name of a queue is empty"),
        (("--topic", "t:a,,b"), "name of a subscription is empty"),
        ((*_FREE, "--queue", "no spaces"), "no spaces"),
        (("--no-such-option=value",), "no such option: --no-such-option (see"),
        (("--que", "orders"), "no such option: --que (see"),
        (("orders",), "options only"),
        (("--port", "many"), "--port"),
    ],
)
def test_options_that_can_t_work_are_one_error(
    refuse: Callable[..., str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in refuse(*arguments)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "the file is no JSON object"),
        ("{}", "UserConfig is no JSON object"),
        ('{"UserConfig": {"Namespaces": 5}}', "Namespaces of UserConfig is not a list"),
        ('{"UserConfig": {"Namespaces": [{"Queues": [{}]}]}}', "has no Name"),
        (
            '{"UserConfig": {"Namespaces": [{"Queues": [{"Name": "q", "Properties": {"LockDuration": "soon"}}]}]}}',
            "q: LockDuration: invalid duration 'soon'",
        ),
        ("[" * 100_000, "can't be read"),
    ],
)
def test_a_settings_file_that_can_t_be_read_is_one_error(
    refuse: Callable[..., str], tmp_path: Path, content: str, says: str
) -> None:
    file = tmp_path / "Config.json"
    file.write_text(content)
    error = refuse("--config", str(file))
    assert says in error
    assert "Config.json" in error


@pytest.mark.parametrize("which", ["--port", "--admin-port"])
def test_a_port_in_use_is_one_error_with_status_1(refuse: Callable[..., str], which: str) -> None:
    other = "--port" if which == "--admin-port" else "--admin-port"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        error = refuse(which, str(port), other, "0", status=1)
    assert "can't start" in error
    assert "address already in use" in error.lower()
    assert str(port) in error


def test_data_that_can_t_be_kept_is_one_error_with_status_1(refuse: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("no directory")
    assert "can't start" in refuse(*_FREE, "--data", str(file), status=1)


def test_an_invalid_certificate_is_one_error_with_status_1(refuse: Callable[..., str]) -> None:
    error = refuse(*_FREE, "--cert", __file__, "--key-file", __file__, status=1)
    assert "the certificate or its key can't be used" in error


def test_no_error_holds_the_key(refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, _SECRET)
    assert _SECRET not in refuse("--port", "7000", "--admin-port", "7000")
    assert _SECRET not in refuse("--key-name", "a;b")


def test_an_unknown_option_s_value_is_not_repeated(refuse: Callable[..., str]) -> None:
    assert _SECRET not in refuse("--keys", _SECRET)


def test_help_needs_none_of_the_server_s_dependencies() -> None:
    code = (
        "import sys\n"
        "for name in ('aiohttp', 'defusedxml', 'trustme'): sys.modules[name] = None\n"
        "from servicebus_local.command import run; sys.exit(run(['--help']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Examples:\n  servicebus-local\n" in ended.stdout


def test_the_program_does_not_read_the_system_s_authorities() -> None:
    code = (
        "import contextlib, ssl, sys\n"
        "from servicebus_local.command import main\n"
        "sys.argv[1:] = ['--help']\n"
        "with contextlib.suppress(SystemExit): main()\n"
        "print(len(ssl.create_default_context().get_ca_certs()))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert ended.stdout.splitlines()[-1] == "0"


# ---------------------------------------------------------------------------------------------------- what it does


@pytest.mark.real_server
def test_the_server_creates_the_given_entities_and_ends_on_sigterm(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(_CONFIG))
    ready = tmp_path / "ready.json"
    server = start(
        *_FREE, "--queue", "orders", "--topic", "events:all,none", "--config", str(config), "--ready-file", str(ready)
    )
    announced = server.announced
    assert announced["port"] != announced["admin_port"]
    assert announced["tls_port"] is None
    assert f":{announced['port']};" in announced["connection_string"]
    assert json.loads(ready.read_text()) == announced
    assert ready.stat().st_mode & 0o777 == 0o600
    _send(announced["connection_string"], "orders", "events", "topic.1")
    held = {
        "orders": 2,
        "queue.1": 0,
        "events/subscriptions/all": 2,
        "events/subscriptions/none": 2,
        "topic.1/subscriptions/by-label": 0,
        "topic.1/subscriptions/by-sql": 2,
    }
    assert {path: _held(announced, path) for path in held} == held
    assert server.end() == (128 + signal.SIGTERM, "")


_CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": False},
                        "Subscriptions": [
                            {
                                "Name": "by-label",
                                "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3},
                                "Rules": [
                                    {
                                        "Name": "label",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"Label": "wanted", "Properties": {"a": "b"}},
                                        },
                                    }
                                ],
                            },
                            {
                                "Name": "by-sql",
                                "Rules": [
                                    {
                                        "Name": "first",
                                        "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=0"}},
                                    },
                                    {
                                        "Name": "second",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "1=1"},
                                            "Action": {"SqlExpression": "SET seen = 1"},
                                        },
                                    },
                                ],
                            },
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


@pytest.mark.real_server
def test_what_was_accepted_is_there_after_a_restart_with_the_same_key(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    arguments = (*_FREE, "--data", str(tmp_path / "data"), "--queue", "q")
    environment = {**os.environ, KEY_VARIABLE: _SECRET}
    first = start(*arguments, environment=environment)
    assert f"SharedAccessKey={_SECRET};" in first.announced["connection_string"]
    _send(first.announced["connection_string"], "q")
    assert first.end(signal.SIGINT)[0] == 128 + signal.SIGINT
    second = start(*arguments, environment=environment)
    assert _held(second.announced, "q") == 2


@pytest.mark.real_server
def test_a_certificate_of_its_own_serves_both_tls_ports(start: Callable[..., Running]) -> None:
    server = start(*_FREE, "--self-signed", "--queue", "q")
    context = ssl.create_default_context(cafile=server.announced["ca_file"])
    for port in (server.announced["tls_port"], server.announced["admin_tls_port"]):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
    assert server.end()[0] == 128 + signal.SIGTERM
    assert not Path(server.announced["ca_file"]).exists()


def test_input_that_is_a_file_is_no_reason_to_end() -> None:
    command = [sys.executable, "-m", "servicebus_local", "--until-eof", *_FREE]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 2
    assert "--until-eof: standard input is a file, or closed: give it a pipe" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.real_server
def test_a_server_ends_when_its_input_is_closed_if_asked_to() -> None:
    command = [sys.executable, "-m", "servicebus_local", "--json", "--until-eof", *_FREE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write(b"ignored")
        process.stdin.close()
        assert process.wait(60) == 0

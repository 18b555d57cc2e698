"""For tests: the server as a child process, and a client of its control endpoint, which injects faults."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, quote_plus

from servicebus_local.command import KEY_VARIABLE
from servicebus_local.settings import DEFAULT_KEY_NAME, connection_string

_HOST = "127.0.0.1"
_TOKEN_SECONDS = 300
_ANSWER_TIMEOUT = 30.0  # s; long, as tests may keep the machine busy
_STOP_TIMEOUT = 10.0  # s


class ServerError(RuntimeError):
    """A server that did not start, or does not answer, or an answer that is an error."""


def shared_access_signature(
    key: str, resource: str, *, key_name: str = DEFAULT_KEY_NAME, seconds: float = _TOKEN_SECONDS
) -> str:
    """Make a signature, as Azure's `AzureSasCredential` takes it.

    Args:
        key: the shared access key.
        resource: the URI that it is for, with all below it: ``sb://127.0.0.1/orders``.
        key_name: the key's name.
        seconds: until it expires.
    """
    # Service Bus documentation: "Service Bus access control with Shared Access Signatures".
    scope, expiry = quote_plus(resource), int(time.time() + seconds)
    digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest))
    return f"SharedAccessSignature sr={scope}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


class Control:
    """A client of the control endpoint of a server on this machine that was started with ``--allow-control``.

    Args:
        admin_port: the port of its administration over HTTP.
        key: its shared access key.
        key_name: the key's name.
    """

    def __init__(self, admin_port: int, key: str, key_name: str = DEFAULT_KEY_NAME) -> None:
        self.admin_port = admin_port
        self.key = key
        self.key_name = key_name

    def fault(self, rule: Mapping[str, Any]) -> None:
        """Inject a fault, in addition to those in force; its fields are those of `servicebus_local.faults.FaultRule`.

        Raises:
            ServerError: no answer, or an invalid rule; the text names the field.
        """
        self.call("POST", "faults", [dict(rule)])

    def heal(self) -> None:
        """End all faults."""
        self.call("DELETE", "faults")

    def drop_connections(self) -> int:
        """Reset all connections of AMQP clients; returns their number."""
        return int(self.call("POST", "connections/drop")["dropped"])

    def operations(self) -> dict[str, int]:
        """Count the operations since the start, by kind, as the service bills them."""
        return {str(name): int(count) for name, count in self.call("GET", "operations").items()}

    def queues(self) -> dict[str, dict[str, int]]:
        """Each queue's path with its counts: ``active`` (locked messages included), ``scheduled``, ``deferred``,
        ``dead_letter``."""
        return self.call("GET", "queues")

    def create_queue(self, queue: str) -> None:
        """Create a queue with the service's defaults."""
        self.call("PUT", f"queues/{quote(queue)}")

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages."""
        self.call("DELETE", f"queues/{quote(queue)}")

    def clear(self) -> None:
        """Delete all queues and topics."""
        self.call("DELETE", "entities")

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make one request for a path below ``/$control/`` and return the answer; bodies are JSON.

        Raises:
            ServerError: no answer, or another status than 200.
        """
        connection = http.client.HTTPConnection(_HOST, self.admin_port, timeout=_ANSWER_TIMEOUT)
        token = shared_access_signature(self.key, f"http://{_HOST}:{self.admin_port}/", key_name=self.key_name)
        try:
            connection.request(
                method,
                f"/$control/{path}",
                None if body is None else json.dumps(body),
                {"Authorization": token, "Content-Type": "application/json"},
            )
            response = connection.getresponse()
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"no answer to {method} {path}: {error}") from None
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise ServerError(f"{method} {path}: {response.status} {text}")
        answer: dict[str, Any] = json.loads(text)
        return answer


class ServerProcess(Control):
    """A server in a child process, on free ports of 127.0.0.1 that it keeps over `kill` and `start`.

    As a context manager it starts, and is closed at the end. It ends with this process.

    Args:
        queues: names of queues to create.
        topics: likewise topics: ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``.
        durable: keep entities and messages on disk, over `kill` and `start`.
        tls: listen with TLS too, under a certificate of an authority of its own, `ca_file`.
        options: more of its command line.
    """

    def __init__(
        self,
        *,
        queues: Sequence[str] = (),
        topics: Sequence[str] = (),
        durable: bool = False,
        tls: bool = False,
        options: Sequence[str] = (),
    ) -> None:
        super().__init__(0, base64.b64encode(secrets.token_bytes(32)).decode())
        self.port = 0
        self.tls_port: int | None = None
        self.admin_tls_port: int | None = None
        directory = Path(tempfile.mkdtemp(prefix="servicebus-local-"))
        self._remove = weakref.finalize(self, _remove, directory, os.getpid())  # also at the end of the process
        self._log = directory / "server.log"
        self._options = list(options)
        for name, values in (("--queue", queues), ("--topic", topics)):
            self._options += [word for value in values for word in (name, value)]
        if durable:
            self._options += ["--data", str(directory / "data")]
        self.ca_file: Path | None = None
        if tls:
            from servicebus_local.certificates import make_certificate

            own = make_certificate(directory / "tls", "localhost", _HOST)
            self._options += ["--cert", str(own.tls.certificate), "--key-file", str(own.tls.key)]
            self.ca_file = own.ca_file
        self._process: subprocess.Popen[str] | None = None

    @property
    def connection_string(self) -> str:
        """For clients without TLS, in the form of the development emulator."""
        return connection_string(_HOST, self.port, self.key_name, self.key)

    @property
    def admin_connection_string(self) -> str:
        """For administration clients. ``azure-servicebus`` calls HTTPS whatever it says, so it needs `tls`."""
        return connection_string(_HOST, self.admin_tls_port or self.admin_port, self.key_name, self.key)

    def start(self) -> None:
        """Start it, and return when clients can connect; without effect while it runs.

        Raises:
            ServerError: it has ended; the text holds its log.
        """
        if self._process is not None and self._process.poll() is None:
            return
        ports = {"--port": self.port, "--admin-port": self.admin_port}
        if self.ca_file is not None:
            ports |= {"--tls-port": self.tls_port or 0, "--admin-tls-port": self.admin_tls_port or 0}
        with self._log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603  # this interpreter
                [
                    *(sys.executable, "-m", "servicebus_local", "--json", "--allow-control", "--until-eof"),
                    *(f"{name}={port}" for name, port in ports.items()),
                    *self._options,
                ],
                env={**os.environ, KEY_VARIABLE: self.key},
                # It ends when this is closed, at the latest with this process.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C is sent to all processes of a terminal, but the tests end the server.
                process_group=0,
            )
        assert self._process.stdout is not None  # noqa: S101  # a pipe
        if not (line := self._process.stdout.readline()):
            self.stop()
            raise ServerError(f"the server ended\n{self.log_tail()}")
        started = json.loads(line)
        self.port, self.admin_port = started["port"], started["admin_port"]
        self.tls_port, self.admin_tls_port = started["tls_port"], started["admin_tls_port"]

    def stop(self) -> None:
        """End it with SIGTERM, and with SIGKILL if it does not end; without effect when it does not run."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """End it with SIGKILL; without effect when it does not run."""
        self._end(subprocess.Popen.kill)

    def close(self) -> None:
        """Kill it and remove its files."""
        self.kill()
        self._remove()

    def log_tail(self, lines: int = 30) -> str:
        """The end of what it wrote to standard error."""
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        return ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _end(self, how: Any) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        how(process)
        try:
            process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _remove(directory: Path, owner: int) -> None:
    """Remove it, unless by a fork of its owner, whose end is not the owner's."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)

"""A local Service Bus server as a process, for tests and demos, with its data in a temporary directory."""

from __future__ import annotations

import base64
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pairmq.testing.conformance import Server, ServerHarness
from pairmq.testing.servers import ServerError, ServerProcess, free_port

try:
    from servicebus_local import testing as local
    from servicebus_local.certificates import make_certificate
    from servicebus_local.command import KEY_VARIABLE
    from servicebus_local.settings import connection_string
except ModuleNotFoundError as error:
    text = f"the local server needs {error.name}: pip install 'pairmq-servicebus[server]'"
    raise ModuleNotFoundError(text, name=error.name) from None

_HOST = "127.0.0.1"
# Generous: it starts beside other servers and their clients.
_START_TIMEOUT = 60.0  # s


class ServiceBusServer(local.Control, ServerProcess):
    """A process of ``python -m servicebus_local`` that keeps its ports, and its data over `kill` and `restart`.

    What asks it for something raises `ServerError` if it does not run, or refuses: the text says why.

    Args:
        durable: keep entities and messages on disk; otherwise they are gone when the process is.
        tls: listen with TLS too, under a certificate of an authority of its own, and say so in `url`.
        queues: names of queues that shall be there.
        topics: likewise topics: ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``.
        key: the shared access key; a random one when left out.
        port: TCP port of AMQP without TLS; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out.
        options: more of its command line.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        tls: bool = False,
        queues: Sequence[str] = (),
        topics: Sequence[str] = (),
        key: str | None = None,
        port: int | None = None,
        directory: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        ports = [port] if port else []
        while len(ports) < (4 if tls else 2):
            ports = list(dict.fromkeys((*ports, free_port(_HOST))))
        local.Control.__init__(self, ports[1], key or base64.b64encode(secrets.token_bytes(32)).decode())
        self.port = ports[0]
        self.tls_port: int | None = ports[2] if tls else None
        self.admin_tls_port: int | None = ports[3] if tls else None
        ServerProcess.__init__(
            self,
            [sys.executable, "-m", "servicebus_local"],
            ready=self._is_written,
            directory=directory,
            environment={KEY_VARIABLE: self.key},
            start_timeout=_START_TIMEOUT,
            name="servicebus-local",
        )
        here = self.directory.resolve()
        self.ca_file: Path | None = None
        self._ready_file = here / "ready.json"
        arguments = ["--host", _HOST, "--port", str(self.port), "--admin-port", str(self.admin_port)]
        arguments += ["--allow-control", "--ready-file", str(self._ready_file)]
        if tls:
            # Made here and not by the server, so that clients can go on with it after a restart.
            own = make_certificate(here / "tls", "localhost", _HOST)
            self.ca_file = own.ca_file
            arguments += ["--tls-port", str(self.tls_port), "--admin-tls-port", str(self.admin_tls_port)]
            arguments += ["--cert", str(own.tls.certificate), "--key-file", str(own.tls.key)]
        if durable:
            arguments += ["--data", str(here / "data")]
        for option, names in (("--queue", queues), ("--topic", topics)):
            arguments += [word for name in names for word in (option, name)]
        self._command += [*arguments, *options]

    @property
    def url(self) -> str:
        """The address for PairMQ's transport, with the key; over TLS where the server has it."""
        login = f"{quote(self.key_name, safe='')}:{quote(self.key, safe='')}"
        if self.ca_file is None:
            options = {"emulator": "true", "admin": f"http://{_HOST}:{self.admin_port}"}
        else:
            options = {"tls-ca": str(self.ca_file), "admin": f"https://{_HOST}:{self.admin_tls_port}"}
        return f"sb://{login}@{_HOST}:{self.tls_port or self.port}/?{urlencode(options)}"

    @property
    def connection_string(self) -> str:
        """For clients of AMQP without TLS, in the form of the development emulator."""
        return connection_string(_HOST, self.port, self.key_name, self.key)

    @property
    def admin_connection_string(self) -> str:
        """For clients of the administration; they call HTTPS whatever it says."""
        return connection_string(_HOST, self.admin_tls_port or self.admin_port, self.key_name, self.key)

    def count(self, queue: str) -> int:
        """Count the messages that wait in a queue, or are locked; 0 where there is no such queue."""
        return int(self.queues().get(queue, {}).get("active", 0))

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Make one request of the control endpoint; see `servicebus_local.testing.Control.call`.

        Raises:
            ServerError: the server does not run, or refuses; the text says why.
        """
        self._running_process()
        try:
            return super().call(method, path, body)
        except local.ServerError as error:
            raise ServerError(f"{self.name}: {error}") from None

    def _launch(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        super()._launch()

    def _is_written(self) -> bool:
        # It appears whole, once every port listens.
        return self._ready_file.exists()


class ServiceBusHarness(ServerHarness):
    """A durable local server for the conformance suite, one for the whole run.

    Attributes:
        lock_duration: the shortest that the service keeps.
    """

    lock_duration = 5.0

    def start(self) -> Server:
        self._bus = ServiceBusServer()
        self._bus.start()
        return self._bus

    def clear(self, server: Server) -> str:
        self._bus.clear()
        return self._bus.url

    async def refuse_writes(self) -> bool:
        """Answer every transfer with an error of the service's own; the management goes on."""
        return await self._send_fault({"action": "error", "condition": "amqp:internal-error"})

    async def lose_confirms(self) -> bool:
        """Let it drop the connection once it has stored what was sent."""
        return await self._send_fault({"action": "drop", "apply": True})

    async def restore(self) -> None:
        """Bring it back, and end its faults."""
        await super().restore()
        await self.by_hand(self._bus.heal)

    async def _send_fault(self, rule: Mapping[str, Any]) -> bool:
        await self.by_hand(lambda: self._bus.fault({"at": "send", "entity": "*", **rule}))
        return True

"""A local Service Bus server as a process, for tests and demos, with its data in a temporary directory."""

from __future__ import annotations

import base64
import importlib.util
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from pairmq.testing.conformance import Server, ServerHarness
from pairmq.testing.servers import ServerError, ServerProcess, free_port

_HOST = "127.0.0.1"
_KEY_NAME = "RootManageSharedAccessKey"
# Named here too, since importing the server is what this process is spared.
_KEY_VARIABLE = "SERVICEBUS_LOCAL_KEY"
# Generous: it starts beside other servers and their clients.
_START_TIMEOUT = 60.0  # s


class ServiceBusServer(ServerProcess):
    """A process of ``python -m servicebus_local`` that keeps its ports, and its data over `kill` and `restart`.

    What asks it for something raises `ServerError` if it does not run, or refuses: the text says why.

    Args:
        durable: keep entities and messages on disk; otherwise they are gone when the process is.
        tls: listen with TLS too, under a certificate of an authority of its own, and say so in `url`.
        queues: names of queues that shall be there.
        topics: likewise topics: ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``.
        config: a settings file in the shape of the emulator's ``Config.json``.
        premium: take messages of 100 MB.
        key: the shared access key; a random one when left out.
        port: TCP port of AMQP without TLS; a free one when left out.
        admin_port: TCP port of the administration over HTTP; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out.
        options: more of its command line.

    Raises:
        FileNotFoundError: the extra ``server`` is not installed; the text says how to get it.
    """

    def __init__(
        self,
        *,
        durable: bool = True,
        tls: bool = False,
        queues: Sequence[str] = (),
        topics: Sequence[str] = (),
        config: Path | None = None,
        premium: bool = False,
        key: str | None = None,
        port: int | None = None,
        admin_port: int | None = None,
        directory: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("servicebus_local") is None:
            raise FileNotFoundError("the local server needs servicebus-local: pip install 'pairmq-servicebus[server]'")
        self.key_name = _KEY_NAME
        self.key = key or base64.b64encode(secrets.token_bytes(32)).decode()
        self.port = port or free_port(_HOST)
        self.admin_port = admin_port or _another_port(self.port)
        self.tls_port = _another_port(self.port, self.admin_port) if tls else None
        self.admin_tls_port = _another_port(self.port, self.admin_port, self.tls_port) if tls else None
        # The command is filled in below, when the directory is known.
        command: list[str] = [sys.executable, "-m", "servicebus_local"]
        super().__init__(
            command,
            ready=self._is_written,
            directory=directory,
            environment={_KEY_VARIABLE: self.key},
            start_timeout=_START_TIMEOUT,
            name="servicebus-local",
        )
        self.ca_file = self.directory / "tls" / "ca.pem" if tls else None
        self._ready_file = self.directory / "ready.json"
        arguments = ["--host", _HOST, "--port", str(self.port), "--admin-port", str(self.admin_port)]
        arguments += ["--allow-control", "--ready-file", str(self._ready_file.resolve())]
        if tls:
            arguments += ["--tls-port", str(self.tls_port), "--admin-tls-port", str(self.admin_tls_port)]
            arguments += self._make_certificate()
        if durable:
            arguments += ["--data", str((self.directory / "data").resolve())]
        for name in queues:
            arguments += ["--queue", name]
        for name in topics:
            arguments += ["--topic", name]
        if config is not None:
            arguments += ["--config", str(config.resolve())]
        if premium:
            arguments.append("--premium")
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
        return self._connection_string(self.port)

    @property
    def admin_connection_string(self) -> str:
        """For clients of the administration; they call HTTPS whatever it says."""
        return self._connection_string(self.admin_tls_port or self.admin_port)

    def fault(self, rule: Mapping[str, Any]) -> None:
        """Make the server do something wrong from now on, besides what it does wrong already.

        Args:
            rule: the fields of `servicebus_local.faults.FaultRule`.
        """
        self._control("POST", "faults", [dict(rule)])

    def heal(self) -> None:
        """End all faults."""
        self._control("DELETE", "faults")

    def drop_connections(self) -> int:
        """Reset all connections of AMQP clients.

        Returns:
            How many there were.
        """
        return int(self._control("POST", "connections/drop")["dropped"])

    def operations(self) -> dict[str, int]:
        """Count what was asked of the server since its start, by kind, as the service bills it."""
        return {str(name): int(count) for name, count in self._control("GET", "operations").items()}

    def queues(self) -> dict[str, dict[str, int]]:
        """Give each queue's path with its counts: ``active`` (those that somebody has locked included), ``scheduled``,
        ``deferred``, ``dead_letter``.
        """
        return self._control("GET", "queues")

    def count(self, queue: str) -> int:
        """Count the messages that wait in a queue, or are locked; 0 where there is no such queue."""
        return int(self.queues().get(queue, {}).get("active", 0))

    def create_queue(self, queue: str) -> None:
        """Make a queue with the service's defaults."""
        self._control("PUT", f"queues/{quote(queue)}")

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with all that it holds."""
        self._control("DELETE", f"queues/{quote(queue)}")

    def clear(self) -> None:
        """Delete all queues and topics."""
        self._control("DELETE", "entities")

    # ------------------------------------------------------------------ inside

    def _launch(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        super()._launch()

    def _is_written(self) -> bool:
        # It appears whole, once every port listens.
        return self._ready_file.exists()

    def _make_certificate(self) -> list[str]:
        # Made here and not by the server, so that clients can go on with it after a restart.
        from servicebus_local.certificates import make_certificate

        own = make_certificate(self.directory / "tls", "localhost", _HOST)
        return ["--cert", str(own.tls.certificate.resolve()), "--key-file", str(own.tls.key.resolve())]

    def _connection_string(self, port: int) -> str:
        return (
            f"Endpoint=sb://{_HOST}:{port};SharedAccessKeyName={self.key_name};"
            f"SharedAccessKey={self.key};UseDevelopmentEmulator=true"
        )

    def _control(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        from servicebus_local import testing

        self._running_process()
        try:
            return testing.Control(self.admin_port, self.key, self.key_name).call(method, path, body)
        except testing.ServerError as error:
            raise ServerError(f"{self.name}: {error}") from None


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


def _another_port(*taken: int | None) -> int:
    while (port := free_port(_HOST)) in taken:
        pass
    return port

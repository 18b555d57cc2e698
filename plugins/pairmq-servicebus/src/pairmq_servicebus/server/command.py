"""``pairmq servicebus-server``: a local server that speaks the protocols of Azure Service Bus."""

from __future__ import annotations

import base64
import importlib
import json as json_text
import os
import secrets
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairmq.cli import main as run_program
from pairmq.cli._common import examples
from pairmq.cli._errors import BadUsage, CommandFailed, file_problem
from pairmq.cli._output import note, put_json, say
from pairmq.cli._signals import Stop, run_async
from pairmq_servicebus.server.settings import (
    DEFAULT_KEY_NAME,
    PREMIUM_MESSAGE_BYTES,
    STANDARD_MESSAGE_BYTES,
    ServerSettings,
    SettingsError,
    TlsFiles,
    is_loopback,
)

if TYPE_CHECKING:
    from pairmq_servicebus.server import Addresses
    from pairmq_servicebus.server.broker import Broker
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

KEY_VARIABLE = "PAIRMQ_SERVICEBUS_KEY"
"""The environment variable that holds the key: arguments can be read by other users of a machine."""

_NAME = "pairmq servicebus-server"
_LISTEN = "Where it listens"
_ACCESS = "Who is let in"
_ENTITIES = "What is there"

_EPILOG = examples(
    _NAME,
    f"{_NAME} --queue orders --topic events:audit,billing --data ./namespace",
    f"{_NAME} --port 0 --admin-port 0 --config Config.json --json",
)

app = typer.Typer(name="servicebus-server", pretty_exceptions_enable=False, add_completion=False)

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound


def main() -> None:
    """Run the command as a program of its own and leave with its exit status."""
    run_program(app, name="servicebus-server")


@app.command(epilog=_EPILOG)
def servicebus_server(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address.", rich_help_panel=_LISTEN)] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of AMQP; 0 takes a free one.", rich_help_panel=_LISTEN)
    ] = 5672,
    admin_port: Annotated[
        int,
        typer.Option(metavar="PORT", help="Port of the administration (HTTP); 0 as above.", rich_help_panel=_LISTEN),
    ] = 5300,
    tls_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Port of AMQP over TLS, if any.", rich_help_panel=_LISTEN)
    ] = None,
    admin_tls_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="Port of the administration over HTTPS, if any.", rich_help_panel=_LISTEN),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate for TLS (PEM).", rich_help_panel=_LISTEN)
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its private key (PEM).", rich_help_panel=_LISTEN)
    ] = None,
    self_signed: Annotated[
        bool,
        typer.Option("--self-signed", metavar="", help="Make a certificate for TLS.", rich_help_panel=_LISTEN),
    ] = False,
    allow_remote: Annotated[
        bool,
        typer.Option(
            "--allow-remote", metavar="", help="Listen on an address that others can reach.", rich_help_panel=_LISTEN
        ),
    ] = False,
    key_name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the shared access key.", rich_help_panel=_ACCESS)
    ] = DEFAULT_KEY_NAME,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help=f"The key; better in {KEY_VARIABLE}, as arguments can be seen. Default: a random one.",
            rich_help_panel=_ACCESS,
        ),
    ] = None,
    any_token: Annotated[
        bool,
        typer.Option("--any-token", metavar="", help="Let bearer tokens in, without a check.", rich_help_panel=_ACCESS),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep entities and messages here; else in memory.", rich_help_panel=_ENTITIES),
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Make a queue; repeatable.", rich_help_panel=_ENTITIES)
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:SUB,SUB]",
            help="Make a topic with these subscriptions; repeatable.",
            rich_help_panel=_ENTITIES,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Make what a Config.json of Microsoft's emulator names.",
            rich_help_panel=_ENTITIES,
        ),
    ] = None,
    premium: Annotated[
        bool, typer.Option("--premium", metavar="", help="Take messages of 100 MB, not 256 KB.")
    ] = False,
    allow_control: Annotated[
        bool, typer.Option("--allow-control", metavar="", help="Let tests set faults over HTTP, below /$control/.")
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what --json tells here when it takes clients.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", metavar="", help="Write one JSON object on stdout, for programs.")
    ] = False,
) -> int:
    """Run a local server of the protocols of Azure Service Bus, for development and tests.

    It prints the connection string to use and runs until Ctrl-C or SIGTERM. Exit status: 130 or 143 after these
    signals, 1 when it can't listen or can't read its data, 2 for options that can't work.
    """
    if not allow_remote and not is_loopback(host):
        raise BadUsage(f"{host} can be reached from other machines: add --allow-remote if it shall be")
    if (cert is None) != (key_file is None):
        raise BadUsage("--cert and --key-file belong together")
    if cert is not None and self_signed:
        raise BadUsage("--self-signed makes the certificate that --cert names: give one of them")
    secret = key or os.environ.get(KEY_VARIABLE) or base64.b64encode(secrets.token_bytes(32)).decode()
    if any(mark in key_name + secret for mark in ";\n\r"):
        raise BadUsage("no ';' and no line break may be in the key or its name: they end it in a connection string")

    # Told to clients, who may be elsewhere.
    data = None if data is None else data.absolute()
    with ExitStack() as cleanup:
        cleanup.enter_context(_extra_needed())
        tls = None if cert is None or key_file is None else TlsFiles(_readable(cert), _readable(key_file))
        ca_file = None
        if self_signed:
            from pairmq_servicebus.server.certificates import make_certificate

            directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="pairmq-tls-")))
            own = make_certificate(data / "tls" if data is not None else directory, *_certified(host))
            tls, ca_file = own.tls, own.ca_file
        try:
            settings = ServerSettings(
                host=host,
                port=port,
                admin_port=admin_port,
                tls=tls,
                # A certificate without a port would do nothing.
                tls_port=0 if tls is not None and tls_port is None else tls_port,
                admin_tls_port=0 if tls is not None and admin_tls_port is None else admin_tls_port,
                data=data,
                keys={key_name: secret},
                accept_any_token=any_token,
                max_message_bytes=PREMIUM_MESSAGE_BYTES if premium else STANDARD_MESSAGE_BYTES,
                control=allow_control,
                prepare=_entities(queue or [], topic or [], config),
            )
        except SettingsError as error:
            raise BadUsage(str(error)) from None

        def announce(at: Addresses) -> None:
            told = Announcement(
                host, at.port, at.admin_port, at.tls_port, at.admin_tls_port, key_name, secret, ca_file, data
            )
            if ready_file is not None:
                _write_ready(ready_file, json_text.dumps(told.as_json()))
            if json:
                put_json(told.as_json())
            else:
                for line in told.lines():
                    say(line)
                note("Ctrl-C ends it.")

        return run_async(lambda stop: _serve(settings, announce, stop), graceful=True)


@contextmanager
def _extra_needed() -> Iterator[None]:
    # What is of the extra is imported where it is used: the help of the command needs nothing of it.
    try:
        importlib.import_module("defusedxml")
        yield
    except ModuleNotFoundError as error:
        raise CommandFailed(f"the server needs {error.name}: pip install 'pairmq-servicebus[server]'") from None


async def _serve(settings: ServerSettings, announce: Callable[[Addresses], None], stop: Stop) -> int:
    from pairmq_servicebus.server import LocalServer
    from pairmq_servicebus.server.broker import BrokerError, StoreError
    from pairmq_servicebus.server.entities import EntityError

    try:
        server = LocalServer(settings)
        # It ends by itself what it began, when it can't start.
        addresses = await server.start()
    except OSError as error:
        raise CommandFailed(f"can't start: {_start_problem(error)}") from None
    except EntityError as error:
        raise BadUsage(str(error)) from None
    except (StoreError, BrokerError) as error:
        raise CommandFailed(f"can't start: {error}") from None
    try:
        announce(addresses)
        await stop.wait()
    finally:
        await server.stop()
    return stop.exit_status


def _entities(queues: list[str], topics: list[str], config: Path | None) -> Callable[[Broker], None] | None:
    from pairmq_servicebus.server.entities import EntityError, entities, read_config

    try:
        plan = entities(queues, topics)
        if config is not None:
            plan = plan.and_also(read_config(_readable(config)))
    except EntityError as error:
        raise BadUsage(str(error)) from None
    return plan.make if plan else None


def _readable(path: Path) -> Path:
    try:
        with path.open("rb"):
            return path.resolve()
    except OSError as error:
        raise BadUsage(f"can't read {file_problem(str(path), error)}") from None


def _certified(host: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", *(() if host in ("0.0.0.0", "::") else (host,)))))  # noqa: S104  # compared with, not bound


def _start_problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the certificate or its key can't be used: {error.strerror or error}"
    # asyncio puts the address into the text; other failures name a file.
    return file_problem(str(error.filename), error) if error.filename else str(error.strerror or error)


def _write_ready(path: Path, text: str) -> None:
    from pairmq_servicebus.server.certificates import write_private

    try:
        write_private(path, text.encode() + b"\n")
    except OSError as error:
        raise CommandFailed(f"can't write {file_problem(str(path), error)}") from None


@dataclass(frozen=True, slots=True)
class Announcement:
    """How to reach a server.

    Args:
        host: the address that it listens on.
        port: of AMQP.
        admin_port: of the administration over HTTP.
        tls_port: of AMQP over TLS, if any.
        admin_tls_port: of the administration over HTTPS, if any.
        key_name: the name of the key to use.
        key: the key; in everything that this class gives, as clients need it.
        ca_file: the authority of the server's certificate, where it made its own.
        data: where it keeps its data; None for one that keeps it in memory.
    """

    host: str
    port: int
    admin_port: int
    tls_port: int | None
    admin_tls_port: int | None
    key_name: str
    key: str = field(repr=False)
    ca_file: Path | None = None
    data: Path | None = None

    @property
    def connection_string(self) -> str:
        """For clients of AMQP without TLS, in the form of the development emulator."""
        return self._connection_string(self.port)

    @property
    def admin_connection_string(self) -> str:
        """For clients of the administration without TLS."""
        return self._connection_string(self.admin_port)

    @property
    def url(self) -> str:
        """For PairMQ: over TLS where the server has it for both ports and made the certificate itself."""
        options: dict[str, str]
        port = self.port
        if self.ca_file is not None and self.tls_port is not None and self.admin_tls_port is not None:
            port = self.tls_port
            options = {
                "tls-ca": str(self.ca_file),
                "admin": f"https://{self._name}:{self.admin_tls_port}",
            }
        else:
            options = {
                "emulator": "true",
                "admin": f"http://{self._name}:{self.admin_port}",
            }
        login = f"{quote(self.key_name, safe='')}:{quote(self.key, safe='')}"
        return f"sb://{login}@{self._name}:{port}/?{urlencode(options, safe=':/[]')}"

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs; a port that the server doesn't have is null."""
        return {
            "host": self.host,
            "port": self.port,
            "admin_port": self.admin_port,
            "tls_port": self.tls_port,
            "admin_tls_port": self.admin_tls_port,
            "connection_string": self.connection_string,
            "admin_connection_string": self.admin_connection_string,
            "url": self.url,
            "ca_file": None if self.ca_file is None else str(self.ca_file),
            "data": None if self.data is None else str(self.data),
        }

    def lines(self) -> list[str]:
        """All of it, for people."""
        ports = [f"amqp://{self._name}:{self.port}"]
        if self.tls_port is not None:
            ports.append(f"amqps://{self._name}:{self.tls_port}")
        administration = [f"http://{self._name}:{self.admin_port}"]
        if self.admin_tls_port is not None:
            administration.append(f"https://{self._name}:{self.admin_tls_port}")
        told = [
            f"connection string: {self.connection_string}",
            f"for administration: {self.admin_connection_string}",
            f"for PairMQ: {self.url}",
            f"serves: {' '.join([*ports, *administration])}",
        ]
        if self.ca_file is not None:
            told.append(f"authority of its certificate: {self.ca_file}")
        told.append(f"data: {'in memory, gone when it ends' if self.data is None else self.data}")
        return told

    @property
    def _name(self) -> str:
        # What listens everywhere can be reached here; an IPv6 address stands in brackets before a port.
        if self.host in _EVERYWHERE:
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host

    def _connection_string(self, port: int) -> str:
        return (
            f"Endpoint=sb://{self._name}:{port};"
            f"SharedAccessKeyName={self.key_name};SharedAccessKey={self.key};UseDevelopmentEmulator=true"
        )

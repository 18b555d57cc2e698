"""``servicebus-local``: the server as a program."""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import secrets
import signal
import ssl
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from servicebus_local.settings import (
    DEFAULT_KEY_NAME,
    PREMIUM_MESSAGE_BYTES,
    STANDARD_MESSAGE_BYTES,
    ServerSettings,
    SettingsError,
    TlsFiles,
    connection_string,
    is_loopback,
)

if TYPE_CHECKING:
    from servicebus_local._server import Addresses
    from servicebus_local.broker import Broker

KEY_VARIABLE = "SERVICEBUS_LOCAL_KEY"
"""The environment variable that holds the key: arguments can be read by other users of a machine."""

_BROKEN_PIPE = 141  # what a shell reports of a program that SIGPIPE ended
_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound


class BadUsage(Exception):
    """Arguments that can't work; exit status 2."""


class CommandFailed(Exception):
    """The server can't start; exit status 1."""


def main() -> NoReturn:
    """Run the command with the arguments of the process, and exit with its status."""
    # The system's authorities, which aiohttp reads when it is imported: for a server that is a client of none, that was
    # three tenths of its start.
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        os.environ[name] = os.devnull
    try:
        status = run(sys.argv[1:])
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's own flush
        status = _BROKEN_PIPE
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    raise SystemExit(status)


def run(
    arguments: Sequence[str],
    *,
    prog: str = "servicebus-local",
    key_variable: str = KEY_VARIABLE,
    announcement: type[Announcement] | None = None,
) -> int:
    """Run the server until SIGINT or SIGTERM; the exit status is then 130 or 143, 1 if it can't start, 2 for arguments
    that can't work."""
    try:
        return _run(_parser(prog, key_variable).parse_args(arguments), key_variable, announcement or Announcement)
    except BadUsage as error:
        return _complain(str(error), 2)
    except CommandFailed as error:
        return _complain(str(error), 1)
    except SystemExit:  # after --help
        return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose errors don't repeat values: one might be a key."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"{message} (see '{self.prog} --help')")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            self.error(f"no such option: {option}" if option.startswith("-") else "it takes options only")
        return found


def _parser(prog: str, key_variable: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=prog,
        description="Run a local server with the protocols of Azure Service Bus, for development and tests. It prints "
        "the connection string to use, and runs until Ctrl-C or SIGTERM.",
        epilog=f"""Examples:
  {prog}
  {prog} --queue orders --topic events:audit,billing --data ./namespace
  {prog} --port 0 --admin-port 0 --config Config.json --json

Exit status: 130 or 143 after SIGINT or SIGTERM, 0 after --until-eof, 1 if it can't listen or can't read its data, 2 for
options that can't work.""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group("Where it listens").add_argument
    add("--host", metavar="ADDRESS", default="127.0.0.1", help="address (%(default)s)")
    add("--port", metavar="PORT", type=int, default=5672, help="port of AMQP; 0 takes a free one (%(default)s)")
    administration = "port of the administration, HTTP; 0 as above (%(default)s)"
    add("--admin-port", metavar="PORT", type=int, default=5300, help=administration)
    add("--tls-port", metavar="PORT", type=int, help="port of AMQP over TLS, if any")
    add("--admin-tls-port", metavar="PORT", type=int, help="port of the administration over HTTPS, if any")
    add("--cert", metavar="FILE", type=Path, help="certificate for TLS (PEM)")
    add("--key-file", metavar="FILE", type=Path, help="its private key (PEM)")
    add("--self-signed", action="store_true", help="make a certificate for TLS")
    add("--allow-remote", action="store_true", help="listen on an address that others can reach")
    add = parser.add_argument_group("Access").add_argument
    add("--key-name", metavar="NAME", default=DEFAULT_KEY_NAME, help="name of the shared access key (%(default)s)")
    key = f"the key; better in {key_variable}, as arguments can be seen; by default a random one"
    add("--key", metavar="KEY", help=key)
    add("--any-token", action="store_true", help="accept bearer tokens without a check")
    add = parser.add_argument_group("Entities").add_argument
    add("--data", metavar="DIR", type=Path, help="keep entities and messages here; by default in memory")
    add("--queue", metavar="NAME", action="append", default=[], help="create a queue; can be repeated")
    topic = "create a topic with these subscriptions; can be repeated"
    add("--topic", metavar="NAME[:SUB,SUB]", action="append", default=[], help=topic)
    add("--config", metavar="FILE", type=Path, help="create what a Config.json of Microsoft's emulator names")
    add("--premium", action="store_true", help="accept messages of 100 MB instead of 256 KB")
    add = parser.add_argument_group("For programs").add_argument
    add("--allow-control", action="store_true", help="let tests inject faults over HTTP, below /$control/")
    add("--ready-file", metavar="FILE", type=Path, help="write what --json prints here when the server is ready")
    add("--json", action="store_true", help="print one JSON object on stdout")
    add("--until-eof", action="store_true", help="end, too, when standard input is closed")
    return parser


def _run(given: argparse.Namespace, key_variable: str, announcement: type[Announcement]) -> int:
    if not given.allow_remote and not is_loopback(given.host):
        raise BadUsage(f"{given.host} can be reached from other machines: add --allow-remote to listen there")
    if (given.cert is None) != (given.key_file is None):
        raise BadUsage("--cert and --key-file belong together")
    if given.cert is not None and given.self_signed:
        raise BadUsage("--self-signed makes the certificate that --cert names: give one of them")
    key = given.key or os.environ.get(key_variable) or base64.b64encode(secrets.token_bytes(32)).decode()
    if any(mark in given.key_name + key for mark in ";\n\r"):
        raise BadUsage("no ';' and no line break may be in the key or its name: they end it in a connection string")

    # Clients may run in another directory.
    data = None if given.data is None else given.data.absolute()
    with ExitStack() as cleanup:
        tls = None if given.cert is None else TlsFiles(_readable(given.cert), _readable(given.key_file))
        ca_file = None
        if given.self_signed:
            from servicebus_local.certificates import make_certificate

            directory = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="servicebus-local-"))
            own = make_certificate(Path(directory) if data is None else data / "tls", *_certified(given.host))
            tls, ca_file = own.tls, own.ca_file
        # A certificate without a port would do nothing.
        default_port = None if tls is None else 0
        try:
            settings = ServerSettings(
                host=given.host,
                port=given.port,
                admin_port=given.admin_port,
                tls=tls,
                tls_port=default_port if given.tls_port is None else given.tls_port,
                admin_tls_port=default_port if given.admin_tls_port is None else given.admin_tls_port,
                data=data,
                keys={given.key_name: key},
                accept_any_token=given.any_token,
                max_message_bytes=PREMIUM_MESSAGE_BYTES if given.premium else STANDARD_MESSAGE_BYTES,
                control=given.allow_control,
                prepare=_entities(given.queue, given.topic, given.config),
            )
        except SettingsError as error:
            raise BadUsage(str(error)) from None

        def announce(at: Addresses) -> None:
            ports = (at.port, at.admin_port, at.tls_port, at.admin_tls_port)
            made = announcement(given.host, *ports, given.key_name, key, ca_file, data)
            if given.ready_file is not None:
                _write_ready(given.ready_file, json.dumps(made.as_json()))
            _print([json.dumps(made.as_json())] if given.json else made.lines())
            if not given.json and sys.stderr is not None:
                print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)

        return asyncio.run(_serve(settings, announce, until_eof=given.until_eof))


async def _serve(settings: ServerSettings, announce: Callable[[Addresses], None], *, until_eof: bool) -> int:
    from servicebus_local._server import LocalServer
    from servicebus_local.broker import BrokerError, StoreError
    from servicebus_local.descriptions import EntityError

    end = _end(until_eof)
    try:
        server = LocalServer(settings)
        # If it can't start, it closes by itself what it has opened.
        addresses = await server.start()
    except OSError as error:
        raise CommandFailed(f"can't start: {_start_problem(error)}") from None
    except EntityError as error:
        raise BadUsage(str(error)) from None
    except (StoreError, BrokerError) as error:
        raise CommandFailed(f"can't start: {error}") from None
    try:
        announce(addresses)
        return await end
    finally:
        await server.stop()


def _end(until_eof: bool) -> asyncio.Future[int]:
    """The exit status, when the server has to end. A signal after that ends the process immediately."""
    loop = asyncio.get_running_loop()
    status: asyncio.Future[int] = loop.create_future()

    def on_signal(number: int) -> None:
        if status.done():
            os._exit(128 + number)
        status.set_result(128 + number)

    def on_input() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            if not status.done():
                status.set_result(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        # Only the main thread can handle signals.
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, on_signal, number)
    if until_eof:
        try:
            loop.add_reader(0, on_input)
        except OSError:  # selectors take no files
            text = "--until-eof: standard input is a file, or closed: give it a pipe, or leave the option out"
            raise BadUsage(text) from None
    return status


def _entities(queues: list[str], topics: list[str], config: Path | None) -> Callable[[Broker], None] | None:
    from servicebus_local.descriptions import EntityError, entities, make_all, read_config

    try:
        steps = entities(queues, topics)
        if config is not None:
            steps += read_config(_readable(config))
    except EntityError as error:
        raise BadUsage(str(error)) from None
    return partial(make_all, steps) if steps else None


def _readable(path: Path) -> Path:
    try:
        with path.open("rb"):
            return path.resolve()
    except OSError as error:
        raise BadUsage(f"can't read {_file_problem(path, error)}") from None


def _certified(host: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", *(() if host in _EVERYWHERE else (host,)))))


def _start_problem(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"the certificate or its key can't be used: {error.strerror or error}"
    # asyncio puts the address into the text; other failures name a file.
    return _file_problem(error.filename, error) if error.filename else str(error.strerror or error)


def _file_problem(path: object, error: OSError) -> str:
    return f"{path}: {error.strerror or error}"


def _write_ready(path: Path, text: str) -> None:
    from servicebus_local.certificates import write_private

    try:
        write_private(path, text.encode() + b"\n")
    except OSError as error:
        raise CommandFailed(f"can't write {_file_problem(path, error)}") from None


def _print(lines: Sequence[str]) -> None:
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandFailed(f"can't write {_file_problem('standard output', error)}") from None


def _complain(text: str, status: int) -> int:
    # Paths and names are untrusted input: what could control a terminal is escaped.
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text.strip())
    if sys.stderr is not None:
        print(f"error: {shown}", file=sys.stderr)
    return status


@dataclass(frozen=True, slots=True)
class Announcement:
    """How to reach a server."""

    host: str  # the address that it listens on
    port: int  # of AMQP
    admin_port: int  # of the administration over HTTP
    tls_port: int | None  # of AMQP over TLS, if any
    admin_tls_port: int | None  # of the administration over HTTPS, if any
    key_name: str  # the name of the key to use
    key: str = field(repr=False)  # the key; contained in everything that this class returns, as clients need it
    ca_file: Path | None = None  # the authority of the server's certificate, if the server made its own
    data: Path | None = None  # where it keeps its data; None if in memory

    @property
    def connection_string(self) -> str:
        """For clients of AMQP without TLS, in the form of the development emulator."""
        return connection_string(self.name, self.port, self.key_name, self.key)

    @property
    def admin_connection_string(self) -> str:
        """For clients of the administration without TLS."""
        return connection_string(self.name, self.admin_port, self.key_name, self.key)

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs; a port that the server doesn't have is null."""
        ports = ("port", "admin_port", "tls_port", "admin_tls_port")
        return {
            "host": self.host,
            **{name: getattr(self, name) for name in ports},
            "connection_string": self.connection_string,
            "admin_connection_string": self.admin_connection_string,
            "ca_file": None if self.ca_file is None else str(self.ca_file),
            "data": None if self.data is None else str(self.data),
        }

    def lines(self) -> list[str]:
        ports = [f"amqp://{self.name}:{self.port}"]
        if self.tls_port is not None:
            ports.append(f"amqps://{self.name}:{self.tls_port}")
        administration = [f"http://{self.name}:{self.admin_port}"]
        if self.admin_tls_port is not None:
            administration.append(f"https://{self.name}:{self.admin_tls_port}")
        lines = [
            f"connection string: {self.connection_string}",
            f"for administration: {self.admin_connection_string}",
            f"serves: {' '.join([*ports, *administration])}",
        ]
        if self.ca_file is not None:
            lines.append(f"authority of its certificate: {self.ca_file}")
        lines.append(f"data: {'in memory, lost when the server ends' if self.data is None else self.data}")
        return lines

    @property
    def name(self) -> str:
        """The host for clients of this machine; an IPv6 address in brackets."""
        if self.host in _EVERYWHERE:
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host

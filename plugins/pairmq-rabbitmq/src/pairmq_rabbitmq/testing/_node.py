"""One RabbitMQ node: its name, ports, environment and files; and Erlang expressions, evaluated in it by `erl_call`."""

from __future__ import annotations

import base64
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
NODE: Final = "pairmq@localhost"

# The wrapper of the same name on PATH switches to the user rabbitmq, and refuses everyone but root and that user.
_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

# Two schedulers and one file thread boot in 3 s where the defaults take 5 on two cores; many would only compete with
# the tests. A node with a name from the start does not spend a second on looking for an epmd.
_ERLANG_FLAGS = "+S 2:2 +SDcpu 1:1 +A 1 -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"

# A boot loads some 950 modules, and looks for each in the directories of all 71 plugins, then in Erlang's: half of its
# processor time. These have nearly all modules; they are searched first, and no plugin that is not enabled is. Their
# modules are loaded all at once: with each by itself, Erlang copies its table of functions each time.
_FIRST = (
    *("rabbit", "stdlib", "rabbit_common", "ssl", "inets", "compiler", "kernel", "ra", "xmerl", "mnesia", "cuttlefish"),
    *("rabbitmq_prelaunch", "sasl", "ranch", "tools", "osiris", "observer_cli", "public_key", "syslog", "jsx"),
    *("syntax_tools", "os_mon", "systemd", "aten", "recon", "credentials_obfuscation", "sysmon_handler", "crypto"),
)

# Returns the value, or the error, as text that is unaffected by how Erlang prints terms.
ERLANG_CALL = """
begin PairmqText = fun(T) -> base64:encode_to_string(unicode:characters_to_binary(T)) end,
try begin PairmqValue = begin %s end, PairmqText(%s) end of Ok -> "ok " ++ Ok
catch C:R -> "error " ++ PairmqText(io_lib:format("~0tp: ~0tp", [C, R])) end end.
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """The TCP ports of a node: for clients, clients over TLS, the HTTP interface, its port mapper, and Erlang's own
    calls."""

    amqp: int
    tls: int | None
    management: int | None
    epmd: int
    distribution: int


def find_program() -> Path | None:
    if _PROGRAM.exists():
        return _PROGRAM
    # Otherwise the programs are beside each other, without wrappers.
    command = shutil.which("rabbitmqctl")
    beside = Path(command).resolve().with_name("rabbitmq-server") if command else None
    return beside if beside is not None and beside.exists() else None


def foreign_variables() -> dict[str, None]:
    """Name what is to be unset: variables of another RabbitMQ or Erlang, and systemd's notification socket."""
    foreign = {name: None for name in os.environ if name.startswith(("RABBITMQ_", "ERL_"))}
    return {**foreign, "NOTIFY_SOCKET": None}


def environment_of(
    home: Path, ports: Ports, program: Path, plugins: Sequence[str], node: str = NODE, flags: str = ""
) -> dict[str, str | None]:
    """The environment of a node's process; None removes a variable."""
    searched, first = _search_path(home, program) if not plugins else ({}, "")
    return {
        **foreign_variables(),
        **searched,
        "HOME": str(home),
        "ERL_EPMD_PORT": str(ports.epmd),
        "ERL_EPMD_ADDRESS": HOST,
        "ERL_CRASH_DUMP_SECONDS": "0",
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
        "RABBITMQ_PID_FILE": str(home / "server.pid"),
        "RABBITMQ_DIST_PORT": str(ports.distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"{_ERLANG_FLAGS} -sname {node} -kernel inet_dist_listen_min {ports.distribution}"
            f" -kernel inet_dist_listen_max {ports.distribution}{first}{flags}"
        ),
        # Makes the script replace itself by the server, so that the process id is the server's.
        "RUNNING_UNDER_SYSTEMD": "true",
    }


def _search_path(home: Path, program: Path) -> tuple[dict[str, str], str]:
    """Keep the code server from looking where nothing is: variables and a flag, none in another layout."""
    of_rabbit = program.resolve().parents[1] / "plugins"
    erl = shutil.which("erl")
    of_erlang = Path(erl).resolve().parents[1] / "lib" if erl else of_rabbit
    found = [[*of_rabbit.glob(f"{name}-*/ebin"), *of_erlang.glob(f"{name}-*/ebin")] for name in _FIRST]
    first = [str(each[0]) for each in found if len(each) == 1]
    if len(found[0]) != 1 or any(" " in path for path in first):
        return {}, ""
    # The broker puts each of its plugins' directories before all others; the one it can't do without is itself.
    plugins = home / "plugins"
    plugins.mkdir(exist_ok=True)
    link = plugins / found[0][0].parent.name
    if not link.exists():
        link.symlink_to(found[0][0].parent)
    modules = sorted(beam.stem for path in first for beam in Path(path).glob("*.beam"))
    # What is in this variable comes before what boots the broker.
    at_once = {"ERL_AFLAGS": f"-s code ensure_modules_loaded {' '.join(modules)}"}
    flag = f" -pa {' '.join(reversed(first))}"  # the last comes first
    return {"RABBITMQ_PLUGINS_DIR": str(plugins), **at_once}, flag


def write_files(
    directory: Path,
    ports: Ports,
    tls: tuple[Path | str, Path | str, Path | str] | None,
    plugins: Sequence[str],
    config: Sequence[str],
) -> None:
    """Write a node's configuration, its list of plugins, and its cookie unless it has one.

    ``tls`` is a certificate file, a key file and a file of authorities.
    """
    lines = [
        f"listeners.tcp.1 = {HOST}:{ports.amqp}",
        # A nearly full disk or memory of the machine that runs the tests is no alarm.
        "disk_free_limit.absolute = 1MB",
        "vm_memory_high_watermark.relative = 0.9",
        # To standard output, where `log_tail` reads.
        "log.file = false",
        "log.console = true",
        "log.console.level = warning",
        "log.console.formatter = plaintext",
    ]
    if tls is not None:
        certificate, key, authorities = (str(Path(path).resolve()) for path in tls)
        lines += [
            f"listeners.ssl.1 = {HOST}:{ports.tls}",
            f"ssl_options.certfile = {certificate}",
            f"ssl_options.keyfile = {key}",
            f"ssl_options.cacertfile = {authorities}",
            "ssl_options.verify = verify_none",
            "ssl_options.fail_if_no_peer_cert = false",
        ]
    if ports.management is not None:
        lines += [f"management.tcp.ip = {HOST}", f"management.tcp.port = {ports.management}"]
    (directory / "rabbitmq.conf").write_text("\n".join([*lines, *config]) + "\n")
    (directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
    write_cookie(directory)


def write_cookie(directory: Path, cookie: str | None = None) -> None:
    """Write the secret that nodes of one cluster share, unless there is one."""
    file = directory / ".erlang.cookie"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(cookie or secrets.token_hex(20))
        file.chmod(0o400)


def binary(text: str) -> str:
    # Readable where that is safe, since errors show it; otherwise as bytes, so that nothing has to be escaped.
    if re.fullmatch(r"[\w ./*^$#:-]*", text, re.ASCII):
        return f'<<"{text}">>'
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def string(text: str) -> str:
    return f"unicode:characters_to_list({binary(text)})"


def answer(printed: str) -> tuple[str, str]:
    # erl_call prints short strings as such and long ones as lists of numbers.
    found = re.fullmatch(r'\s*\{ok, (?:"(?P<text>[^"]*)"|\[(?P<codes>[\d, ]*)\])\}\s*', printed)
    if found is None:
        return "", ""
    text = found["text"] if found["codes"] is None else "".join(chr(int(code)) for code in found["codes"].split(","))
    kind, _, encoded = text.partition(" ")
    return kind, base64.b64decode(encoded).decode()

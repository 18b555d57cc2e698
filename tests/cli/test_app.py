import json
import subprocess
import sys

import pytest

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


def test_the_program_names_all_its_commands(cli) -> None:
    ended = cli("--help")
    assert all(f" {command} " in ended.out for command in _COMMANDS)


def test_without_its_extra_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None; from pairmq.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "error: the command line needs typer and rich: pip install 'pairmq[cli]'\n"


def test_the_library_alone_imports_neither_typer_nor_rich() -> None:
    code = "import sys, pairmq; assert not {'typer', 'rich', 'click'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
def test_a_broken_plugin_or_a_conflict_is_told_and_fails(cli, brokers, plugin: object, says: str, command: str) -> None:
    registry.register(plugin, name="bad")
    try:
        ended = cli(command, *(brokers if command == "doctor" else []))
    finally:
        registry.unregister(plugin)
    assert ended.status == 1
    assert says in ended.out + ended.err
    assert "\x1b" not in ended.out + ended.err


def test_help_stops_quietly_when_nobody_reads(program) -> None:
    code = f"{sys.executable} -m pairmq.cli plugins | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
    assert ended.stderr == ""

"""Commands of other distributions: found without an import, run like PairMQ's own, harmless when broken."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., Path]

_APPLICATION = """
import typer
from pairmq.model import ConfigurationError
app = typer.Typer()

@app.command()
def one(count: int = 1) -> int:
    "Count up to a number."
    print("counted", count)
    return 0 if count < 5 else 7

@app.command()
def two() -> None:
    "Refuse."
    raise ConfigurationError("no such thing")
"""

_FUNCTION = """
def greet(name: str) -> None:
    "Say hello."
    print("hello", name)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with one command; each import of its module leaves a line in the file that it gives."""

    def make(command: str, code: str, attribute: str, *, distribution: str = "pairmq-extra") -> Path:
        module = f"extra_{uuid.uuid4().hex}"
        place = tmp_path / distribution
        information = place / f"{distribution.replace('-', '_')}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[pairmq.commands]\n{command} = {module}:{attribute}\n")
        imports = place / "imports"
        imports.touch()
        noted = f"with open({str(imports)!r}, 'a') as file: file.write('imported\\n')\n"
        (place / f"{module}.py").write_text(noted + code)
        monkeypatch.syspath_prepend(str(place))
        return imports

    return make


def test_help_lists_a_command_by_its_distribution_and_imports_nothing(cli, install: Install) -> None:
    imports = install("extra", "raise RuntimeError", "app")
    ended = cli("--help")
    assert ended.status == 0
    assert "extra" in ended.out
    assert "From pairmq-extra." in ended.out
    assert imports.read_text() == ""


def test_other_commands_import_nothing_of_it(cli, install: Install) -> None:
    imports = install("extra", "raise RuntimeError", "app")
    assert cli("cost", "--json").status == 0
    assert cli("send", "--help").status == 0
    assert imports.read_text() == ""


def test_an_application_runs_with_its_commands_and_exit_statuses(cli, install: Install) -> None:
    imports = install("extra", _APPLICATION, "app")
    assert cli("extra", "one", "--count", "3").out == "counted 3\n"
    assert cli("extra", "one", "--count", "5").status == 7
    refused = cli("extra", "two")
    assert (refused.status, refused.err) == (2, "error: no such thing\n")
    assert imports.read_text() == "imported\n"


def test_a_function_is_a_command(cli, install: Install) -> None:
    install("greet", _FUNCTION, "greet")
    assert cli("greet", "you").out == "hello you\n"
    assert cli("greet").status == 2


def test_the_help_of_a_command_is_its_own(cli, install: Install) -> None:
    install("extra", _APPLICATION, "app")
    assert "Count up to a number." in cli("extra", "--help").out
    assert "pairmq extra one" in cli("extra", "one", "--help").out


@pytest.mark.parametrize(
    ("code", "attribute", "says"),
    [
        ("raise RuntimeError('no\\x1b[2J luck')", "app", "RuntimeError: no"),
        ("import no_such_module_anywhere", "app", "No module named 'no_such_module_anywhere'"),
        ("raise SystemExit(0)", "app", "SystemExit"),
        ("app = 5", "app", "TypeError"),
        ("", "app", "AttributeError"),
        ("import typer\napp = typer.Typer()", "app", "RuntimeError"),
    ],
)
def test_a_broken_command_is_one_error_and_harms_no_other(
    cli, install: Install, code: str, attribute: str, says: str
) -> None:
    install("extra", code, attribute)
    for arguments in (["extra"], ["extra", "--help"]):
        ended = cli(*arguments)
        assert ended.status == 1
        assert len(ended.error_lines) == 1
        assert ended.err.startswith("error: the command 'extra' of pairmq-extra is broken: ")
        assert says in ended.err
        assert "\x1b" not in ended.err
    assert cli("--help").status == 0
    assert cli("cost").status == 0


def test_plugins_lists_commands_and_shows_the_broken_ones(cli, install: Install) -> None:
    install("greet", _FUNCTION, "greet")
    install("extra", "raise RuntimeError('no luck')", "app", distribution="pairmq-worse")
    ended = cli("plugins", "--json")
    assert ended.status == 1
    commands = {command["name"]: command for command in json.loads(ended.out)["commands"]}
    assert commands["greet"] == {"name": "greet", "distribution": "pairmq-extra", "error": None}
    assert "no luck" in commands["extra"]["error"]
    table = cli("plugins").out
    assert "BROKEN" in table
    assert "no luck" in table


@pytest.mark.parametrize("name", ["cost", "backlog"])
def test_a_command_of_pairmq_can_t_be_replaced(cli, install: Install, name: str) -> None:
    imports = install(name, _APPLICATION, "app")
    assert "From pairmq-extra." not in cli("--help").out
    assert "pairmq-extra" not in cli("plugins").out
    assert "Examples:" in cli(name, "--help").out
    assert imports.read_text() == ""


def test_of_two_commands_with_one_name_the_first_distribution_in_the_alphabet_has_it(cli, install: Install) -> None:
    loser = install("extra", _FUNCTION, "greet", distribution="pairmq-b")
    install("extra", _FUNCTION, "greet", distribution="pairmq-a")
    last = install("extra", _FUNCTION, "greet", distribution="pairmq-c")
    assert "From pairmq-a." in cli("--help").out
    assert cli("extra", "you").out == "hello you\n"
    assert loser.read_text() == last.read_text() == ""


def test_an_unknown_command_is_still_unknown(cli, install: Install) -> None:
    install("extra", _FUNCTION, "greet")
    ended = cli("extr")
    assert ended.status == 2
    assert "No such command" in ended.err


@pytest.mark.parametrize(
    ("code", "line", "offered"),
    [
        pytest.param(_APPLICATION, "pairmq ext", "extra", marks=pytest.mark.real_server),  # each starts bash
        (_APPLICATION, "pairmq extra o", "one"),
        pytest.param("raise RuntimeError", "pairmq extra o", "", marks=pytest.mark.real_server),
    ],
)
def test_a_shell_completes_it(install: Install, tmp_path: Path, code: str, line: str, offered: str) -> None:
    install("extra", code, "app")
    environment = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "_PAIRMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    program = [sys.executable, "-c", "from pairmq.cli import main; main()"]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert ended.stdout.strip() == offered
    assert "Traceback" not in ended.stderr

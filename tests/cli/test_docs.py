"""The reference names every command and option, and no other."""

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.main import get_command

from command_line import app

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
_BUILT_IN = {"--help", "--version", "--install-completion", "--show-completion", "--verbose"}


def _options(command, found: set[str]) -> set[str]:
    for parameter in command.params:
        found.update(option for option in (*parameter.opts, *parameter.secondary_opts) if option.startswith("--"))
    for sub in getattr(command, "commands", {}).values():
        _options(sub, found)
    return found


def _commands():
    """The whole command, and PairMQ's own subcommands by name."""
    root = get_command(app)
    context = root.context_class(root)
    others = entry_points(group="pairmq.commands").names
    return root, {name: root.get_command(context, name) for name in root.list_commands(context) if name not in others}


@pytest.fixture(scope="module")
def page() -> str:
    return _PAGE.read_text("utf-8")


def test_every_option_is_in_the_reference_and_every_one_there_exists(page: str) -> None:
    root, commands = _commands()
    known = _options(root, set()).union(*(_options(command, set()) for command in commands.values())) - _BUILT_IN
    named = set(re.findall(r"--[a-z][a-z-]+", page)) - _BUILT_IN
    assert known - named == set()
    assert named - known == set()


def test_every_command_has_its_section(page: str) -> None:
    assert re.findall(r"(?m)^## (\w+)$", page) == [
        "demo",
        "send",
        "receive",
        "syphon",
        "status",
        "dashboard",
        "switch",
        "ping",
        "backlog",
        "entity",
        "doctor",
        "plugins",
        "cost",
        "simulate",
        "conformance",
        "journal",
        "pipeline",
    ]
    assert set(re.findall(r"(?m)^## (\w+)$", page)) == set(_commands()[1])

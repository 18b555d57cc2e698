"""Every command in the documents exists, with every option that it is given; what is cheap is run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

from command_line import app
from doc_blocks import ROOT
from doc_commands import Command, commands

# Typer brings a parser of its own, in which this is what all faults of a command line come from.
UsageError: Any = typer.BadParameter.__mro__[1]

COMMANDS = commands()
PAIRMQ = get_command(app)
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

PROGRAMS = {
    "bench": "benchmarks/run_all.py",
    "bench-one": "benchmarks/_measuring.py",
    "chaos": "src/pairmq/testing/chaos/__main__.py",
    "model": "scripts/model.py",
    "mutants": "scripts/mutants.py",
}
"""Where the options are written down that a target of make hands on."""


def given_to(program: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[0].removeprefix(".venv/bin/") == program]


def mistake(words: Sequence[str], program: Any = None, context: Any = None) -> str | None:
    """What is wrong with the arguments of `pairmq`, or of one of its commands, if anything is."""
    program = program or PAIRMQ
    context = program.context_class(program, info_name=program.name, parent=context, **program.context_settings)
    try:
        given, rest, _ = program.make_parser(context).parse_args(args=list(words))
    except UsageError as error:
        return error.format_message()
    if not hasattr(program, "get_command"):
        return None
    if not rest:
        return None if program.no_args_is_help or given else "no command"
    try:
        _, command, words = program.resolve_command(context, rest)
    except UsageError as error:
        return error.format_message()
    return mistake(words, command, context)


@pytest.mark.parametrize("command", given_to("pairmq"), ids=str)
def test_a_command_of_pairmq_takes_what_it_is_given(command: Command) -> None:
    assert mistake(command.words[1:]) is None


@pytest.mark.parametrize("program", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.name)
def test_a_module_that_a_benchmark_starts_can_be_started(program: Path) -> None:
    """A package without `__main__` ends at once, and what waits for its work waits in vain."""
    for name in re.findall(r'"-m", "([\w.]+)"', program.read_text("utf-8")):
        package = importlib.util.find_spec(name)
        assert package is not None
        assert package.submodule_search_locations is None or importlib.util.find_spec(f"{name}.__main__")


def test_a_command_that_does_not_exist_is_seen() -> None:
    assert mistake(("drain-everything",))
    assert mistake(("pipeline", "sing"))


def test_an_option_that_does_not_exist_is_seen() -> None:
    assert mistake(("status", "--fast"))
    assert mistake(("pipeline", "run", "--fast"))
    assert mistake(("send", "--entity"))
    assert mistake(("--fast", "status"))


@pytest.mark.parametrize("command", given_to("make"), ids=str)
def test_a_target_of_make_exists_and_hands_on_what_it_is_given(command: Command) -> None:
    target, *settings = command.words[1:]
    assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE)
    for setting in settings:
        name, _, value = setting.partition("=")
        assert f"$({name})" in MAKEFILE or f"$(or $({name})" in MAKEFILE or f"$(if $({name})" in MAKEFILE
        if name == "NAME":
            assert (ROOT / "benchmarks" / f"{value}.py").exists()
        if name == "ARGS" and target in ("demo", "simulate"):
            assert mistake((target, *shlex.split(value))) is None
        elif name == "ARGS":
            known = (ROOT / PROGRAMS[target]).read_text("utf-8")
            if target == "bench-one":
                (benchmark,) = [other.partition("=")[2] for other in settings if other.startswith("NAME=")]
                known += (ROOT / "benchmarks" / f"{benchmark}.py").read_text("utf-8")
            assert [word for word in shlex.split(value) if word.startswith("-") and f'"{word}"' not in known] == []


def distributions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"azure-servicebus": set(), "celery": set(), "s3fs": set()}  # and what a page is about
    for path in (ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")):
        project = tomllib.loads(path.read_text("utf-8"))["project"]
        found[project["name"]] = set(project.get("optional-dependencies", ()))
    return found


@pytest.mark.parametrize("command", given_to("pip"), ids=str)
def test_what_is_installed_exists_with_its_extras(command: Command) -> None:
    known = distributions()
    for word in command.words[1:]:
        if word == "install" or word.startswith("-") or "/" in word or word == ".":
            continue
        name, _, extras = word.rstrip("]").partition("[")
        assert name in known
        assert set(filter(None, extras.split(","))) <= known[name]


def test_the_blocks_are_taken_apart() -> None:
    assert len(given_to("pairmq")) > 40
    assert len(given_to("make")) > 20
    assert len(given_to("pip")) > 15

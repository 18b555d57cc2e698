"""What `import pairmq`, its version and the help of a command may not import: each program would wait for it."""

import subprocess
import sys

_HEAVY = {"asyncio", "importlib.metadata", "logging", "pydantic", "rich", "typer"}
_BROKERS = {"pairmq.core", "pairmq.memory", "pairmq.pair", "pairmq.plugins", "pairmq.runner", "pairmq.transport"}

# One process takes all steps: what a later step may import, an earlier one has not imported yet.
_STEPS = f"""
import contextlib, io, sys

def step(name, unwanted):
    print(name, *sorted(unwanted & set(sys.modules)))

def command(*words):
    from pairmq.cli import main
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()

import pairmq
step("package", {_HEAVY | _BROKERS | {"pairmq.model", "typing"}})
pairmq.Message, pairmq.SendError
step("message", {_HEAVY | _BROKERS})
pairmq.PairOptions
step("options", {_HEAVY | (_BROKERS - {"pairmq.core"})})
"""

_COMMANDS = f"""
command("--version")
step("version", {(_HEAVY - {"importlib.metadata"}) | _BROKERS | {"pairmq.model"}})
for name in ("send", "receive", "syphon", "status", "ping", "backlog"):
    command(name, "--help")
    step(name, {_BROKERS})
"""


def _imported(program: str) -> list[str]:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ended.stdout.splitlines()


def test_a_public_name_imports_no_more_than_it_needs() -> None:
    assert _imported(_STEPS) == ["package", "message", "options"]


def test_the_version_and_the_help_of_a_command_import_no_pair() -> None:
    commands = _STEPS.partition("import pairmq\n")[0] + _COMMANDS
    assert _imported(commands) == ["version", "send", "receive", "syphon", "status", "ping", "backlog"]

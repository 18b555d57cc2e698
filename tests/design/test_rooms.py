"""A test imports private modules of the room that its folder tests, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(r"^\s*(from|import) (pairmq|servicebus_local).*(\W_\w|\($)", re.MULTILINE)
INSIDE_TESTING = ("chaos", "simulator")  # rooms of pairmq.testing with folders of their own
ALLOWED = {
    # Faults that nothing outside can make.
    "plugins/pairmq-kombu/tests/test_reading.py": "hurries the renewal of locks, and counts it",
    "plugins/pairmq-rabbitmq/tests/paired/test_paired_consuming.py": "hurries the renewal of locks",
    "tests/cli/test_failing_journal.py": "lets a write to the disk fail",
    "tests/support/journal_dying.py": "kills a journal's writer between two steps",
    "tests/support/redis_queue.py": "ends locks in Redis without waiting for them",
    "tests/support/shown_dashboard.py": "hurries the dashboard's looks",
    # Bugs that a test kit has to find.
    "tests/simulator/test_command.py": "plants bugs in the runner",
    "tests/simulator/test_scenarios.py": "plants bugs in the runner",
    "tests/simulator/test_simulated_hours.py": "plants bugs in the runner",
    "tests/testing/test_machine.py": "plants bugs in the runner",
    # Two rooms compared with each other.
    "plugins/pairmq-kombu/tests/test_message.py": "tries each header that the transport for RabbitMQ would misread",
    "tests/pipeline/test_chaos_journal_rows.py": "a chaos run's journal against its judge",
    "tests/pipeline/test_simulated_journal.py": "a simulated journal against its judge",
    "tests/support/chaos_rows.py": "a chaos run's journal against its judge",
    "tests/testing/test_strategies.py": "strategies reach the bounds of every option",
    # Parts of one room's tests, which lie beside those of others.
    "tests/runner/test_limits.py": "a loop whose time passes as the test says",
    "tests/support/command_line.py": "`pairmq` without the exit of the process",
    "tests/support/eager_tasks.py": "lets simulated pairs run with eager tasks, too",
    "tests/support/history_by_hand.py": "histories for tests of the simulator's judge",
}
"""Files with another room's private imports, and why."""


def private_imports(source: str) -> Iterator[str]:
    """Names that are imported from private modules of PairMQ and its plugins, or are private."""
    if not PRIVATE.search(source):
        return  # most files: parsing takes long
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        for name in names:
            parts = name.split(".")
            ours = parts[0].startswith(("pairmq", "servicebus_local"))
            if ours and any(each.startswith("_") and not each.startswith("__") for each in parts):
                yield name


def room_of(path: Path) -> str:
    """The package whose inside a test may know."""
    folder, own = path.relative_to(ROOT).parts[:2]
    if folder == "plugins":
        return "pairmq_template" if own == "_template" else own.replace("-", "_")
    return f"pairmq.testing.{own}" if own in INSIDE_TESTING else f"pairmq.{own}"


def test_private_modules_are_imported_by_tests_of_their_room_alone() -> None:
    found: dict[str, list[str]] = {}
    for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")):
        strange = [
            name for name in private_imports(path.read_text("utf-8")) if not name.startswith(f"{room_of(path)}.")
        ]
        if strange:
            found[path.relative_to(ROOT).as_posix()] = strange
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}, "use public names, or say why"
    assert set(ALLOWED) - set(found) == set(), "these need no exception any more"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from pairmq.core._x import Y", ["pairmq.core._x.Y"]),
        ("from pairmq.cli import _z, main", ["pairmq.cli._z"]),
        ("import pairmq_redis._keys", ["pairmq_redis._keys"]),
        ("import pairmq.core\nfrom pairmq import __version__\nfrom other._x import y", []),
    ],
)
def test_private_imports_are_found(source: str, expected: list[str]) -> None:
    assert list(private_imports(source)) == expected

"""Tests go through public names, but those of an inside: each is listed, with the reason.

A test that imports a private module, or names one as text, has to be changed with it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = re.compile(
    r"^\s*(from|import) (pairmq|servicebus_local).*(\W_\w|\($)|[\"'](pairmq|servicebus_local)[\w.]*\._", re.MULTILINE
)
NAMED = re.compile(r"(pairmq\w*|servicebus_local)(\.\w+)+\.?")
INSIDE_TESTING = ("chaos", "simulator")  # rooms of pairmq.testing with folders of their own
ALLOWED = {
    # Faults that nothing outside can make.
    "tests/support/shown_dashboard.py": "hurries the dashboard's looks",
    # Bugs that a test kit has to find.
    "tests/support/runner_bugs.py": "plants bugs in the runner, for the tests of simulator and machine",
    "tests/simulator/test_command.py": "ends a simulation between two of its steps",
    # Two rooms compared with each other.
    "plugins/pairmq-kombu/tests/test_message.py": "tries each header that the transport for RabbitMQ would misread",
    "tests/design/test_imports.py": "a rule about modules that it names",
    "tests/design/test_rooms.py": "a rule about modules that it names",
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
"""Files with private names of another room than the one that they test, and why."""
INSIDES: dict[str, dict[str, str]] = {
    "values in, values out: codecs, parsers, tables of errors, statements, ledgers, what is drawn": {
        "plugins/pairmq-kombu/tests": "test_routing",
        "plugins/pairmq-postgres/tests": "test_postgres_errors test_postgres_plans test_postgres_url",
        "plugins/pairmq-rabbitmq/tests": (
            "test_hostile_rabbitmq test_rabbitmq_codec test_rabbitmq_markers test_rabbitmq_plain test_rabbitmq_url"
        ),
        "plugins/pairmq-redis/tests": "test_hostile_redis test_redis_codec test_redis_errors test_redis_url",
        "plugins/pairmq-servicebus/tests/paired": "test_convert test_errors",
        "plugins/pairmq-servicebus/tests/transport": "test_codec test_errors test_url",
        "plugins/pairmq-sqlite/tests": "test_sqlite_errors",
        "plugins/servicebus-local/tests/atom": "test_atom_xml",
        "tests/chaos": "conftest test_chaos_consumers test_chaos_parts",
        "tests/cli": "test_demo test_status",
        "tests/dashboard": "test_drain test_history test_status",
        "tests/observe/journal": "test_rows",
        "tests/observe/otel": "test_names",
        "tests/pipeline": "test_follow_ledger test_follow_settled test_storage",
        "tests/runner": "test_sizes",
        "tests/transport": "test_naming",
    },
    "a machine, a connection or a task alone, beside what stands in for its neighbours": {
        "plugins/pairmq-kombu/tests": "test_bounded",
        "plugins/pairmq-postgres/tests": "test_postgres_silence",
        "plugins/pairmq-rabbitmq/tests": (
            "test_rabbitmq_publisher test_rabbitmq_session test_rabbitmq_settling test_rabbitmq_wire"
        ),
        "plugins/pairmq-redis/tests": "test_redis_link test_redis_sending test_redis_sentinels test_redis_wire",
        "plugins/pairmq-servicebus/tests/paired": "test_portal",
        "plugins/pairmq-servicebus/tests/transport": (
            "test_direct test_lane test_outbox test_private_parts test_settling"
        ),
        "tests/cli": "test_app test_receive_outage test_send_ends test_syphon test_syphon_lines",
        "tests/observe/journal": "test_rolling",
        "tests/pipeline": "test_datasource_intake test_datasource_spool test_drain_parts",
        "tests/runner": "test_pump test_record",
        "tests/simulator": "test_broker test_loop",
        "tests/sync": "test_blocking_pair",
        "tests/testing": "test_conformance",
        "tests/transport": "test_dial",
    },
    "a limit is hurried, a clock turned, something counted or broken that nothing outside can": {
        "plugins/pairmq-kombu/tests": "test_publishing test_unreachable",
        "plugins/pairmq-postgres/tests": "test_postgres_outbox test_postgres_server",
        "plugins/pairmq-rabbitmq/tests": (
            "test_rabbitmq_admin test_rabbitmq_ordered_reading test_rabbitmq_positions "
            "test_rabbitmq_receiving test_rabbitmq_schedule test_rabbitmq_sending"
        ),
        "plugins/pairmq-redis/tests": "test_fakeredis_locks test_redis_cluster",
        "plugins/pairmq-servicebus/tests/paired": "conftest",
        "plugins/pairmq-servicebus/tests/transport": "conftest test_receiver",
        "plugins/pairmq-servicebus/tests/transport/single_consumer": "test_positions",
        "plugins/pairmq-sqlite/tests": "test_sqlite_file test_sqlite_messages",
        "plugins/servicebus-local/tests/server": "test_malformed",
        "tests/pipeline": "conftest test_batch test_follow test_follow_state",
    },
}
"""Files with private names of the room that they test, and why they need them: other tests do without."""


def private_names(source: str) -> Iterator[str]:
    """Names of PairMQ and its plugins, imported or as texts, that are private or of private modules."""
    if not PRIVATE.search(source):
        return  # most files: parsing takes long
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            names = [node.value]
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


@pytest.fixture(scope="module")
def named() -> dict[str, tuple[str, list[str]]]:
    """The room and the private names of each file that has some."""
    found: dict[str, tuple[str, list[str]]] = {}
    for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py")):
        if names := list(private_names(path.read_text("utf-8"))):
            found[path.relative_to(ROOT).as_posix()] = room_of(path), names
    return found


def strange(room: str, names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(f"{room}.")]


def test_private_names_of_other_rooms_are_in_no_test(named: dict[str, tuple[str, list[str]]]) -> None:
    found = {file: names for file, known in named.items() if (names := strange(*known))}
    assert {file: names for file, names in found.items() if file not in ALLOWED} == {}, "use public names, or say why"
    assert set(ALLOWED) - set(found) == set(), "these need no exception any more"


def test_private_names_of_their_room_are_in_tests_of_its_inside_alone(named: dict[str, tuple[str, list[str]]]) -> None:
    found = {file: names for file, (_, names) in named.items() if file not in ALLOWED}
    listed = [
        f"{folder}/{name}.py" for files in INSIDES.values() for folder, names in files.items() for name in names.split()
    ]
    assert {file: names for file, names in found.items() if file not in listed} == {}, "use public names, or say why"
    assert set(listed) - set(found) == set(), "these need no private names any more: delete them from the list"
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from pairmq.core._x import Y", ["pairmq.core._x.Y"]),
        ("from pairmq.cli import _z, main", ["pairmq.cli._z"]),
        ("import pairmq_redis._keys", ["pairmq_redis._keys"]),
        ("patch('pairmq_redis._keys.X', 1)", ["pairmq_redis._keys.X"]),
        ("import pairmq.core\nfrom pairmq import __version__\nfrom other._x import y", []),
    ],
)
def test_private_names_are_found(source: str, expected: list[str]) -> None:
    assert list(private_names(source)) == expected

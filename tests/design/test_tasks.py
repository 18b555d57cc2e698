"""Tasks are started by `pairmq.transport.start_task`: a program's task factory may run their first step at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What runs in loops of programs; the command line, the dashboard and the like make loops of their own.
PLACES = ("src/pairmq/runner", "src/pairmq/pair", "src/pairmq/observe", "src/pairmq/transport", "plugins")
# Test support, a broker of its own, the start itself, and what may know no transports: the tasks of two first wait, and
# use nothing that is set later; those of pairmq_kombu run on the loop of pairmq.sync.
ELSEWHERE = ("testing", "server", "tests", "_scope.py", "pairmq_faststream", "pairmq_kombu", "_sending.py")


def started(source: str) -> Iterator[int]:
    """The lines that start a task in another way."""
    for node in ast.walk(ast.parse(source)) if "create_task" in source else ():
        if isinstance(node, ast.Attribute) and node.attr == "create_task":
            yield node.lineno


def test_tasks_are_started_with_what_they_need_set_first():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        if not {*ELSEWHERE} & {*path.relative_to(ROOT).parts}
        for line in started(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("source", ["asyncio.create_task(x())", "asyncio.get_running_loop().create_task(x())"])
def test_another_way_to_start_a_task_is_found(source):
    assert [*started(source)] == [1]

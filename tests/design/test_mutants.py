"""The bugs that `make mutants` plants fit today's code, and those who have to find them are there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from core_search import HAZARDS

ROOT = Path(__file__).resolve().parents[2]
KEEPS_ITS_QUEUE = "        elif kept is not None and kept not in self._out:"


@pytest.fixture(scope="module")
def command() -> Iterator[Any]:
    """`scripts/mutants.py` as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        yield importlib.import_module("mutants")


@pytest.fixture(scope="module")
def mutants(command: Any) -> Sequence[Any]:
    planted: Sequence[Any] = command.MUTANTS
    return planted


def test_no_two_mutants_have_one_name(mutants: Sequence[Any]) -> None:
    assert len({mutant.name for mutant in mutants}) == len(mutants)


def test_each_mutant_that_a_hazard_names_exists(mutants: Sequence[Any]) -> None:
    named = {name for hazard in HAZARDS for name in hazard.mutants}
    assert named - {mutant.name for mutant in mutants} == set()


def test_the_text_that_each_mutant_replaces_is_in_the_code_once(mutants: Sequence[Any]) -> None:
    gone = {}
    for mutant in mutants:
        try:
            mutant.planted()
        except LookupError as error:
            gone[mutant.name] = str(error)
    assert gone == {}


def test_a_mutant_s_text_is_python(mutants: Sequence[Any]) -> None:
    for mutant in mutants:
        compile(mutant.planted(), mutant.name, "exec")


def test_the_tests_that_have_to_find_a_mutant_exist(mutants: Sequence[Any]) -> None:
    for mutant in mutants:
        for test in mutant.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text("utf-8")
            assert not name or re.search(rf"^(async )?def {name}\(", text, re.MULTILINE), test


@pytest.mark.search
@pytest.mark.parametrize(
    ("instead", "finder"),
    [("        elif False:", "test_rotation.py::test_a_sender_keeps_its_queue"), (KEEPS_ITS_QUEUE, None)],
    ids=["a bug", "no bug"],
)
def test_a_bug_is_found_by_a_test_that_fails_and_by_nothing_else(
    command: Any, instead: str, finder: str | None
) -> None:
    mutant = command.Mutant(
        "planted by a test",
        "src/pairmq/core/rotation.py",
        KEEPS_ITS_QUEUE,
        instead,
        tests=("tests/core/test_rotation.py::test_a_sender_keeps_its_queue",),
    )
    assert command.hunt(mutant, seeds=0, hours=0.0).by == finder

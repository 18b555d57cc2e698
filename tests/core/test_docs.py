"""The reference pages say what the code does: they are compared with it here."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from pairmq.core import PairOptions
from pairmq.core.transitions import HEALTH, Symbol

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copied(tmp_path: Path, generator: ModuleType) -> Path:
    """The pages with generated parts, where a test may spoil them."""
    for name in generator.PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "docs" / name, tmp_path / name)
    return tmp_path


def test_the_generated_pages_say_what_the_code_does(generator: ModuleType):
    assert generator.drift(ROOT / "docs") == {}


@pytest.mark.parametrize(
    ("page", "right", "wrong"),
    [
        ("reference/state-machine.md", "| `NOT_DUE` | stays | nothing |  |", "| `NOT_DUE` | **DOWN** | nothing |  |"),
        ("reference/state-machine.md", "HEALTHY --> FAILING: send failed", "HEALTHY --> DRAINING: send failed"),
        ("reference/options.md", "| 1 to 1 000 |", "| 1 to 2 000 |"),
    ],
)
def test_a_page_that_differs_fails_the_check_and_is_shown(
    generator: ModuleType, copied: Path, capsys: pytest.CaptureFixture[str], page: str, right: str, wrong: str
):
    text = (copied / page).read_text(encoding="utf-8")
    (copied / page).write_text(text.replace(right, wrong), encoding="utf-8")
    assert generator.main(["--check"], copied) == 1
    shown = capsys.readouterr().out
    assert any(line.startswith("-") and wrong in line for line in shown.splitlines())
    assert any(line.startswith("+") and right in line for line in shown.splitlines())


def test_checking_writes_nothing(generator: ModuleType, copied: Path):
    page = copied / "reference" / "options.md"
    spoiled = page.read_text(encoding="utf-8").replace("| 1 to 1 000 |", "| 1 to 2 000 |")
    page.write_text(spoiled, encoding="utf-8")
    generator.main(["--check"], copied)
    assert page.read_text(encoding="utf-8") == spoiled


def test_writing_fixes_what_differs_and_leaves_the_prose(generator: ModuleType, copied: Path):
    page = copied / "reference" / "options.md"
    text = page.read_text(encoding="utf-8")
    page.write_text("My words.\n\n" + text.replace("| 1 to 1 000 |", "| 1 to 2 000 |"), encoding="utf-8")
    assert generator.main([], copied) == 0
    assert page.read_text(encoding="utf-8") == "My words.\n\n" + text


def test_writing_twice_is_writing_once(generator: ModuleType, copied: Path):
    generator.main([], copied)
    assert generator.drift(copied) == {}


@pytest.mark.parametrize("page", ["no markers", "<!-- generated: other -->\n<!-- end -->"])
def test_a_page_without_its_markers_is_refused(generator: ModuleType, page: str):
    with pytest.raises(ValueError, match="the page has the parts"):
        generator.fill(page, {"options": str})


def test_each_possible_pair_has_a_line(generator: ModuleType):
    lines = [line for line in generator.transitions().splitlines() if line.startswith("| `")]
    assert len(lines) == sum(len(rows) for rows in HEALTH.values())


def test_each_impossible_pair_is_named(generator: ModuleType):
    named = [line.count("`") // 2 for line in generator.transitions().splitlines() if line.startswith("Impossible")]
    assert named == [len(Symbol) - len(rows) for rows in HEALTH.values()]


def test_each_option_has_a_line_and_a_meaning(generator: ModuleType):
    assert list(generator.argument_meanings(PairOptions)) == [entry.name for entry in fields(PairOptions)]
    assert all(generator.argument_meanings(PairOptions).values())

"""What the documents say is so: programs run, links lead somewhere, named tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/*.md"))
)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", (ROOT / document).read_text(), flags=re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target or target.startswith("#"):
            continue
        if not ((ROOT / document).parent / target.partition("#")[0]).exists():
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize(("document", "least"), [("guarantees.md", 20), ("correctness.md", 10), ("model.md", 40)])
def test_every_guarantee_names_a_test_that_exists(document, least):
    text = (ROOT / "docs/explanation" / document).read_text()
    named = set(re.findall(r"`((?:tests|plugins)/\S+\.py)::(\w+)`", text))
    assert len(named) > least
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{test}"


def test_the_promises_and_the_way_they_are_known_lead_to_each_other():
    assert "](correctness.md)" in (ROOT / "docs/explanation/guarantees.md").read_text()
    assert "](guarantees.md)" in (ROOT / "docs/explanation/correctness.md").read_text()


@pytest.mark.parametrize(("page", "name"), [("first-failover.md", "first.py"), ("first-outbox.md", "outbox.py")])
def test_the_tutorial_runs_as_it_is_printed(tmp_path, page, name):
    text = (ROOT / "docs/tutorial" / page).read_text()
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    printed = re.search(rf"\$ python {name}\n(.*?)```", text, re.DOTALL)
    (tmp_path / name).write_text(program[1])
    run = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    # The tenth of a second that a retry takes is chance, and so is what a busy machine adds.
    assert re.sub(r"after \d+\.\d s", "after 1.0 s", run.stdout) == printed[1]


def test_walks_are_those_of_the_design_page():
    page = (ROOT / "docs/explanation/design.md").read_text()
    shown = re.findall(r"(?m)^\| (a healthy|a diverted|two messages)[^|]*\| (\d+) \| (\d+) \|", page)
    command = [sys.executable, str(ROOT / "scripts/walks.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    walks = re.findall(r"(?m)^(a healthy|a diverted|two messages).*: (\d+) functions in (\d+) files", run.stdout)
    assert walks == shown, "write these into the page, and fewer are better"


def test_each_peer_is_compared_by_its_own_documentation_and_fairly():
    text = (ROOT / "docs/explanation/comparison.md").read_text()
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    peers = {name: body for name, body in sections.items() if name not in ("In short", "What PairMQ does")}
    assert len(peers) == sections["In short"].count("](#")
    assert [name for name, body in peers.items() if "](https://" not in body] == []
    assert [name for name, body in peers.items() if "**Better there:**" not in body] == []


def test_each_distribution_has_the_license():
    """A build takes no file from outside of its folder, so each has a copy."""
    projects = sorted(file.parent for file in (ROOT / "plugins").glob("*/pyproject.toml"))
    assert [project.name for project in projects if not (project / "LICENSE").is_file()] == []
    assert {(project / "LICENSE").read_text() for project in projects} == {(ROOT / "LICENSE").read_text()}

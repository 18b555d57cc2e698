"""The documentation's site is built without a warning, and nothing of it comes from elsewhere."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from doc_blocks import ROOT

LISTS = {
    folder: ROOT / "docs" / folder / "index.md"
    for folder in ("tutorial", "how-to", "reference", "explanation", "contributing")
}


PACKAGES = [
    ("model", "pairmq.model"),
    ("observe", "pairmq.observe"),
    ("observe", "pairmq.dashboard"),
    ("observe", "pairmq.observe.journal"),
    ("observe", "pairmq.observe.otel"),
    ("pairmq", "pairmq"),
    ("pipeline", "pairmq.pipeline"),
    ("plugins", "pairmq.plugins"),
    ("sync", "pairmq.sync"),
    ("testing", "pairmq.testing"),
    ("transport", "pairmq.transport"),
]
"""Pages of the reference, and the public packages that they describe."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it: a link, an anchor or a page in no list that is wrong is an error."""
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not logged is not counted as a warning either.
    # Without a proxy that answers, whatever would be fetched while it is built fails.
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | nowhere | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.parametrize("folder", LISTS)
def test_every_page_is_in_the_list_of_its_folder(folder: str) -> None:
    listed = set(re.findall(r"^- \[[^\]]+\]\(([^)#]+)\)", LISTS[folder].read_text("utf-8"), re.MULTILINE))
    top = ROOT / "docs" / folder
    pages = {path.relative_to(top).as_posix() for path in top.rglob("*.md")}
    assert sorted(pages - listed - {"index.md"}) == [], f"add it to docs/{folder}/index.md, of which the menu is made"


@pytest.mark.real_server
def test_the_site_has_every_page(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    plugins = ("rabbitmq", "redis", "servicebus", "servicebus-local", "template")
    pages |= {Path(f"reference/transports/{name}.html") for name in plugins}
    assert [str(page) for page in sorted(pages) if not (site / page).is_file()] == []


@pytest.mark.real_server
def test_no_page_fetches_anything_from_another_server(site: Path) -> None:
    asked = {
        (path.relative_to(site).as_posix(), url)
        for path in site.rglob("*.html")
        for tag in re.findall(r"<(?:script|link|img|iframe|source|object|embed)\b[^>]*>", path.read_text("utf-8"))
        for url in re.findall(r"""(?:src|href|data)=["']((?:https?:)?//[^"']+)""", tag)
    }
    styles = {
        (path.relative_to(site).as_posix(), url)
        for path in site.rglob("*.css")
        for url in re.findall(r"url\(['\"]?((?:https?:)?//[^)'\"]+)", path.read_text("utf-8"))
    }
    assert asked | styles == set()
    # The theme's own script would fetch what draws these.
    assert [path for path in site.rglob("*.html") if 'class="mermaid"' in path.read_text("utf-8")] == []


@pytest.mark.real_server
def test_the_reference_has_every_public_name(site: Path) -> None:
    missing = []
    for page, package in PACKAGES:
        text = (site / "reference/api" / f"{page}.html").read_text("utf-8")
        names = set(importlib.import_module(package).__all__)
        if package == "pairmq":  # what is in both is described with the values
            names -= set(importlib.import_module("pairmq.model").__all__)
        missing += [f"{package}.{name}" for name in sorted(names) if f'id="{package}.{name}"' not in text]
    assert missing == []


@pytest.mark.real_server
def test_the_state_diagram_is_drawn_with_every_move(site: Path) -> None:
    page = (ROOT / "docs/reference/state-machine.md").read_text("utf-8")
    moves = re.findall(r"^    (?:\w+|\[\*\]) --> \w+: (.+)$", page, re.MULTILINE)
    text = (site / "reference/state-machine.html").read_text("utf-8")
    assert text.count('class="move"') == len(moves)
    assert text.count("<tspan") == sum(len(causes.split(" / ")) for causes in moves)

"""The site's drawing of the state machine."""

from __future__ import annotations

import importlib.util
import re

import pytest

from doc_blocks import ROOT

WIDEST = 7.5  # px of a letter of that size, on average and at most


@pytest.fixture(scope="module")
def drawing() -> str:
    """The diagram of the reference, as the site draws it."""
    spec = importlib.util.spec_from_file_location("docs_diagram", ROOT / "scripts/docs_diagram.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs/reference/state-machine.md").read_text("utf-8")
    (diagram,) = re.findall(r"^```mermaid\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    made: str = module.drawn(diagram)
    return made


def test_no_cause_is_cut_off_at_the_border(drawing: str) -> None:
    (size,) = re.findall(r'viewBox="0 0 (\d+) (\d+)" role', drawing)
    width, height = map(int, size)
    cut = []
    for x, y, anchor, turned, spans in re.findall(
        r'<text x="(-?\d+)" y="(-?\d+)" text-anchor="(\w+)"( transform="rotate\(-90 [^)]*\)")?>(.*?)</text>', drawing
    ):
        for row in re.findall(r">([^<]+)</tspan>", spans):
            before = WIDEST * len(row) * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            begins = int(y) + before - WIDEST * len(row) if turned else int(x) - before
            if begins < 0 or begins + WIDEST * len(row) > (height if turned else width):
                cut.append(row)
    assert drawing.count("<tspan") > 20
    assert cut == []

"""The blocks of code in the documents, with what a comment before each of them says about its being run.

A block is run by the tests of ``tests/docs``. Where it can't be, or another test does it, a comment stands before it::

    <!-- not run: why -->
    <!-- run by: tests/sync/test_document.py -->

A block that is a part of a program under ``docs/how-to/examples`` needs none: the test of that program runs it.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md"))
)

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<said>not run|run by): (?P<what>[^\n]*?) -->\n\n?)?"
    r"^(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code."""

    page: str  # the document, from the top of the repository
    line: int  # where its text begins, counted from 1
    language: str  # what stands behind the fence
    text: str  # what stands in it, without the indentation of the fence
    not_run: str | None = None  # why it is not run; None if it is
    run_by: str | None = None  # the file of the test that runs it; None if that is a test of `tests/docs`

    @property
    def place(self) -> str:
        """Where it stands, as a test's id and for messages."""
        return f"{self.page}:{self.line}"


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Read the blocks of a document, in their order."""
    text = (ROOT / page).read_text("utf-8")
    return tuple(
        Block(
            page,
            text.count("\n", 0, match.start("text")) + 1,
            match["language"],
            textwrap.dedent(match["text"]),
            match["what"] if match["said"] == "not run" else None,
            match["what"] if match["said"] == "run by" else None,
        )
        for match in _BLOCK.finditer(text)
    )


def in_languages(*languages: str) -> list[Block]:
    """All blocks of these languages, in all documents."""
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


@cache
def _examples() -> tuple[tuple[str, str], ...]:
    folder = ROOT / "docs/how-to/examples"
    return tuple((path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in sorted(folder.rglob("*.py")))


def example_of(block: Block) -> str | None:
    """The program under docs/how-to/examples that a block is a part of, if it is one of any."""
    wanted = textwrap.dedent(block.text).strip()
    for name, text in _examples():
        if wanted in text or wanted in textwrap.dedent(text):
            return name
    return None

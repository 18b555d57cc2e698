"""The documents use the field's terms: words that a reader would have to translate are not in their text.

Code blocks, inline code, targets of links and generated parts are not searched. To search Python sources too, add an
entry to `SEARCHED` with a function that blanks what is not text.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What is searched for, as a regular expression for whole words, and what to write instead.
INSTEAD = {
    r"whoever": "the caller, a client, a consumer",
    r"nobody": "no consumer, no process; or say what is not done",
    r"anyone's": "untrusted",
    r"mend(s|ed|ing)?": "fix",
    r"for ever": "forever, permanently",
    r"of itself": "by itself",
    r"goodbye": "close handshake",
    r"is none": "is invalid, is empty, does not exist",
    r"comes? again|given back|gives? back": "is redelivered, is released, releases",
    r"(comes?|brings?|brought|moves?|moved|goes|way) home|bring(s|ing)? (it|them) home": "is moved back, moves back",
    r"(is|are|was|were|be|been|goes|went|stays?) away": "is unavailable, becomes unavailable",
    r"sets? aside|in hand": "dead-lettered; locked",
    r"told|on its word": "reported, returned",
    r"stands? in|stands there": "is in",
    r"divided by": "separated by",
    r"looks? after": "operate, maintain",
}
PHRASE = re.compile(
    r"(?<![\w-])(" + "|".join(f"(?:{each})" for each in INSTEAD).replace(" ", r"\s+") + r")(?![\w-])", re.I
)

NOT_TEXT = re.compile(
    r"<!-- generated: .*?<!-- end -->|<!--.*?-->|^ *```.*?^ *``` *$|`[^`]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)


def prose(document: str) -> str:
    """A document with all that is not its text blanked, so that the lines keep their numbers."""
    return NOT_TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), document)


# The files, from the top of the repository, and what makes text of one.
SEARCHED = (
    (
        ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "plugins/*/README.md"),
        prose,
    ),
)
# Files that quote the words.
LEFT_OUT = {
    "docs/contributing/style.md": "says what not to write",
}
# The project's tagline, which is English.
ALLOWED = {"README.md": {"goes away"}}

FILES = [
    pytest.param(path, text_of, id=path.relative_to(ROOT).as_posix())
    for patterns, text_of in SEARCHED
    for pattern in patterns
    for path in sorted(ROOT.glob(pattern))
    if path.relative_to(ROOT).as_posix() not in LEFT_OUT
]


def instead_of(found: str) -> str:
    words = " ".join(found.split())
    return next(better for each, better in INSTEAD.items() if re.fullmatch(each, words, re.IGNORECASE))


def complaints(name: str, text: str) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}; write: {instead_of(found[0])}"
        for found in PHRASE.finditer(text)
        if found[0].lower() not in ALLOWED.get(name, ())
    ]


@pytest.mark.parametrize(("path", "text_of"), FILES)
def test_text_has_no_word_of_the_list(path, text_of):
    assert complaints(path.relative_to(ROOT).as_posix(), text_of(path.read_text("utf-8"))) == []


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (
            "Fine.\n\nThen it comes\nagain.",
            ["page.md:3: 'comes\\nagain'; write: is redelivered, is released, releases"],
        ),
        ("Whoever asks.", ["page.md:1: 'Whoever'; write: the caller, a client, a consumer"]),
        ("`nobody`, [a](nobody.md)\n\n```text\nnobody\n```\n<!-- nobody -->\n", []),
        ("commend, recommended, amended", []),
    ],
)
def test_complaint_names_line_word_and_replacement(document, expected):
    assert complaints("page.md", prose(document)) == expected

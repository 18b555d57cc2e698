"""Documents and sources use the field's terms: words that a reader would have to translate are not in their text.

Of a document, code blocks, inline code, targets of links and generated parts are not searched. Of a Python source,
comments and strings are, docstrings and errors above all; of tests, their names.
"""

from __future__ import annotations

import io
import re
import tokenize
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
    r"(?-i:is none)": "is invalid, is empty, does not exist",
    r"comes? again|given back|gives? back": "is redelivered, is released, releases",
    r"(comes?|brings?|brought|moves?|moved|goes|way) home|bring(s|ing)? (it|them) home": "is moved back, moves back",
    r"(is|are|was|were|be|been|goes|went|stays?) away": "is unavailable, becomes unavailable",
    r"sets? aside|in hand": "dead-lettered; locked",
    r"told|on its word|tells? (whether|of|how|which|why|who|as)": "reported, returned, prints",
    r"(some|any|every)body": "another client, any consumer, all",
    r"(reads?|waits?|polls?|answers?|listens?|consumes?) no more(?! than| messages)": "stops reading, no longer waits",
    r"(is|are|was|were) home|home again": "has arrived, is moved back",
    r"(broker|primary|secondary|server|namespace|rabbitmq|redis|postgresql) (is|was) there": "is reachable, responds",
    r"stands? in(?! line)|stands there": "is in",
    r"divided by": "separated by",
    r"looks? after": "operate, maintain",
}
PHRASE = re.compile(
    r"(?<![\w-])(?=[a-z])(" + "|".join(f"(?:{each})" for each in INSTEAD).replace(" ", r"\s+") + r")(?![\w-])", re.I
)

NOT_TEXT = re.compile(
    r"<!-- generated: .*?<!-- end -->|<!--.*?-->|^ *```.*?^ *``` *$|`[^`]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)


def prose(document: str) -> str:
    """A document with all that is not its text blanked, so that the lines keep their numbers."""
    return NOT_TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), document)


# Names: what an f-string or inline code shows, and strings of one word, which are keys.
NAMES = re.compile(r"(`+)[^`\n]+\1|\{[^{}\n]*\}|([\"'])\w+\2")


def comments_and_strings(source: str) -> str:
    """The comments and strings of a Python source, each in its line, so that the lines keep their numbers.

    Nothing of a source that has no word of the list anywhere: to read its tokens takes ten times as long.
    """
    if not (PHRASE.search(source) or PHRASE.search(NAMES.sub(" ", source))):
        return ""
    found = []
    line = 1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        # From Python 3.12 on an f-string is several tokens.
        if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            found += ["\n" * (token.start[0] - line) or " ", token.string]
            line = token.end[0]
    return NAMES.sub(" ", "".join(found))


# The files, from the top of the repository, and what makes text of one.
SEARCHED = (
    (
        ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "plugins/*/README.md"),
        prose,
    ),
    (("docs/observability/*.yaml", "docs/observability/*.json"), str),  # what operators read in alerts and on a board
    (
        (
            "src/pairmq/**/*.py",
            "plugins/*/src/**/*.py",
            "benchmarks/*.py",
            "docs/how-to/examples/*.py",
            "scripts/**/*.py",
        ),
        comments_and_strings,
    ),
)
# Files that quote the words.
LEFT_OUT = {"docs/contributing/style.md": "says what not to write"}
# The tagline of the project, which is English.
ALLOWED = {
    "README.md": {"goes away"},
}

FILES = [pytest.param(pattern, text_of, id=pattern) for patterns, text_of in SEARCHED for pattern in patterns]


def instead_of(found: str) -> str:
    words = " ".join(found.split())
    return next(better for each, better in INSTEAD.items() if re.fullmatch(each, words, re.IGNORECASE))


def complaints(name: str, text: str) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}; write: {instead_of(found[0])}"
        for found in PHRASE.finditer(text)
        if found[0].lower() not in ALLOWED.get(name, ())
    ]


@pytest.mark.parametrize(("pattern", "text_of"), FILES)
def test_text_has_no_word_of_the_list(pattern, text_of):
    found = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.glob(pattern))}
    assert found
    assert [
        complaint
        for name, path in found.items()
        if name not in LEFT_OUT
        for complaint in complaints(name, text_of(path.read_text("utf-8")))
    ] == []


# "None" may be Python's.
IN_NAMES = re.compile(rf"\b({'|'.join(each for each in INSTEAD if 'is none' not in each)}|tells?|says? so)\b")


def test_names_of_tests_have_no_word_of_the_list():
    files = [path for pattern in ("tests/**/test_*.py", "plugins/*/tests/**/test_*.py") for path in ROOT.glob(pattern)]
    names = [
        f"{file}: {name}"
        for file, path in sorted((path.relative_to(ROOT).as_posix(), path) for path in files)
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(names) > 1000
    assert [name for name in names if IN_NAMES.search(name.replace("_", " "))] == []


# What a value is, or is for, is a better name than that it was told.
IN_VALUES = re.compile(r"\b_?(?:told|teller)\b|\bdef _?tell\b")
OF_FILES = {"src/pairmq/pipeline/_storage.py": "a file's method"}


def test_names_of_values_have_no_word_of_the_list():
    sources = ("src/**/*.py", "plugins/*/src/**/*.py", "scripts/*.py", "benchmarks/*.py")
    files = [path for pattern in sources for path in ROOT.glob(pattern)]
    names = {path.relative_to(ROOT).as_posix(): IN_VALUES.findall(path.read_text("utf-8")) for path in files}
    assert len(names) > 400
    assert {name: found for name, found in names.items() if found and name not in OF_FILES} == {}


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


def test_comments_and_strings_of_a_source_are_searched_and_its_names_are_not():
    source = 'told = 1  # nobody\nraise Away(f"``whoever`` is none", whoever, f"see `told`, {told}")\n'
    assert complaints("code.py", comments_and_strings(source)) == [
        "code.py:1: 'nobody'; write: no consumer, no process; or say what is not done",
        "code.py:2: 'is none'; write: is invalid, is empty, does not exist",
    ]

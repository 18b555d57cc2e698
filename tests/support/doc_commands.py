"""The command lines in the documents' shell blocks, taken apart into simple commands."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from doc_blocks import Block, in_languages

_ENDS = {"|", "||", "&", "&&", ";", "(", ")"}
_REDIRECTIONS = {"<", ">", ">>"}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_KEYWORDS = {"do", "done", "else", "fi", "if", "then", "while"}


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command: a program's name and its arguments, without what it is piped to."""

    block: Block  # where it stands
    words: tuple[str, ...]  # its words, quotes taken off

    def __str__(self) -> str:
        return f"{self.block.place}: {shlex.join(self.words)}"


def lines(block: Block) -> list[str]:
    """What a reader types of a block: all of a script; of a console what stands behind its prompts.

    A line goes on in the next one after a backslash or a pipe, and inside quotes.
    """
    found: list[str] = []
    open_ = False
    for line in block.text.splitlines():
        if open_:
            found[-1] += "\n" + line
        elif block.language == "sh":
            found.append(line)
        elif line.startswith(("$ ", "# ")):
            found.append(line[2:])
        else:
            continue
        open_ = _goes_on(found[-1])
    return found


def commands() -> list[Command]:
    """All simple commands of all documents."""
    return [
        Command(block, words)
        for block in in_languages("sh", "console")
        for line in lines(block)
        for words in _simple(line)
    ]


def _goes_on(line: str) -> bool:
    if line.endswith(("\\", "|")):
        return True
    try:
        shlex.split(line, comments=True)
    except ValueError:  # a quote is open
        return True
    return False


def _simple(line: str) -> list[tuple[str, ...]]:
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    to_a_file = False
    for word in lexer:
        if word in _ENDS:
            found.append([])
        elif word in _REDIRECTIONS or to_a_file:
            to_a_file = not to_a_file
        elif found[-1] or not (_ASSIGNMENT.fullmatch(word) or word in _KEYWORDS):
            found[-1].append(word)
    return [tuple(words) for words in found if words]

"""Foreign text fit to be shown: names, reasons and error texts come from messages and brokers."""

from __future__ import annotations

import re

LONGEST = 300
"""Characters of a text that are shown."""

_LOGIN = re.compile(r"://\S*@")
_CUT_URL = re.compile(r"://\S*$")
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


def shown(text: str, longest: int = LONGEST) -> str:
    """Make a text fit to be shown to people.

    What looks like a login or a key is left out, though no transport tells any; control characters, and those that turn
    the direction of text around, become escapes. Markup needs nothing here: the page never reads a text as markup.

    Args:
        text: anything.
        longest: characters that are kept.
    """
    near = text[: 4 * longest]
    cut = _KEY.sub(r"\1…", _LOGIN.sub("://…@", near))
    if len(text) > len(near):
        cut = _CUT_URL.sub("://…", cut)  # it may have been cut before the sign that ends a login
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    if len(cut) > longest or len(text) > len(near):
        return f"{cut[:longest]}…"
    return cut


def plural(number: int, word: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"

"""Numbers, instants and foreign text as people read them on the page."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

LONGEST_TEXT = 160
"""Characters of a text from the journal that are shown: an id may be as long as its sender liked."""

_LOGIN = re.compile(r"://\S*@")
_CUT_URL = re.compile(r"://\S*$")
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


def visible(text: str | None, longest: int = LONGEST_TEXT) -> str:
    """Make a text from the journal fit to be shown; None is a dash.

    Control characters, and those that turn the direction of text around, become escapes; the rest of a long text is
    counted instead. A journal holds no passwords; what looks like one is left out all the same. Markup is escaped where
    the text enters the page, not here.
    """
    if text is None:
        return "–"
    cut = _KEY.sub(r"\1…", _LOGIN.sub("://…@", text[: 4 * longest]))
    if len(text) > 4 * longest:
        cut = _CUT_URL.sub("://…", cut)  # it may have been cut before the sign that ends a login
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    if len(cut) > longest or len(text) > 4 * longest:
        return f"{cut[:longest]}… ({grouped(len(text))} characters)"
    return cut


def named(text: str | None, longest: int) -> str:
    """A name to be shown beside others: the middle of a long one is omitted, as the ends identify it."""
    shown = visible(text, 4 * LONGEST_TEXT)
    if len(shown) <= longest:
        return shown
    end = (longest - 1) // 2
    return f"{shown[: longest - 1 - end]}…{shown[-end:]}"


def grouped(number: float) -> str:
    """Write a count: ``28 800``, with spaces that do not break."""
    return f"{number:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def plural(number: float, word: str) -> str:
    """``1 message``, ``2 messages``, ``28 800 messages``, ``2 entities``."""
    if number == 1:
        return f"1 {word}"
    many = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{grouped(number)} {many}"


def duration(seconds: float | None) -> str:
    """Write seconds: ``870 ms``, ``4.2 s``, ``3 min 20 s``, ``2 h 05 min``, ``6 h``; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs" if seconds > 0 else "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.2g} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if whole < 86_400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60:02d} min" if whole % 3600 // 60 else "")
    return f"{whole // 86_400} d" + (f" {whole % 86_400 // 3600} h" if whole % 86_400 // 3600 else "")


def percent(share: float | None) -> str:
    """Write a share; 100 % only for all, and 0 % only for nothing, so that one message in a million is seen."""
    if share is None:
        return "–"
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", "\N{NARROW NO-BREAK SPACE}%")
    for digits in range(1, 7):
        text = f"{100 * share:.{digits}f}"
        if 0 < float(text) < 100:
            return f"{text}\N{NARROW NO-BREAK SPACE}%"
    return "nearly 100\N{NARROW NO-BREAK SPACE}%" if share > 0.5 else "nearly 0\N{NARROW NO-BREAK SPACE}%"


def date(at: float) -> str:
    """``21 Nov 2026``."""
    moment = _utc(at)
    return f"{moment.day} {moment:%b %Y}"


def clock(at: float, resolution: float = 1.0) -> str:
    """``20:25:33``; with tenths or hundredths where the resolution, in seconds, is that fine."""
    digits = 0 if resolution >= 1 else min(3, max(1, math.ceil(-math.log10(resolution) - 1e-9)))
    moment = _utc(math.floor(at * 10**digits + 1e-4) / 10**digits if digits else math.floor(at + 1e-6))
    return f"{moment:%H:%M:%S}" + (f".{moment.microsecond:06d}"[: digits + 1] if digits else "")


def moment(at: float | None, resolution: float = 1.0) -> str:
    """``21 Nov 2026 20:25:33``; a dash for None."""
    return "–" if at is None else f"{date(at)} {clock(at, resolution)}"


def period(first: float, last: float) -> str:
    """From one instant to another: the date is given once if it is the same."""
    if date(first) == date(last):
        return f"{date(first)}, {clock(first)} to {clock(last)} UTC"
    return f"{moment(first)} to {moment(last)} UTC"


def iso(at: float | None) -> str | None:
    """An instant as programs read it, to the millisecond; None for None."""
    return None if at is None else _utc(at).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _utc(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)

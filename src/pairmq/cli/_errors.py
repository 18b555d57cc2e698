"""The errors that commands end with, on top of PairMQ's own."""

from __future__ import annotations

import os
import re

from pairmq.model import PairMQError

_LOGIN = re.compile(r"://.*@", re.DOTALL)
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


class CommandFailed(PairMQError):
    """The command could not do what it was asked; exit status 1."""


class BadUsage(PairMQError):
    """The command was asked for something that can't work; exit status 2."""


class OutputClosed(Exception):  # not an error of the command
    """stdout was closed by its reader. Not an `OSError`, which the parser would handle itself."""


def file_problem(path: str, error: OSError) -> str:
    return f"{without_secrets(printable(os.fspath(path)))}: {error.strerror or error}"


def without_secrets(text: str) -> str:
    """Leave out what may be a password: a URL or connection string in a wrong place is repeated by what refuses it.

    Brokers are never named with their login, so no useful text is lost.
    """
    return _KEY.sub(r"\1…", _LOGIN.sub("://…@", text))


def printable(text: str) -> str:
    """Escape what would steer a terminal: names, bodies and error texts come from elsewhere."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)

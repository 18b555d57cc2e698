"""As much of PromQL as tells whether an expression names what exists, and is well formed.

No parser of PromQL is on PyPI; promtool, which has one, checks the same files by hand: see
docs/how-to/observe-with-opentelemetry.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<text>"(?:[^"\\]|\\.)*")
  | (?P<duration>\d+(?:ms|[smhdwy])\b)
  | (?P<number>\d+(?:\.\d+)?)
  | (?P<name>[a-zA-Z_:$][a-zA-Z0-9_:]*)
  | (?P<operator>==|!=|>=|<=|=~|!~|[-+*/%^<>=])
  | (?P<bracket>[()\[\]{},])
    """,
    re.VERBOSE,
)
AGGREGATIONS = frozenset(("sum", "min", "max", "count", "avg"))
FUNCTIONS = frozenset(("rate", "increase", "histogram_quantile", "label_values"))
KEYWORDS = frozenset(("by", "without", "on", "ignoring", "or", "and", "unless", "offset"))
_PAIRS = {")": "(", "]": "[", "}": "{"}


class PromQLError(ValueError):
    """An expression is not well formed."""


@dataclass
class Named:
    """What an expression names."""

    metrics: list[tuple[str, set[str]]] = field(default_factory=list)  # each with the labels that its selector matches
    labels: set[str] = field(default_factory=set)  # those of `by`, `on` and the like
    ranges: list[str] = field(default_factory=list)  # what stands in square brackets


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None:
            raise PromQLError(f"what is {expression[at : at + 20]!r}?")
        at = match.end()
        if match.lastgroup != "space":
            yield str(match.lastgroup), match[0]


def named_in(expression: str) -> Named:
    """Read an expression."""
    tokens = [*_tokens(expression), ("end", "")]
    found, open_brackets, at = Named(), [], 0
    while at < len(tokens) - 1:
        (kind, text), (_, following) = tokens[at], tokens[at + 1]
        if text in ("by", "without", "on", "ignoring"):
            at, names = _list_of_names(tokens, at + 1)
            found.labels |= names
            continue
        if text == "[":
            found.ranges.append(following)
        if text in ("(", "[", "{"):
            open_brackets.append(text)
        elif text in _PAIRS and (not open_brackets or open_brackets.pop() != _PAIRS[text]):
            raise PromQLError(f"{text!r} closes nothing in {expression!r}")
        if kind == "name" and not (open_brackets and open_brackets[-1] == "[") and text not in KEYWORDS:
            if text in AGGREGATIONS or (text in FUNCTIONS and following == "("):
                pass
            elif following == "(":
                raise PromQLError(f"no function is named {text!r}")
            else:
                at, labels = _selector(tokens, at + 1)
                found.metrics.append((text, labels))
                continue
        at += 1
    if open_brackets:
        raise PromQLError(f"{open_brackets[-1]!r} is left open in {expression!r}")
    return found


def _list_of_names(tokens: list[tuple[str, str]], at: int) -> tuple[int, set[str]]:
    if tokens[at][1] != "(":
        raise PromQLError("a list of labels begins with '('")
    names = set()
    at += 1
    while tokens[at][1] != ")":
        if tokens[at][0] == "name":
            names.add(tokens[at][1])
        elif tokens[at][1] != ",":
            raise PromQLError(f"{tokens[at][1]!r} is no label")
        at += 1
    return at + 1, names


def _selector(tokens: list[tuple[str, str]], at: int) -> tuple[int, set[str]]:
    """The labels matched in braces, if there are any."""
    labels: set[str] = set()
    if tokens[at][1] != "{":
        return at, labels
    at += 1
    while tokens[at][1] != "}":
        kinds = [kind for kind, _ in tokens[at : at + 3]]
        if kinds != ["name", "operator", "text"] or tokens[at + 1][1] not in ("=", "!=", "=~", "!~"):
            raise PromQLError(f"{tokens[at][1]!r} begins no matcher")
        labels.add(tokens[at][1])
        at += 3
        if tokens[at][1] == ",":
            at += 1
    return at + 1, labels

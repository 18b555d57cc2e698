#!/usr/bin/env python3
"""Write the generated parts of docs/reference from the code that they describe.

Each generated part stands between two markers; what a person wrote around them is left alone.

    python scripts/generate_docs.py           writes
    python scripts/generate_docs.py --check   writes nothing; prints a diff and exits 1 where docs and code differ
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path

from pairmq.core import Backlog, Health, PairOptions, options, visible
from pairmq.core._transitions import BACKLOG, HEALTH, MEANING, BacklogSymbol, Row, Symbol
from pairmq.model import EntityState
from pairmq.model.events import Cause

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"

AWAY = (Health.DOWN, Health.HELD)

HEALTH_MEANING = {
    Health.UP: "the primary takes messages",
    Health.TRIAL: "up by a ping's word alone; the next send is the canary",
    Health.FAILING: "sends fail; the failover interval runs",
    Health.DOWN: "failed over; pings run",
    Health.HELD: "failed over by an operator's word; no pings",
}


# ------------------------------------------------------------------------------------------------------- state machine


def diagram() -> str:
    """Draw the states that people see as a Mermaid diagram, with the causes that move an entity between them."""
    lines = ["```mermaid", "stateDiagram-v2", "    direction LR"]
    lines += [f"    state {_quoted(state.value)} as {state.name}" for state in EntityState]
    lines += [f"    [*] --> {EntityState.HEALTHY.name}: no syphon in this process"]
    lines += [f"    [*] --> {EntityState.DRAINING.name}: syphon in this process"]
    lines += [
        f"    {before.name} --> {after.name}: {' / '.join(sorted(causes))}"
        for (before, after), causes in sorted(visible_moves().items(), key=lambda entry: _order(*entry[0]))
    ]
    return "\n".join([*lines, "```"])


def visible_moves() -> dict[tuple[EntityState, EntityState], set[str]]:
    """Find every move between two states that people see, with its causes."""
    moves: dict[tuple[EntityState, EntityState], set[str]] = {}
    for (health, rows), backlog in product(HEALTH.items(), Backlog):
        for row in rows.values():
            if row.cause is None or row.next is health:
                continue
            for after in _backlogs_after(health, row, backlog):
                moves.setdefault((visible(health, backlog), visible(row.next, after)), set()).add(row.cause.value)
    for health in (Health.UP, Health.TRIAL):
        drained = BACKLOG[Backlog.DIRTY][BacklogSymbol.DRAINED]
        move = visible(health, Backlog.DIRTY), visible(health, drained)
        moves.setdefault(move, set()).add(Cause.DRAINED.value)
    return moves


def _backlogs_after(left: Health, row: Row, backlog: Backlog) -> set[Backlog]:
    if left in AWAY and row.next not in AWAY:
        return {backlog, BACKLOG[backlog][BacklogSymbol.CAME_UP_UNTRACKED]}
    return {backlog}


def _order(*states: EntityState) -> list[int]:
    return [list(EntityState).index(state) for state in states]


def symbols() -> str:
    """List the symbols with their meaning."""
    return table(("symbol", "meaning"), [(f"`{symbol.name}`", MEANING[symbol]) for symbol in Symbol])


def transitions() -> str:
    """Write the health table: one table for each health, and what is impossible in it."""
    parts = []
    for health, rows in HEALTH.items():
        lines = [
            (
                f"`{symbol.name}`",
                _next(health, row),
                ", ".join(action.value for action in row.does) or "nothing",
                _cause(row),
            )
            for symbol, row in sorted(rows.items())
        ]
        impossible = ", ".join(f"`{symbol.name}`" for symbol in Symbol if symbol not in rows)
        parts += [
            f"### {health.name}: {HEALTH_MEANING[health]}",
            table(("symbol", "next", "what it does", "cause in the event"), lines),
            f"Impossible: {impossible}.",
        ]
    return "\n\n".join(parts)


def _next(health: Health, row: Row) -> str:
    return "stays" if row.next is health else f"**{row.next.name}**"


def _cause(row: Row) -> str:
    return "" if row.cause is None else row.cause.value


def backlog() -> str:
    """Write the backlog table."""
    lines = [
        (f"`{symbol.name}`", symbol.value, *(BACKLOG[before][symbol].name for before in Backlog))
        for symbol in BacklogSymbol
    ]
    return table(("symbol", "meaning", *(f"from {before.name}" for before in Backlog)), lines)


def states() -> str:
    """Write what people see for each pair of the two facts."""
    lines = [
        (health.name, *(visible(health, fact).name for fact in Backlog), HEALTH_MEANING[health]) for health in Health
    ]
    return table(("health", *(f"backlog {fact.name}" for fact in Backlog), "meaning"), lines)


# ------------------------------------------------------------------------------------------------------------- options


def option_table() -> str:
    """Write the options: name, default, range and meaning."""
    meanings = argument_meanings(PairOptions)
    lines = [
        (f"`{entry.name}`", _default(entry.name, entry.default), _range(entry.name), meanings[entry.name])
        for entry in fields(PairOptions)
    ]
    return table(("option", "default", "range", "meaning"), lines)


def argument_meanings(documented: type) -> dict[str, str]:
    """Read the ``Args:`` of a docstring: each argument's name and its text, on one line, as Markdown."""
    text = inspect.getdoc(documented) or ""
    _, _, rest = text.partition("\nArgs:\n")
    block = re.split(r"\n(?=\S)", rest, maxsplit=1)[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", block, re.MULTILINE)
    return {name: " ".join(meaning.split()).replace("``", "`") for name, meaning in entries}


def _default(name: str, value: object) -> str:
    if name in options._DURATIONS and isinstance(value, float):
        return options._readable(value)
    if value == ():
        return "empty"
    return f"`{value!r}`".replace("'", '"')


def _range(name: str) -> str:
    if name in options._DURATIONS:
        low, high = options._DURATIONS[name]
        return f"{options._readable(low)} to {options._readable(high)}"
    if name in options._COUNTS:
        least, most = options._COUNTS[name]
        return f"{_grouped(least)} to {_grouped(most)}"
    if name in options._CHOICES:
        return ", ".join(f'`"{choice}"`' for choice in options._CHOICES[name])
    return "`True`, `False`" if name in options._SWITCHES else "see its meaning"


def _grouped(number: int) -> str:
    return f"{number:,}".replace(",", " ")


# ------------------------------------------------------------------------------------------------------------ markdown


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in rows)


def _quoted(text: str) -> str:
    return f'"{text}"'


def fill(page: str, parts: dict[str, Callable[[], str]]) -> str:
    """Put each part between its markers.

    Args:
        page: the page's text, with ``<!-- generated: name -->`` and ``<!-- end -->`` around each part.
        parts: what writes the part of each name.

    Raises:
        ValueError: the page lacks a marker of a part, or has one of an unknown part.
    """
    marked = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
    found = [match[2] for match in marked.finditer(page)]
    if sorted(found) != sorted(parts):
        raise ValueError(f"the page has the parts {sorted(found)}: it must have {sorted(parts)}, once each")
    return marked.sub(lambda match: f"{match[1]}\n{parts[match[2]]()}\n\n{match[3]}", page)


PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "state-machine.md": {
        "diagram": diagram,
        "states": states,
        "symbols": symbols,
        "transitions": transitions,
        "backlog": backlog,
    },
    "options.md": {"options": option_table},
}


def drift(reference: Path) -> dict[Path, tuple[str, str]]:
    """Find the pages that differ from the code: what stands there, and what should."""
    found = {}
    for name, parts in PAGES.items():
        path = reference / name
        present = path.read_text(encoding="utf-8")
        wanted = fill(present, parts)
        if wanted != present:
            found[path] = present, wanted
    return found


def main(arguments: Sequence[str] | None = None, reference: Path = REFERENCE) -> int:
    """Write the pages, or only compare them.

    Returns:
        The exit code: 1 when comparing found a difference.
    """
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where docs and code differ")
    check = parser.parse_args(arguments).check
    stale = drift(reference)
    for path, (present, wanted) in stale.items():
        if check:
            names = f"docs/reference/{path.name}", f"docs/reference/{path.name} (from the code)"
            sys.stdout.writelines(difflib.unified_diff(present.splitlines(True), wanted.splitlines(True), *names))
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote docs/reference/{path.name}")
    if check and stale:
        print("docs differ from the code: run scripts/generate_docs.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Write the generated parts of docs from the code that they describe.

Each generated part stands between two markers; what a person wrote around them is left alone.

    python scripts/generate_docs.py           writes
    python scripts/generate_docs.py --check   writes nothing; prints a diff and exits 1 where docs and code differ
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from pairmq.core import PairOptions, options
from pairmq.core.transitions import BACKLOG, HEALTH, MEANING, Backlog, BacklogSymbol, Health, Row, Symbol, visible
from pairmq.model import EntityState, records
from pairmq.model.events import Cause, Event

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from core_search import HAZARDS, WORLDS, Check, Hazard, Trouble, Verdict, World
from core_search import MEANING as VERDICT_MEANING

DOCS = Path(__file__).resolve().parents[1] / "docs"
FOUND = DOCS / "explanation" / "model.json"
"""What the searches of scripts/model.py found: they take longer than writing may; a test compares the two."""

AWAY = (Health.DOWN, Health.HELD)

HEALTH_MEANING = {
    Health.UP: "the primary takes messages",
    Health.TRIAL: "up by a ping's word alone; the next send is the canary",
    Health.FAILING: "sends fail; the failover interval runs",
    Health.DOWN: "failed over; pings run",
    Health.HELD: "failed over by an operator; no pings",
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
        kept = BACKLOG[Backlog.CLEAN][BacklogSymbol.DIVERT]
        move = visible(health, Backlog.CLEAN), visible(health, kept)
        moves.setdefault(move, set()).add(Cause.ORDER_KEPT.value)
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


# ----------------------------------------------------------------------------------------------------------- the model


def worlds() -> str:
    """List the worlds of the model: what is in each, and how many states were searched."""
    found = _found()["worlds"]
    lines = [(world.name, world.about, _bounds(world), _grouped(found[world.name]["states"])) for world in WORLDS]
    total = _grouped(sum(each["states"] for each in found.values()))
    head = ("world", "what it is for", "bounds", "states")
    return f"{table(head, lines)}\n\nTogether {total} states, every one of them clean."


def _bounds(world: World) -> str:
    counts = (
        (len(world.senders), "message"),
        (len(world.hosts), "process"),
        (world.queues, "backlog queue"),
        (world.faults, "fault"),
        (world.crashes, "crash"),
        (world.cancels, "cancellation"),
        (world.closes, "close"),
    )
    said = [f"{count} {_plural(name, count)}" for count, name in counts if count]
    troubles = (trouble for trouble in Trouble if world.trouble & trouble)
    return f"{', '.join(said)} ({', '.join(str(trouble.name).lower().replace('_', ' ') for trouble in troubles)})"


def _plural(name: str, count: int) -> str:
    if count == 1:
        return name
    return f"{name}es" if name.endswith(("s", "sh")) else f"{name}s"


def hazards() -> str:
    """List the hazards in one table."""
    found = _found()["hazards"]
    lines = [
        (
            f"[{hazard.number}](#hazard-{hazard.number})",
            hazard.name,
            ", ".join(dict.fromkeys(check.verdict.value for check in hazard.checks)),
            str(_length(found[str(hazard.number)][0])),
            hazard.rule,
        )
        for hazard in HAZARDS
    ]
    return table(("#", "hazard", "found as", "steps", "rule"), lines)


def stories() -> str:
    """Describe each hazard: what one would do, what comes of it, the rule, and the tests that would notice."""
    found = _found()["hazards"]
    return "\n\n".join(_hazard(hazard, found[str(hazard.number)]) for hazard in HAZARDS)


def _hazard(hazard: Hazard, found: list[dict[str, Any]]) -> str:
    first = hazard.checks[0]
    parts = [
        f'<a id="hazard-{hazard.number}"></a>',
        f"### {hazard.number}. {hazard.name}",
        f'Naive: {hazard.naive.value}. In the world "{first.world.name}":',
        _story(found[0]),
        f"That is: **{first.verdict}** ({VERDICT_MEANING[first.verdict]}).{_others(hazard.checks[1:], found[1:])}",
        f"Rule (SPEC {hazard.clauses}): {hazard.rule}",
        f"In the code: {hazard.code}",
        "Tests:\n\n" + "\n".join(f"- `{test}`" for test in hazard.tests),
    ]
    if hazard.mutants:
        parts.append("Mutants: " + "; ".join(hazard.mutants) + ".")
    return "\n\n".join(parts)


def _story(found: dict[str, Any]) -> str:
    lines = list(found["story"])
    if found["then"]:
        lines += ["... what can still happen:", *found["then"]]
    if found["again"]:
        lines += ["... and then, again and again:", *found["again"]]
    return "\n".join(["```text", *lines, "```"])


def _length(found: dict[str, Any]) -> int:
    return len(found["story"]) + (len(found["again"]) if found["verdict"] == Verdict.LIVELOCK else 0)


def _others(checks: Sequence[Check], found: Sequence[dict[str, Any]]) -> str:
    said = [
        f'**{check.verdict}** in the world "{check.world.name}", in {_length(each)} steps'
        for check, each in zip(checks, found, strict=True)
    ]
    return f" It is also found as {', and as '.join(said)}." if said else ""


def _found() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


# --------------------------------------------------------------------------------------------------------- the journal


def columns() -> str:
    """List the journal's columns."""
    lines = [
        (f"`{column.name}`", column.type, "" if column.nullable else "never null", column.meaning)
        for column in records.COLUMNS
    ]
    return f"Version {records.SCHEMA_VERSION}.\n\n{table(('column', 'type', '', 'meaning'), lines)}"


def kinds() -> str:
    """List the kinds of rows with their columns."""
    lines = [
        (f"`{name}`", (inspect.getdoc(kind) or "").partition("\n")[0], ", ".join(f"`{one}`" for one in _own(kind)))
        for name, kind in records.KINDS.items()
    ]
    return table(("kind", "what happened", "columns, beside those that all have"), lines)


def _own(kind: type[Event]) -> list[str]:
    common = {column.name for column in records.COLUMNS if not column.kinds} - {"message_key"}
    return [field.column for field in records.FIELDS[kind] if field.column not in common]


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
    "reference/state-machine.md": {
        "diagram": diagram,
        "states": states,
        "symbols": symbols,
        "transitions": transitions,
        "backlog": backlog,
    },
    "reference/options.md": {"options": option_table},
    "reference/journal.md": {"columns": columns, "kinds": kinds},
    "explanation/model.md": {"worlds": worlds, "hazards": hazards, "stories": stories},
}


def drift(docs: Path) -> dict[Path, tuple[str, str]]:
    """Find the pages that differ from the code: what they contain, and what they should."""
    found = {}
    for name, parts in PAGES.items():
        path = docs / name
        present = path.read_text(encoding="utf-8")
        wanted = fill(present, parts)
        if wanted != present:
            found[path] = present, wanted
    return found


def main(arguments: Sequence[str] | None = None, docs: Path = DOCS) -> int:
    """Write the pages, or only compare them.

    Returns:
        The exit code: 1 when comparing found a difference.
    """
    parser = argparse.ArgumentParser(description="Write the generated parts of docs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where docs and code differ")
    check = parser.parse_args(arguments).check
    stale = drift(docs)
    for path, (present, wanted) in stale.items():
        if check:
            name = f"docs/{path.relative_to(docs).as_posix()}"
            names = name, f"{name} (from the code)"
            sys.stdout.writelines(difflib.unified_diff(present.splitlines(True), wanted.splitlines(True), *names))
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote docs/{path.relative_to(docs).as_posix()}")
    if check and stale:
        print("docs differ from the code: run scripts/generate_docs.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""The contracts of the imports say which room may know which; this one holds within the rooms as well."""

from __future__ import annotations

import re
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pairmq", *sorted(path.parent.name for path in ROOT.glob("plugins/*/src/*/__init__.py")))
DESIGN = ROOT / "docs" / "explanation" / "design.md"
BROKERS = ("pairmq_postgres", "pairmq_rabbitmq", "pairmq_redis", "pairmq_servicebus", "pairmq_sqlite")
ROOMS = (
    *("model", "transport", "core", "memory", "observe", "plugins", "runner"),
    *("pair", "sync", "dashboard", "pipeline", "testing", "cli"),
)
# Their harnesses, and what embeds a pair in a client's API, which are made of PairMQ's public names.
NO_TRANSPORT = ("testing", "testing_chaos", "paired")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; none when there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other_in_a_circle(graph):
    """Imports inside of functions and those for types alone count as well."""
    assert graph.modules > set(PACKAGES)
    assert circle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []


def test_no_rooms_import_each_other_in_a_circle(graph):
    """Siblings in any package, each with all that is in it; the test kit's defects and its suite know each other."""
    packages: dict[str, dict[str, set[str]]] = {}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            importer, other = module.split("."), imported.split(".")
            pairs = enumerate(zip(importer, other, strict=False))
            depth = next((at for at, pair in pairs if pair[0] != pair[1]), 0)
            if depth:
                siblings = packages.setdefault(".".join(importer[:depth]), {})
                siblings.setdefault(importer[depth], set()).add(other[depth])
    assert packages.keys() > set(PACKAGES) - {"pairmq_faststream", "pairmq_template"}  # which have one module each
    assert {name: circle(known) for name, known in packages.items() if circle(known)}.keys() == {"pairmq.testing"}


def test_a_circle_would_be_found():
    assert sorted(set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == ["a", "b", "c"]


def drawn(graph: grimp.ImportGraph) -> str:
    """A line for each room, with a mark below each other that it imports."""
    imports: dict[str, set[str]] = {room: set() for room in (*ROOMS, "a plugin")}
    for module in graph.modules:
        package, room = (*module.split("."), "")[:2]
        name = room if package == "pairmq" else "a plugin"
        if name in imports and (package == "pairmq" or (package in BROKERS and room not in NO_TRANSPORT)):
            found = [each.split(".") for each in graph.find_modules_directly_imported_by(module)]
            imports[name] |= {each[1] for each in found if each[0] == "pairmq" and len(each) > 1}
    lines = [" " * 11 + "".join(f" {room[:3]}" for room in ROOMS)]
    for name, known in imports.items():
        marks = "".join("   ." if room == name else "   +" if room in known else "    " for room in ROOMS)
        lines.append(f"{name:11}{marks}".rstrip())
    return "\n".join(lines)


def test_design_page_shows_who_imports_whom(graph):
    (table,) = re.findall(r"^```text\n( +mod .*?)\n```$", DESIGN.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert table == drawn(graph)


def test_time_is_read_in_one_module_of_the_engine(graph):
    reading = graph.find_modules_that_directly_import("time")
    engine = ("pairmq.core", "pairmq.runner", "pairmq.pair", "pairmq.sync")
    assert {each for each in reading if each.startswith(engine)} == {"pairmq.runner._clock"}


def test_no_room_and_no_plugin_is_without_walls(graph):
    """A new one that is in no contract could import what it likes."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    contracts = {each["id"]: each for each in linter["contracts"]}
    plugins = set(PACKAGES) - {"pairmq"}
    outside = {"pairmq", "pairmq.__main__", "pairmq._version"}
    rooms = graph.find_children("pairmq") - outside
    assert rooms == {f"pairmq.{room}" for room in ROOMS}
    imported = {name for module in outside for name in graph.find_modules_directly_imported_by(module)}
    assert {name.split(".")[0] for name in imported} & plugins == set()
    assert set(linter["root_packages"]) == set(PACKAGES)
    assert {each for floor in contracts["floors"]["layers"] for each in floor.split(" | ")} == rooms | plugins
    assert set(contracts["surface"]["source_modules"]) == plugins


# What a run of the pipeline reads is the journal: it needs no broker, no loop and no pair. Only the two rooms that work
# with the brokers themselves, the connectors and the drain, reach further down, to public names.
PIPELINE = {
    "datasource": {"asyncio", "pairmq.core", "pairmq.pair", "pairmq.plugins", "pairmq.sync", "pairmq.transport"},
    "drain": {
        *("asyncio", "pairmq.core", "pairmq.observe.journal", "pairmq.pair", "pairmq.plugins", "pairmq.runner"),
        "pairmq.transport",
    },
}


def test_pipeline_knows_the_model_alone_but_for_the_connectors_and_the_drain(graph):
    known: dict[str, set[str]] = {}
    for module in graph.modules:
        if module.startswith("pairmq.pipeline"):
            room = (*module.split("."), "")[2]
            known.setdefault(room, set()).update(
                imported
                for imported in graph.find_modules_directly_imported_by(module)
                if imported == "asyncio"
                or (imported.startswith("pairmq.") and not imported.startswith(("pairmq.pipeline", "pairmq.model")))
            )
    assert {room: names for room, names in known.items() if names} == PIPELINE


# What needs no clock, no chance and no system; `datetime` and `uuid` have functions that do.
PURE = {
    *(
        "base64",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fnmatch",
        "functools",
        "hashlib",
        "heapq",
    ),
    *("inspect", "itertools", "json", "math", "operator", "re", "types", "typing", "uuid", "zlib"),
}
IMPURE = re.compile(r"\b(datetime\.now|datetime\.today|date\.today|utcnow|uuid[14])\(")


def test_what_decides_has_no_clock_no_chance_and_no_io(graph):
    """The contract of `core` names some modules; here are all others, and what those that are allowed could do."""
    deciding = {each for each in graph.modules if each.startswith(("pairmq.core", "pairmq.model"))}
    deciding.add("pairmq.memory._state")
    imported = {name for each in deciding for name in graph.find_modules_directly_imported_by(each)}
    assert {each for each in imported if not each.startswith("pairmq.")} - PURE == {"__future__"}
    files = [
        *ROOT.glob("src/pairmq/core/*.py"),
        *ROOT.glob("src/pairmq/model/*.py"),
        ROOT / "src/pairmq/memory/_state.py",
    ]
    read = {path.name: re.sub(r"\"[^\"\n]*\"", "", path.read_text("utf-8")) for path in files}
    assert {name: IMPURE.findall(source) for name, source in read.items() if IMPURE.search(source)} == {}

"""The contracts of the imports say which room may know which; this one holds within the rooms as well."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp

PACKAGES = (
    "pairmq",
    "pairmq_faststream",
    "pairmq_kombu",
    "pairmq_postgres",
    "pairmq_rabbitmq",
    "pairmq_redis",
    "pairmq_servicebus",
    "pairmq_sqlite",
    "pairmq_template",
    "pairmq_web",
    "servicebus_local",
)


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, the first again at the end; none when there is no circle."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside of functions and those for types alone count as well."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    assert graph.modules > set(PACKAGES)
    assert circle({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}) == []


def test_a_circle_would_be_found():
    assert sorted(set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == ["a", "b", "c"]

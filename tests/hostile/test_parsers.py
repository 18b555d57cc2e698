"""Whatever text or bytes a parser is given, the outcome is a value or the one documented error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hostile_text import documents, written
from pairmq.core import OPTION_NAMES
from pairmq.model import ConfigurationError
from pairmq.pair import load_settings, parse_duration
from pairmq.plugins import registry
from pairmq.testing.simulator import Scenario, scenario_of
from pairmq.testing.simulator import Settings as SimulationSettings

DEEP = "[pair]\nx = " + "[" * 10_000
HUGE = "[pair]\nbacklog_queue_count = "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(documents)
@example(DEEP)
@example("[pair]\nx = " + "{a = " * 10_000)
@example(HUGE + "9" * 10_000)
@example(HUGE + "0x" + "f" * 100_000)
@example("[pair]\njournal = 0x" + "f" * 100_000)
@example("[pair]\n" + ".".join("a" * 5_000) + " = 1")
@example("[pair]\nwhile_failing = {a = 1}\nallowed_entities = [[1]]")
def test_a_settings_file_is_read_or_refused(folder: Path, text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        load_settings(primary="a://", secondary="b://", config=written(folder, text), environ={})


@given(st.sampled_from(OPTION_NAMES), documents | st.text(max_size=40))
@example("max_pending_sends", "9" * 10_000)
@example("syphon_max_rate", "1e400")
def test_a_variable_is_read_or_refused(name: str, text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        load_settings(primary="a://", secondary="b://", environ={f"PAIRMQ_{name.upper()}": text})


@pytest.mark.parametrize("path", ["a\x00b", "\ud800", "", "x" * 10_000, "/"])
def test_a_path_that_can_not_be_is_refused(path: str) -> None:
    with contextlib.suppress(ConfigurationError):
        load_settings(primary="a://", secondary="b://", config=path, environ={})


@given(st.text(max_size=60) | st.from_regex(r"\A\s*[0-9_.eE+-]{0,30}\s*(ms|s|m|min|h|d|y)?\Z"))
@example("9" * 100_000)
@example("1" + " " * 100_000 + "x")
@example("1." + "0" * 100_000)
@example("٣s")
def test_a_duration_is_a_number_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert parse_duration(text) >= 0


# ------------------------------------------------------------------------------------------ scenarios of simulations

SCENARIO: dict[str, Any] = json.loads(scenario_of(SimulationSettings(seed=1, hours=0.02)).to_json())
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), 1e308, "", "x", "\ud800", [], [None], [[1]], {},
    {"a": 1}, "topic:", "../x",
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a document."""
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        found += places(entry, (*path, key))
    return found


PLACES = places(SCENARIO)


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(ODD)), min_size=1, max_size=3))
def test_a_changed_scenario_is_another_one_or_refused(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    document = json.loads(json.dumps(SCENARIO))
    for path, value in changes:
        holder = document
        with contextlib.suppress(LookupError, TypeError):  # an earlier change took the place away
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = value
    with contextlib.suppress(ValueError):
        scenario = Scenario.from_json(json.dumps(document))
        assert Scenario.from_json(scenario.to_json()) == scenario


@given(st.text(max_size=60) | st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists).map(json.dumps))
@example("[" * 100_000)
@example("9" * 10_000)
@example("{}")
@example('{"format": 1}')
@example('{"format": 1, "setup": ' + "[" * 100_000)
def test_arbitrary_text_is_no_scenario(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Scenario.from_json(text)


def test_an_unchanged_scenario_comes_back() -> None:
    scenario = scenario_of(SimulationSettings(seed=1, hours=0.02))
    assert Scenario.from_json(scenario.to_json()) == scenario


# ------------------------------------------------------------------------------------------------------------ URLs

URLS = ("redis://", "rediss://", "memory://", "amqp://", "amqps://", "sb://", "redis+sentinel://", "redis+cluster://")
_LETTERS = (
    "@", ":", ",", "/", "?", "#", "%", "%00", "%zz", "[", "]", "[::1]", "h", "0", "99999", "=", "&", "..", "é",
    "\u202e", "\x00", "\n", "name=", "a" * 300, "٣", "\ud800",
)  # fmt: skip


@given(st.sampled_from(URLS), st.lists(st.sampled_from(_LETTERS) | st.text(max_size=4), max_size=10).map("".join))
def test_a_url_makes_a_transport_or_is_refused(scheme: str, rest: str) -> None:
    with contextlib.suppress(ConfigurationError):
        transport = registry.transport(scheme + rest)
        assert transport.endpoint.url.isprintable()
        assert transport.endpoint.name

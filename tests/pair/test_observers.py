"""Which observers a pair gets."""

from __future__ import annotations

import re
import types

import pytest

from pairmq import ConfigurationError, Entity, Message, Pair, PairOptions
from pairmq.model.events import PairOpened, SendCompleted
from pairmq.observe.otel import OpenTelemetryObserver
from pairmq.pair import load_settings
from pairmq.plugins import ObserverRecord, Registry, hookimpl, registry
from pairmq.testing import memory_broker


class Audit:
    """An observer of a plugin's."""

    def on_event(self, event):
        pass

    async def close(self):
        pass


class Watch(Audit):
    """One that every pair gets."""


@pytest.fixture
def plugins():
    """A registry with one plugin, which brings both."""

    def pairmq_observers():
        yield ObserverRecord(name="audit", factory=Audit)
        yield ObserverRecord(name="watch", factory=Watch, automatic=True)

    plugin = types.ModuleType("plugin")
    plugin.pairmq_observers = hookimpl(pairmq_observers)
    registry = Registry()
    registry.register(plugin)
    return registry


@pytest.fixture
def watching(plugins, monkeypatch):
    """Opens a pair with these observers, and others that its settings name; gives those that saw it open."""
    saw = []

    def on_event(self, event):
        if isinstance(event, PairOpened):
            saw.append(self)

    async def watching(*given, named=""):
        monkeypatch.setenv("PAIRMQ_OBSERVERS", named)
        async with memory_broker() as east, memory_broker() as west:
            sides = registry.transport(east.url), registry.transport(west.url)
            async with Pair.connect(*sides, observers=given, plugins=plugins):
                return saw

    for each in (Audit, OpenTelemetryObserver):
        monkeypatch.setattr(each, "on_event", on_event)
    return watching


def kinds(observers):
    return sorted(type(observer).__name__ for observer in observers)


async def test_without_names_there_are_the_given_and_the_automatic_ones(watching):
    given = Audit()
    observers = await watching(given)
    assert observers[0] is given
    assert kinds(observers) == ["Audit", "Watch"]


async def test_an_observer_is_added_by_its_name_once(watching):
    assert kinds(await watching("audit", named="audit,watch")) == ["Audit", "Watch"]


async def test_open_telemetry_needs_no_plugin(watching):
    assert kinds(await watching(named="opentelemetry")) == ["OpenTelemetryObserver", "Watch"]


async def test_a_program_s_own_open_telemetry_is_not_doubled(watching):
    own = OpenTelemetryObserver()
    observers = await watching(own, named="opentelemetry")
    assert [each for each in observers if isinstance(each, OpenTelemetryObserver)] == [own]


def test_an_unknown_name_is_an_error_that_lists_the_others(plugins):
    sides = (registry.transport(f"memory://{each}") for each in "ab")
    with pytest.raises(ConfigurationError, match="named 'adit': known are audit, opentelemetry, watch"):
        Pair.connect(*sides, observers=["adit"], plugins=plugins)


def test_the_environment_names_observers_whatever_else_is_given(monkeypatch):
    monkeypatch.setenv("PAIRMQ_OBSERVERS", "nobody")
    with pytest.raises(ConfigurationError, match=r"^PAIRMQ_OBSERVERS: no observer is named 'nobody'"):
        Pair.connect("memory://a", "memory://b")
    with pytest.raises(ConfigurationError, match=r"^PAIRMQ_OBSERVERS: no observer is named 'nobody'"):
        Pair.connect("memory://a", "memory://b", options=PairOptions())


@pytest.mark.parametrize("through_settings", [True, False])
def test_an_observer_unknown_to_all_plugins_is_refused_with_the_file_that_names_it(tmp_path, through_settings):
    path = tmp_path / "pairmq.toml"
    path.write_text('[pair]\nprimary = "memory://a"\nsecondary = "memory://b"\nobservers = ["adit"]\n')
    text = re.escape(f"settings file {path}: [pair] observers: no observer is named 'adit': known are ")
    given = {"config": path}
    if through_settings:  # as commands do
        settings = load_settings(config=path, environ={})
        given = {"options": settings.options, "observers": settings.observers}
    with pytest.raises(ConfigurationError, match=f"^{text}"):
        Pair.connect("memory://a", "memory://b", **given)


def test_an_observer_that_would_have_to_be_awaited_is_refused():
    """Nothing awaited it, and so it saw no event."""

    class Audit:
        async def on_event(self, event):
            pass

        async def close(self):
            pass

    with pytest.raises(TypeError, match="is a coroutine function, and would not run: write def on_event"):
        Pair.connect("memory://a", "memory://b", observers=[Audit()])


def test_a_function_is_refused_as_an_observer_with_what_to_give_instead():
    with pytest.raises(TypeError, match=r"is not an observer: give an object .* it lacks on_event and close$"):
        Pair.connect("memory://a", "memory://b", observers=[print])


async def test_a_pair_is_observed_by_name(monkeypatch):
    seen = []
    monkeypatch.setattr(OpenTelemetryObserver, "on_event", lambda self, event: seen.append(event))
    async with (
        memory_broker() as east,
        memory_broker() as west,
        Pair.connect(east.url, west.url, observers=["opentelemetry"]) as pair,
    ):
        await pair.primary.admin.create(Entity("orders"))
        await pair.sender("orders").send(Message(b"1"))
    assert sum(isinstance(event, SendCompleted) for event in seen) == 1


async def _take(event: object) -> None:
    pass


@pytest.mark.parametrize("sink", [5, "name", _take])
async def test_what_can_not_take_events_is_refused_when_it_subscribes(sink):
    async with Pair.connect("memory://east-sink", "memory://west-sink") as pair:
        with pytest.raises(TypeError, match="give a function that is not async"):
            pair.subscribe(sink)

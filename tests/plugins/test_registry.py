"""The registry: finds plugins, isolates the broken ones, and picks the transport of a URL."""

from __future__ import annotations

import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from pairmq.memory import MemoryTransport
from pairmq.model import ConfigurationError
from pairmq.plugins import Observer, ObserverRecord, PluginInfo, Registry, TransportRecord, hookimpl
from pairmq.plugins import registry as process_registry
from pairmq.transport import Capabilities, Transport

Install = Callable[..., tuple[EntryPoint, str]]

HEAD = """
from pairmq.memory import MemoryTransport
from pairmq.plugins import ObserverRecord, TransportRecord, hookimpl
from pairmq.transport import Capabilities, Transport

def record(name="sound", schemes=("sound",)):
    return TransportRecord(name, schemes, lambda url: MemoryTransport("memory://" + name), Capabilities())
"""
SOUND = """
@hookimpl
def pairmq_transports():
    yield record()
"""


class Plugin:
    """A plugin registered manually."""

    def __init__(self, *schemes: str, name: str = "made") -> None:
        self.schemes, self.name = schemes, name
        self.urls: list[str] = []

    @hookimpl
    def pairmq_transports(self) -> Iterable[TransportRecord]:
        yield TransportRecord(name=self.name, schemes=self.schemes, factory=self._make, capabilities=Capabilities())

    def _make(self, url: str) -> Transport:
        self.urls.append(url)
        return MemoryTransport(f"memory://{self.name}")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[Install]:
    """Write a plugin's module where it can be imported, and give its entry point."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers, written = itertools.count(), []

    def write(source: str, name: str = "broken", head: str = HEAD) -> tuple[EntryPoint, str]:
        module = f"pairmq_test_plugin_{next(numbers)}"
        (tmp_path / f"{module}.py").write_text(head + dedent(source))
        importlib.invalidate_caches()  # a finder that was used since the folder was made knows it as it was
        written.append(module)
        return EntryPoint(name, module, "pairmq"), f"pairmq-{name} 1.0"

    yield write
    for module in written:
        sys.modules.pop(module, None)


def registry_of(*found: tuple[EntryPoint, str | None]) -> Registry:
    return Registry(lambda: found)


def empty() -> Registry:
    return registry_of()


# ------------------------------------------------------------------------------------------------------ what is found


def test_a_sound_plugin_is_found_with_all_it_brings(install: Install):
    source = """
    @hookimpl
    def pairmq_transports():
        yield record("one", ("one", "ones"))
        yield record("two", ("two",))

    @hookimpl
    def pairmq_observers():
        return [ObserverRecord(name="audit", factory=object)]
    """
    (plugin,) = registry_of(install(source, "both")).plugins
    assert (plugin.name, plugin.distribution, plugin.error) == ("both", "pairmq-both 1.0", None)
    assert [record.name for record in (*plugin.transports, *plugin.observers)] == ["one", "two", "audit"]


def test_without_plugins_there_is_nothing():
    assert (empty().plugins, empty().transports(), empty().observers(), empty().conflicts()) == ((), (), (), ())


@pytest.mark.parametrize("url", ["made://host", "MADE://host", "Made://u:p@host/x?y#z"])
def test_the_transport_of_a_url_is_picked_by_its_scheme_in_any_case(url: str):
    registry = empty()
    registry.register(Plugin("made"))
    registry.register(Plugin("other"))
    assert registry.transport_record(url).schemes == ("made",)


@pytest.mark.parametrize("url", [" made://host", "\tmade://host", "\nmade://host"])
def test_a_url_that_begins_with_a_space_is_refused_for_that(url: str):
    with pytest.raises(ConfigurationError, match="begins with a space"):
        empty().transport_record(url)


def test_a_transport_is_made_of_the_url_as_it_was_given():
    registry, plugin = empty(), Plugin("made")
    registry.register(plugin)
    assert registry.transport("made://u:p@host/x").endpoint.name == "made"
    assert plugin.urls == ["made://u:p@host/x"]


def test_one_transport_may_serve_several_schemes():
    registry = empty()
    registry.register(Plugin("a", "a+tls", "a-1.2"))
    assert {registry.transport_record(f"{scheme}://x").name for scheme in ("a", "a+tls", "a-1.2")} == {"made"}


def test_an_observers_record_makes_observers(install: Install):
    class Audit:
        def on_event(self, event: Any) -> None: ...

        async def close(self) -> None: ...

    assert isinstance(ObserverRecord(name="audit", factory=Audit).factory(), Observer)


# -------------------------------------------------------------------------------------------------------- registering


def test_a_plugin_registered_by_hand_belongs_to_no_distribution():
    registry = empty()
    registry.register(Plugin("made"), name="mine")
    assert [(plugin.name, plugin.distribution) for plugin in registry.plugins] == [("mine", None)]


@pytest.mark.parametrize(
    ("plugin", "name"), [(Plugin("made"), "Plugin"), (SimpleNamespace(__name__="my.module"), "my.module")]
)
def test_a_plugin_registered_without_a_name_is_named_after_itself(plugin: Any, name: str):
    registry = empty()
    registry.register(plugin)
    assert registry.plugins[0].name == name


def test_a_plugin_registered_after_the_first_question_is_found_too():
    registry = empty()
    assert registry.plugins == ()
    registry.register(Plugin("made"))
    assert registry.transport_record("made://x").name == "made"


def test_an_unregistered_plugin_is_gone():
    registry, plugin = empty(), Plugin("made")
    registry.register(plugin)
    registry.unregister(plugin)
    assert registry.plugins == ()


def test_a_plugin_registered_twice_is_one():
    registry, plugin = empty(), Plugin("made")
    registry.register(plugin)
    registry.register(plugin, name="again")
    assert [found.name for found in registry.plugins] == ["Plugin"]
    assert registry.transport_record("made://x").name == "made"


def test_unregistering_leaves_the_others():
    registry, plugin = empty(), Plugin("made")
    registry.register(plugin)
    registry.register(Plugin("other", name="other"))
    registry.unregister(plugin)
    assert [record.name for record in registry.transports()] == ["other"]


def test_unregistering_a_stranger_does_nothing():
    registry = empty()
    registry.unregister(Plugin("made"))
    assert registry.plugins == ()


# ------------------------------------------------------------------------------------------------------------ laziness


def test_nothing_is_looked_for_before_the_first_question():
    asked: list[str] = []

    def find() -> Iterable[tuple[EntryPoint, str | None]]:
        asked.append("asked")
        return ()

    registry = Registry(find)
    registry.register(Plugin("made"))
    assert asked == []
    registry.transports()
    assert asked == ["asked"]


def test_plugins_are_looked_for_once():
    asked: list[str] = []

    def find() -> Iterable[tuple[EntryPoint, str | None]]:
        asked.append("asked")
        return ()

    registry = Registry(find)
    for _ in range(3):
        registry.transports()
        registry.observers()
    assert asked == ["asked"]


def test_the_processs_registry_finds_what_is_installed():
    assert isinstance(process_registry, Registry)
    assert all(isinstance(plugin, PluginInfo) for plugin in process_registry.plugins)


# ------------------------------------------------------------------------------------------------------ broken plugins

BROKEN: dict[str, tuple[str, str]] = {
    "an exception at import": ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
    "SystemExit at import": ("raise SystemExit(3)", "SystemExit: 3"),
    "GeneratorExit at import": ("raise GeneratorExit", "GeneratorExit"),
    "a missing library": ("import pairmq_no_such_library", "ModuleNotFoundError: No module named"),
    "a syntax error": ("def (:", "SyntaxError"),
    "an exception whose text raises": (
        """
        class Nasty(Exception):
            def __str__(self):
                raise RuntimeError
        raise Nasty
        """,
        "Nasty",
    ),
    "a hook that raises": (
        """
        @hookimpl
        def pairmq_transports():
            raise OSError("hook")
        """,
        "OSError: hook",
    ),
    "a hook that raises in mid-way": (
        """
        @hookimpl
        def pairmq_transports():
            yield record()
            raise OSError("half")
        """,
        "OSError: half",
    ),
    "a hook that exits": (
        """
        @hookimpl
        def pairmq_transports():
            raise SystemExit
        """,
        "SystemExit",
    ),
    "a hook that yields nonsense": (
        """
        @hookimpl
        def pairmq_transports():
            yield "redis"
        """,
        "TypeError: a hook yields a str: it must yield TransportRecord",
    ),
    "a hook that yields the other hook's records": (
        """
        @hookimpl
        def pairmq_observers():
            yield record()
        """,
        "TypeError: a hook yields a TransportRecord: it must yield ObserverRecord",
    ),
    "a hook that returns one record instead of several": (
        """
        @hookimpl
        def pairmq_transports():
            return record()
        """,
        "TypeError: a hook returns a TransportRecord: yield each TransportRecord, or return a list",
    ),
    "a hook that returns nothing": (
        """
        @hookimpl
        def pairmq_transports():
            pass
        """,
        "ValueError: it provides neither transports nor observers",
    ),
    "an asynchronous hook": (
        """
        @hookimpl
        async def pairmq_transports():
            yield record()
        """,
        "TypeError: a hook is asynchronous: write it with def",
    ),
    "a hook that is a coroutine": (
        """
        @hookimpl
        async def pairmq_transports():
            return [record()]
        """,
        "TypeError: a hook is asynchronous: write it with def",
    ),
    "a hook with arguments unknown to the specification": (
        """
        @hookimpl
        def pairmq_transports(url):
            yield record()
        """,
        "PluginValidationError",
    ),
    "a hook of an unknown name": (
        """
        @hookimpl
        def pairmq_transport():
            yield record()
        """,
        "PluginValidationError: unknown hook 'pairmq_transport'",
    ),
    "a sound hook beside one of an unknown name": (
        """
        @hookimpl
        def pairmq_transports():
            yield record()

        @hookimpl
        def pairmq_observer():
            yield None
        """,
        "PluginValidationError: unknown hook 'pairmq_observer'",
    ),
    "hooks without their marker": (
        """
        def pairmq_transports():
            yield record()
        """,
        "ValueError: it provides neither transports nor observers: does a hook lack its @hookimpl?",
    ),
    "an empty module": ("", "ValueError: it provides neither"),
    "a transport without a scheme": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=())
        """,
        "ValueError: transport 'sound' serves no URL scheme",
    ),
    "a scheme that is none": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=("ok", "red_is"))
        """,
        "ValueError: transport 'sound': 'red_is' is not a lower-case URL scheme",
    ),
    "a scheme in upper case": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=("Redis",))
        """,
        "ValueError: transport 'sound': 'Redis' is not a lower-case URL scheme",
    ),
    "schemes that are a string": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=("redis"))
        """,
        "TypeError: transport 'sound': schemes is a string: write ('redis',)",
    ),
    "schemes that are an iterator": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=iter(("redis",)))
        """,
        "TypeError: transport 'sound': schemes is a tuple_iterator: write a tuple of strings",
    ),
    "a scheme that is a number": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(schemes=(5,))
        """,
        "ValueError: transport 'sound': 5 is not a lower-case URL scheme",
    ),
    "a scheme of two transports": (
        """
        @hookimpl
        def pairmq_transports():
            yield record("one", ("a", "b"))
            yield record("two", ("b",))
        """,
        "ValueError: transport 'two' serves b://, and so does 'one': leave it to one of them",
    ),
    "a factory that is a name": (
        """
        @hookimpl
        def pairmq_transports():
            yield TransportRecord("sound", ("sound",), "module:Sound", Capabilities())
        """,
        "TypeError: 'sound': factory is a str: give what can be called",
    ),
    "an observer without a factory": (
        """
        @hookimpl
        def pairmq_observers():
            yield ObserverRecord("audit", None, automatic=True)
        """,
        "TypeError: 'audit': factory is a NoneType: give what can be called",
    ),
    "capabilities that are their class": (
        """
        @hookimpl
        def pairmq_transports():
            yield TransportRecord("sound", ("sound",), print, Capabilities)
        """,
        "TypeError: transport 'sound': capabilities is <class 'pairmq.transport._values.Capabilities'>: give",
    ),
    "a description that is none": (
        """
        @hookimpl
        def pairmq_transports():
            yield TransportRecord("sound", ("sound",), print, Capabilities(), None)
        """,
        "TypeError: 'sound': description is a NoneType: give a text",
    ),
    "a name that is a number": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(name=7)
        """,
        "ValueError: the name 7",
    ),
    "a name that is none": (
        """
        @hookimpl
        def pairmq_transports():
            yield record(name="My Redis")
        """,
        "ValueError: the name 'My Redis'",
    ),
}


@pytest.mark.parametrize(("source", "error"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_reported_with_its_error(install: Install, source: str, error: str):
    (plugin,) = registry_of(install(source)).plugins
    assert (plugin.transports, plugin.observers) == ((), ())
    assert str(plugin.error).startswith(error)


@pytest.mark.parametrize("first", [True, False], ids=["broken first", "broken last"])
@pytest.mark.parametrize("source", [source for source, _ in BROKEN.values()], ids=BROKEN)
def test_a_broken_plugin_harms_no_other(install: Install, source: str, first: bool):
    found = [install(source), install(SOUND, "sound")]
    registry = registry_of(*(found if first else reversed(found)))
    assert registry.transport_record("sound://x").name == "sound"


def test_an_entry_point_that_names_nothing_is_reported():
    (plugin,) = registry_of((EntryPoint("gone", "pairmq_no_such_module:plugin", "pairmq"), None)).plugins
    assert str(plugin.error).startswith("ModuleNotFoundError")


def test_a_broken_plugin_registered_by_hand_is_reported():
    registry = empty()
    registry.register(object(), name="mine")
    assert "provides neither" in str(registry.plugins[0].error)


def test_the_user_may_interrupt_a_plugins_import(install: Install):
    with pytest.raises(KeyboardInterrupt):
        registry_of(install("raise KeyboardInterrupt")).transports()


LATE = """
def make(url):
    if not url.partition("://")[2]:
        raise ValueError("no host")
    import pairmq_no_such_library

@hookimpl
def pairmq_transports():
    yield TransportRecord(name="late", schemes=("late",), factory=make, capabilities=Capabilities())
"""


def test_a_transport_whose_library_is_missing_is_refused_by_the_name_of_its_distribution(install: Install):
    registry = registry_of(install(LATE, "late"), install(SOUND, "sound"))
    with pytest.raises(ConfigurationError) as caught:
        registry.transport("LATE://host")
    assert str(caught.value).startswith(
        "no transport for late://: pairmq-late 1.0 is installed but can't be used: ModuleNotFoundError: No module named"
    )
    assert registry.transport("sound://host").endpoint.name == "sound"


def test_a_check_reports_transports_that_lack_a_library_and_no_others(install: Install):
    late = LATE.replace('    if not url.partition("://")[2]:\n        raise ValueError("no host")\n', "")
    registry = registry_of(install(late, "late"), install(LATE, "picky"), install(SOUND, "sound"), install("def (:"))
    assert [str(plugin.error).partition(":")[0] for plugin in registry.plugins[:3]] == ["None"] * 3
    checked = {plugin.name: plugin for plugin in registry.check()}
    assert str(checked["late"].error).startswith("ModuleNotFoundError: No module named")
    assert (checked["late"].distribution, checked["late"].transports) == ("pairmq-late 1.0", ())
    assert [plugin.error for plugin in (checked["picky"], checked["sound"])] == [None, None]
    assert str(checked["broken"].error).startswith("SyntaxError")


FACTORIES = {
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "returns nothing": ("pass", "MadeNoTransport: the factory returns a value of type NoneType: it must return a"),
}


@pytest.mark.parametrize(("body", "error"), FACTORIES.values(), ids=FACTORIES)
@pytest.mark.parametrize("define", ["def", "async def"])
def test_a_check_reports_a_factory_that_makes_no_transport(install: Install, define: str, body: str, error: str):
    make = f"{define} make(url):\n    {body}\n"
    hook = "@hookimpl\ndef pairmq_transports():\n    yield TransportRecord('odd', ('odd',), make, Capabilities())\n"
    odd, sound = registry_of(install(make + hook, "odd"), install(SOUND, "sound")).check()
    awaited = "MadeNoTransport: the factory returns a value of type coroutine: it must return a Transport"
    assert str(odd.error).startswith(awaited if define == "async def" else error)
    assert sound.error is None


def test_what_is_no_transport_is_refused_by_the_name_of_its_distribution(install: Install):
    hook = (
        "@hookimpl\ndef pairmq_transports():\n    yield TransportRecord('odd', ('odd',), str.upper, Capabilities())\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        registry_of(install(hook, "odd")).transport("odd://u:secret@host")
    assert str(caught.value) == (
        "no transport for odd://: pairmq-odd 1.0 is installed but can't be used: "
        "MadeNoTransport: the factory returns a value of type str: it must return a Transport"
    )


DAMAGED = {
    "in another encoding": "[pairmq]\nödd = m\n[pairmq.commands]\nx = m\n".encode("latin-1"),
    "a line without a value": b"[pairmq]\nodd\n[pairmq.commands]\nodd\n",
}


@pytest.mark.parametrize("metadata", ["Name: pairmq-odd\nVersion: 1.0\n", None], ids=["named", "without metadata"])
@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_distribution_whose_entry_points_are_damaged_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, metadata: str | None
):
    folder = tmp_path / "pairmq_odd-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_bytes(text)
    if metadata is not None:
        (folder / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(tmp_path)
    registry = Registry()
    assert registry.transport_record("memory://x").name == "memory"
    (odd,) = (plugin for plugin in registry.plugins if plugin.error)
    assert odd.name == ("pairmq-odd" if metadata else "unknown")
    assert str(odd.error).startswith("ImportError: its entry_points.txt can't be read (")


def test_a_damaged_file_of_a_distribution_that_is_no_plugin_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_bytes("[öther]\nx = m\n".encode("latin-1"))
    monkeypatch.syspath_prepend(tmp_path)
    assert [plugin.name for plugin in Registry().plugins if plugin.error] == []


def test_a_transport_imports_no_client_of_another_and_pairmq_nothing_that_is_not_used():
    program = """
import sys
import pairmq, pairmq.cli
from pairmq.plugins import registry
unused = {"click", "opentelemetry", "pyarrow", "rich", "starlette", "typer"}
print(*sorted(unused & set(sys.modules)), registry._plugins)
registry.transport("memory://one")
print(*sorted({"aio_pika", "aiormq", "azure.servicebus", "fakeredis", "psycopg", "redis"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n\n"


# ------------------------------------------------------------------------------------------------------------ conflicts


def test_two_plugins_that_claim_one_scheme_are_both_named(install: Install):
    registry = registry_of(install(SOUND, "first"))
    registry.register(Plugin("sound"), name="second")
    with pytest.raises(ConfigurationError) as caught:
        registry.transport_record("sound://x")
    assert str(caught.value) == (
        "the scheme sound:// is claimed by two plugins, 'second' (registered manually) and 'first' (pairmq-first 1.0): "
        "uninstall one of them"
    )


def test_two_plugins_of_one_name_are_both_loaded(install: Install):
    registry = registry_of(install(SOUND, "same"), install(SOUND.replace("()\n", "(schemes=('other',))\n"), "same"))
    assert len(registry.plugins) == 2


def test_schemes_that_are_not_claimed_twice_work_beside_a_conflict():
    registry = empty()
    registry.register(Plugin("both", "only"), name="first")
    registry.register(Plugin("both", name="other"), name="second")
    assert registry.transport_record("only://x").name == "made"


def test_conflicts_report_each_scheme_once():
    registry = empty()
    registry.register(Plugin("b", "a", "only"), name="first")
    registry.register(Plugin("a", "b"), name="second")
    assert [text[:16] for text in registry.conflicts()] == ["the scheme a:// ", "the scheme b:// "]


def test_without_a_conflict_none_is_reported():
    registry = empty()
    registry.register(Plugin("a"))
    registry.register(Plugin("b"))
    assert registry.conflicts() == ()


# --------------------------------------------------------------------------------------------------- unknown schemes


@pytest.mark.parametrize(
    ("scheme", "package"),
    [
        ("redis", "pairmq-redis"),
        ("rediss", "pairmq-redis"),
        ("redis+sentinel", "pairmq-redis"),
        ("rediss+cluster", "pairmq-redis"),
        ("fakeredis", "pairmq-redis[fakeredis]"),
        ("amqp", "pairmq-rabbitmq"),
        ("amqps", "pairmq-rabbitmq"),
        ("sb", "pairmq-servicebus"),
    ],
)
def test_the_error_for_a_known_scheme_says_what_to_install(scheme: str, package: str):
    with pytest.raises(ConfigurationError) as caught:
        empty().transport_record(f"{scheme}://host")
    assert str(caught.value) == (
        f"no transport for {scheme}://: install it with: pip install '{package}'; installed: none"
    )


@pytest.mark.parametrize(("scheme", "right"), [("valkey", "redis"), ("rabbitmq", "amqp"), ("pairmqs", "amqps")])
def test_the_error_for_a_product_s_name_names_its_scheme(scheme: str, right: str):
    with pytest.raises(ConfigurationError, match=f"^no transport for {scheme}://: write {right}://; installed: none$"):
        empty().transport_record(f"{scheme}://host")


def test_the_error_for_a_strange_scheme_lists_what_is_there():
    registry = empty()
    registry.register(Plugin("b", "a"))
    with pytest.raises(ConfigurationError) as caught:
        registry.transport_record("kafka://host")
    assert str(caught.value) == "no transport for kafka://; installed: a://, b://"


def test_the_error_for_a_missing_transport_names_the_broken_plugins(install: Install):
    with pytest.raises(ConfigurationError, match=r"broken: redis \(see: pairmq plugins\)"):
        registry_of(install("raise OSError", "redis")).transport_record("redis://host")


def test_the_error_for_a_broken_plugin_says_what_is_broken_and_not_to_install_it(install: Install):
    with pytest.raises(ConfigurationError) as caught:
        registry_of(install("raise OSError('no libfoo')", "redis")).transport_record("redis://host")
    assert "pairmq-redis 1.0 is installed but can't be used: OSError: no libfoo" in str(caught.value)
    assert "pip install" not in str(caught.value)


def test_the_error_for_a_plugin_that_is_not_installed_says_how_to_install_it(install: Install):
    with pytest.raises(ConfigurationError, match="pip install 'pairmq-rabbitmq'"):
        registry_of(install("raise OSError", "redis")).transport_record("amqp://host")


def test_a_connection_string_of_azure_is_recognised_and_not_repeated():
    with pytest.raises(ConfigurationError, match=r"write sb://\?connection-string-env=NAME") as caught:
        empty().transport_record(
            "Endpoint=sb://ns.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=secret="
        )
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "://", "host", "redis:host", "redis:/host", "localhost:6379", "1redis://x", "re dis://x", "réd://x", "x\n://"],
)
def test_a_url_without_a_scheme_is_refused(url: str):
    with pytest.raises(ConfigurationError, match="the broker URL has no scheme: write it as scheme://"):
        empty().transport_record(url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@host",
        "user:hunter2@host:6379",
        "user:hunter2@redis://host",
        "hunter2 ://host",
        "both://user:hunter2@host?password=hunter2",
        "://hunter2",
        "kafka://:hunter2@host",
    ],
)
@pytest.mark.parametrize("ask", [Registry.transport_record, Registry.transport], ids=["record", "transport"])
def test_no_error_repeats_a_password(ask: Callable[[Registry, str], Any], url: str):
    registry = empty()
    registry.register(Plugin("both"), name="first")
    registry.register(Plugin("both"), name="second")
    with pytest.raises(ConfigurationError) as caught:
        ask(registry, url)
    assert "hunter2" not in f"{caught.value!r}"
    assert caught.value.__cause__ is None


# ------------------------------------------------------------------------------------------- what is really installed


def write_distribution(folder: Path, name: str, entry_points: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_an_installed_distributions_plugin_is_found_with_its_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_distribution(tmp_path, "pairmq-test-dist", "[pairmq]\ntested = pairmq_no_such_module\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = [plugin for plugin in Registry().plugins if plugin.name == "tested"]
    assert [plugin.distribution for plugin in found] == ["pairmq-test-dist 1.0"]


def test_a_distribution_that_stands_twice_on_the_path_is_one_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("one", "two"):
        write_distribution(tmp_path / folder, "pairmq-test-dist", "[pairmq]\ntested = pairmq_no_such_module\n")
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert [plugin.name for plugin in Registry().plugins].count("tested") == 1


def test_entry_points_of_other_groups_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_distribution(
        tmp_path, "pairmq-test-dist", "[pairmq.other]\nstranger = os\n\n[console_scripts]\nrun = os:abort\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {plugin.name for plugin in Registry().plugins}.isdisjoint({"stranger", "run"})


def test_a_plugin_unregistered_after_the_first_question_is_gone():
    registry, plugin = empty(), Plugin("made")
    registry.register(plugin)
    assert registry.transports() != ()
    registry.unregister(plugin)
    assert registry.transports() == ()


FORK_WHILE_LOADING = """
import os, signal, sys, threading
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from pairmq.plugins import Registry

began, go_on = threading.Event(), threading.Event()
sys.modules["gates"] = SimpleNamespace(began=began, go_on=go_on)
registry = Registry(lambda: [(EntryPoint("slow", "slow_plugin", "pairmq"), None)])
loader = threading.Thread(target=lambda: registry.plugins)
loader.start()
began.wait()
threading.Timer(0.2, go_on.set).start()
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends it when it hangs
    os._exit(0 if [plugin.name for plugin in registry.plugins] == ["slow"] else 1)
loader.join()
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.real_server  # a program
def test_a_fork_while_another_thread_imports_plugins_leaves_a_child_that_can_use_them(tmp_path: Path) -> None:
    (tmp_path / "slow_plugin.py").write_text("import gates\ngates.began.set()\ngates.go_on.wait()\n")
    program = [sys.executable, "-W", "ignore", "-c", FORK_WHILE_LOADING]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


IMPORTS_IN_A_CIRCLE = """
import sys, threading
from importlib.metadata import EntryPoint
from types import SimpleNamespace
from pairmq.plugins import Registry, _manager

_manager._LOADING_WAITS = 0.1
began, go_on = threading.Event(), threading.Event()
registry = Registry(lambda: [(EntryPoint("own", "own_plugin", "pairmq"), None)])
sys.modules["gates"] = SimpleNamespace(began=began, go_on=go_on, registry=registry)
application = threading.Thread(target=lambda: __import__("application"))
application.start()
began.wait()
loader = threading.Thread(target=lambda: registry.plugins)
loader.start()
threading.Timer(0.2, go_on.set).start()
for thread in (application, loader):
    thread.join()
"""


@pytest.mark.real_server  # a program
def test_an_application_that_uses_plugins_while_it_is_imported_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "application.py").write_text(
        "import gates\ngates.began.set()\ngates.go_on.wait()\ngates.registry.plugins\n"
    )
    (tmp_path / "own_plugin.py").write_text("import application\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    program = [sys.executable, "-c", IMPORTS_IN_A_CIRCLE]
    assert subprocess.run(program, env=environment, capture_output=True, timeout=120, check=False).returncode == 0

"""The registry: finds plugins, isolates the broken ones, and picks the transport of a URL."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pluggy

from pairmq._version import installed, version
from pairmq.model import ConfigurationError
from pairmq.plugins import hookspecs
from pairmq.plugins._records import ObserverRecord, TransportRecord
from pairmq.transport import Capabilities, Transport

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_KNOWN = {
    "amqp": "pairmq-rabbitmq",
    "amqps": "pairmq-rabbitmq",
    "fakeredis": "pairmq-redis[fakeredis]",
    "postgres": "pairmq-postgres",
    "postgresql": "pairmq-postgres",
    "redis": "pairmq-redis",
    "redis+cluster": "pairmq-redis",
    "redis+sentinel": "pairmq-redis",
    "rediss": "pairmq-redis",
    "rediss+cluster": "pairmq-redis",
    "rediss+sentinel": "pairmq-redis",
    "sb": "pairmq-servicebus",
    "sqlite": "pairmq-sqlite",
}

# What people write who know the product, or Celery's URL, and not yet the scheme.
_MEANT = {"pairmq": "amqp", "pairmqs": "amqps", "rabbitmq": "amqp", "valkey": "redis", "valkeys": "rediss"}

# Held while plugins are imported: the child of a fork meanwhile would wait forever for the thread that does it.
_loading = threading.RLock()
_LOADING_WAITS = 5.0  # s: an application's own plugin may be imported by a thread that waits here
_FORK_WAITS = 60.0  # s

Record = TypeVar("Record", TransportRecord, ObserverRecord)


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin as it was found.

    Args:
        name: the entry point's name, or the module's for one registered manually.
        distribution: the installed package and its version; None for one registered manually.
        transports: the transports that it brings.
        observers: the observers that it brings.
        error: why it can't be used, None when it can.
    """

    name: str
    distribution: str | None
    transports: tuple[TransportRecord, ...] = ()
    observers: tuple[ObserverRecord, ...] = ()
    error: str | None = None


class Registry:
    """All plugins of this process; loads them at the first question, never at import.

    A plugin that can't be imported, or whose hooks fail or yield nonsense, is kept in `plugins` with its error and
    harms no other one.

    Args:
        entry_points: gives each entry point with the distribution it belongs to; the installed ones when left out.
    """

    def __init__(self, entry_points: Callable[[], Iterable[tuple[EntryPoint, str | None]]] | None = None) -> None:
        self._find = entry_points or _installed_entry_points
        self._by_hand: list[tuple[str, object]] = []
        self._plugins: tuple[PluginInfo, ...] | None = None

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add a plugin that is not installed, such as a module of your own application; idempotent.

        Args:
            plugin: an object with hook implementations.
            name: its name for people.
        """
        own_name: str = getattr(plugin, "__name__", type(plugin).__name__)
        if all(entry[1] is not plugin for entry in self._by_hand):
            self._by_hand.append((name or own_name, plugin))
            self._plugins = None

    def unregister(self, plugin: object) -> None:
        """Remove one that was added with `register`."""
        self._by_hand = [entry for entry in self._by_hand if entry[1] is not plugin]
        self._plugins = None

    @property
    def plugins(self) -> tuple[PluginInfo, ...]:
        """Every plugin found, the broken ones too."""
        if self._plugins is None:
            with _importing():
                # Another thread may have loaded them meanwhile.
                if self._plugins is None:
                    self._plugins = tuple(self._load())
        return self._plugins

    def check(self) -> tuple[PluginInfo, ...]:
        """Give every plugin as `plugins` does, after each transport has imported what it needs.

        A plugin of which one can't be imported is broken, with the error of that import.
        """
        return tuple(map(_with_imports, self.plugins))

    def transports(self) -> tuple[TransportRecord, ...]:
        """The transports of all sound plugins."""
        return tuple(record for plugin in self.plugins for record in plugin.transports)

    def observers(self) -> tuple[ObserverRecord, ...]:
        """The observers of all sound plugins."""
        return tuple(record for plugin in self.plugins for record in plugin.observers)

    def transport_record(self, url: str) -> TransportRecord:
        """Find the transport that serves a URL's scheme.

        Args:
            url: ``scheme://…``; only the scheme is used, and nothing else of it appears in errors.

        Raises:
            ConfigurationError: no scheme, no plugin for it (the text says what to install), or two of them.
        """
        scheme, separator, _ = url.partition("://")
        scheme = scheme.lower()
        if not separator or not _SCHEME.fullmatch(scheme):
            if url.lower().startswith("endpoint=sb://"):  # what the Azure portal shows, key included
                raise ConfigurationError(
                    "a connection string of Azure Service Bus is not a URL: put it into a variable of the environment, "
                    "and write sb://?connection-string-env=NAME"
                )
            if scheme != scheme.lstrip():
                raise ConfigurationError("the broker URL begins with a space or control character: remove it")
            raise ConfigurationError(
                "the broker URL has no scheme: write it as scheme://…, e.g. redis://127.0.0.1:6379/0"
            )
        owners = [
            (plugin, record) for plugin in self.plugins for record in plugin.transports if scheme in record.schemes
        ]
        if len(owners) > 1:
            names = " and ".join(f"{p.name!r} ({p.distribution or 'registered manually'})" for p, _ in owners)
            raise ConfigurationError(
                f"the scheme {scheme}:// is claimed by two plugins, {names}: uninstall one of them"
            )
        if not owners:
            raise ConfigurationError(self._missing(scheme))
        return owners[0][1]

    def transport(self, url: str) -> Transport:
        """Make the transport of a URL; no IO.

        Raises:
            ConfigurationError: as `transport_record`, or the URL itself can't work.
        """
        record = self.transport_record(url)
        try:
            return _made(record, url)
        except (ImportError, MadeNoTransport) as error:
            owner = next((plugin for plugin in self.plugins if record in plugin.transports), None)
            raise ConfigurationError(
                f"no transport for {url.partition('://')[0].lower()}://: "
                f"{(owner and owner.distribution) or record.name} is installed but can't be used: {described(error)}"
            ) from error

    def conflicts(self) -> tuple[str, ...]:
        """Name every scheme that two plugins claim, one sentence each."""
        found = []
        for scheme in sorted({s for record in self.transports() for s in record.schemes}):
            try:
                self.transport_record(f"{scheme}://")
            except ConfigurationError as error:
                found.append(str(error))
        return tuple(found)

    def _missing(self, scheme: str) -> str:
        known = sorted({s for record in self.transports() for s in record.schemes})
        text = f"no transport for {scheme}://"
        wanted = _KNOWN.get(scheme, "")
        broken = {plugin.name: plugin for plugin in self.plugins if plugin.error}
        culprit = next((p for p in broken.values() if wanted and _is_of(p, wanted)), None)
        if culprit is not None:
            # Installed once more it would be as broken: its error says what is wrong.
            text += f": {culprit.distribution} is installed but can't be used: {culprit.error}"
        elif wanted:
            text += f": install it with: pip install '{wanted}'"
        elif scheme in _MEANT:
            text += f": write {_MEANT[scheme]}://"
        text += f"; installed: {', '.join(f'{s}://' for s in known) or 'none'}"
        if broken:
            text += f"; broken: {', '.join(broken)} (see: pairmq plugins)"
        return text

    def _load(self) -> Iterable[PluginInfo]:
        for name, plugin in self._by_hand:
            yield _inspect(name, None, lambda plugin=plugin: plugin)  # type: ignore[misc]  # mypy can't infer the default
        for entry_point, distribution in self._find():
            yield _inspect(entry_point.name, distribution, entry_point.load)


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    held = _loading.acquire(timeout=_LOADING_WAITS)
    try:
        yield
    finally:
        if held:
            _loading.release()


_fork_holds = threading.local()


def _before_fork() -> None:
    _fork_holds.loading = _loading.acquire(timeout=_FORK_WAITS)


def _after_fork() -> None:
    if _fork_holds.loading:
        _loading.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _installed_entry_points() -> Iterable[tuple[EntryPoint, str | None]]:
    from importlib.metadata import EntryPoint  # slow to import, and nothing is installed until asked

    yield EntryPoint("memory", "pairmq.plugins._builtin", hookspecs.PROJECT), f"pairmq {version()}"
    seen = set()
    for distribution in installed(hookspecs.PROJECT):
        label = f"{distribution.name} {distribution.version}"
        if distribution.error is not None:
            yield cast("EntryPoint", _Unreadable(distribution.name, distribution.error)), label
        for entry_point in distribution.entry_points:
            # The same distribution can stand twice on sys.path (an editable install beside a built one).
            if (entry_point.name, entry_point.value) not in seen:
                seen.add((entry_point.name, entry_point.value))
                yield entry_point, label


@dataclass(frozen=True)
class _Unreadable:
    """Stands for the entry points of a distribution whose file is damaged."""

    name: str
    error: Exception

    def load(self) -> object:
        raise ImportError(
            f"its entry_points.txt can't be read ({described(self.error)}): install the distribution again"
        )


def _is_of(plugin: PluginInfo, requirement: str) -> bool:
    """Whether a plugin was brought by what ``pip install`` calls so."""
    name = (plugin.distribution or "").partition(" ")[0]
    return re.sub(r"[-_.]+", "-", name).lower() == requirement.partition("[")[0]


def _inspect(name: str, distribution: str | None, load: Callable[[], object]) -> PluginInfo:
    """Load one plugin in a manager of its own, so that nothing that it does reaches another."""
    try:
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(load(), name=name)
        manager.check_pending()
        transports = _records(manager.hook.pairmq_transports(), TransportRecord)
        observers = _records(manager.hook.pairmq_observers(), ObserverRecord)
        if not transports and not observers:
            raise ValueError("it provides neither transports nor observers: does a hook lack its @hookimpl?")
        _check_transports(transports)
    except BaseException as error:  # a plugin may fail in any way at all, SystemExit at import included
        if isinstance(error, KeyboardInterrupt):
            raise
        return PluginInfo(name, distribution, error=described(error))
    return PluginInfo(name, distribution, transports, observers)


def _with_imports(plugin: PluginInfo) -> PluginInfo:
    """Make a transport of a URL that names no host: most refuse it, after their imports."""
    for record in plugin.transports:
        try:
            _made(record, f"{record.schemes[0]}://")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # most are about that URL; SystemExit and its like never are
            if isinstance(error, ImportError | MadeNoTransport) or not isinstance(error, Exception):
                return PluginInfo(plugin.name, plugin.distribution, error=described(error))
    return plugin


class MadeNoTransport(TypeError):
    """A plugin's factory returned something else."""


def _made(record: TransportRecord, url: str) -> Transport:
    with _importing():
        made: object = record.factory(url)
    if isinstance(made, Transport):
        return made
    if inspect.iscoroutine(made):
        made.close()  # or Python warns that it was never awaited
    raise MadeNoTransport(f"the factory returns a value of type {type(made).__name__}: it must return a Transport")


def described(error: BaseException) -> str:
    """What a plugin raised, in words."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # a plugin's exception is a plugin's code too
        return name


def _records(answers: Iterable[Any], kind: type[Record]) -> tuple[Record, ...]:
    found: list[Record] = []
    for answer in answers:
        if inspect.iscoroutine(answer) or inspect.isasyncgen(answer):
            if inspect.iscoroutine(answer):
                answer.close()  # or Python warns that it was never awaited
            raise TypeError("a hook is asynchronous: write it with def")
        if isinstance(answer, kind) or not isinstance(answer, Iterable):
            raise TypeError(f"a hook returns a {type(answer).__name__}: yield each {kind.__name__}, or return a list")
        for record in answer:
            if not isinstance(record, kind):
                raise TypeError(f"a hook yields a {type(record).__name__}: it must yield {kind.__name__}")
            name: object = record.name
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise ValueError(f"the name {name!r}: use lower-case letters, digits, - and _")
            if not callable(record.factory):
                kind_of_factory = type(record.factory).__name__
                raise TypeError(f"{record.name!r}: factory is a {kind_of_factory}: give what can be called")
            if not isinstance(record.description, str):
                raise TypeError(f"{record.name!r}: description is a {type(record.description).__name__}: give a text")
            found.append(record)
    return tuple(found)


def _check_transports(records: Sequence[TransportRecord]) -> None:
    taken: dict[str, str] = {}
    for record in records:
        what, schemes = f"transport {record.name!r}", cast(object, record.schemes)
        if not isinstance(record.capabilities, Capabilities):
            raise TypeError(f"{what}: capabilities is {record.capabilities!r}: give a Capabilities(…)")
        if isinstance(schemes, str):  # each letter of it would pass for a scheme
            raise TypeError(f"{what}: schemes is a string: write ({schemes!r},)")
        if not isinstance(schemes, Collection):  # an iterator is used up by the first look
            raise TypeError(f"{what}: schemes is a {type(schemes).__name__}: write a tuple of strings")
        if not schemes:
            raise ValueError(f"{what} serves no URL scheme")
        for scheme in schemes:
            if not (isinstance(scheme, str) and _SCHEME.fullmatch(scheme)):
                raise ValueError(f"{what}: {scheme!r} is not a lower-case URL scheme")
            if taken.setdefault(scheme, record.name) != record.name:
                raise ValueError(f"{what} serves {scheme}://, and so does {taken[scheme]!r}: leave it to one of them")


registry = Registry()
"""The process's registry."""

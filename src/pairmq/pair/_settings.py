"""Where a pair's settings come from: arguments, then ``PAIRMQ_*`` variables, then a TOML file's ``[pair]`` table."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pairmq.core import OPTION_NAMES, PairOptions
from pairmq.model import ConfigurationError, Entity, EntityKind
from pairmq.plugins import Registry, registry
from pairmq.transport import Transport

PREFIX = "PAIRMQ_"
"""Prefix of environment variables: ``PAIRMQ_FAILOVER_INTERVAL=10``."""

_TEXTS = ("primary", "secondary", "journal")
"""Settings that are not options of the pair."""

_LISTS = ("observers",)
"""Likewise, and lists of names."""

_ALIKE = 0.85  # of two names, from 0 to 1: a letter or two are wrong, or one word is missing

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}
_TRUE = frozenset(("1", "true", "yes", "on"))
_FALSE = frozenset(("0", "false", "no", "off"))
_DEFAULTS = {entry.name: entry.default for entry in fields(PairOptions)}


class ObserverName(str):
    """The name of an observer, and ``where`` the settings have it, for errors."""

    where = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything needed to make a pair."""

    primary: str = field(repr=False)  # the primary's URL; may hold a password, so it is left out of the repr
    secondary: str = field(repr=False)  # the secondary's URL, likewise
    options: PairOptions  # how the pair behaves
    journal: str | None = None  # the directory of the journal, None for no journal
    observers: tuple[str, ...] = ()  # names of observers that watch the pair


def load_settings(
    *,
    primary: str | None = None,
    secondary: str | None = None,
    journal: str | None = None,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Merge a pair's settings: arguments override the environment, which overrides the file.

    Args:
        primary: the primary's URL; else ``PAIRMQ_PRIMARY``, else ``primary`` in the file.
        secondary: likewise.
        journal: the journal's directory; else ``PAIRMQ_JOURNAL``, else ``journal`` in the file, else none.
        config: a TOML file with a ``[pair]`` table; else the one that ``PAIRMQ_CONFIG`` names, else none.
        environ: the environment. Default: the process's.
        overrides: options by name, in their own types; None values are ignored. In the environment durations are
            seconds, or ``500ms``, ``10s``, ``5min``, ``1h``; lists are separated by commas.

    Returns:
        The settings.

    Raises:
        ConfigurationError: a value, a name or the file is invalid, or a URL is missing; says which and what to do.
    """
    environ = os.environ if environ is None else environ
    path = config or environ.get(f"{PREFIX}CONFIG") or None
    table = _read(path)
    # Where settings come from, for errors.
    origins = {name: f"settings file {_shown(path or '')}: [pair] {name}" for name in table}
    values: dict[str, Any] = {name: _own_type(name, value, origins[name]) for name, value in table.items()}
    for name in (*_TEXTS, *OPTION_NAMES):
        text = environ.get(PREFIX + name.upper())
        if text:
            origins[name] = PREFIX + name.upper()
            values[name] = text if name in _TEXTS else _parse(name, text, origins[name])
    for name in _LISTS:
        values[name] = named_in_environment(environ) or _checked_names(
            name, values.get(name, ()), f"settings file {_shown(path or '')}: [pair] {name}"
        )
    arguments = {"primary": primary, "secondary": secondary, "journal": journal, **(overrides or {})}
    given = {name: value for name, value in arguments.items() if value is not None}
    values.update(given)
    try:
        return _checked(values)
    except ConfigurationError as error:
        name, _, problem = str(error).partition(" ")
        if name in given or name not in origins:
            raise
        raise ConfigurationError(f"{origins[name]} {problem}") from None


def _checked(values: dict[str, Any]) -> Settings:
    """Make settings of merged values; an error about one begins with its name."""
    urls = []
    for side in ("primary", "secondary"):
        url = values.pop(side, None)
        if url is not None and not isinstance(url, str):
            raise ConfigurationError(f"{side} is a value of type {type(url).__name__}: it must be a URL, in quotes")
        if not url:
            raise ConfigurationError(
                f"no {side} broker: give its URL as an argument, in {PREFIX}{side.upper()}, or in the [pair] table "
                f"of a file, e.g. {side} = 'redis://127.0.0.1:6379/0'"
            )
        urls.append(url)
    directory = values.pop("journal", None)
    check_directory(directory)
    observers = values.pop("observers")
    unknown = sorted(set(values) - set(OPTION_NAMES))
    if unknown:
        raise ConfigurationError(f"unknown option {', '.join(unknown)}: known are {', '.join(OPTION_NAMES)}")
    return Settings(urls[0], urls[1], PairOptions(**values), directory, observers)


def misspelt_variables(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Find ``PAIRMQ_`` variables that are probably misspelt settings, each with the name that was probably meant.

    Names unlike any setting are ignored: they may be a plugin's.
    """
    known = [PREFIX + name.upper() for name in ("config", *_TEXTS, *_LISTS, *OPTION_NAMES)]
    strange = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    meant = ((name, difflib.get_close_matches(name, known, 1, _ALIKE)) for name in strange)
    return tuple((name, names[0]) for name, names in meant if names)


def named_in_environment(environ: Mapping[str, str] | None = None) -> tuple[ObserverName, ...]:
    """The observers named in ``PAIRMQ_OBSERVERS``, separated by commas."""
    variable = f"{PREFIX}OBSERVERS"
    text = (os.environ if environ is None else environ).get(variable, "")
    return tuple(_observer_name(name, variable) for part in text.split(",") if (name := part.strip()))


def _observer_name(name: str, where: str) -> ObserverName:
    named = ObserverName(name)
    named.where = where
    return named


def check_directory(journal: object) -> None:
    """Reject values that can't be the journal's directory; the password of a URL would end up in a directory's name."""
    if isinstance(journal, str) and "://" in journal:
        raise ConfigurationError("journal is a URL: it must be the path of a directory")
    if journal is not None and not isinstance(journal, str):
        raise ConfigurationError(
            f"journal is a value of type {type(journal).__name__}: it must be the path of a directory"
        )


def transports_at(
    primary: str | Transport, secondary: str | Transport, plugins: Registry = registry
) -> tuple[Transport, Transport]:
    """Make the transports of two URLs; an error names the side, as both may be of one product."""

    def made(side: str, url: str | Transport) -> Transport:
        try:
            return url if isinstance(url, Transport) else plugins.transport(url)
        except ConfigurationError as error:
            raise ConfigurationError(f"{side}: {error}") from error

    return made("primary", primary), made("secondary", secondary)


def check_distinct(primary: Transport, secondary: Transport) -> None:
    """Reject a pair of one broker with itself (SPEC 9.3)."""
    if primary is secondary or primary.endpoint.is_same_broker(secondary.endpoint):
        raise ConfigurationError(
            f"primary and secondary are the same broker ({primary.endpoint}): pair two that can fail independently"
        )


def check_available(options: PairOptions, secondary: Transport) -> None:
    """Reject anything but options, and options that the secondary can't support.

    ``ordering="session"`` needs backlog queues with one consumer at a time, and a secondary that reports what is
    settled (SPEC 8.2, 8.3).
    """
    given: object = options  # by a caller without types
    if not isinstance(given, PairOptions):
        raise ConfigurationError(
            f"options is a value of type {type(given).__name__}: give PairOptions(...), or options by their names"
        )
    if options.ordering == "session" and not secondary.capabilities.ordered_consumer:
        raise ConfigurationError(
            f"ordering='session' can't be kept with {secondary.endpoint} as the secondary: its transport can't read a "
            "queue with one consumer at a time, or can't report which messages are settled; use one with the "
            "capability ordered_consumer, such as Redis or RabbitMQ, or ordering='none'"
        )


def check_destination(entity: Entity, options: PairOptions, primary: Transport) -> None:
    """Reject entities to which no syphon with these options delivers: not among ``allowed_entities``, the primary's
    own, or with the name of a backlog queue. What is diverted would be accepted and then dead-lettered (SPEC 5.8)."""
    if not options.allows(entity.path):
        patterns = ", ".join(repr(pattern) for pattern in options.allowed_entities)
        raise ConfigurationError(
            f"entity {entity} is not among the allowed_entities {patterns}: what an outage diverts from it would never "
            "reach the primary; add it, in the settings of the syphon's process too"
        )
    if options.is_backlog_queue(entity.path):
        raise ConfigurationError(
            f"entity {entity} has the name of a backlog queue, where the syphon delivers nothing: name the destination "
            f"entity, or choose another backlog_name_template than {options.backlog_name_template!r}"
        )
    if primary.admin.is_system_entity(entity):
        raise ConfigurationError(
            f"entity {entity} is internal to the broker, and the syphon delivers nothing there: "
            "send to it without a pair"
        )


def check_continuity(entity: Entity, options: PairOptions) -> None:
    """Reject topics among what ``continuity`` names: a message that one subscription's consumer read from a lane would
    be missing from the other subscriptions, or doubled in them (SPEC 11.6)."""
    if entity.kind is EntityKind.TOPIC and options.continues(entity.path):
        raise ConfigurationError(
            f"continuity names {entity}: a message that one subscription's consumer reads from a lane would be missing "
            "from the other subscriptions, or doubled in them; use patterns that match queues only"
        )


def chosen_queues(queues: object, options: PairOptions) -> frozenset[int] | None:
    """Check the choice of backlog queues for a syphon; None is all of them."""
    if queues is None:
        return None
    if not options.enable_syphon:
        raise ConfigurationError("syphon_queues is given, but enable_syphon is off")
    chosen = tuple(queues) if isinstance(queues, Iterable) else ()
    if not chosen or any(type(index) is not int or not 0 <= index < options.backlog_queue_count for index in chosen):
        raise ConfigurationError(
            f"syphon_queues must hold some of the indexes 0 to {options.backlog_queue_count - 1} of the backlog queues"
        )
    return frozenset(chosen)


def parse_duration(text: str) -> float:
    """Read ``10``, ``10s``, ``500ms``, ``5min``, ``1h`` or ``2d`` as seconds. Raises `ConfigurationError`."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ConfigurationError(f"invalid duration {_shown(text, repr)}; use e.g. 10, 10s, 500ms, 5min, 1h or 2d")
    return float(match[1]) * _UNITS[match[2]]


def _read(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    if path is None:
        return {}
    given: object = path  # by a caller without types
    if not isinstance(given, str | os.PathLike):
        raise ConfigurationError(f"config is a value of type {type(given).__name__}: give the path of a TOML file")
    import tomllib  # few programs have a settings file

    try:
        document = tomllib.loads(Path(path).read_text("utf-8-sig"))  # editors on Windows put a mark in front
    except OSError as error:
        raise ConfigurationError(f"settings file {_shown(path)}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, and a path that can't be
        raise ConfigurationError(f"settings file {_shown(path)} is not valid TOML: {error}") from None
    _check_tables(document, path)
    table = document.get("pair", {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"settings file {_shown(path)}: [pair] must be a table")
    known = (*_TEXTS, *_LISTS, *OPTION_NAMES)
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigurationError(
            f"settings file {_shown(path)}: unknown {', '.join(map(_shown, unknown))} in [pair]; "
            f"known are {', '.join(known)}"
        )
    return table


def _check_tables(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Refuse a file that nothing would be read of, or whose [pair] is misspelt: the environment would decide alone.

    Other tables beside [pair] may be another program's.
    """
    known = (*_TEXTS, *_LISTS, *OPTION_NAMES)
    loose = sorted(name for name in document if name in known)
    if loose:
        raise ConfigurationError(
            f"settings file {_shown(path)}: {', '.join(loose)} before any table: write [pair] in a line above"
        )
    others = sorted(document.keys() - {"pair"})
    alike = [name for name in others if difflib.get_close_matches("pair", [name.lower()], 1, _ALIKE)]
    if alike or (document and "pair" not in document):
        tables = ", ".join(f"[{_shown(name)}]" for name in (alike or sorted(document)))
        raise ConfigurationError(
            f"settings file {_shown(path)}: nothing reads {tables}: the table of a pair's settings is named [pair]"
        )


def _checked_names(name: str, value: Any, where: str) -> tuple[str, ...]:
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return tuple(_observer_name(each, where) for each in value)
    raise ConfigurationError(f"{where} must be a list of names, e.g. {name} = ['opentelemetry']")


def _shown(text: str | os.PathLike[str], how: Callable[[str], str] = str) -> str:
    """What a person wrote, for an error; a URL in the wrong place may hold a password."""
    text = os.fspath(text)
    return "a URL" if "://" in text else how(text if len(text) <= 200 else f"{text[:40]}…")


def _own_type(name: str, value: Any, where: str) -> Any:
    """TOML has arrays where options have tuples, and people like to write durations with their unit."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, str) and isinstance(_DEFAULTS.get(name), float):
        return _parse(name, value, where)
    return value


def _parse(name: str, text: str, where: str) -> Any:
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise ConfigurationError(f"{where} is {_shown(text, repr)}: it must be true or false")
    if isinstance(default, float):
        try:
            return parse_duration(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    if isinstance(default, int) or default is None:
        try:
            return float(text) if default is None else int(text)
        except ValueError:
            raise ConfigurationError(f"{where} is {_shown(text, repr)}: it must be a number") from None
    if isinstance(default, tuple):
        parts = tuple(part.strip() for part in text.split(",") if part.strip())
        if not parts:
            raise ConfigurationError(f"{where} is {_shown(text, repr)}: it must name at least one, separated by commas")
        return parts
    return text
